"""Deletes the records before an offset, for retention and for DeleteRecords.  The order of the steps:

1. Flush, and raise the high watermark, if needed: the log start offset is never above the high watermark.
2. Store a snapshot of the producers that covers the removed segments: it replaces the headers of their batches.
3. Store the new log start offset durably, and publish it.
4. Flush the names of the remaining segments, if they are new.
5. Remove the files; a worker in the middle of a sendfile keeps its open files.

A full disk prevents only the removal of the active segment, which needs room for the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from ...log import Log
from ...reserve import with_reserve
from .producers import Producers


def delete_before(
    log: Log, producers: Producers, offset: int, flush: Callable[[], None], show: Callable[[], None]
) -> int:
    """Move the log start offset to ``offset``, at most to the log end offset; return how many files were removed.

    Args:
        flush: waits until everything written is flushed and published, and the flusher is idle.
        show: publishes the log's segments and its start.

    Raises:
        DiskFull: files are left; the next call removes them.
        StorageFault: the disk fails.
    """
    offset = min(offset, log.end_offset)
    covered = producers.covers(log.first_base(offset))
    if offset > min(log.high_watermark, log.flushed) or not covered:
        flush()
    if not covered:
        with_reserve(log.path.parent, producers.store_all)
    log.retire_before(offset)
    show()
    if log.must_flush_to_unlink:
        flush()
    return log.unlink_retired()

"""Deletes what lies before an offset, for retention and for DeleteRecords.  The order of the steps:

1. Flush and show what is not flushed yet of what goes: a log starts at no offset that readers have not been shown.
2. Have the producers' snapshot cover the segments that go: it is all that will be known of their batches.
3. Store the new start durably, and show it to readers.
4. Flush the names of the segments that stay, if they are new.
5. Remove the files; a worker in mid-sendfile keeps its open ones.

A full disk stops none of it but the removal of the active segment, which needs room for the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from ...log import Log
from .producers import Producers


def delete_before(
    log: Log, producers: Producers, offset: int, flush: Callable[[], None], show: Callable[[], None]
) -> int:
    """Let ``log`` start at ``offset``, at most at its end; returns how many files went.

    Args:
        flush: wait until all that is written is flushed and shown, and nothing else is being flushed.
        show: show readers the log's segments and its start.

    Raises:
        DiskFull: files are left; the next call removes them.
        StorageFault: the disk fails.
    """
    offset = min(offset, log.end_offset)
    covered = producers.covers(log.first_base(offset))
    if offset > min(log.high_watermark, log.flushed) or not covered:
        flush()
    if not covered:
        producers.store_all()
    log.retire_before(offset)
    show()
    if log.must_flush_to_unlink:
        flush()
    return log.unlink_retired()

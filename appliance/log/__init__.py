"""One partition's files: append, flush, roll, retire, recover, read, repair.  No sockets, no shared memory.

Words:

- A *log* is the bytes of a partition from its first to its last record batch; an *offset* counts these bytes.
- It consists of *segments*, files of about ``segment.bytes`` named after the offset of their first byte.  The last one
  is *active*, the others are *sealed* and never change.  A *position* is a byte in such a file.
- Beside each segment lies a sparse *index* that can be rebuilt.
- The log is written to the page cache up to its *log end offset*, and flushed to the disk up to the *flushed offset*.
  Readers may read up to the *high watermark*.

Files:

    <base:020d>.log              record batches, one after the other (``segment``)
    <base:020d>.index            which batch contains an offset, which is the first at a time (``index``)
    partition.metadata           the id of the topic whose log it is (``partition_directory``)
    recovery-point               what may be trusted after a crash (``recovery``)
    clean-shutdown               an ordered stop: nothing to recover (``recovery``)
    <base:020d>.log.cut-<pos>    what recovery truncated although valid batches followed
    <base:020d>.log.broken       a segment as it was before ``repair``

Only one process may write them (:class:`Log`); any number may read (:class:`LogReader`), also while that one
is being restarted.
"""

from .flush_ticket import FlushTicket
from .log import Log
from .reader import FileCache, LogReader
from .recovery import LogSummary, peek

__all__ = ["FileCache", "FlushTicket", "Log", "LogReader", "LogSummary", "peek"]

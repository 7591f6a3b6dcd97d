"""Stores one partition's log in files: append, flush, roll, retire, recover, read, repair.

Uses no sockets and no shared memory.

Words:

- A *log* is the bytes of a partition from its first to its last record batch; an *offset* counts these bytes.
- It consists of *segments*, files of about ``segment.bytes``, named after the offset of their first byte.  The last one
  is *active*.  The others are *sealed* and never change.  A *position* is a byte in such a file.
- Each segment has a sparse *index*, which can be rebuilt from it.
- The log is written to the page cache up to its *log end offset* and flushed to the disk up to the *flushed offset*.
  Readers may read up to the *high watermark*.

Files::

    <base:020d>.log                  record batches, one after the other (``segment``)
    <base:020d>.index                finds batches by offset and by time (``index``)
    partition.metadata               the id of the topic (``partition_directory``)
    recovery-point                   up to where to trust the log after a crash (``recovery``)
    clean-shutdown                   present after an ordered stop: nothing to recover (``recovery``)
    <base:020d>.log.cut-<pos>        a tail with valid batches that recovery or repair truncated
    <base:020d>.log.damaged-<pos>    bytes before ``repair`` changed them
    <name>.compacted                 what compaction has written, until the writer puts it in place (``compaction``)
    compaction                       how far compaction is

One process writes these files (:class:`Log`).  Any number of processes may read them (:class:`LogReader`), also while
the writer restarts.
"""

from .flush_ticket import FlushTicket
from .log import Log
from .reader import FileCache, LogReader
from .recovery import LogSummary, check_kept, peek

__all__ = ["FileCache", "FlushTicket", "Log", "LogReader", "LogSummary", "check_kept", "peek"]

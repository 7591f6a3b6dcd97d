"""Compacts a log: of each key, the last message stays, and its offset.

Offsets are byte positions, and stay so: a compacted segment has the length that it had.  What stays of a stretch of
batches (a *window*) becomes one batch at the end of it, which ends behind its last record, and holes
(``records.holes``) take the place of what stood before.  The file is sparse, so holes take no room on the disk, and
readers leave them out.  So nothing that finds batches by position knows of compaction.  Windows are as long as
WINDOW_BYTES, so that small batches far from each other still free whole blocks.

A hole has at least HEADER_BYTES.  Where less is left before a batch, it is padded; where less is left behind its last
record, it ends where the next one begins.  The offset of a hole must not be that of a record.  Where nothing of that
fits, batches are not joined, and a batch for which it does not fit either stays as it is: its messages are *kept back*.

One pass (:func:`run_pass`) goes in two steps through the log before ``limit``:

1. The offset of the last message of each key from the *dirty start*, where the pass before has ended, to at most
   KEYS_MAX different keys (:func:`last_offsets`).
2. Each segment is written anew without the messages that have a later one of their key
   (:meth:`LogCompactor.compact_segment`).

A message without a value (a *tombstone*) deletes its key.  It goes itself in a pass at least ``delete.retention.ms``
after the first pass that has seen it, so that readers get to know of the deletion; ``CompactionState`` has the times of
passes.  As long as an older message of its key is kept back, or there is a batch before it that cannot be read, it
stays.

A message without a key, from a time when the topic was not compacted, goes as in Kafka.  A batch whose records cannot
be read stays as it is.  The last message of the log stays as well: its end is where readers end.

Of transactions only what is decided is compacted: ``limit`` is not above the last stable offset.  Messages of aborted
ones go, and are not the last of their key.  Batches of committed ones become such that are part of no transaction, so
markers of commits go, too: no reader needs them, and the same follows from the log without them, since they only go
where the batches of a transaction have changed, or come later in the same pass.  Markers of aborts stay, with their
entries in the index (``log.transactions``): a client takes a producer for aborted up to the marker.  They are few.

A segment is replaced in these steps, each durable before the next; the writer takes the last ones (:meth:`.Log.swap`)::

    <base>.log.compacted is written, then <base>.index.compacted
    <base>.index is removed: recovery makes a missing index anew
    <base>.log.compacted becomes <base>.log
    <base>.index.compacted becomes <base>.index

Source: Kafka's log compaction; KIP-534 (the time of tombstones).
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import compress, pairwise, repeat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ..durable_files import SYSTEM, File, System, remove_file, replace_file, write_at
from ..errors import ClientFault, StorageFault
from ..records.batch import CODEC_MASK, HEADER_BYTES, TRANSACTIONAL, BatchHeader, restamp
from ..records.compression import NONE
from ..records.holes import emptied, is_hole
from ..records.keyed import BatchPlace, KeyedRecord, join, keyed_batch
from ..records.markers import is_marker, read_marker
from .files import COMPACTED_SUFFIX, COMPACTION_STATE, compacted_path, index_path, log_path
from .index import Builder, entry_in
from .index import ends as index_ends
from .index_check import IndexCheck
from .recovery import check_retired, read_index
from .segment import headers, scan
from .transactions import Outcomes

KEYS_MAX: Final = 500_000
"""Different keys that one pass knows: about 100 MB.  A log with more takes several passes."""
WINDOW_BYTES: Final = 16 << 20
"""Longest stretch of a log whose messages may become one batch."""
JOINED_BYTES_MAX: Final = 256 << 10
"""A window ends when its messages have so many bytes, and a batch as large is not joined with others."""
SMALL_BYTES_MAX: Final = 16 << 10
"""A batch of at most so many bytes, from which nothing goes, is joined with its neighbours, if there is a gap."""
UNPACKED_BYTES_MAX: Final = 64 << 20
RECORD_BYTES: Final = 16
"""What a record takes beside its key, value and headers, at most."""
PASSES_MAX: Final = 100
HOLE_FRONT_BYTES: Final = 256
"""Behind these, a hole has zeros only: its header and its reason stand in the first half of them."""
WHOLE_KEY_BYTES_MAX: Final = 40
"""Keys up to here are kept as they are: a UUID has 36 bytes in text, and a digest takes longer than all else."""
DIGEST_BYTES: Final = 16

CompactionPace = Callable[[int], None]
"""Called after each piece with its number of bytes: waits as long as the rate demands."""


class Policy(NamedTuple):
    """What a pass is told.

    ``limit``: a base of a segment, which and all behind it stay as they are; not above the last stable offset.
    ``tombstones_ms``: tombstones go that a pass has seen which had ended by then.  ``now_ms``: the time, by the same
    clock.
    """

    limit: int
    tombstones_ms: int
    now_ms: int
    batch_bytes_max: int
    interval_bytes: int


Swap = Callable[[int], bool]
"""Lets the writer put the new file of the segment with this base in its place; False if the segment has gone."""


class CompactionState(msgspec.Struct):
    """The file ``compaction`` of a partition.  Without it, compaction begins anew."""

    dirty_start: int = 0
    """Up to here the log holds one message of each key, not counting what follows, and what was kept back."""
    keys_start: int = 0
    """Where the next pass begins to look at keys: before the first message that was kept back."""
    passes: list[tuple[int, int]] = []
    """The offset up to which each pass has come, and when it ended (ms), ascending."""
    tombstones: int = 0
    """Messages without a value that were left, at least those of the last pass; 0: there are none to be removed."""
    ended_ms: int = 0
    """When the last pass ended, by the clock of ``passes``."""
    kept_back: int = 0
    """Messages that should have gone in the last pass, but for which no hole had room."""
    unreadable: int = 0
    """Batches whose records the last pass could not read."""

    @classmethod
    def load(cls, directory: Path) -> CompactionState:
        try:
            return msgspec.json.decode((directory / COMPACTION_STATE).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return cls()

    def store(self, directory: Path, system: System = SYSTEM) -> None:
        replace_file(directory / COMPACTION_STATE, msgspec.json.encode(self) + b"\n", system=system)

    def seen_before(self, ms: int) -> int:
        """The offset before which everything was seen by a pass that had ended at ``ms``."""
        return max((end for end, ended_ms in self.passes if ended_ms <= ms), default=0)

    def note_pass(self, end: int, now_ms: int) -> None:
        """Note a pass up to ``end``.  Of too many the first is forgotten: what it has seen, others have seen later."""
        if not self.passes or end > self.passes[-1][0]:
            self.passes.append((end, now_ms))
        if len(self.passes) > PASSES_MAX:
            del self.passes[0]
        self.dirty_start = max(self.dirty_start, end)

    def cut(self, end: int) -> None:
        """Forget what lies behind ``end``, where the log is cut: no pass has seen what will be written there."""
        self.dirty_start, self.keys_start = min(self.dirty_start, end), min(self.keys_start, end)
        passes, self.passes = self.passes, []
        for seen, ended_ms in passes:
            self.note_pass(min(seen, end), ended_ms)


class KeyDigests:
    """Names of keys that are all short: what is longer than WHOLE_KEY_BYTES_MAX has the digest as its name."""

    def __init__(self) -> None:
        self._secret = os.urandom(DIGEST_BYTES)  # nobody can make two keys of the same name

    def names(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        if max(map(len, keys), default=0) <= WHOLE_KEY_BYTES_MAX:
            return keys
        return [key if len(key) <= WHOLE_KEY_BYTES_MAX else self._digest(key) for key in keys]

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=DIGEST_BYTES, key=self._secret).digest()


class LastOffsets(NamedTuple):
    """The offset of the last message of each key, by its name, and the offset up to which that holds."""

    by_key: Mapping[bytes, int]
    end: int


def batches(
    directory: Path, bases: Sequence[int], start: int, stop: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yields offset, header and bytes of each batch that ends behind ``start`` and begins before ``stop``.

    ``bases`` has one from ``stop`` on.

    Raises:
        StorageFault: a segment is damaged, or cannot be read.
    """
    for base, limit in pairwise(bases):
        if base >= stop:
            return
        file = _opened(directory, base, limit) if limit > start else None
        if file is not None:
            for position, header, data in scan(file, base, 0, limit - base):
                if base + position >= stop:
                    return
                if base + position + header.size > start:
                    yield base + position, header, data


def last_offsets(
    directory: Path,
    bases: Sequence[int],
    start: int,
    stop: int,
    keys: KeyDigests,
    pace: CompactionPace,
    keys_max: int = KEYS_MAX,
) -> LastOffsets:
    """The offsets of the last messages of all keys in [start, stop), or in a part of it with ``keys_max`` keys."""
    offsets: dict[bytes, int] = {}
    outcomes = _outcomes_by_segment(directory, bases)
    for at, header, data in batches(directory, bases, start, stop):
        if is_hole(header) or is_marker(header) or outcomes(at).is_aborted(header, at):
            continue
        if len(offsets) >= keys_max:
            # A compacted one has offsets before its position.
            return LastOffsets(offsets, min(at, at + header.size - header.span))
        with contextlib.suppress(ClientFault):
            batch = keyed_batch(data, header, at + header.size - header.span, UNPACKED_BYTES_MAX)
            pairs: Iterable[tuple[bytes, int]] = zip(keys.names(batch.keys), batch.offsets, strict=True)
            if keyless := batch.keyless:
                pairs = (pair for number, pair in enumerate(pairs) if number not in keyless)
            offsets.update(pairs)
        pace(header.size)
    return LastOffsets(offsets, stop)


def _outcomes_by_segment(directory: Path, bases: Sequence[int]) -> Callable[[int], Outcomes]:
    """A function that tells the outcomes of the segment that contains an offset; ``bases`` has one behind it."""

    @functools.lru_cache(1)
    def read_outcomes(number: int) -> Outcomes:
        return Outcomes(directory, bases[number], bases[number + 1])

    return lambda offset: read_outcomes(bisect_right(bases, offset) - 1)


class CompactionRules(NamedTuple):
    """What goes from a log."""

    last: LastOffsets
    tombstones_before: int
    """Tombstones before this offset were seen long enough ago."""
    last_batch_end: int
    """The last message of the batch that ends here is that of the log, and stays; 0: there are others behind."""


class PassCounts(msgspec.Struct):
    """What a pass has done; ``disk_bytes``: that the segments took before and take now."""

    removed: int = 0
    first_kept_back: int | None = None
    tombstones: int = 0
    kept_back: int = 0
    unreadable: int = 0
    segments: int = 0
    disk_bytes_before: int = 0
    disk_bytes: int = 0


class _Slot(NamedTuple):
    """A batch of the old segment, at [start, stop) of the log.

    ``records``: those that stay; None: the batch stays as it is.  ``removed``: how many do not stay.  ``tombstones``:
    how many of those that stay have no value.
    """

    start: int
    stop: int
    header: BatchHeader
    data: bytes
    records: list[KeyedRecord] | None
    removed: int = 0
    tombstones: int = 0
    is_unreadable: bool = False


class LogCompactor:
    """Compacts the segments of one log in order; ``counts`` adds up what was done."""

    def __init__(
        self,
        directory: Path,
        rules: CompactionRules,
        keys: KeyDigests,
        *,
        batch_bytes_max: int,
        interval_bytes: int,
        pace: CompactionPace,
        system: System,
    ) -> None:
        self._directory, self._rules, self._keys = directory, rules, keys
        self._joined_bytes_max = min(JOINED_BYTES_MAX, batch_bytes_max)
        self._interval_bytes, self._pace, self._system = interval_bytes, pace, system
        self._held: set[bytes] = set()
        """Names of keys of which a message was kept back: their tombstones have to stay."""
        self.counts = PassCounts()

    def compact_segment(self, base: int, limit: int) -> int | None:
        """Write the segment [base, limit) anew, beside the old one, if something goes from it.

        Returns:
            The number of records in it, holes included; None if it stays as it is, and nothing was written.

        Raises:
            StorageFault: it is damaged.  OSError: the disk fails, or is full.
        """
        source = _opened(self._directory, base, limit)
        if source is None:
            return None
        path = compacted_path(log_path(self._directory, base))
        status, removed = os.fstat(source.fd), self.counts.removed
        try:
            target = _Target(self._make(path), base, limit, self._system)
            self._copy(source, target, Outcomes(self._directory, base, limit))
            if self.counts.removed == removed and not target.is_other:
                remove_file(path, self._system)
                return None
            os.utime(target.file.fd, ns=(status.st_atime_ns, status.st_mtime_ns))  # retention judges by it
            self._system.fdatasync(target.file.fd)
            count = self._write_index(target.file, base, limit)  # last: without it, the writer leaves the log alone
        except (StorageFault, OSError):
            remove_file(path, self._system)
            remove_file(compacted_path(index_path(self._directory, base)), self._system)
            raise
        self.counts.segments += 1
        self.counts.disk_bytes_before += status.st_blocks * 512
        self.counts.disk_bytes += os.fstat(target.file.fd).st_blocks * 512
        return count

    def _make(self, path: Path) -> File:
        return File(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self._system)

    def _copy(self, source: File, target: _Target, outcomes: Outcomes) -> None:
        """Go through the batches of a segment."""
        window: list[_Slot] = []
        window_bytes = 0
        for position, header, data in scan(source, target.base, 0, target.limit - target.base):
            start = target.base + position
            stop = start + header.size
            self._pace(header.size)
            if is_hole(header) or self._goes(target, start, header, data, outcomes):
                continue
            if is_marker(header):
                self._write_window(target, window)
                window, window_bytes = [], 0
                target.write(start, bytes(data))
                continue
            if header.attributes & TRANSACTIONAL:
                header = restamp(data, 0, header, header.max_timestamp, header.attributes & ~TRANSACTIONAL)
                target.is_other = True
            slot = self._judged(start, stop, header, bytes(data))
            slot_bytes = sum(RECORD_BYTES + len(record.rest) for record in slot.records or ())
            is_full = stop - window[0].start > WINDOW_BYTES if window else False
            if window and (slot.records is None or is_full or window_bytes + slot_bytes > self._joined_bytes_max):
                self._write_window(target, window)
                window, window_bytes = [], 0
                slot = self._judged_again(slot)
            self.counts.unreadable += slot.is_unreadable
            if slot.records is not None and (window or slot.removed or start > target.end):
                window.append(slot)
                window_bytes += slot_bytes
            else:
                self.counts.tombstones += slot.tombstones
                target.write(start, slot.data)
        self._write_window(target, window)
        target.fill(target.limit)

    def _goes(self, target: _Target, start: int, header: BatchHeader, data: memoryview, outcomes: Outcomes) -> bool:
        """Whether a batch goes for what has become of its transaction."""
        if outcomes.is_aborted(header, start):
            self.counts.removed += header.count
            return True
        if is_marker(header) and read_marker(data).committed and start + header.size != self._rules.last_batch_end:
            target.is_other = True
            return True
        return False

    def _judged(self, start: int, stop: int, header: BatchHeader, data: bytes) -> _Slot:
        """A batch, with those of its records that stay.  A large one of which all stay is not joined, but copied."""
        try:
            batch = keyed_batch(memoryview(data), header, stop - header.span, UNPACKED_BYTES_MAX)
        except ClientFault:
            return _Slot(start, stop, header, data, None, is_unreadable=True)
        names, offsets = self._keys.names(batch.keys), batch.offsets
        newest = map(self._rules.last.by_key.get, names, repeat(-1))
        kept: Sequence[int] = list(compress(range(len(offsets)), map(operator.ge, offsets, newest)))
        keyless, valueless = batch.keyless, batch.valueless
        if keyless or valueless:
            last = len(offsets) - 1 if stop == self._rules.last_batch_end else -1
            kept = [
                number
                for number in kept
                if number == last
                or offsets[number] >= self._rules.last.end
                or (
                    number not in keyless
                    and (number not in valueless or self._tombstone_stays(offsets[number], names[number]))
                )
            ]
        removed = len(offsets) - len(kept)
        tombstones = len(valueless.intersection(kept))
        if not removed and header.size > SMALL_BYTES_MAX:
            return _Slot(start, stop, header, data, None, 0, tombstones)
        return _Slot(start, stop, header, data, batch.records(kept), removed, tombstones)

    def _judged_again(self, slot: _Slot) -> _Slot:
        """The batch, judged with what was kept back meanwhile: without that, it would be judged as it was."""
        return self._judged(slot.start, slot.stop, slot.header, slot.data) if self._held else slot

    def _tombstone_stays(self, offset: int, name: bytes) -> bool:
        if offset >= self._rules.tombstones_before:
            return True
        return name in self._held or self.counts.unreadable > 0  # an older message of its key may be there

    def _write_window(self, target: _Target, window: Sequence[_Slot]) -> None:
        """Write what stays of a window: as one batch, if that fits, else batch by batch."""
        if not window:
            return
        records = [record for slot in window for record in slot.records or ()]
        removed = sum(slot.removed for slot in window)
        if not records or (len(window) > 1 and self._joined(target, window, records)):
            self.counts.removed += removed
            self.counts.tombstones += sum(slot.tombstones for slot in window)
            return
        for slot in window:
            self._write_alone(target, self._judged_again(slot))

    def _joined(self, target: _Target, window: Sequence[_Slot], records: Sequence[KeyedRecord]) -> bool:
        """Write these records as one batch at the end of the window; False if that does not fit."""
        first, last = records[0], records[-1]
        place = BatchPlace(first.offset, first.timestamp, _end(last.offset + 1, window[-1].stop))
        batch = _fitting(records, window[-1].header.attributes & CODEC_MASK, place, target.end)
        if batch is None or len(batch) > max(self._joined_bytes_max, *(slot.header.size for slot in window)):
            return False
        target.write(place.end - len(batch), batch)
        return True

    def _write_alone(self, target: _Target, slot: _Slot) -> None:
        """Write what stays of one batch; all of it, if there is no room for a hole."""
        records = slot.records
        if slot.removed and not records:
            self.counts.removed += slot.removed
            return
        batch = slot.data if not slot.removed else None
        end = slot.stop
        if batch is None and records:
            end = _end(records[-1].offset + 1, slot.stop)
            place = BatchPlace(slot.stop - slot.header.span, slot.header.first_timestamp, end)
            batch = _fitting(records, slot.header.attributes & CODEC_MASK, place, target.end)
        if batch is not None:
            self.counts.removed += slot.removed
            self.counts.tombstones += slot.tombstones
            target.write(end - len(batch), batch)
            return
        self._keep_back(slot)
        target.write(slot.start, slot.data)

    def _keep_back(self, slot: _Slot) -> None:
        """Note that records of a batch stay which should have gone."""
        stays = {record.offset for record in slot.records or ()}
        data, base_offset = memoryview(slot.data), slot.stop - slot.header.span
        batch = keyed_batch(data, slot.header, base_offset, UNPACKED_BYTES_MAX)
        self.counts.tombstones += len(batch.valueless)
        for number, (name, offset) in enumerate(zip(self._keys.names(batch.keys), batch.offsets, strict=True)):
            if offset not in stays:
                self.counts.kept_back += 1
                if self.counts.first_kept_back is None:
                    self.counts.first_kept_back = slot.start
                if number not in batch.keyless:
                    self._held.add(name)

    def _write_index(self, target: File, base: int, limit: int) -> int:
        """Write the index of a new segment; return its number of records, holes included."""
        entry = entry_in(read_index(self._directory, base), 0)
        first = entry.records if entry is not None and entry.offset == base else 0
        builder = Builder(b"", base, first, self._interval_bytes)
        for _, header, _ in scan(target, base, 0, limit - base):  # no file takes the place of a log that is not sound
            builder.batch(header.size, header.count, header.max_timestamp)
        builder.finish(sealed=True)
        index = self._make(compacted_path(index_path(self._directory, base)))
        write_at(index.fd, builder.rest, 0, self._system)
        self._system.fdatasync(index.fd)
        return builder.records - first


class _Target:
    """The new file of a segment, written in order.

    ``end``: the offset before which it is whole.  ``is_other``: it differs although all messages stay.
    """

    def __init__(self, file: File, base: int, limit: int, system: System) -> None:
        self.file, self.base, self.limit, self._system = file, base, limit, system
        self.end, self.is_other = base, False
        system.ftruncate(file.fd, limit - base)

    def write(self, offset: int, batch: bytes) -> None:
        """Write a batch, and holes before it."""
        self.fill(offset)
        write_at(self.file.fd, batch, offset - self.base, self._system)
        self.end = offset + len(batch)

    def fill(self, offset: int) -> None:
        """Write holes up to ``offset``.  Their zeros are not written, so they take no room."""
        if offset == self.end:
            return
        at = self.end
        for hole in emptied(at, offset - at):
            write_at(self.file.fd, hole[:HOLE_FRONT_BYTES].rstrip(b"\0"), at - self.base, self._system)
            at += len(hole)
        self.end = offset


def _end(behind_last: int, stop: int) -> int:
    """Where a batch ends whose last record is before ``behind_last``, and behind which the next one is at ``stop``."""
    return behind_last if stop - behind_last >= HEADER_BYTES else stop


def _fitting(records: Sequence[KeyedRecord], codec: int, place: BatchPlace, end: int) -> bytes | None:
    """A batch of these records that leaves room for holes, or none at all, behind ``end``; None if that cannot be."""
    batch = join(records, codec, place)
    bytes_left = place.end - end - len(batch)
    if bytes_left > 0 and records[0].offset == end:  # clients go on behind the offset of the holes, which is this one
        return None
    if bytes_left == 0 or bytes_left >= HEADER_BYTES:
        return batch
    if codec == NONE and bytes_left > 0:
        batch = join(records, codec, place, bytes_left)
        return batch if len(batch) == place.end - end else None
    return None


def _opened(directory: Path, base: int, limit: int) -> File | None:
    """The file of the segment [base, limit); None if retention has removed it.

    Raises:
        SegmentMissing: somebody else has.
    """
    path = log_path(directory, base)
    try:
        return File(path)
    except FileNotFoundError:
        check_retired(path, limit)
        return None


def remove_unfinished(directory: Path, system: System = SYSTEM) -> None:
    """Remove what a pass that was cut off has left."""
    for path in directory.glob(f"*{COMPACTED_SUFFIX}"):
        remove_file(path, system)


def run_pass(
    directory: Path,
    bases: Sequence[int],
    end: int,
    policy: Policy,
    swap: Swap,
    pace: CompactionPace,
    *,
    keys_max: int = KEYS_MAX,
    system: System = SYSTEM,
) -> PassCounts:
    """Compact a log once, and store in its directory what was done.

    Args:
        bases: of its segments; ``end``: its log end offset.

    Raises:
        StorageFault: a segment is damaged, or cannot be read.
        OSError: the disk fails, or is full.
    """
    remove_unfinished(directory, system)
    state, keys = CompactionState.load(directory), KeyDigests()
    state.store(directory, system)  # before anything is replaced: see recovery.counts_before
    sealed = [(base, stop) for base, stop in pairwise(bases) if stop <= policy.limit]
    dirty_start, keys_start = (min(max(at, bases[0]), policy.limit) for at in (state.dirty_start, state.keys_start))
    last = last_offsets(directory, bases, keys_start, policy.limit, keys, pace, keys_max)
    tombstones_before = state.seen_before(policy.tombstones_ms)
    if keys_start < dirty_start and last.end <= dirty_start < policy.limit:  # too many keys: do not stand still
        last = last_offsets(directory, bases, dirty_start, policy.limit, keys, pace, keys_max)
        tombstones_before = 0  # older messages of their keys may have been kept back
    else:
        keys_start = last.end
    rules = CompactionRules(last, tombstones_before, _last_batch_end(directory, bases) if bases[-1] == end else 0)
    compactor = LogCompactor(
        directory,
        rules,
        keys,
        batch_bytes_max=policy.batch_bytes_max,
        interval_bytes=policy.interval_bytes,
        pace=pace,
        system=system,
    )
    replaced: dict[int, int] = {}
    for base, stop in sealed:
        if base < last.end:
            count = compactor.compact_segment(base, stop)
            if count is not None and swap(base):
                replaced[base] = count
    _count_anew(directory, bases, replaced, pace)
    counts = compactor.counts
    # Where this pass has not come, those may be that passes before have seen.
    behind = state.tombstones if last.end < max(policy.limit, state.dirty_start) else 0
    state.tombstones = max(counts.tombstones, behind)
    state.note_pass(last.end, policy.now_ms)
    state.ended_ms = policy.now_ms
    state.keys_start = min(keys_start, last.end if counts.first_kept_back is None else counts.first_kept_back)
    state.kept_back, state.unreadable = counts.kept_back, counts.unreadable
    state.store(directory, system)
    return counts


def _last_batch_end(directory: Path, bases: Sequence[int]) -> int:
    """The end of the last batch that is no hole, in a log whose active segment is empty; 0 without one."""
    for base, stop in reversed(list(pairwise(bases))):
        file, end = _opened(directory, base, stop), 0
        for position, header in headers(file, base, 0, stop - base) if file is not None else ():
            if not is_hole(header):
                end = base + position + header.size
        if end:
            return end
    return 0


def _count_anew(directory: Path, bases: Sequence[int], replaced: Mapping[int, int], pace: CompactionPace) -> None:
    """Let the indexes before the last replaced segment count the records that there are now.

    They count up to what the index behind it says, which stays: so the removed ones are before the first segment.
    """
    check = IndexCheck(directory, bases, lambda: True, pace)
    for base, following in pairwise(bases):
        first, last = index_ends(index_path(directory, base)) or (None, None)
        if base in replaced:
            check.note_count(base, replaced[base])
        elif first is not None and last is not None and last.offset == following:
            check.note_count(base, last.records - first.records)
    if replaced:
        check.finish()

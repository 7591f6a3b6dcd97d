"""The scrubber reads all logs slowly, round after round, and reports damage, which the inspector then looks at.

A round goes through the partitions by name.  It begins ``scrub.every_ms`` after the begin of the one before, or when
that one has ended.  A partition in which anybody has found damage is read first: where one batch is damaged, more are.
The rate is ``scrub.bytes_per_second`` over all partitions.  The scrubber has the lowest priority of processor and disk,
and reads only below the high watermark.  It writes to nothing but index files of sealed segments that are wrong, also
those of aborted transactions.  An index follows from the batches, so that is no damage, and its writer does not touch
it any more.  What the writer still touches is compared, too (:class:`DerivedCheck`), and told.

The file ``scrub.json`` in the data directory keeps where it is: a scrubber that is started again goes on
there.  :class:`Scrubbing` is the supervisor's side.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, assert_never

import msgspec

from ... import libc
from ...broker.sequences import ProducersSnapshot
from ...clock import wall_s
from ...config import Config
from ...disk_settings import Scrub
from ...durable_files import replace_data_file
from ...errors import ApplianceError, StorageFault, WriterGone
from ...log.aborted_check import AbortedIndexCheck, WrongAborted
from ...log.files import COMPACTION_STATE, index_path
from ...log.index import ANY_INTERVAL, ENTRY_BYTES, Builder, entry_in
from ...log.index_check import IndexCheck, MendedIndex
from ...log.recovery import read_index
from ...log.scrub import scrub
from ...names import TopicPartition
from ...records.batch import CONTROL, SEQUENCE_MASK, BatchHeader
from ...shared import memory
from ...shared.heartbeats import Heart
from ...shared.table import SegmentTable, TableSnapshot
from ...status import read_state
from ..control import Channel
from ..messages import TO_SCRUBBER, DamageSuspected, FilesChanged, Reload, ScrubSoon, Stop, Unreceivable
from ..writer.producers import load
from .actions import Actions
from .children import Children
from .roles import Process, Role

logger = logging.getLogger(__name__)

T = TypeVar("T")

FILE_NAME: Final = "scrub.json"
IDLE_S: Final = 60.0
"""How long the scrubber waits for a message when it has nothing to read, before it looks at the clock."""
SAVE_S: Final = 30.0
"""How often it stores where it is."""
NICE: Final = 19
PRODUCERS_MAX: Final = 100_000
"""Producers whose last batch is remembered; of more, those that were silent longest are not compared."""


class Scrubbing:
    """The scrubber as a child."""

    def __init__(self, config: Config, data_dir: Path, children: Children, actions: Actions) -> None:
        self._config, self._data_dir = config, data_dir
        self.role = Role("scrubber", "start the scrubber", children, actions, self._prepare, stays=True)

    def _prepare(self, _: str) -> Process:
        return Process(partial(run, self._config, self._data_dir), "scrubber")

    def scrub_soon(self, partition: TopicPartition) -> None:
        """Let the scrubber read a partition before all others: some of it is damaged."""
        self.role.send("", ScrubSoon(partition))

    def reload(self, config: Config) -> None:
        self._config = config
        self.role.send("", Reload(config))


class _Stopped(Exception):
    """The appliance stops."""


class ScrubProgress(msgspec.Struct):
    """The content of ``scrub.json``.  The round goes on at ``offset`` of the partition ``name``; "" when it is over."""

    begun_s: float = 0.0
    name: str = ""
    offset: int = 0


def run(config: Config, data_dir: Path, control: Channel, heart: Heart) -> int:
    take_lowest_priority()
    with heart.working():
        Scrubber(config.scrub, data_dir, control).run()
    return 0


def take_lowest_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    libc.take_idle_disk_priority()


class Contradiction(NamedTuple):
    """Something that is known otherwise than the batches say, and what derives it again."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


class DerivedCheck:
    """Compares what a log that is written to is known by with its batches, while the scrubber reads them.

    What is derived on the way in has to be what recovery derives: the index of the active segment up to the high
    watermark, the number of records up to there, which the table has, and the stored state of idempotent producers.
    The scrubber mends none of it: it is the writer's.  ``tests/support/derived.py`` compares more, of a log that stands
    still.

    Call :meth:`on_batch` for each batch, in the order of the log, then :meth:`contradictions`.
    """

    def __init__(self, directory: Path, bases: Sequence[int], end: int, stored: ProducersSnapshot | None) -> None:
        """``end``: the high watermark; ``stored``: the snapshot of producers, read before the batches."""
        self._directory, self._active, self._end, self._stored = directory, bases[-1], end, stored
        self._builder: Builder | None = None
        self._before: int | None = None
        self._last: dict[int, tuple[int, int, int | None]] = {}
        """Of each producer, where its last batch below the end of the snapshot stops, its epoch, the next sequence."""
        if self._active == end:
            self._begin()

    def on_batch(self, start: int, header: BatchHeader) -> None:
        """Note the batch that begins at offset ``start``."""
        if start == self._active:
            self._begin()
        builder, stop = self._builder, start + header.size
        if builder is not None and builder.offset == start:
            builder.batch(header.size, header.count, header.max_timestamp)
        if self._stored is not None and header.producer_id >= 0 and stop <= self._stored.end:
            self._last.pop(header.producer_id, None)
            following = (header.base_sequence + header.count) & SEQUENCE_MASK
            is_data = not header.attributes & CONTROL and header.base_sequence >= 0
            self._last[header.producer_id] = stop, header.producer_epoch, following if is_data else None
            if len(self._last) > PRODUCERS_MAX:
                del self._last[next(iter(self._last))]

    def _begin(self) -> None:
        """Begin the active segment with the entries of its index that are final."""
        index = read_index(self._directory, self._active)
        entries = [entry_in(index, at) for at in range(0, len(index) - ENTRY_BYTES + 1, ENTRY_BYTES)]
        final = max(
            (number + 1 for number, entry in enumerate(entries) if entry and entry.offset <= self._end), default=0
        )
        first = entries[0] if entries else None
        self._before = None if first is None or first.offset != self._active else first.records
        self._builder = Builder(index[: final * ENTRY_BYTES], self._active, self._before or 0, ANY_INTERVAL)

    def contradictions(self, records: int | None) -> Iterator[Contradiction]:
        """What is known otherwise than the batches say.

        Args:
            records: those up to the high watermark, by the table; None: the log has grown meanwhile.
        """
        builder = self._builder
        if builder is not None and builder.offset == self._end:
            builder.finish(sealed=False)
            path = index_path(self._directory, self._active)
            if builder.wrong_at is not None:
                text = f"{path}:{builder.wrong_at}: the index contradicts its segment"
                yield Contradiction(text, f"`appliance log repair {self._directory.name}` makes it anew")
            elif records is not None and self._before is not None and records != builder.records:
                text = f"it has {builder.records} records up to {self._end}, and is said to have {records}"
                yield Contradiction(text, "a restart counts them again")
        for producer_id, entry in () if self._stored is None else self._stored.entries:
            epoch, following, last = entry[0], entry[1], entry[5]
            stop, of_batch, next_one = self._last.get(producer_id, (last, epoch, following))
            differs = stop == last and (of_batch != epoch or next_one not in (None, following))
            if stop > last or differs:
                ours, theirs = (epoch, following, last), (of_batch, next_one, stop)
                text = f"producer {producer_id} is stored with epoch, next sequence and end {ours}, and wrote {theirs}"
                yield Contradiction(text, "a writer that ends stores them again")


class Scrubber:
    """The loop.  ``clock_s`` cannot be set."""

    def __init__(
        self, settings: Scrub, data_dir: Path, control: Channel, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._control = control
        self._clock_s = clock_s
        self._progress = _load(data_dir / FILE_NAME)
        self._soon: dict[str, None] = {}
        """Partitions to be read first."""
        self._reads_soon = False
        self._saved_s = self._free_s = clock_s()
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def run(self) -> None:
        """Scrub until the supervisor says stop, or is gone."""
        try:
            while True:
                self._read_soon()
                if self._due_s() <= 0:
                    self._round()
                self._wait(min(max(0.0, self._due_s()), IDLE_S))
        except _Stopped:
            self._save()

    def _due_s(self) -> float:
        """How long the next round, or the rest of one, has to wait."""
        if not self._settings.bytes_per_second:
            return IDLE_S
        if self._progress.name:
            return 0
        every_s = self._settings.every_ms / 1000
        return min(every_s, self._progress.begun_s + every_s - wall_s())  # the clock may have been ahead then

    def _round(self) -> None:
        """One round, or the rest of one that a restart has interrupted."""
        progress = self._progress
        if not progress.name:
            progress.begun_s = wall_s()
        for name in self._served():
            if name >= progress.name:
                start = progress.offset if name == progress.name else 0
                progress.name, progress.offset = name, start
                self._read_soon()
                self._partition(name, start)
        progress.name, progress.offset = "", 0
        self._save()

    def _served(self) -> list[str]:
        """The partitions that are served now, by name."""
        state = read_state(self._data_dir)
        return [] if state is None else sorted(state["tables"].keys() - state["offline"].keys())

    def _table_name(self, name: str) -> str:
        """The name of the table of a partition, which no other one ever has; "" when it is not served."""
        state = read_state(self._data_dir)
        if state is None or name in state["offline"]:
            return ""
        table_name: str = state["tables"].get(name, "")
        return table_name

    def _read_table(self, table_name: str, read: Callable[[SegmentTable], T]) -> T | None:
        """What ``read`` makes of a table; None when it is gone, or the name is ""."""
        if not table_name:
            return None
        try:
            mapped = memory.attach(table_name, writable=False)
            with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
                return read(SegmentTable(cells))
        except (OSError, WriterGone):
            return None

    def _snapshot(self, table_name: str) -> TableSnapshot | None:
        """What is readable of the partition with this table; None when that is gone, or the name is ""."""
        return self._read_table(table_name, SegmentTable.snapshot)

    def _records(self, table_name: str, end: int) -> int | None:
        """The records of the partition with this table up to the high watermark, if that is ``end``."""
        return self._read_table(table_name, lambda table: table.records if table.high_watermark == end else None)

    def _partition(self, name: str, start: int) -> None:
        table_name = self._table_name(name)
        seen = self._snapshot(table_name)
        if seen is None:
            return
        if start < seen.bases[0] or start > seen.high_watermark:
            start = seen.bases[0]
        self._progress.offset = start
        self._read(name, table_name, seen, start, self._go_on)

    def _read(self, name: str, table_name: str, seen: TableSnapshot, start: int, pace: Callable[[int], None]) -> None:
        """Read a partition from ``start`` on, mend its indexes, and report what is damaged."""
        topic, _, partition = name.rpartition("-")
        directory, end = self._data_dir / name, seen.high_watermark

        def may_write() -> bool:
            """Not when it is repaired, and not in the directory of a later topic of this name."""
            return self._table_name(name) == table_name and self._snapshot(table_name) is not None

        check = IndexCheck(directory, seen.bases, may_write, self._pace)
        aborted = AbortedIndexCheck(directory, seen.bases, end, may_write)
        records = self._records(table_name, end)
        derived = DerivedCheck(directory, seen.bases, end, _stored_producers(directory))

        def on_batch(start: int, header: BatchHeader) -> None:
            check.on_batch(start, header)
            aborted.on_batch(start, header)
            derived.on_batch(start, header)

        try:
            for damaged in scrub(directory, seen.bases, end, start, end, pace, on_batch):
                self._control.send(DamageSuspected(TopicPartition(topic, int(partition)), damaged.start, damaged.stop))
            check.finish()
            aborted.finish()
        except (StorageFault, OSError) as error:
            logger.error("%s cannot be scrubbed: %s", name, error)
        self._tell_mended(name, [*check.mended, *aborted.mended])
        if may_write():
            same = records if records == self._records(table_name, end) else None
            for contradiction in derived.contradictions(same):
                logger.error("%s is known otherwise than its batches say: %s", name, contradiction)
        if aborted.wrong is not None:
            logger.error(
                "%s: the index of its aborted transactions is wrong: %s; it is made anew when its segment is full, or"
                " by `appliance log repair %s`",
                *(name, aborted.wrong, name),
            )

    def _read_soon(self) -> None:
        """Read the partitions that are to be read first, unless that is being done, or scrubbing is off."""
        while self._soon and not self._reads_soon and self._settings.bytes_per_second:
            name = next(iter(self._soon))
            table_name = self._table_name(name)
            seen = self._snapshot(table_name)
            self._reads_soon = True
            try:
                if seen is not None:
                    self._read(name, table_name, seen, seen.start, self._pace)
            finally:
                self._reads_soon = False
            self._soon.pop(name, None)

    def _go_on(self, size: int) -> None:
        """Note how far the round is, and wait until the rate allows to read on."""
        self._progress.offset += size
        self._pace(size)
        self._read_soon()

    def _pace(self, size: int) -> None:
        """Wait until the rate allows to read on."""
        now_s = self._clock_s()
        self._free_s = max(self._free_s, now_s) + size / max(1, self._settings.bytes_per_second)
        self._wait(0)
        while (left_s := self._free_s - self._clock_s()) > 0 or not self._settings.bytes_per_second:
            self._wait(min(left_s, IDLE_S) if self._settings.bytes_per_second else IDLE_S)
        if self._clock_s() - self._saved_s >= SAVE_S:
            self._save()

    def _wait(self, seconds: float) -> None:
        """Handle messages of the supervisor, waiting for the first one."""
        self._poll.poll(seconds * 1000)
        for message, _ in self._control.receive(TO_SCRUBBER):
            match message:
                case Reload(config):
                    self._settings = config.scrub
                case ScrubSoon(partition):
                    self._soon[str(partition)] = None
                case Stop():
                    raise _Stopped
                case Unreceivable():
                    raise AssertionError(message)  # nothing for it has a descriptor
                case _:
                    assert_never(message)
        if self._control.closed:
            raise _Stopped

    def _tell_mended(self, name: str, mended: Sequence[MendedIndex | WrongAborted]) -> None:
        """Readers forget what they remember of index files that were wrong."""
        for index in mended:
            logger.warning("%s: an index was wrong, and is made anew from its segment: %s", name, index)
        if mended:
            topic, _, partition = name.rpartition("-")
            self._control.send(FilesChanged(TopicPartition(topic, int(partition))))

    def _save(self) -> None:
        self._saved_s = self._clock_s()
        try:
            replace_data_file(self._data_dir / FILE_NAME, msgspec.json.encode(self._progress))
        except ApplianceError as error:  # it begins again after a restart
            logger.warning("%s", error)


def _stored_producers(directory: Path) -> ProducersSnapshot | None:
    """The stored state of a partition's producers, if it is to be compared; compaction changes their batches."""
    try:
        return None if (directory / COMPACTION_STATE).exists() else load(directory)
    except StorageFault:
        return None


def _load(path: Path) -> ScrubProgress:
    """The progress; that of a beginning when there is no valid file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScrubProgress)
    except (OSError, msgspec.MsgspecError):
        return ScrubProgress()

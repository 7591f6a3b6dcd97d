"""The inspector looks whether the files of all partitions are there, and whether damage that anybody reports is.

Only what it has read itself is believed.  Reports name offsets of a partition::

    who                               has met                                 sends
    network workers                   a segment or a range of it that they    ``DamageSuspected``
                                      cannot read, or that is no batch
    the scrubber                      a wrong checksum                        the same
    ``log verify``, and others        one of these                            ``report_damage`` to the native
    (``Admin.report_damage``)                                                 listener, which waits for what is found

Every LOOK_S the inspector compares the names, sizes and times of files with what they must be, at most FILES_PER_LOOK
files at a time; and all names of directories.  A sealed segment never changes: when one has, it is read.  States of a
range of offsets of a partition, and who changes them::

    state      known to                       fetches get                   changed by
    sound      -                              its batches                   the inspector, which finds it damaged
    damaged    supervisor (hosted), workers,  StorageFault (Kafka's         the inspector, which finds it sound,
               ``damage.json``, ``status``    KAFKA_STORAGE_ERROR), as of   removed, or behind the high watermark
                                              an offline partition
    unknown    ``damage.json``: the           its batches                   the inspector, which looks at it first
               appliance has just been
               started

Everything before and behind a damaged range is served: a consumer reads up to it, and waits there.  The inspector looks
at known ranges again after each opening of the partition (so after a repair), when a file of it has changed, and now
and then: a disk may read today what it could not read yesterday.  ``damage.json`` has ranges by topic id, so nothing is
ever held against a topic that was made again under a name.

What only a new opening can judge (a directory is gone or has come back, the active segment is gone or too short) takes
the partition out of service: see :mod:`.outages`.  An inspector that dies is started again, and looks at everything.
"""

from __future__ import annotations

import logging
import os
import re
import select
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, assert_never

import msgspec

from ...durable_files import replace_data_file
from ...errors import ApplianceError, OutOfResources, StorageFault, WriterGone
from ...log.files import LOG_SUFFIX, log_path
from ...log.partition_directory import METADATA_NAME, directory_of
from ...log.recovery import is_retired
from ...log.scrub import DamagedRange, joined, look_again, place_of
from ...names import TopicPartition
from ...shared import memory
from ...shared.heartbeats import Heart
from ...shared.table import SegmentTable, TableSnapshot
from ..control import Channel
from ..messages import (
    TO_INSPECTOR,
    Damaged,
    DamagedPlace,
    FilesBack,
    FilesChanged,
    FilesGone,
    Inspect,
    Inspected,
    Judged,
    LeaveAlone,
    LookAt,
    PartitionDropped,
    Stop,
    Strays,
    ToInspector,
    Unreceivable,
)
from .actions import Actions
from .children import Children
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted, HostedPartition
from .roles import Process, Role
from .scrubber import Scrubbing
from .workers import Workers

logger = logging.getLogger(__name__)

FILE_NAME: Final = "damage.json"
RANGES_MAX: Final = 16
"""Damaged ranges of a partition that are kept apart; of more the nearest become one."""
LOOK_S: Final = 2.0
FILES_PER_LOOK: Final = 1_000
"""Files that one look compares, some ms of work; with more files the rest comes in the next looks."""
REPORT_BYTES_MAX: Final = 64 << 20
"""Bytes that are read again for one report; the scrubber reads the rest of the partition soon."""
REPORTS_MAX: Final = 1_000
"""Places that wait to be looked at."""
AGAIN_S_MIN: Final = 2.0
AGAIN_S_MAX: Final = 600.0
"""When a damaged range is looked at again without a cause: twice as late each time."""
STRAY_LOOKS: Final = 5
"""A directory belongs to no topic when so many looks have found it: deletions and creations are over by then."""
STRAYS_MAX: Final = 10
"""Names of such directories that are reported."""
_PARTITION_NAME: Final = re.compile(r".+-\d{1,10}")

Mark = tuple[int, ...]
"""What must not change of a file that is not written: inode, mode, owner, size, time; or the error of a look at it."""


class Inspection:
    """The inspector as a child, and what it has found."""

    def __init__(
        self,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        coordinator: CoordinatorChild,
        before_answer: Callable[[], None],
        scrubbing: Scrubbing,
    ) -> None:
        self._data_dir, self._hosted, self._children = data_dir, hosted, children
        self._workers, self._coordinator, self._scrubbing = workers, coordinator, scrubbing
        self._before_answer = before_answer
        self._away: set[TopicPartition] = set()
        """Partitions that are being opened, repaired or left: their files are somebody's who changes them."""
        self._tokens: set[int] = set()
        """Reports that wait for an answer."""
        self.strays: list[str] = []
        """Directories of partitions that belong to no topic."""
        self.role = Role("inspector", "start the inspector", children, actions, self._prepare, stays=True)

    def _prepare(self, _: str) -> Process:
        rows = [self._row(partition, row) for partition, row in self._hosted.items()]
        return Process(partial(_run, self._data_dir, rows), "inspector")

    def _row(self, partition: TopicPartition, row: HostedPartition) -> Inspected:
        away = partition in self._away or partition in self._hosted.opening
        return Inspected(partition, row.topic_id, row.table, bool(row.offline), away)

    def on_end(self, child: Child) -> None:
        for token in list(self._tokens):
            self.on_judged(token, WriterGone.__name__, "the inspector has died: try again", [])
        self.role.on_end(child)

    def _send(self, message: ToInspector) -> None:
        self.role.send("", message)

    # ---- partitions come, go, and are opened

    def drop(self, partition: TopicPartition) -> None:
        self._away.discard(partition)
        self._send(PartitionDropped(partition))

    def leave(self, partition: TopicPartition) -> None:
        """Do not look at a partition until it has been opened again."""
        self._away.add(partition)
        self._send(LeaveAlone(partition))

    def inspect(self, partition: TopicPartition) -> None:
        """Look at a partition that has been opened, or could not be: its files may be others, known damage mended."""
        self._away.discard(partition)
        self._send(Inspect(self._row(partition, self._hosted[partition])))

    # ---- reports

    def suspect(self, partition: TopicPartition, start: int, stop: int) -> None:
        """Look at offsets that a process of the appliance could not read."""
        self._send(LookAt(0, partition, start, stop))

    def report(self, token: int, partition: TopicPartition, start: int, stop: int) -> None:
        """Look at offsets that a client could not read, and answer the coordinator."""
        row = self._hosted.get(partition)
        if "" not in self.role or row is None or partition in self._away or partition in self._hosted.opening:
            self._answer(token, WriterGone.__name__, f"{partition} is not served now: try again", [])
        elif row.offline:
            self._answer(token, StorageFault.__name__, f"{partition} is offline: {row.offline}", [])
        elif len(self._tokens) >= REPORTS_MAX:
            self._answer(token, OutOfResources.__name__, "too many reports wait: try again", [])
        else:
            self._tokens.add(token)
            self._send(LookAt(token, partition, start, stop))

    def on_judged(self, token: int, error: str, message: str, places: list[DamagedPlace]) -> None:
        """Answer a report with the damage of its partition."""
        if token in self._tokens:
            self._tokens.discard(token)
            self._before_answer()
            self._answer(token, error, message, places)

    def _answer(self, token: int, error: str, message: str, places: list[DamagedPlace]) -> None:
        self._coordinator.send(Judged(token, error, message, places))

    # ---- what it finds

    def on_damaged(self, partition: TopicPartition, topic_id: str, places: Sequence[DamagedPlace]) -> None:
        """Take these ranges of a partition out of service, and all others back."""
        row = self._hosted.get(partition)
        if row is None or row.topic_id != topic_id or row.offline or partition in self._hosted.opening:
            return
        ranges = row.damaged
        fresh = [place for place in places if place not in ranges]
        for start, stop, file, position, reason in fresh:
            logger.error(
                "%s-%d is damaged: %s:%d: %s: the offsets %d to %d are not served until `appliance log repair`",
                *(*partition, file, position, reason, start, stop),
            )
        if ranges and not places:
            logger.info("%s-%d is sound again: all of it is served", *partition)
        if fresh or len(ranges) != len(places):
            row.damaged = list(places)
            self._workers.send_all(row.damage_message(partition))
            self.on_files(partition)
        if fresh:
            self._scrubbing.scrub_soon(partition)

    def on_files(self, partition: TopicPartition) -> None:
        """Let readers open the files of a partition anew: some are others than they were."""
        self._workers.send_all(FilesChanged(partition))
        self._coordinator.send(FilesChanged(partition))


# ---- the child


class _Stopped(Exception):
    """The appliance stops."""


class _Known(msgspec.Struct):
    """The content of ``damage.json``: first and last offset of each damaged range, by topic id and partition."""

    damaged: dict[str, list[tuple[int, int]]] = {}


class _Partition:
    """What the inspector knows of one partition."""

    def __init__(self, row: Inspected, ranges: list[DamagedRange]) -> None:
        self.row = row
        self.key = row.partition
        self.name = str(row.partition)
        self.ranges = ranges
        self.away = row.away
        self.directory: Mark | None = None
        """Inode of its directory; None before the first look."""
        self.active: tuple[int, Mark] | None = None
        """Base and mark of the active segment."""
        self.sealed: dict[int, Mark] = {}
        self.offline_marks: list[tuple[str, Mark]] | None = None
        """The files of an offline partition after the last attempt to open it."""
        self.changed_marks: list[tuple[str, Mark]] | None = None
        self.again_s, self.delay_s = 0.0, AGAIN_S_MIN
        self._table: SegmentTable | None = None

    @property
    def id(self) -> str:
        """Names it in ``damage.json``."""
        return f"{self.row.topic_id}-{self.key.partition}"

    def snapshot(self) -> TableSnapshot | None:
        """What is readable of it; None while it is opened."""
        try:
            if self._table is None:
                self._table = SegmentTable(memoryview(memory.attach(self.row.table, writable=False)).cast("Q"))
            return self._table.snapshot()
        except (OSError, WriterGone):
            return None


def _run(data_dir: Path, rows: Iterable[Inspected], control: Channel, heart: Heart) -> int:
    with heart.working():
        Inspector(data_dir, rows, control).run()
    return 0


class Inspector:
    """The loop: it takes messages, compares files every LOOK_S, and reads what was reported."""

    def __init__(
        self,
        data_dir: Path,
        rows: Iterable[Inspected],
        control: Channel,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data_dir, self._control, self._clock_s = data_dir, control, clock_s
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._to_compare: deque[TopicPartition] = deque()
        self._to_read: OrderedDict[tuple[TopicPartition, int, int], list[int]] = OrderedDict()
        """Offsets to read, each with the tokens of the reports that wait for it."""
        self._strays: dict[str, int] = {}
        """How many looks have found a directory that is no partition's."""
        self._told_strays: list[str] = []
        self._look_s = clock_s()
        stored = _load(data_dir / FILE_NAME)
        for row in rows:
            ranges = stored.damaged.get(f"{row.topic_id}-{row.partition.partition}", ())
            self._take(row, [DamagedRange(start, stop, "") for start, stop in ranges])

    def run(self) -> None:
        """Look until the supervisor says stop, or is gone."""
        try:
            while True:
                now_s = self._clock_s()
                if now_s >= self._look_s:
                    self._look_s = now_s + LOOK_S
                    self._compare()
                if self._to_read:
                    (key, start, stop), tokens = self._to_read.popitem(last=False)
                    self._read(key, start, stop, tokens)
                self._receive(0 if self._to_read else self._look_s - self._clock_s())
        except _Stopped:
            pass

    def _receive(self, seconds: float) -> None:
        """Take the messages of the supervisor, waiting for the first one."""
        if self._control.pending:
            self._control.flush()
        self._poll.poll(max(0.0, seconds) * 1000)
        for message, _ in self._control.receive(TO_INSPECTOR):
            match message:
                case Inspect(row):
                    previous = self._partitions.get(row.partition)
                    same = previous is not None and previous.row.topic_id == row.topic_id
                    self._take(row, previous.ranges if previous is not None and same else [])
                case PartitionDropped(key):
                    self._drop(key)
                case LeaveAlone(key):
                    if (partition := self._partitions.get(key)) is not None:
                        partition.away = True
                case LookAt(token, key, start, stop):
                    self._want(key, start, min(stop, start + REPORT_BYTES_MAX), token)
                case Stop():
                    raise _Stopped
                case Unreceivable():
                    raise AssertionError(message)  # nothing for it has a descriptor
                case _:
                    assert_never(message)
        if self._control.closed:
            raise _Stopped

    def _take(self, row: Inspected, ranges: list[DamagedRange]) -> None:
        partition = _Partition(row, ranges)
        self._partitions[partition.key] = partition
        if not row.away and not row.offline:
            self._look_again(partition)

    def _drop(self, key: TopicPartition) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None and partition.ranges:
            self._save()

    # ---- names, sizes and times

    def _compare(self) -> None:
        """Compare all directories, and the next files, with what they must be."""
        inodes = self._inodes()
        if inodes is not None:
            for partition in list(self._partitions.values()):
                self._compare_directory(partition, inodes.get(partition.name))
            self._find_strays(inodes)
        if not self._to_compare:
            self._to_compare.extend(self._partitions)
        files_left = FILES_PER_LOOK
        while self._to_compare and files_left > 0:
            candidate = self._partitions.get(self._to_compare.popleft())
            if candidate is not None and not candidate.away:
                files_left -= (
                    self._compare_offline(candidate) if candidate.row.offline else self._compare_files(candidate)
                )
        now_s = self._clock_s()
        for partition in self._partitions.values():
            if partition.ranges and not partition.away and not partition.row.offline and now_s >= partition.again_s:
                self._look_again(partition)

    def _inodes(self) -> dict[str, int] | None:
        """The inodes of what is in the data directory, by name; None when that is not known now."""
        try:
            with os.scandir(self._data_dir) as entries:
                return {entry.name: entry.inode() for entry in entries}
        except FileNotFoundError:
            return {}
        except OSError as error:
            logger.warning("%s cannot be listed: %s", self._data_dir, error.strerror)
            return None

    def _compare_directory(self, partition: _Partition, inode: int | None) -> None:
        if partition.away or partition.row.offline or not partition.row.table:
            return
        directory = directory_of(self._data_dir, *partition.key)
        if inode is None:
            self._on_gone(partition, f"{directory}: the directory is missing")
        elif partition.directory is None:
            partition.directory = (inode,)
        elif partition.directory != (inode,):
            self._on_gone(partition, f"{directory}: another directory is in its place")

    def _on_gone(self, partition: _Partition, reason: str) -> None:
        """Let the partition be opened again, which finds out what is left of it."""
        partition.away = True
        self._control.send(FilesGone(partition.key, partition.row.topic_id, reason))

    def _compare_files(self, partition: _Partition) -> int:
        """Compare the segments of a partition; return how many."""
        seen = partition.snapshot()
        if seen is None:
            return 1
        directory = directory_of(self._data_dir, *partition.key)
        bases, _, end, _ = seen
        self._compare_active(partition, log_path(directory, bases[-1]), bases[-1], end)
        changed = False
        for base, following in pairwise(bases):
            if following > end or partition.away:  # recovery may remove what is behind the high watermark
                break
            mark = _mark(log_path(directory, base))
            mark_before = partition.sealed.get(base)
            if mark == mark_before:
                continue
            if len(mark) == 1 and is_retired(directory, following):
                continue
            if mark_before is not None or len(mark) == 1 or mark[4] != following - base:
                if not self._want(partition.key, base, following):
                    continue  # the next look finds it again
                changed = True
            partition.sealed[base] = mark
        for base in partition.sealed.keys() - set(bases):
            del partition.sealed[base]
        if changed:
            self._control.send(FilesChanged(partition.key))
        return len(bases)

    def _compare_active(self, partition: _Partition, path: Path, base: int, end: int) -> None:
        """Compare the active segment.  Only what somebody else does to it can make it shorter than ``end``."""
        if end == base:
            return  # nothing of it is readable: the writer looks at the file itself
        mark = _mark(path)
        if len(mark) == 1:
            if not is_retired(path.parent, end):
                self._on_gone(partition, f"{path}: {os.strerror(mark[0])}")
        elif mark[4] < end - base:
            self._on_gone(partition, f"{path}: has {mark[4]} of its {end - base} bytes")
        elif partition.active is not None and partition.active[0] == base and partition.active[1] != mark[:4]:
            self._on_gone(partition, f"{path}: another file is in its place, or it has another owner or mode")
        else:
            partition.active = base, mark[:4]

    def _compare_offline(self, partition: _Partition) -> int:
        """Let an offline partition be opened again when its files have changed, and do not change any more."""
        directory = directory_of(self._data_dir, *partition.key)
        try:
            names = sorted(os.listdir(directory))  # noqa: PTH208 - names
        except OSError:
            names = []
        marks = [(name, _mark(directory / name)) for name in names]
        if partition.offline_marks is None:
            partition.offline_marks = marks
        elif marks != partition.offline_marks:
            if marks and marks == partition.changed_marks:
                partition.away = True
                self._control.send(FilesBack(partition.key, partition.row.topic_id))
            partition.changed_marks = marks
        return 1 + len(marks)

    def _find_strays(self, inodes: Iterable[str]) -> None:
        """Report directories of partitions that no topic has, once they have been there for STRAY_LOOKS."""
        hosted = {partition.name for partition in self._partitions.values()}
        unhosted = [name for name in inodes if name not in hosted and _PARTITION_NAME.fullmatch(name)]
        self._strays = {
            name: self._strays.get(name, 0) + 1 for name in unhosted if name in self._strays or self._is_log(name)
        }
        strays = sorted(name for name, looks in self._strays.items() if looks >= STRAY_LOOKS)[:STRAYS_MAX]
        if strays != self._told_strays:
            self._told_strays = strays
            self._control.send(Strays(strays))

    def _is_log(self, name: str) -> bool:
        try:
            files = os.listdir(self._data_dir / name)  # noqa: PTH208
            return any(file == METADATA_NAME or file.endswith(LOG_SUFFIX) for file in files)
        except OSError:
            return False

    # ---- bytes

    def _look_again(self, partition: _Partition) -> None:
        """Read the known ranges, and once more after a time that grows: nobody says when a disk has recovered."""
        partition.again_s = self._clock_s() + partition.delay_s
        partition.delay_s = min(2 * partition.delay_s, AGAIN_S_MAX)
        for start, stop, _ in partition.ranges:
            self._want(partition.key, start, stop)

    def _want(self, key: TopicPartition, start: int, stop: int, token: int = 0) -> bool:
        """Have this range read, and the report ``token`` answered then; False if too many wait."""
        tokens = self._to_read.get((key, start, stop))
        if tokens is None and len(self._to_read) >= REPORTS_MAX:
            if token:
                self._judge(token, OutOfResources("too many reports wait: try again"))
            return False
        tokens = self._to_read.setdefault((key, start, stop), [])
        if token:
            tokens.append(token)
        return True

    def _read(self, key: TopicPartition, start: int, stop: int, tokens: Sequence[int]) -> None:
        """Read [start, stop), and what is known to be damaged around it; tell what is damaged now."""
        error: ApplianceError | None = None
        partition = self._partitions.get(key)
        places: list[DamagedPlace] = []
        try:
            places = self._read_range(key, start, stop)
        except ApplianceError as fault:
            error = fault
        if error is None and partition is not None:
            self._control.send(Damaged(key, partition.row.topic_id, places))
        for token in tokens:
            self._judge(token, error, places)

    def _judge(self, token: int, error: ApplianceError | None, places: Sequence[DamagedPlace] = ()) -> None:
        name = "" if error is None else type(error).__name__
        self._control.send(Judged(token, name, "" if error is None else str(error), list(places)))

    def _read_range(self, key: TopicPartition, start: int, stop: int) -> list[DamagedPlace]:
        """As :meth:`_read`; returns the damage of the partition, each with its place in the files.

        Raises:
            WriterGone: the partition is not served now.
            StorageFault: the machine lacks something to read with.
        """
        partition = self._partitions.get(key)
        seen = None if partition is None or partition.away else partition.snapshot()
        if partition is None or seen is None:
            raise WriterGone(f"{key} is not served now: try again")
        around = [damaged for damaged in partition.ranges if damaged.start < stop and start < damaged.stop]
        first = min([start, *(damaged.start for damaged in around)])
        last = max([stop, *(damaged.stop for damaged in around)])
        damages = self._look(partition, [DamagedRange(first, last, "")])
        if damages:  # not while retention, or a repair, was at work
            damages = self._look(partition, damages)
        self._receive(0)
        if self._partitions.get(key) is not partition or partition.away:
            raise WriterGone(f"{key} is not served now: try again")
        seen = partition.snapshot() or seen
        first, end = seen.start, seen.high_watermark
        kept = [
            damaged
            for damaged in partition.ranges
            if damaged not in around and first < damaged.stop and damaged.start < end
        ]
        ranges = joined([*kept, *damages], RANGES_MAX)
        if [damaged[:2] for damaged in ranges] != [damaged[:2] for damaged in partition.ranges]:
            partition.delay_s = AGAIN_S_MIN
            partition.again_s = self._clock_s() + AGAIN_S_MIN
            partition.ranges = ranges
            self._save()
        partition.ranges = ranges
        return [
            (damaged.start, damaged.stop, *place_of(seen.bases, damaged.start), damaged.reason) for damaged in ranges
        ]

    def _look(self, partition: _Partition, ranges: Sequence[DamagedRange]) -> list[DamagedRange]:
        seen = partition.snapshot()
        if seen is None:
            return []
        directory = directory_of(self._data_dir, *partition.key)
        try:
            return look_again(directory, seen.bases, seen.start, seen.high_watermark, ranges, self._pace)
        except OSError as error:
            raise StorageFault(f"{error.filename or directory}: {error.strerror}") from error

    def _pace(self, _: int) -> None:
        """Between two pieces: go on comparing names and sizes, which may not wait."""
        self._receive(0)
        now_s = self._clock_s()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._compare()

    # ---- the file

    def _save(self) -> None:
        ranges = {
            partition.id: [(start, stop) for start, stop, _ in partition.ranges]
            for partition in self._partitions.values()
        }
        try:
            content = msgspec.json.encode(_Known({name: spans for name, spans in ranges.items() if spans}))
            replace_data_file(self._data_dir / FILE_NAME, content)
        except ApplianceError as error:  # it is found again
            logger.warning("%s", error)


def _mark(path: Path) -> Mark:
    """What must not change of a file: inode, mode, user, group, size, time; or the number of an error."""
    try:
        status = os.stat(path)  # noqa: PTH116 - faster
    except OSError as error:
        return (error.errno or 0,)
    return (status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns)


def _load(path: Path) -> _Known:
    """The known damage; none when there is no valid file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Known)
    except (OSError, msgspec.MsgspecError):
        return _Known()

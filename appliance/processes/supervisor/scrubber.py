"""The scrubber reads all logs slowly, round after round, and reports damage to the supervisor (:mod:`.scrubbing`).

A round goes through the partitions by name.  It begins ``scrub.every_ms`` after the begin of the one before, or when
that one has ended.  The rate is ``scrub.bytes_per_second`` over all partitions.  The scrubber has the lowest priority
of processor and disk, and reads only below the high watermark.  It writes to nothing but index files of sealed segments
that are wrong.  An index follows from its segment, so that is no damage, and its writer does not touch it any more.

The file ``scrub.json`` in the data directory keeps where it is, so that a restart goes on there, and the damage that
is known, which is looked at again at each start: so the appliance does not serve damaged ranges that it has found once.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...catalog import replace_file
from ...config import Config
from ...disk_settings import Scrub
from ...errors import ApplianceError, StorageFault, WriterGone
from ...log.index_check import IndexCheck, MendedIndex
from ...log.scrub import DamagedRange, scrub, still_damaged
from ...shared import memory
from ...shared.heartbeats import Heart
from ...shared.table import SegmentTable, TableSnapshot
from ...status import read_state
from ..child import become_child
from ..clock import wall_s
from ..control import Channel

logger = logging.getLogger(__name__)

FILE_NAME: Final = "scrub.json"
RANGES_MAX: Final = 16
"""Damaged ranges of a partition that are kept apart; more become one with the last of these."""
IDLE_S: Final = 60.0
"""How long the scrubber waits for a message when it has nothing to read, before it looks at the clock."""
SAVE_S: Final = 30.0
"""How often it stores where it is."""
NICE: Final = 19
IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
IOPRIO_IDLE: Final = 3 << 13


class _Stopped(Exception):
    """The appliance stops."""


class Progress(msgspec.Struct):
    """The content of ``scrub.json``.  The round goes on at ``offset`` of the partition ``name``; "" when it is over."""

    begun_s: float = 0.0
    name: str = ""
    offset: int = 0
    damaged: dict[str, list[DamagedRange]] = {}


def run(config: Config, data_dir: Path, control: Channel, heart: Heart, supervisor_pid: int) -> int:
    become_child("scrubber", supervisor_pid)
    _take_lowest_priority()
    with heart.working():
        Scrubber(config.scrub, data_dir, control).run()
    return 0


def _take_lowest_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, IOPRIO_IDLE)


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
        self._saved_s = self._free_s = clock_s()
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def run(self) -> None:
        """Scrub until the supervisor says stop, or is gone."""
        try:
            for name in sorted(self._progress.damaged):
                self._look_again(name)
            while True:
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
                self._partition(name, start)
        progress.name, progress.offset = "", 0
        self._save()

    def _served(self) -> list[str]:
        """The partitions that are served now, by name."""
        state = read_state(self._data_dir)
        return [] if state is None else sorted(state["tables"].keys() - state["offline"].keys())

    def _snapshot(self, name: str) -> TableSnapshot | None:
        """What is readable of a partition; None when it is not served."""
        state = read_state(self._data_dir)
        if state is None or name in state["offline"] or name not in state["tables"]:
            return None
        try:
            mapped = memory.attach(state["tables"][name], writable=False)
            with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
                return SegmentTable(cells).snapshot()
        except (OSError, WriterGone):
            return None

    def _partition(self, name: str, start: int) -> None:
        directory = self._data_dir / name
        if name in self._progress.damaged:
            self._look_again(name)
        seen = self._snapshot(name)
        if seen is None:
            return
        if start < seen.bases[0] or start > seen.high_watermark:
            start = seen.bases[0]
        self._progress.offset = start
        check = IndexCheck(directory, seen.bases, lambda: self._snapshot(name) is not None, self._pace)
        try:
            for found in scrub(directory, seen.bases, start, seen.high_watermark, self._go_on, check.on_batch):
                now = self._snapshot(name)  # not while it is repaired
                if now is not None and found.stop > now.start and still_damaged(directory, found):
                    self._add(name, found)
            check.finish()
        except (StorageFault, OSError) as error:
            logger.error("%s cannot be scrubbed: %s", name, error)
        self._tell_mended(name, check.mended)

    def _go_on(self, size: int) -> None:
        self._progress.offset += size
        self._pace(size)

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
        for message, _ in self._control.receive():
            match message:
                case ["reload", values]:
                    self._settings = msgspec.convert(values["scrub"], Scrub)
                case ["stop"]:
                    raise _Stopped
        if self._control.closed:
            raise _Stopped

    # ---- damage

    def _add(self, name: str, found: DamagedRange) -> None:
        known = [
            one
            for one in self._progress.damaged.get(name, [])
            if one.start != found.start and still_damaged(self._data_dir / name, one)
        ]
        self._tell(name, merged(sorted([*known, found])))

    def _look_again(self, name: str) -> None:
        """Forget what was repaired, or removed."""
        self._tell(name, [one for one in self._progress.damaged[name] if still_damaged(self._data_dir / name, one)])

    def _tell(self, name: str, ranges: list[DamagedRange]) -> None:
        if ranges:
            self._progress.damaged[name] = ranges
        else:
            self._progress.damaged.pop(name, None)
        topic, _, partition = name.rpartition("-")
        self._control.send(["damaged", topic, int(partition), ranges])
        self._save()

    def _tell_mended(self, name: str, mended: Sequence[MendedIndex]) -> None:
        """Readers forget what they remember of index files that were wrong."""
        for one in mended:
            logger.warning("%s: an index was wrong, and is made anew from its segment: %s", name, one)
        if mended:
            topic, _, partition = name.rpartition("-")
            self._control.send(["mended", topic, int(partition)])

    def _save(self) -> None:
        self._saved_s = self._clock_s()
        try:
            replace_file(self._data_dir / FILE_NAME, msgspec.json.encode(self._progress))
        except ApplianceError as error:  # it begins again after a restart
            logger.warning("%s", error)


def merged(ranges: list[DamagedRange]) -> list[DamagedRange]:
    """At most RANGES_MAX ranges: the last one includes all that are behind it."""
    if len(ranges) <= RANGES_MAX:
        return ranges
    return [*ranges[: RANGES_MAX - 1], ranges[RANGES_MAX - 1]._replace(stop=ranges[-1].stop)]


def _load(path: Path) -> Progress:
    """The progress; that of a beginning when there is no valid file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError):
        return Progress()

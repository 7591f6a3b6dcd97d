"""The engine of inputs by files on a real directory, with a log in memory and a clock of its own, for tests."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import itertools
import lzma
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import zstandard
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from appliance.clock import file_clock_ns
from appliance.errors import ApplianceError, StorageFault
from appliance.inputs.files import FilesInput
from appliance.inputs.files_settings import FilesSettings
from appliance.inputs.guard import Guard
from appliance.inputs.ledger import Ledger
from appliance.inputs.outlet import Outlet, Placed
from appliance.inputs.positions import BlockOrigin, FoundBlock, PositionStore, Span
from appliance.records.decode import headers_at
from appliance.shared.heartbeats import alone

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
T = TypeVar("T")
TOPIC = "disk"


class Log:
    """Stands for an outlet: what is sent is in the log at once, unless ``fault`` says otherwise.

    ``held``: answers that come later; None: all come at once.  ``unknown``: why the topic cannot be learned;
    ``is_silent``: who asks for it has no answer.
    """

    def __init__(self) -> None:
        self.held: list[tuple[asyncio.Future[Placed], Placed]] | None = None
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.origins: list[FoundBlock] = []
        self.fault: ApplianceError | None = None
        self.has_room = True
        self.unknown: ApplianceError | None = None
        self.is_silent = False
        self._silences: list[asyncio.Future[None]] = []

    async def learn(self, topic: str) -> int:
        if self.is_silent:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._silences.append(answer)
            await answer
        if self.unknown is not None:
            raise self.unknown
        return 100_000

    def end_silence(self) -> None:
        """Answer whoever has asked."""
        self.is_silent = False
        for answer in self._silences:
            answer.set_result(None)
        self._silences.clear()

    def partition_of(self, topic: str, key: bytes) -> int:
        self.keys.append(key)
        return 0

    async def room(self) -> None:
        while not self.has_room:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def open_room(self) -> None:
        self.has_room = True
        if not self._turn.done():  # else the input has just gone on to a scan, and looks again
            self._turn.set_result(None)

    def send(self, topic: str, partition: int, values: list[bytes], tails: list[bytes]) -> asyncio.Future[Placed]:
        done: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        if self.fault is not None:
            done.set_exception(self.fault)
            return done
        origin = BlockOrigin.decode(dict(headers_at(tails[0], 0)[0])["origin"] or b"")
        assert origin is not None
        offset = len(self.values)
        self.origins.append(FoundBlock(origin, topic, partition, offset, len(values), sum(map(len, values))))
        self.values += values
        placed = Placed(topic, partition, offset, len(values))
        if self.held is None:
            done.set_result(placed)
        else:
            self.held.append((done, placed))
        return done

    def answer(self) -> None:
        held, self.held = self.held or [], None
        for done, placed in held:
            done.set_result(placed)


class Told:
    """Stands for a ledger: keeps what it is told."""

    def __init__(self, store: PositionStore) -> None:
        self.gaps: list[tuple[str, int, int | None, str]] = []
        self.unread = ""
        self._store = store

    async def begin_partition(self, topic: str, partition: int) -> None:
        if self._store.offset_of(topic, partition) is None:
            self._store.add_partition(topic, partition, 0)

    def note_gap(
        self, number: int, source: str, start: int, stop: int | None, unit: str, reason: str, **_: bool
    ) -> None:
        self.gaps.append((source, start, stop, reason))

    def note_unread(self, reason: str) -> None:
        self.unread = reason

    def note_sources(self, count: int) -> None:
        pass

    def note(self, span: Span) -> None:
        pass

    def note_trouble(self, number: int, source: str, reason: str) -> None:
        pass

    def minute(self) -> int:
        return 0


class Commits:
    """What a store was before each of its commits: a power loss takes some of the last ones."""

    def __init__(self) -> None:
        self._images: list[tuple[list[Any], bytes]] = []

    def commit(self, store: PositionStore) -> None:
        self._images.append((self._durable(store), store._db.serialize()))
        store.commit()

    @staticmethod
    def _durable(store: PositionStore) -> list[Any]:
        """What is stored durably, and with it whatever was committed before."""
        sources = store._db.execute("select * from sqlite_sequence").fetchall()
        return [sources, [row[:2] for row in store.partitions()]]

    def lose(self, store: PositionStore, choose: Callable[[list[bytes]], list[bytes]]) -> None:
        """Close a store; ``choose``: which image it has then, of those that it may have; none: it keeps all."""
        now = self._durable(store)
        images = choose([image for durable, image in self._images if durable == now])
        self._images.clear()
        store.close()
        for image in images:
            for name in (f"{store.path}-wal", f"{store.path}-shm"):
                Path(name).unlink(missing_ok=True)
            store.path.write_bytes(image)


class Rig:
    """``directory`` has the files; :meth:`look` is what the input does from time to time."""

    def __init__(
        self,
        base: Path,
        include: str = "*.log*",
        store: Path | None = None,
        exclude: str = "*.gz",
        log: Log | None = None,
        **settings: Any,
    ) -> None:
        """``store``: the directory of the positions, such as one in memory, where a flush takes no time."""
        self.directory = base / "logs"
        self.directory.mkdir()
        self._store_path = (store or base) / "positions.sqlite"
        self.log = Log() if log is None else log
        self.guard = Guard(base / "data")
        self.heart = alone()
        self.now_ms = 0.0
        self.clock_ms: Callable[[], float] = lambda: self.now_ms
        self.gaps: list[tuple[str, int, int | None, str]] = []
        self._back_ms = 0
        self._times = itertools.count(step=1_000)
        self._lines = itertools.count()
        self._settings = FilesSettings(
            [f"{self.directory}/{include}"], [exclude], self._topic_of, lambda path: [], **settings
        )
        self.topics: dict[str, str] = {}
        """Of files, by their names, that are not TOPIC."""
        self.written: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._commits = Commits()
        self._begin()

    def _begin(self) -> None:
        self.store = PositionStore(self._store_path)
        self.store.recover(
            [row for row in self.log.origins if row[3] >= (self.store.offset_of(TOPIC, 0) or 0)], minute=0
        )
        self.told = Told(self.store)
        self.told.gaps = self.gaps
        outlet, ledger = cast("Outlet", self.log), cast("Ledger", self.told)
        self.engine = FilesInput(
            self._settings, self.store, outlet, ledger, lambda: self.clock_ms(), self._tick, self.guard, self.heart
        )

    def _topic_of(self, path: str) -> str:
        return self.topics.get(Path(path).name, TOPIC)

    def run(self, what: Awaitable[T]) -> T:
        return self._loop.run_until_complete(what)

    # ---- the input

    def look(self, after_ms: float = 0, *, scan: bool = True) -> None:
        """Look at all files, or only at those that are known, and read what is new."""
        self.now_ms += after_ms

        async def work() -> None:
            if scan:
                self.engine.scan()
            for _ in range(100):
                if not await self.engine.work():
                    break
            await asyncio.sleep(0)  # the callbacks of what was sent

        self.run(work())

    def mark(self, path: Path) -> None:
        """As inotify does."""
        self.engine.mark({str(path)})

    def settle(self) -> None:
        """Look until everything is read that can be."""
        self.log.fault = self.log.unknown = None
        self.log.answer()
        for _ in range(6):
            self.look(20_000)

    def kill(self) -> None:
        """End without a commit, and begin again."""
        self._end()
        self.log.held = None
        self._begin()

    def stop(self) -> None:
        self.commit()
        self.kill()

    def commit(self) -> None:
        self._commits.commit(self.store)

    def lose_power(self, choose: Callable[[list[bytes]], list[bytes]] = lambda images: images[-1:]) -> None:
        """As :meth:`kill`; and the last commit is gone, or those that ``choose`` says, but nothing durable is."""
        self._commits.lose(self.store, choose)
        self._close_files()
        self.log.held = None
        self._begin()

    def _end(self) -> None:
        self.store.close()
        self._close_files()

    def _close_files(self) -> None:
        for generation in self.engine._generations.read:
            generation.close()

    def close(self) -> None:
        self._end()
        self._loop.close()

    # ---- the programs

    def path(self, name: str) -> Path:
        return self.directory / name

    def write(self, name: str, count: int = 1, width: int = 0) -> None:
        lines = [b"%d %s" % (next(self._lines), b"x" * width) for _ in range(count)]
        self.written += lines
        self.append(name, b"".join(line + b"\n" for line in lines))

    def begin_line(self, name: str) -> bytes:
        """Write the first half of a line; the other one, which is to be appended."""
        line = b"%d first half, second half" % next(self._lines)
        self.written.append(line)
        first, comma, second = line.partition(b",")
        self.append(name, first + comma)
        return second + b"\n"

    def append(self, name: str, data: bytes) -> None:
        with self.path(name).open("ab") as file:
            file.write(data)
        self._touch(self.path(name))

    def _tick(self) -> int:
        """The time of files: whoever asks gets another one, since the kernel's clock is too coarse for tests."""
        return 10**18 + int(1e6 * (self.now_ms - self._back_ms)) + next(self._times)

    def put_clock_back(self, by_ms: int) -> None:
        """That of the files; the one by which the input waits never goes back."""
        self._back_ms += by_ms

    def _touch(self, path: Path) -> None:
        now = self._tick()
        os.utime(path, ns=(now, now))

    def truncate(self, name: str) -> None:
        with self.path(name).open("r+b") as file:
            file.truncate()
        self._touch(self.path(name))

    def remove(self, name: str) -> None:
        """And wait until a file that is made then has another time of birth: the kernel's clock ticks every 4 ms."""
        self.path(name).unlink()
        self.wait_for_tick()

    @staticmethod
    def wait_for_tick() -> None:
        before = file_clock_ns()
        while file_clock_ns() == before:
            pass

    def copy(self, name: str, other: str, part: float = 1.0) -> None:
        """Copy a part of a file, as a copy has it that is being made."""
        data = self.path(name).read_bytes()
        self.path(other).write_bytes(data[: int(len(data) * part)])
        self._touch(self.path(other))

    def compress(self, name: str, kind: str = "gz", packed: str = "") -> Path:
        """As gzip and the others do: the time stays that of the file.  ``packed``: the name of the new one."""
        path = self.path(name)
        times = path.stat()
        other = self.path(packed or f"{name}.{kind}")
        other.write_bytes(PACKERS[kind](path.read_bytes()))
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        path.unlink()
        return other

    def counts(self) -> Counter[bytes]:
        return Counter(self.log.values)

    def lost(self) -> list[bytes]:
        counts = self.counts()
        return [line for line in self.written if not counts[line]]

    def doubled(self) -> list[bytes]:
        return [line for line, count in self.counts().items() if count > 1]


NO_TOPIC = StorageFault("not now")


class RigMachine(RuleBasedStateMachine):
    """What happens to the input and its topic.  Subclasses make ``rig``, and say what happens to the files."""

    rig: Rig

    @rule()
    def kill(self) -> None:
        self.rig.kill()

    @rule()
    def stop(self) -> None:
        self.rig.stop()

    @rule(works=st.booleans())
    def change_the_topic(self, works: bool) -> None:
        self.rig.log.fault = None if works else NO_TOPIC

    @rule(is_known=st.booleans())
    def change_what_is_known_of_the_topic(self, is_known: bool) -> None:
        self.rig.log.unknown = None if is_known else NO_TOPIC

    @rule()
    def answer_late(self) -> None:
        if self.rig.log.held is None:
            self.rig.log.held = []
        else:
            self.rig.log.answer()

"""Power loss at any moment below inputs: what was answered is in the log, and every line of a file is read.

Method: the engine of files, an intake of senders and their stores, on a real log whose disk remembers what was made
durable (``tests/support/power_loss.py``), in one process.  A power loss leaves the log in a state that its disk may
have, and the stores as after any of their commits since the last one that was durable.  The broker's flush is what
answers blocks, so those that are not flushed may be gone, torn or there.

Lines at the end of a file that its program has not synced may be gone, too; such a file may be read again.

``POWER_LOSS_RUNS=500 pytest tests/crash/test_power_loss_of_inputs.py`` plays many more runs.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.inputs.in_order import InOrder
from appliance.inputs.intake import InputMessage, Intake
from appliance.inputs.machinery import Machinery
from appliance.inputs.outlet import Placed
from appliance.inputs.positions import BlockOrigin, FoundBlock, PositionStore
from appliance.log import Log as PartitionLog
from appliance.records.batch import check_batch, place
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_tailed

from ..inputs.files_rig import TOPIC, Commits, Log, Rig, Told
from ..support.log_batches import MEMORY
from ..support.long import chosen_size
from ..support.power_loss import Disk, Tree, plant
from ..support.producing import SETTINGS, contents

RUNS = chosen_size("POWER_LOSS_RUNS", 12, 60)
STEPS = 40
NO_TAIL = b"\0"


class LogOnDisk(Log):
    """A topic's only partition, on a recording disk: a block is appended at once, and answered once it is flushed."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root, self._boot = root, 0
        self.flushed: list[bytes] = []
        self._open({})

    def _open(self, tree: Tree) -> None:
        """Open what a disk has, as after a start of the machine."""
        self._boot += 1
        path = self._root / f"{self._boot}"
        plant(tree, path)
        self.disk = Disk(path)
        self.log = PartitionLog.open(
            path / "t-0", SETTINGS, lambda: 5_000, boot=(self._boot, 0), system=self.disk.system()
        )
        self.held = []
        self.values, self.origins = [], []
        for start, data, info in contents(self.log):
            self._add(start + info.size - info.count, data)

    def _add(self, offset: int, data: bytes) -> None:
        records = decode_batch(data)
        origin = BlockOrigin.decode(dict(records[0].headers)["origin"] or b"")
        assert origin is not None
        self.values += [record.value or b"" for record in records]
        self.origins.append(FoundBlock(origin, TOPIC, 0, offset, len(records), 0))

    def send(
        self, topic: str, partition: int, values: list[bytes], tails: Sequence[bytes], *, keys: object = None
    ) -> asyncio.Future[Placed]:
        done: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        view = memoryview(bytearray(encode_tailed(values, tails, 1_000)))
        info = check_batch(view, 0, len(view), 1 << 24)
        start = self.log.end_offset
        place(view, 0, start, info.size, len(values))
        self.log.append([(view, info)])
        offset = start + info.size - len(values)
        self._add(offset, bytes(view))
        placed = Placed(topic, partition, offset, len(values))
        if self.held is None:
            self.flush()
            done.set_result(placed)
        else:
            self.held.append((done, placed))
        return done

    def flush(self) -> None:
        self.log.flush()
        self.log.raise_high_watermark(self.log.end_offset)
        self.flushed = list(self.values)

    def answer(self) -> None:
        self.flush()
        super().answer()

    def lose_power(self, random_: random.Random) -> None:
        tree = random_.choice(list(self.disk.image().states(random_, 8)))
        self.log.close(clean=False)
        self.disk.close()
        self._open(tree)
        assert self.values[: len(self.flushed)] == self.flushed
        self.flushed = list(self.values)

    def close(self) -> None:
        self.log.close(clean=False)
        self.disk.close()


class Senders:
    """Send numbered messages through an intake, whose store is opened anew after each end."""

    def __init__(self, rig: Rig, path: Path) -> None:
        self._rig, self._path = rig, path
        self.answered: list[bytes] = []
        self._count = 0
        self.commits = Commits()
        self.begin()

    def begin(self) -> None:
        self.store = PositionStore(self._path)
        first = self.store.offset_of(TOPIC, 0) or 0
        self.store.recover([row for row in self._rig.log.origins if row[3] >= first], minute=0)
        outlet, ledger = cast(Any, self._rig.log), cast(Any, Told(self.store))
        machinery = SimpleNamespace(store=self.store, outlet=outlet, ledger=ledger)

        async def make() -> Intake:
            return Intake(cast(Machinery, machinery))

        self._intake = self._rig.run(make())

    def put(self, count: int) -> None:
        texts = [b"sent %d" % (self._count + number) for number in range(count)]
        self._count += count

        async def send() -> None:
            done = await self._intake.begin("web-1", TOPIC, [InputMessage(text, NO_TAIL) for text in texts])
            done.add_done_callback(lambda _: self.answered.extend(texts))

        self._rig.run(send())


class World:
    """A program and its files, senders, and a log; :meth:`step` does something of what happens to them."""

    def __init__(self, room: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = LogOnDisk(room)
        self.rig = Rig(room, log=self.log)
        self.senders = Senders(self.rig, room / "senders.sqlite")
        self.rotated = self.losses = 0
        self.gone: set[bytes] = set()
        self.again: set[bytes] = set()

    def write(self) -> None:
        self.rig.write("app.log", self.random.randrange(1, 6), self.random.choice([0, 30, 300]))

    def rotate(self) -> None:
        if self.rig.path("app.log").exists():
            self.rig.look()
            self.rotated += 1
            self.rig.path("app.log").rename(self.rig.path(f"app.log.{self.rotated}"))

    def put(self) -> None:
        self.senders.put(self.random.randrange(1, 4))

    def look(self) -> None:
        self.rig.look(self.random.choice([300, 3_000]))

    def answer(self) -> None:
        self.log.answer()
        self.log.held = []
        self.rig.look()

    def commit(self) -> None:
        self.rig.commit()
        self.senders.commits.commit(self.senders.store)

    def kill(self) -> None:
        """Of the inputs: the broker flushes what it has, and nobody hears the answers."""
        self.log.flush()
        self.senders.store.close()
        self.rig.kill()
        self.log.held = []
        self.senders.begin()

    def lose_power(self) -> None:
        self.losses += 1
        self.log.lose_power(self.random)
        self._lose_tail()
        self.senders.commits.lose(self.senders.store, self._choose)
        self.rig.lose_power(self._choose)
        self.log.held = []
        self.senders.begin()

    def _lose_tail(self) -> None:
        """Nobody has synced the program's file: lines at its end are gone, whether they were read or not."""
        path = self.rig.path("app.log")
        if self.random.random() < 0.5 or not path.exists():
            return
        lines = path.read_bytes().splitlines()
        kept = lines[: self.random.randrange(len(lines) + 1)]
        path.write_bytes(b"".join(line + b"\n" for line in kept))
        self.gone |= set(lines[len(kept) :])
        self.again |= set(kept)

    def _choose(self, images: list[bytes]) -> list[bytes]:
        return self.random.choice([[], *([image] for image in images)])

    def play(self) -> None:
        some = [self.write] * 4 + [self.look] * 4 + [self.put] * 3 + [self.answer] * 3 + [self.commit] * 2
        for _ in range(STEPS):
            self.random.choice([*some, self.rotate, self.kill, self.lose_power])()
        self.lose_power()
        self.rig.settle()
        self.log.answer()

    def check(self) -> None:
        counts = self.rig.counts()
        assert [line for line in self.rig.written if not counts[line] and line not in self.gone] == []
        assert [line for line in self.rig.written if counts[line] > 1 and line not in self.again] == []
        assert self.gone or self.rig.gaps == []
        assert [text for text in self.senders.answered if counts[text] != 1] == []
        spans = [span for store in (self.rig.store, self.senders.store) for span in spans_of(store)]
        blocks = Counter((offset, count) for _, _, _, offset, count, _ in self.log.origins)
        assert Counter((span.offset, span.messages) for span in spans) == blocks, "the ledger names each block once"

    def close(self) -> None:
        self.senders.store.close()
        self.rig.close()
        self.log.close()


def spans_of(store: PositionStore) -> list[Any]:
    store.commit()
    return store.spans(before_minute=1)


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="power-", dir=MEMORY) as name:
        yield Path(name)


@pytest.mark.parametrize("seed", range(RUNS))
def test_lines_and_answers_survive_one_power_loss_after_another(room: Path, seed: int) -> None:
    world = World(room, seed)
    try:
        world.play()
        world.check()
        assert world.losses
    finally:
        world.close()


# ---- what this would notice


def _answer_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogOnDisk, "answer", Log.answer)


def _forget_what_the_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PositionStore, "recover", lambda *_, **__: [])


def _take_blocks_before_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position of a file is behind what is only sent."""
    add_block = InOrder.add_block

    def add(self: InOrder[Any], block: Any, future: asyncio.Future[Placed]) -> None:
        add_block(self, block, future)
        if not future.done():
            self._take(block, Placed(TOPIC, 0, 0, 0))

    monkeypatch.setattr(InOrder, "add_block", add)


@pytest.mark.parametrize(
    "leave_out", [_answer_before_the_flush, _forget_what_the_log_has, _take_blocks_before_their_answers]
)
def test_what_is_left_out_is_noticed(
    tmp_path: Path, leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    noticed = 0
    for seed in range(6):
        (tmp_path / f"{seed}").mkdir()
        world = World(tmp_path / f"{seed}", seed)
        try:
            world.play()
            world.check()
        except AssertionError:
            noticed += 1
        finally:
            world.close()
    assert noticed

"""Power loss at any moment: what was flushed is there, nothing is acknowledged that is not, and the log opens.

Method: runs of the real log and producers' snapshot on a disk that remembers what was made durable
(``tests/support/power_loss.py``).  After each call that changes the disk, states that a power loss may leave are
opened.

The suite looks at some thousand states; ``POWER_LOSS_RUNS=500 pytest tests/crash/test_power_loss.py`` at many more,
of random runs that go on after each power loss.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.durable_files import SYSTEM
from appliance.errors import DiskFull
from appliance.log import FlushTicket, Log
from appliance.log.recovery import RecoveryPoint
from appliance.processes.writer.producers import Producers

from ..support.log_batches import MEMORY
from ..support.long import chosen_size
from ..support.power_loss import Disk, Image, Tree, plant
from ..support.producing import Partition, Promises, check_promises

NAME = "t-0"
STATES_PER_MOMENT = 12
RUNS = chosen_size("POWER_LOSS_RUNS", 3, 6)


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="power-", dir=MEMORY) as name:
        yield Path(name)


class Run:
    """A partition on a recording disk, and the moments that a power loss may come at."""

    def __init__(self, root: Path, promises: Promises | None = None, boot: int = 1, segments_max: int = 2000) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.promises = promises or Promises()
        self.moments: list[tuple[Image, Promises]] = []
        self.disk = Disk(root, self._observe)
        self.boot = boot
        self.segments_max = segments_max
        self.open()

    def _observe(self) -> None:
        self.moments.append((self.disk.image(), self.promises.copy()))

    def open(self) -> None:
        self.partition = Partition(
            self.root / NAME, self.promises, self.disk.system(), (self.boot, 0), self.segments_max
        )

    def kill(self) -> None:
        """The process ends, and the next one opens the log: nothing of the page cache is lost."""
        self.partition.log.close(clean=False)
        self.open()
        self.promises.come_back(self.partition.log)

    def close(self) -> None:
        self.disk.close()


def reopen(tree: Tree, promises: Promises, path: Path, boot: int) -> None:
    """Put a state on a disk, open it, check it, and go on from it."""
    shutil.rmtree(path, ignore_errors=True)
    plant(tree, path)
    after = promises.copy()
    partition = Partition(path / NAME, after, SYSTEM, (boot, 0))
    check_promises(promises, partition)
    after.come_back(partition.log)
    for producer in (1, 99):
        partition.append(producer)
    partition.close()
    check_promises(after, Partition(path / NAME, after, SYSTEM, (boot, 0)))


def look_at_all(run: Run, path: Path, states_max: int = STATES_PER_MOMENT, seed: int = 0) -> int:
    """Open what a power loss at any moment may leave; returns how many different states there were."""
    seen: set[bytes] = set()
    random_ = random.Random(seed)
    for number, (image, promises) in enumerate(run.moments):
        for tree in image.states(random_, states_max):
            identity = repr((promises.flushed, promises.start, promises.start_asked, len(promises.batches), tree))
            digest = hashlib.blake2b(identity.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            try:
                reopen(tree, promises, path, boot=run.boot + 1)
            except Exception as error:
                raise AssertionError(f"power lost after call {number}: {describe(tree)}: {error!r}") from error
    return len(seen)


def describe(tree: Tree) -> str:
    return json.dumps({k: describe(v) if isinstance(v, dict) else len(v) for k, v in tree.items()})


# ---- runs, from the first call on


def first_batches(run: Run) -> None:
    run.partition.append(1)
    run.partition.append(2)
    run.partition.flush()
    run.partition.append(1, size=600)


def rolling(run: Run) -> None:
    for _ in range(3):
        run.partition.append(1, size=400)
        run.partition.append(2, size=400)
        run.partition.flush()
    run.partition.append(1, size=1500)
    run.partition.append(2, size=400)


def snapshots(run: Run) -> None:
    run.partition.append(1)
    run.partition.producers.freeze()
    run.partition.append(1)
    run.partition.flush()
    run.partition.append(2)
    run.partition.producers.freeze()
    run.partition.append(1)
    run.partition.flush()


def retention(run: Run) -> None:
    partition = run.partition
    for producer in (1, 2, 1, 2, 2, 2):
        partition.append(producer, size=450)
    partition.flush()
    partition.delete_before(partition.log.bases[1])
    partition.append(2, size=450)
    partition.delete_before(partition.log.bases[-1] + 10)


def everything_deleted(run: Run) -> None:
    partition = run.partition
    for _ in range(4):
        partition.append(1, size=450)
    partition.flush()
    partition.append(1)  # written, not flushed
    partition.delete_before(partition.log.end_offset)
    partition.append(2)
    partition.flush()


def restarts(run: Run) -> None:
    run.partition.append(1)
    run.partition.close()
    run.open()
    run.partition.append(1)
    run.partition.delete_before(run.partition.log.end_offset - 5)
    run.kill()
    run.partition.append(2)
    run.partition.flush()
    run.partition.close()
    run.open()
    run.partition.delete_before(run.partition.log.end_offset - 5)  # the first change after a clean stop
    run.partition.delete_before(run.partition.log.end_offset)


def full_disk(run: Run) -> None:
    partition = run.partition
    partition.append(1, size=450)
    partition.flush()
    for room in (0, 10, 300, 501, 520, 545, 560):
        run.disk.room = room
        partition.append(1, size=450)
        run.disk.room = None
        partition.append(2)
    partition.flush()
    run.promises.lacked_room = True
    run.disk.room = 0
    partition.delete_before(partition.log.end_offset)
    run.disk.room = None
    partition.append(1)


RUNS_BY_NAME: list[Callable[[Run], None]] = [
    first_batches, rolling, snapshots, retention, everything_deleted, restarts, full_disk,
]  # fmt: skip


@pytest.mark.parametrize("play", RUNS_BY_NAME, ids=lambda play: play.__name__)
def test_after_each_call(room: Path, play: Callable[[Run], None]) -> None:
    run = Run(room / "run")
    play(run)
    run.close()
    assert look_at_all(run, room / "after") > 20


@pytest.mark.parametrize("room_bytes", [0, 30, 300])
def test_power_comes_back_to_a_full_disk(room: Path, room_bytes: int) -> None:
    """Goal: the log opens without room where it can; where it cannot, it opens once there is some, and is whole."""
    run = Run(room / "run")
    rolling(run)
    run.close()
    opened, refused = 0, 0
    random_ = random.Random(0)
    for image, promises in run.moments[len(run.moments) // 2 :]:
        for tree in image.states(random_, 4):
            shutil.rmtree(room / "after", ignore_errors=True)
            plant(tree, room / "after")
            disk = Disk(room / "after")
            disk.room = room_bytes
            try:
                Partition(room / "after" / NAME, promises.copy(), disk.system(), (2, 0))
                opened += 1
            except DiskFull:
                refused += 1
            disk.room = None
            check_promises(promises, Partition(room / "after" / NAME, promises.copy(), disk.system(), (2, 0)))
            disk.close()
    assert opened > refused


def test_a_torn_tail_is_cut_without_any_room(room: Path) -> None:
    run = Run(room / "run")
    run.partition.append(1, size=300)
    run.partition.flush()
    promises = run.promises.copy()
    run.partition.append(1, size=100)
    log = run.root / NAME / f"{0:020d}.log"
    for size in range(promises.flushed, log.stat().st_size):
        os.truncate(log, size)
        run.disk.room = 0
        again = Partition(run.root / NAME, run.promises.copy(), run.disk.system(), (2, 0))
        assert again.log.end_offset == promises.flushed
        log.write_bytes(log.read_bytes() + bytes(100))  # another
    run.close()


# ---- what this would notice


def _never(*_: object) -> None: ...


def _without(owner: type, method: str, inner: type, inner_method: str) -> Callable[..., object]:
    """``method`` as it is, but with ``inner_method`` doing nothing meanwhile."""
    original = getattr(owner, method)

    def changed(self: object, *arguments: object) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inner, inner_method, _never)
            return original(self, *arguments)

    return changed


LEFT_OUT: dict[str, tuple[Callable[[Run], None], type, str, object]] = {
    "the recovery point is not synced when the log is opened": (
        rolling, Log, "_open", _without(Log, "_open", RecoveryPoint, "sync"),
    ),
    "nor when the start moves": (
        retention, Log, "retire_before", _without(Log, "retire_before", RecoveryPoint, "sync"),
    ),
    "files are removed before the names of those that stay are synced": (
        everything_deleted, Log, "must_flush_to_unlink", False,
    ),
    "segments are removed that the snapshot does not cover": (
        retention, Producers, "covers", lambda *_: True,
    ),
    "sealed segments and directories are not synced": (
        rolling, FlushTicket, "sync", lambda self: os.fdatasync(self._active.log.fd),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_is_left_out_is_noticed(room: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play, owner, name, instead = LEFT_OUT[what]
    monkeypatch.setattr(owner, name, instead)
    run = Run(room / "run")
    play(run)
    run.close()
    with pytest.raises(AssertionError, match="power lost after call"):
        look_at_all(run, room / "after")


# ---- random runs, that go on after the power came back


def play_at_random(run: Run, random_: random.Random, steps: int) -> None:
    for _ in range(steps):
        partition = run.partition
        match random_.randrange(12):
            case 0 | 1 | 2 | 3:
                partition.append(random_.randrange(1, 5), random_.choice((5, 50, 400, 1200)))
            case 4 | 5:
                partition.flush()
            case 6:
                partition.producers.freeze()
            case 7:
                partition.delete_before(random_.randrange(partition.log.start, partition.log.end_offset + 1))
            case 8:
                partition.delete_before(random_.choice([*partition.log.bases, partition.log.end_offset]))
            case 9:
                run.kill()
            case 10:
                partition.close()
                run.open()
            case 11:
                run.disk.room = random_.randrange(800)
                for producer in (1, 2):
                    partition.append(producer, 400)
                run.disk.room = None


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_runs_with_one_power_loss_after_another(room: Path, seed: int) -> None:
    random_ = random.Random(seed)
    promises = Promises()
    boot = 1
    tree: Tree = {}
    for _ in range(4):
        shutil.rmtree(room / "run", ignore_errors=True)
        plant(tree, room / "run")
        run = Run(room / "run", promises, boot, segments_max=6)
        if boot > 1:
            check_promises(promises, run.partition)
            promises.come_back(run.partition.log)
        play_at_random(run, random_, 12)
        run.close()
        look_at_all(run, room / "after", states_max=3, seed=seed)
        image, promises = random_.choice(run.moments[len(run.moments) // 2 :])
        tree = random_.choice(list(image.states(random_, 5)))
        boot += 1

"""Power loss while transactions end: what was said to be committed is, as a whole, and nothing stays open.

Method: the real coordinator and the real logs of two partitions, on a disk that remembers what was made durable
(``tests/support/power_loss.py``).  What ZooKeeper has acknowledged is durable, and what it has not may be.  After each
call that changes the disk, and each write to ZooKeeper, states that a power loss may leave are opened, and a
coordinator goes on from them.

``POWER_LOSS_RUNS=200`` sets how many random runs there are.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.broker.open_transactions import OpenTransactions
from appliance.catalog import Topic
from appliance.config import TopicSettings
from appliance.durable_files import SYSTEM, System
from appliance.log import Log
from appliance.log.compaction import Policy, run_pass
from appliance.log.transactions import AbortedIndex
from appliance.partition_states import ONLINE
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.writer import Appender, swap_segment
from appliance.records.batch import TRANSACTIONAL
from appliance.records.encode import encode_batch
from appliance.records.markers import Marker
from appliance.shared.table import CELL_COUNT, SegmentTable
from appliance.transactions import transaction_coordinator
from appliance.transactions.store import Lead
from appliance.transactions.transaction import ENDING, ProducerIdentity, Transaction, TransactionPart, TransactionState
from appliance.transactions.transaction_coordinator import KnownTransaction, TransactionCoordinator
from appliance.wire.kafka.codes import Code

from ..support.committed_reader import Held, read
from ..support.fake_transactions import TOPIC_ID, FakeTransactions
from ..support.log_batches import MEMORY, Arena, labelled
from ..support.long import chosen_size
from ..support.power_loss import Disk, Image, plant

RUNS = chosen_size("POWER_LOSS_RUNS", 3, 20)
PARTS = (TransactionPart("a", TOPIC_ID, 0), TransactionPart("a", TOPIC_ID, 1))
SETTINGS = TopicSettings(segment_bytes=700, index_interval_bytes=256)
NOW_MS = 1_700_000_000_000
STATES_PER_MOMENT = 3
IDS_MAX = 50


class Written:
    """The log of one partition, and what its writer does for the coordinator."""

    def __init__(self, path: Path, system: System, boot: int) -> None:
        self.log = Log.open(path, SETTINGS, lambda: NOW_MS, boot=(boot, 0), system=system)
        self._system = system
        self._producers = Producers(self.log, IDS_MAX, system)
        self._table = SegmentTable([0] * CELL_COUNT)
        self._transactions = OpenTransactions(IDS_MAX)
        self._appender = Appender(self.log, self._producers, self._table, self._transactions)
        self._arena = Arena()
        self._table.publish(*self.log.summary)
        self._table.set_log_end_offset(self.log.end_offset)
        self._table.set_state(ONLINE)
        self.flush()

    def begin(self, producer: ProducerIdentity) -> None:
        self._producers.sequences.check_epoch(*producer)
        self._transactions.open_transaction(*producer)

    def append(self, producer: ProducerIdentity, sequence: int, value: bytes) -> None:
        """A batch, acknowledged with acks=all."""
        identity = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": sequence}
        raw = labelled(encode_batch([(value, value, (), NOW_MS)], **identity), attributes=TRANSACTIONAL)  # type: ignore[arg-type]
        self._arena.arena[: len(raw)] = raw
        (ready,) = self._appender.admit_batches([(self._arena, (1, -1, [0, len(raw)]))])
        self._appender.append()
        assert ready.answer.numbers[0] == 0, ready.answer
        self.flush()

    def mark(self, producer: ProducerIdentity, marker: Marker) -> None:
        """End a transaction as a writer does: it is answered when the marker is flushed."""
        self._transactions.check_epoch(*producer)
        self._appender.append_marker(*producer, marker, NOW_MS)
        self._transactions.end_transaction(producer.id)
        self.flush()

    def flush(self) -> None:
        self.log.flush()
        end = self.log.end_offset
        self.log.raise_high_watermark(end)
        self._table.publish_high_watermark(end, self.log.records, self.log.transactions.stable(end))
        if (snapshot := self._producers.take_snapshot()) is not None:
            self._producers.store(snapshot)

    def freeze(self) -> None:
        self._producers.freeze()

    def compact(self) -> None:
        stable = self._table.snapshot().stable
        limit = max(base for base in self.log.bases if base <= stable)
        policy = Policy(limit, -1, NOW_MS, 1 << 20, 256)
        swap: Callable[[int], bool] = lambda base: swap_segment(self.log, self._producers, base, self.flush)  # noqa: E731
        bases, end = list(self.log.bases), self.log.high_watermark
        run_pass(self.log.path, bases, end, policy, swap, lambda _: None, system=self._system)

    def committed(self) -> list[bytes]:
        seen = self._table.snapshot()
        assert seen.stable == seen.high_watermark, f"{self.log.path}: a transaction stays open"
        return [value for _, value in read(Held(self.log.path, self._table), True)[0]]


class Sent(NamedTuple):
    """What a transaction has sent, by partition.  ``said``: what its producer was told; None: nothing yet."""

    values: list[list[bytes]]
    committed: bool
    said: Code | None = None


class Bed(FakeTransactions):
    """A coordinator between a store that keeps what it has acknowledged and partitions on a disk.

    ``moments``: what there was at each moment that the power may go at.
    """

    def __init__(self, root: Path, system: System, stored: dict[str, Transaction], boot: int) -> None:
        self.observe: Callable[[], None] = lambda: None
        self.sent: list[Sent] = []
        self.boot = boot
        self.logs = [Written(root / f"a-{part.partition}", system, boot) for part in PARTS]
        self._first_id = 100 + 1_000 * boot
        super().__init__({"a": Topic("a", {0: [1], 1: [1]}, {}, TOPIC_ID)})
        self._ids = count(self._first_id)
        self._values = count(10_000 * boot)
        self.stored = stored

    def go_on(self) -> None:
        """A coordinator takes over what is stored."""
        self.start()

    # -- the store

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        await super().put(transactional_id, transaction)
        self.observe()  # it may be stored, and nobody knows
        await asyncio.sleep(0)

    # -- the writers

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        await asyncio.sleep(0)
        self.logs[part.partition].begin(producer)

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        await asyncio.sleep(0)
        self.logs[part.partition].mark(producer, Marker(committed, lead.epoch))
        await asyncio.sleep(0)

    # -- a client

    async def transaction(self, name: str, sizes: list[int], committed: bool) -> None:
        """All of a transaction; the values are told apart by their numbers."""
        while (one := self.coordinator.get(name)) is not None and one.state in ENDING:  # a client asks again
            await asyncio.sleep(0)
        producer = await self.begin(*PARTS, name=name)
        number = len(self.sent)
        self.sent.append(Sent([[], []], committed))
        for partition, size in enumerate(sizes):
            values = self.sent[number].values[partition]
            for sequence in range(size):
                values.append(b"%d " % next(self._values) + b"x" * 150)
                self.logs[partition].append(producer, sequence, values[-1])
                await asyncio.sleep(0)
        code = await self.coordinator.end(name, producer, committed)
        self.sent[number] = self.sent[number]._replace(said=code)
        self.observe()


class Moment(NamedTuple):
    image: Image
    stored: dict[str, Transaction]
    sent: list[Sent]


class Run:
    """A bed on a recording disk."""

    def __init__(self, root: Path, stored: dict[str, Transaction], boot: int = 1) -> None:
        root.mkdir(exist_ok=True)
        self.moments: list[Moment] = []
        self._disk = Disk(root, self._observe)
        self._bed: Bed | None = None
        self._bed = Bed(root, self._disk.system(), stored, boot)
        self._bed.observe = self._observe

    @property
    def bed(self) -> Bed:
        assert self._bed is not None
        return self._bed

    def _observe(self) -> None:
        if self._bed is not None:
            sent = copy.deepcopy(self._bed.sent)
            self.moments.append(Moment(self._disk.image(), dict(self._bed.stored), sent))

    def close(self) -> None:
        self._disk.close()


async def check(bed: Bed, sent: list[Sent]) -> None:
    """A coordinator comes back: then all has ended, and what was said holds."""
    bed.go_on()
    await bed.settled()
    for name, one in bed.coordinator.all().items():
        if one.state is TransactionState.ONGOING:
            await bed.coordinator.abort(name)
    await bed.settled()
    found = [Counter(log.committed()) for log in bed.logs]
    assert all(number == 1 for each in found for number in each.values()), "nothing is there twice"
    for one in sent:
        there = [[value in found[at] for value in values] for at, values in enumerate(one.values)]
        flat = [each for values in there for each in values]
        assert all(flat) or not any(flat), f"torn: {one}"
        if one.said is Code.NONE and flat:
            assert all(flat) == one.committed, f"said to be {'committed' if one.committed else 'aborted'}: {one}"
    wanted = {value for one in sent for values in one.values for value in values}
    assert {value for each in found for value in each} <= wanted, "what nobody has sent in this history"


def look_at_all(run: Run, path: Path, random_: random.Random, before: list[Sent] | None = None) -> int:
    """Go on from what a power loss at any moment may leave; how many different states there were."""
    seen: set[bytes] = set()
    for number, moment in enumerate(run.moments):
        for tree in moment.image.states(random_, STATES_PER_MOMENT):
            digest = hashlib.blake2b(repr((moment.stored, moment.sent, tree)).encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            shutil.rmtree(path, ignore_errors=True)
            plant(tree, path)
            try:
                asyncio.run(_reopened(path, moment, before or [], run.bed.boot + 1))
            except Exception as error:
                raise AssertionError(f"power lost at moment {number}: {error!r}") from error
    return len(seen)


async def _reopened(path: Path, moment: Moment, before: list[Sent], boot: int) -> None:
    async with asyncio.timeout(60):
        bed = Bed(path, SYSTEM, dict(moment.stored), boot)
        await check(bed, [*before, *moment.sent])
        await bed.transaction("after", [1, 1], True)
        await bed.settled()
        assert all(log.committed()[-1] == values[-1] for log, values in zip(bed.logs, bed.sent[0].values, strict=True))
        for log in bed.logs:
            log.log.close(clean=False)


# ---- runs

Play = Callable[[Run], Coroutine[Any, Any, None]]


async def two_at_once(run: Run) -> None:
    bed = run.bed
    for committed in (True, False):
        await asyncio.gather(
            bed.transaction("x", [2, 1], committed),
            bed.transaction("y", [1, 2], not committed),
        )
        await bed.settled()


async def one_partition_without_messages(run: Run) -> None:
    for committed in (True, False):
        await run.bed.transaction("x", [0, 1], committed)
    await run.bed.settled()


async def ends_are_stored(run: Run) -> None:
    """By themselves, since nothing follows soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_coordinator, "COMPLETE_LATER_S", 0)
        for committed in (True, False):
            await run.bed.transaction("x", [1, 1], committed)
            await run.bed.settled()
            await run.bed.ends_stored()


async def snapshots_between(run: Run) -> None:
    bed = run.bed
    for number in range(3):
        for log in bed.logs:
            log.freeze()
        await bed.transaction("x", [1, 1], number != 1)
        await bed.settled()


async def compacted_between(run: Run) -> None:
    """Each message has a key of its own: those of committed transactions stay, whatever compaction does."""
    bed = run.bed
    for committed in (True, False):
        await bed.transaction("x", [1, 2], committed)
        await bed.settled()
    open_one = await bed.begin(*PARTS, name="y")
    bed.logs[0].append(open_one, 0, b"of an open one")
    bed.sent.append(Sent([[b"of an open one"], []], False))
    await bed.transaction("x", [1, 1], True)
    await bed.settled()
    for log in bed.logs:
        log.compact()
    await bed.coordinator.end("y", open_one, False)
    await bed.settled()


PLAYS: list[Play] = [
    two_at_once, one_partition_without_messages, ends_are_stored, snapshots_between, compacted_between,
]  # fmt: skip


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="power-", dir=MEMORY) as name:
        yield Path(name)


def played(room: Path, play: Play) -> Run:
    async def bounded() -> Run:
        async with asyncio.timeout(60):
            run = Run(room / "run", {})
            run.bed.go_on()
            await play(run)
            return run

    return asyncio.run(bounded())


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_at_each_moment(room: Path, play: Play) -> None:
    run = played(room, play)
    run.close()
    assert look_at_all(run, room / "after", random.Random(0)) > 40


# ---- what this would notice


async def _complete_before_markers(
    self: TransactionCoordinator, transactional_id: str, entry: KnownTransaction
) -> None:
    ending = entry.transaction
    complete = ending.complete(self.clock_ms())
    async with entry.lock:
        await self.store.complete(transactional_id, ending, complete)
        for part in ending.parts:
            await self._mark(transactional_id, entry, part)
        self._take(transactional_id, entry, complete)
    entry.ended.set()


async def _next_before_markers(self: TransactionCoordinator, transactional_id: str, entry: KnownTransaction) -> None:
    ending = entry.transaction
    self._take(transactional_id, entry, ending.complete(self.clock_ms()))
    entry.ended.set()
    for _ in range(20):
        await asyncio.sleep(0)  # the client goes on
    for part in ending.parts:
        lead = self.store.lead(transactional_id)
        await self.writers.mark(part, ending.producer, lead, ending.committed, ending.changed_ms, False)


_END = TransactionCoordinator.end


async def _answered_before_prepared(
    self: TransactionCoordinator, transactional_id: str, producer: ProducerIdentity, committed: bool
) -> Code:
    async def prepare() -> None:
        await _END(self, transactional_id, producer, committed)

    self._spawn(prepare())
    return Code.NONE


LEFT_OUT: dict[str, tuple[Play, type, str, object]] = {
    "COMPLETE is stored before the markers are flushed": (
        two_at_once, TransactionCoordinator, "_finish", _complete_before_markers,
    ),
    "the next transaction is stored before the markers are flushed": (
        two_at_once, TransactionCoordinator, "_finish", _next_before_markers,
    ),
    "EndTxn is answered before PREPARE is stored": (
        two_at_once, TransactionCoordinator, "end", _answered_before_prepared,
    ),
    "a snapshot of producers is stored before the index of aborted transactions": (
        snapshots_between, AbortedIndex, "sync", lambda self: None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_is_left_out_is_noticed(room: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play, owner, name, instead = LEFT_OUT[what]
    monkeypatch.setattr(owner, name, instead)
    run = played(room, play)
    run.close()
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="power lost at moment"):
        look_at_all(run, room / "after", random.Random(0))


# ---- random runs, that go on after the power came back


async def play_at_random(run: Run, random_: random.Random, steps: int) -> None:
    bed = run.bed
    for _ in range(steps):
        match random_.randrange(8):
            case 0 | 1 | 2:
                await bed.transaction(random_.choice("xyz"), [random_.randrange(3), random_.randrange(3)], True)
            case 3:
                await bed.transaction(random_.choice("xyz"), [random_.randrange(3), random_.randrange(3)], False)
            case 4:
                names = random_.sample("xyz", 2)
                kinds = [random_.random() < 0.7 for _ in names]
                await asyncio.gather(
                    *(bed.transaction(name, [1, 1], kind) for name, kind in zip(names, kinds, strict=True))
                )
            case 5:
                random_.choice(bed.logs).freeze()
            case 6:
                await bed.settled()
                random_.choice(bed.logs).compact()
            case 7:
                await bed.settled()
    await bed.settled()


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_runs_with_one_power_loss_after_another(room: Path, seed: int) -> None:
    random_ = random.Random(seed)
    stored: dict[str, Transaction] = {}
    sent: list[Sent] = []
    for boot in range(1, 4):

        async def one(boot: int = boot, stored: dict[str, Transaction] = stored, sent: list[Sent] = sent) -> Run:
            async with asyncio.timeout(60):
                run = Run(room / "run", stored, boot)
                if sent:
                    await check(run.bed, sent)
                else:
                    run.bed.go_on()
                await play_at_random(run, random_, 5)
                return run

        run = asyncio.run(one())
        run.close()
        moment = random_.choice(run.moments[len(run.moments) // 2 :])
        tree = random_.choice(list(moment.image.states(random_, 5)))
        stored, sent = dict(moment.stored), [*sent, *moment.sent]
        shutil.rmtree(room / "run")
        plant(tree, room / "run")
    asyncio.run(_reopened(room / "run", Moment(moment.image, stored, []), sent, 9))

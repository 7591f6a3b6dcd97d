"""What readers get of a log with transactions is what Kafka's rules say, whatever happens to the partition.

``LOG_MODEL_RUNS=10000`` is the number of runs of the model.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.broker.open_transactions import OpenTransactions
from appliance.config import TopicSettings
from appliance.log import Log
from appliance.log.compaction import Policy, run_pass
from appliance.log.files import log_path
from appliance.log.recovery import POINT_NAME
from appliance.log.tools import verify
from appliance.log.transactions import Aborted
from appliance.partition_states import ONLINE
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.writer import Appender, delete_before, swap_segment
from appliance.records.batch import TRANSACTIONAL
from appliance.records.encode import encode_batch
from appliance.records.markers import Marker
from appliance.shared.table import CELL_COUNT, SegmentTable

from ..support.committed_reader import Held, read, read_natively
from ..support.derived import Opened, compare
from ..support.killed_calls import Killed, KilledCalls
from ..support.log_batches import MEMORY, Arena, labelled
from ..support.long import chosen_size
from ..support.power_loss import Disk, plant

RUNS = chosen_size("LOG_MODEL_RUNS", 40, 300)
IDS_MAX = 5
NOW_MS = 1_700_000_000_000
PRODUCERS = (1, 2, 3)
KEYS = (b"a", b"b", b"c", b"d")
Seen = list[tuple[int, bytes]]


@dataclasses.dataclass
class Data:
    """A batch: where it begins and ends, whose it is (0: nobody's), and key and value of its messages by offset."""

    start: int
    stop: int
    producer: int
    sequence: int
    is_transactional: bool
    messages: dict[int, tuple[bytes, bytes]]


@dataclasses.dataclass
class End:
    """A marker."""

    start: int
    stop: int
    producer: int
    committed: bool


class TransactionMachine(RuleBasedStateMachine):
    """Goal: readers of committed messages get those, in order, up to the first open transaction; others get all.

    Method: producers with and without transactions write, end them, are killed and lose power with the partition at any
    byte; it is rolled, cleaned by retention, by deletions and by compaction.  After each step both readers are compared
    with a model that knows the batches in their order, and what is derived with what recovery derives.
    """

    @initialize(segment=st.sampled_from([600, 1500, 4000]))
    def begin(self, segment: int) -> None:
        self.room = Path(tempfile.mkdtemp(prefix="transactions-", dir=MEMORY))
        self.root = self.room / "0"
        self.root.mkdir()
        self.settings = TopicSettings(segment_bytes=segment, index_interval_bytes=256)
        self.boot, self.number = 1, 0
        self.events: list[Data | End] = []
        self.arena = Arena()
        self.disk = Disk(self.root)
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.disk.close()
            for name in ("log", "producers", "held", "appender"):
                self.__dict__.pop(name, None)
            shutil.rmtree(self.room)
            gc.collect()  # each log holds files open

    @property
    def path(self) -> Path:
        return self.root / "t-0"

    def open(self) -> None:
        self.killed = KilledCalls(self.disk.system())
        system = self.killed.system
        self.log = Log.open(self.path, self.settings, lambda: NOW_MS, boot=(self.boot, 0), system=system)
        self.producers = Producers(self.log, IDS_MAX, system)
        self.table = SegmentTable([0] * CELL_COUNT)
        self.transactions = OpenTransactions(IDS_MAX)
        self.appender = Appender(self.log, self.producers, self.table, self.transactions)
        self.table.publish(*self.log.summary)
        self.table.set_log_end_offset(self.log.end_offset)
        self.table.set_state(ONLINE)
        self.held = Held(self.path, self.table)
        self.events = [event for event in self.events if event.stop <= self.log.end_offset]

    # ---- the model

    def own(self, producer: int) -> list[Data | End]:
        return [event for event in self.events if event.producer == producer]

    def is_open(self, producer: int) -> bool:
        mine = [event for event in self.own(producer) if isinstance(event, End) or event.is_transactional]
        return bool(mine) and isinstance(mine[-1], Data)

    def outcome(self, event: Data) -> bool | None:
        """Whether a batch is committed, below the high watermark; None: its transaction is open."""
        if not event.is_transactional:
            return True
        ends = [one for one in self.own(event.producer) if isinstance(one, End) and one.start >= event.stop]
        return ends[0].committed if ends and ends[0].stop <= self.log.high_watermark else None

    def stable(self, first: int = 0) -> int:
        """``first``: for one who knows the batches from this offset on, and no producers."""
        data = [
            event
            for event in self.events
            if isinstance(event, Data) and event.stop > first and self.outcome(event) is None
        ]
        return max(self.log.start, min([self.log.high_watermark, *(event.start for event in data)]))

    def messages(self, stop: int, *outcomes: bool | None) -> Seen:
        return [
            (offset, value)
            for event in self.events
            if isinstance(event, Data) and event.stop <= stop and self.outcome(event) in outcomes
            for offset, (_, value) in event.messages.items()
            if offset >= self.log.start
        ]

    # ---- producers

    @rule(
        producer=st.sampled_from((0, *PRODUCERS)),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        size=st.sampled_from([5, 100, 400]),
        is_transactional=st.booleans(),
    )
    def send(self, producer: int, keys: list[bytes], size: int, is_transactional: bool) -> None:
        is_transactional = bool(producer) and (is_transactional or self.is_open(producer))
        sent = [event for event in self.own(producer) if isinstance(event, Data)] if producer else []
        sequence = sent[-1].sequence + 1 if sent else 0
        identity = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 3 * sequence} if producer else {}
        values: list[bytes] = []
        for _ in range(3 if producer else len(keys)):  # so that sequences stay plain
            self.number += 1
            values.append(b"%d " % self.number + b"x" * size)
        named = [keys[number % len(keys)] for number in range(len(values))]
        raw = encode_batch([(key, value, (), NOW_MS) for key, value in zip(named, values, strict=True)], **identity)  # type: ignore[arg-type]
        if is_transactional:
            raw = labelled(raw, attributes=TRANSACTIONAL)
            self.transactions.open_transaction(producer, 0)
        self.arena.arena[: len(raw)] = raw
        start = self.log.end_offset
        (ready,) = self.appender.admit_batches([(self.arena, (1, -1, [0, len(raw)]))])
        self.appender.append()
        assert ready.answer.numbers[0] == 0, ready.answer
        stop = start + len(raw)
        offsets = range(stop - len(values), stop)
        messages = dict(zip(offsets, zip(named, values, strict=True), strict=True))
        self.events.append(Data(start, stop, producer, sequence, is_transactional, messages))

    @rule(producer=st.sampled_from(PRODUCERS), committed=st.booleans())
    def end(self, producer: int, committed: bool) -> None:
        was_open, start = self.is_open(producer), self.log.end_offset
        size = self.appender.append_marker(producer, 0, Marker(committed, 0), NOW_MS)
        assert bool(size) == was_open
        self.transactions.end_transaction(producer)
        if size:
            self.events.append(End(start, start + size, producer, committed))

    # ---- the partition

    @rule()
    def flush(self) -> None:
        self.log.flush()
        end = self.log.end_offset
        self.log.raise_high_watermark(end)
        self.table.publish_high_watermark(end, self.log.records, self.log.transactions.stable(end))
        snapshot = self.producers.take_snapshot()
        if snapshot is not None:
            self.producers.store(snapshot)

    @rule()
    def freeze_producers(self) -> None:
        self.producers.freeze()

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self.appender.show_segments()

    def show(self) -> None:
        self.table.retire_before(self.log.start)
        self.appender.show_segments()
        self.table.retire_before(self.log.start)

    @rule(data=st.data(), is_retention=st.booleans())
    def delete(self, data: st.DataObject, is_retention: bool) -> None:
        bases = [base for base in self.log.bases if base <= self.stable()]
        offsets = st.sampled_from(bases) if is_retention else st.integers(self.log.start, self.log.end_offset)
        delete_before(self.log, self.producers, data.draw(offsets), self.flush, self.show)

    @rule(killed_before=st.none() | st.integers(0, 40), torn_bytes=st.sampled_from([0, 1, 60]))
    def compact(self, killed_before: int | None, torn_bytes: int) -> None:
        """What goes is aborted, or has a later message of its key that stays; also when a pass is killed at a call."""
        self.flush()  # as the swap would
        stable = self.stable()
        limit = max(base for base in self.log.bases if base <= stable)
        before, committed = read(self.held, False)[0], self.messages(stable, True)
        keys = {
            offset: one[0] for event in self.events if isinstance(event, Data) for offset, one in event.messages.items()
        }
        policy = Policy(limit, -1, NOW_MS, 1 << 20, 256)
        bases, high_watermark = list(self.log.bases), self.log.high_watermark
        if killed_before is not None:
            self.killed.kill_before(killed_before, torn_bytes)
        with suppress(Killed):
            run_pass(self.path, bases, high_watermark, policy, self.swap, lambda _: None, system=self.killed.system)
        self.killed.spare()
        self.disk.settle()  # counts in indexes are corrected without our disk
        if killed_before is None:
            self.held.reader.forget()
        else:
            self.log.close(clean=False)
            self.open()
        after = read(self.held, False)[0]
        gone = set(before) - set(after)
        assert [one for one in before if one not in gone] == after
        for one in gone:
            later = [other for other in committed if other[0] > one[0] and keys[other[0]] == keys[one[0]]]
            assert one[0] < limit and (one not in committed or later[-1] in after)
        for event in self.events:
            if isinstance(event, Data):
                event.messages = {at: one for at, one in event.messages.items() if (at, one[1]) not in gone}

    def swap(self, base: int) -> bool:
        return swap_segment(self.log, self.producers, base, self.flush)

    def stop(self) -> None:
        self.flush()
        self.producers.store_all()
        self.log.close(clean=True)

    @rule(is_clean=st.booleans())
    def start_again(self, is_clean: bool) -> None:
        if is_clean:
            self.stop()
            assert compare(self.path, ids_max=IDS_MAX) == []
        else:
            self.log.close(clean=False)
        self.open()

    @rule()
    def restore_a_backup(self) -> None:
        """It has segments and the recovery point only: all else follows from them.

        Nobody knows of an open transaction there all of whose batches are deleted: nothing is to wait for its end.
        """
        copy = self.room / "backup" / "t-0"
        copy.mkdir(parents=True)
        for path in self.path.iterdir():
            if path.suffix == ".log" or path.name == POINT_NAME:
                shutil.copy(path, copy)
        log = Log.open(copy, self.settings, lambda: NOW_MS, boot=(self.boot, 0))
        Producers(log, IDS_MAX)
        table = SegmentTable([0] * CELL_COUNT)
        table.publish(*log.summary)
        table.set_state(ONLINE)
        if log.high_watermark == self.log.high_watermark:
            assert read(Held(copy, table), True)[0] == self.messages(self.stable(self.log.bases[0]), True)
        log.close()
        assert verify(copy).problems == []
        shutil.rmtree(copy.parent)

    @precondition(lambda self: self.log.end_offset > self.log.high_watermark)
    @rule(data=st.data())
    def kill_within_a_write(self, data: st.DataObject) -> None:
        """Method: the file ends at any byte behind what is flushed."""
        base, known = self.log.bases[-1], max(self.log.flushed, self.log.high_watermark)
        if known < base:
            return
        end = data.draw(st.integers(known, self.log.end_offset))
        self.log.close(clean=False)
        os.truncate(log_path(self.path, base), end - base)
        self.disk.settle()
        self.open()

    @precondition(lambda self: any(self.is_open(producer) for producer in PRODUCERS))
    @rule(data=st.data())
    def kill_between_index_and_marker(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from([one for one in PRODUCERS if self.is_open(one)]))
        end = self.log.end_offset
        entry = self.log.transactions.aborted(producer, end + 78)
        assert isinstance(entry, Aborted)
        self.log.aborted.append(self.log.bases[-1], entry)
        self.log.close(clean=False)
        self.open()

    @rule(
        name=st.sampled_from(["end", "flush", "roll", "delete", "stop"]),
        producer=st.sampled_from(PRODUCERS),
        share=st.floats(0, 1),
        calls=st.integers(0, 20),
        torn_bytes=st.sampled_from([0, 1, 60]),
    )
    def killed_at_a_call(self, name: str, producer: int, share: float, calls: int, torn_bytes: int) -> None:
        """In the middle of an operation; ``share``: how much of the log a deletion takes."""
        log, was_open = self.log, self.is_open(producer)
        start, end = log.start, log.end_offset
        offset = start + int(share * (end - start))
        operations = {
            "end": lambda: self.appender.append_marker(producer, 0, Marker(True, 0), NOW_MS),
            "flush": self.flush,
            "roll": log.roll,
            "delete": lambda: delete_before(log, self.producers, offset, self.flush, self.show),
            "stop": self.stop,
        }
        self.killed.kill_before(calls, torn_bytes)
        with suppress(Killed):
            operations[name]()
        self.killed.spare()
        log.close(clean=False)
        self.open()
        assert self.log.end_offset >= end and start <= self.log.start <= (offset if name == "delete" else start)
        if self.log.end_offset > end:
            assert name == "end" and was_open
            self.events.append(End(end, self.log.end_offset, producer, True))

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        flushed = self.log.flushed
        random_ = random.Random(seed)
        tree: Any = random_.choice(list(self.disk.image().states(random_, 6)))
        self.log.close(clean=False)
        self.disk.close()
        shutil.rmtree(self.root)
        self.root = self.room / str(int(self.root.name) + 1)
        plant(tree, self.root)
        self.disk = Disk(self.root)
        self.boot += 1
        self.open()
        assert self.log.end_offset >= flushed

    # ---- what holds

    @invariant()
    def readers_get_what_they_should(self) -> None:
        if not hasattr(self, "log"):
            return
        stable = self.stable()
        assert self.table.snapshot().stable == stable
        of_all, of_committed = self.messages(self.log.high_watermark, True, False, None), self.messages(stable, True)
        for client in (read, read_natively):
            for bytes_max in (1, 1_000, 1 << 20):
                seen, end = client(self.held, False, bytes_max)
                assert seen == of_all and end <= self.log.high_watermark
                seen, end = client(self.held, True, bytes_max)
                assert seen == of_committed and end <= stable

    @invariant()
    def derived_is_recovered(self) -> None:
        if hasattr(self, "log"):
            assert compare(self.path, Opened(self.log, self.producers, self.table), ids_max=IDS_MAX) == []


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(
    phases=(Phase.generate,),
    max_examples=RUNS,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

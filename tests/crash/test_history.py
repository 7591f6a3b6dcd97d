"""tests.crash.history: each kind of anomaly is found in a history that has it, and none in one that is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import history
from .history import KINDS, History, HistoryFull, Log, Operation, check, main, text_of

SEEDS = st.integers(0, 2**32)
LOGS = [Log("a", 0, 0), Log("a", 0, 1), Log("b", 0, 0), Log("b", 1, 0)]


class Model:
    """A right history by construction: logs that only grow, clients that see them, and one clock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.operations: list[Operation] = []
        self.now_ns = 0
        self.stored: dict[Log, list[tuple[int, str]]] = {log: [] for log in LOGS}
        self.numbers: dict[tuple[str, Log], int] = {}
        self.positions: dict[tuple[str, int, Log], int] = {}
        self.sessions: dict[str, int] = {}
        self.committed: dict[Log, int] = {}

    def record(self, op: str, log: Log, **fields: Any) -> None:
        self.now_ns += self.rng.randrange(1, 5) * 1_000_000
        operation = {"op": op, "at_ns": self.now_ns, **log._asdict(), "since_ns": self.now_ns - 100_000, **fields}
        self.operations.append(msgspec.convert(operation, Operation))

    def send(self) -> None:
        producer, acks, idempotent = self.rng.choice(
            [("p1", -1, True), ("p2", 1, True), ("p3", 1, False), ("p4", 0, True)]
        )
        log = self.rng.choice(LOGS)
        number = self.numbers.get((producer, log), 0)
        self.numbers[producer, log] = number + 1
        about = {"process": producer, "value": number, "acks": acks, "idempotent": idempotent}
        outcome = self.rng.choice(["ok", "ok", "ok", "info", "fail", "open"])
        self.record("send", log, type="invoke", **about)
        offset = -1
        if outcome == "ok" or (outcome != "fail" and self.rng.random() < 0.5):
            for _ in range(1 if idempotent else self.rng.choice([1, 1, 2])):
                offset = self.append(log, text_of(producer, log, number))
        if outcome != "open":
            told = outcome == "ok" and acks != 0
            self.record("send", log, type=outcome, offset=offset if told else -1, **about)

    def append(self, log: Log, text: str) -> int:
        last = self.stored[log][-1][0] if self.stored[log] else -1
        offset = last + self.rng.choice([1, 1, 61, 400])
        self.stored[log].append((offset, text))
        return offset

    def poll(self, process: str, group: str = "") -> None:
        log, session = self.rng.choice(LOGS), self.sessions.get(process, 0)
        key = (process, session, log)
        start = self.positions.get(key, self.committed.get(log, 0) if group else 0)
        records = [entry for entry in self.stored[log] if entry[0] >= start][: self.rng.randrange(1, 9)]
        if records:
            self.positions[key] = records[-1][0] + 1
            incarnation = -1 if group and self.rng.random() < 0.5 else log.incarnation
            self.record("poll", log, process=process, group=group, session=session, records=records)
            self.operations[-1] = msgspec.structs.replace(self.operations[-1], incarnation=incarnation)

    def commit(self) -> None:
        """One member has a log at a time, so that its position is the group's."""
        log = self.rng.choice(LOGS)
        reached = self.positions.get(("g1", self.sessions.get("g1", 0), log))
        if reached is not None:
            self.committed[log] = max(reached, self.committed.get(log, 0))
            self.record("commit", log, process="g1", group="g", offset=self.committed[log])
        if log in self.committed and self.rng.random() < 0.5:
            self.record("committed", log, process="watch", group="g", offset=self.committed[log])

    def rebalance(self) -> None:
        self.sessions["g1"] = self.sessions.get("g1", 0) + 1
        self.record("assigned", LOGS[0], process="g1", group="g", session=self.sessions["g1"])

    def finish(self) -> None:
        for log in LOGS[:3]:
            for first in range(0, len(self.stored[log]), 7):
                self.record("poll", log, process="final", session=0, records=self.stored[log][first : first + 7])
            end = self.stored[log][-1][0] + 1 if self.stored[log] else 0
            self.record("complete", log, process="final", offset=end)

    def run(self, steps: int) -> list[Operation]:
        self.rebalance()
        for _ in range(steps):
            kind = self.rng.choices(["send", "poll", "group", "commit", "rebalance"], [10, 3, 4, 2, 1])[0]
            if kind == "send":
                self.send()
            elif kind == "poll":
                self.poll("c1")
            elif kind == "group":
                self.poll("g1", "g")
            elif kind == "commit":
                self.commit()
            else:
                self.rebalance()
        self.finish()
        return self.operations


def changed(operation: Operation, **fields: Any) -> Operation:
    return msgspec.structs.replace(operation, **fields)


# ---- corruptions: from a right history and a choice to a broken one, or None where there is nothing to break

Broken = list[Operation] | None
Corruption = Callable[[list[Operation], random.Random], Broken]
BY_KIND: dict[str, list[Corruption]] = {kind: [] for kind in KINDS}


def breaks(kind: str) -> Callable[[Corruption], Corruption]:
    def register(corruption: Corruption) -> Corruption:
        BY_KIND[kind].append(corruption)
        return corruption

    return register


def pick(found: Iterable[Any], rng: random.Random) -> Any:
    found = list(found)
    return rng.choice(found) if found else None


def acknowledged(operations: list[Operation], **fields: Any) -> list[Operation]:
    complete = {operation.log for operation in operations if operation.op == "complete"}
    return [
        operation
        for operation in operations
        if operation.op == "send" and operation.type == "ok" and operation.offset >= 0 and operation.log in complete
        if all(getattr(operation, name) == value for name, value in fields.items())
    ]


def without(operations: list[Operation], text: str, process: str | None = None) -> list[Operation]:
    """The history in which a value is not read, by one process or by anybody."""
    return [
        changed(operation, records=tuple(entry for entry in operation.records if entry[1] != text))
        if operation.op == "poll" and process in (None, operation.process)
        else operation
        for operation in operations
    ]


@breaks("lost")
def lose(operations: list[Operation], rng: random.Random) -> Broken:
    send = pick(acknowledged(operations), rng)
    return send and without(operations, text_of(send.process, send.log, send.value))


@breaks("duplicate")
def double(operations: list[Operation], rng: random.Random) -> Broken:
    send = pick(acknowledged(operations, idempotent=True), rng)
    if send is None:
        return None
    end = next(op for op in operations if op.op == "complete" and op.log == send.log)
    again = (end.offset + 7, text_of(send.process, send.log, send.value))
    reread = changed(end, op="poll", offset=-1, session=0, records=(again,))
    return [*(op for op in operations if op is not end), reread, changed(end, offset=again[0] + 1, at_ns=end.at_ns + 1)]


@breaks("reordered")
def reorder(operations: list[Operation], rng: random.Random) -> Broken:
    """Exchange the values of two acknowledged sends everywhere but where they are invoked."""
    first = pick(acknowledged(operations, idempotent=True), rng)
    second = first and pick(
        (
            s
            for s in acknowledged(operations, idempotent=True, process=first.process)
            if s.log == first.log and s != first
        ),
        rng,
    )
    if not second:
        return None
    one, other = (text_of(s.process, s.log, s.value) for s in (first, second))
    swap = {one: other, other: one}
    result = []
    for operation in operations:
        if operation is first or operation is second:
            late_ns = operations[-1].at_ns  # no value is acknowledged before it is sent
            operation = changed(operation, value=second.value if operation is first else first.value, at_ns=late_ns)
        records = tuple((offset, swap.get(text, text)) for offset, text in operation.records)
        result.append(changed(operation, records=records))
    return result


def polls(operations: list[Operation], *processes: str) -> list[Operation]:
    return [op for op in operations if op.op == "poll" and op.records and op.process in processes]


def with_record(operations: list[Operation], poll: Operation, index: int, record: tuple[int, str]) -> list[Operation]:
    records = (*poll.records[:index], record, *poll.records[index + 1 :])
    return [changed(op, records=records) if op is poll else op for op in operations]


@breaks("mixed")
def mix(operations: list[Operation], rng: random.Random) -> Broken:
    poll = pick(polls(operations, "c1", "final"), rng)
    others = poll and [op for op in operations if op.op == "send" and op.type == "invoke" and op.log != poll.log]
    if not others:
        return None
    index, other = rng.randrange(len(poll.records)), rng.choice(others)
    text = text_of(other.process, other.log, other.value)
    return with_record(operations, poll, index, (poll.records[index][0], text))


@breaks("inconsistent")
def contradict(operations: list[Operation], rng: random.Random) -> Broken:
    """What one reader saw at an offset is not what another did."""
    poll = pick(
        (op for op in polls(operations, "c1") if op.log in LOGS[:3] and len({text for _, text in op.records[:2]}) > 1),
        rng,
    )
    if poll is None:
        return None
    return with_record(operations, poll, 0, (poll.records[0][0], poll.records[1][1]))


@breaks("inconsistent")
def move(operations: list[Operation], rng: random.Random) -> Broken:
    send = pick(acknowledged(operations), rng)
    return send and [changed(op, offset=op.offset + 1_000_000) if op is send else op for op in operations]


@breaks("vanished")
def vanish(operations: list[Operation], rng: random.Random) -> Broken:
    poll = pick((op for op in polls(operations, "c1", "g1") if op.log in LOGS[:3]), rng)
    return poll and without(operations, poll.records[0][1], "final")


@breaks("phantom")
def invent(operations: list[Operation], rng: random.Random) -> Broken:
    poll = pick(polls(operations, "c1", "final", "g1"), rng)
    text = rng.choice(["", "?", "p1|a|0|0", "p1|a|0|0|x", poll and text_of("p9", poll.log, 0)])
    return poll and with_record(operations, poll, -1 % len(poll.records), (poll.records[-1][0], text))


@breaks("failed-read")
def deny(operations: list[Operation], rng: random.Random) -> Broken:
    read = {text for op in operations for _, text in op.records}
    send = pick((s for s in acknowledged(operations) if text_of(s.process, s.log, s.value) in read), rng)
    return send and [changed(op, type="fail", offset=-1) if op is send else op for op in operations]


@breaks("poll-back")
def repeat(operations: list[Operation], rng: random.Random) -> Broken:
    poll = pick(polls(operations, "c1", "g1", "final"), rng)
    return poll and [*operations, changed(poll, at_ns=operations[-1].at_ns + 1)]


@breaks("poll-skip")
def leave_out(operations: list[Operation], rng: random.Random) -> Broken:
    poll = pick((op for op in polls(operations, "c1") if len(op.records) > 2 and op.log in LOGS[:3]), rng)
    return poll and [changed(op, records=(op.records[0], *op.records[2:])) if op is poll else op for op in operations]


@breaks("group-back")
def commit_backwards(operations: list[Operation], rng: random.Random) -> Broken:
    commit = pick((op for op in operations if op.op in ("commit", "committed") and op.offset > 0), rng)
    if commit is None:
        return None
    at_ns = operations[-1].at_ns + 1
    return [*operations, changed(commit, at_ns=at_ns, since_ns=at_ns, offset=commit.offset - 1)]


@breaks("group-back")
def begin_behind(operations: list[Operation], rng: random.Random) -> Broken:
    """A new session reads again what was committed before it began."""
    reached = max((op for op in operations if op.op == "commit"), key=lambda op: op.at_ns, default=None)
    poll = reached and pick(
        (op for op in polls(operations, "g1") if op.incarnation == reached.incarnation and op.log == reached.log), rng
    )
    if not poll or poll.records[0][0] >= reached.offset:
        return None
    at_ns = operations[-1].at_ns
    began = Operation("assigned", at_ns + 1, process="g2", group="g", session=1)
    return [*operations, began, changed(poll, process="g2", session=1, at_ns=at_ns + 2)]


@breaks("group-skip")
def skip(operations: list[Operation], rng: random.Random) -> Broken:
    committed = {op.log: op.offset for op in operations if op.op == "commit" and op.log in LOGS[:3]}
    poll = pick(
        (op for op in polls(operations, "g1") if op.log in committed and op.records[0][0] < committed[op.log]), rng
    )
    return poll and [
        op for op in without(operations, poll.records[0][1], "g1") if op.op != "poll" or op.records or op is poll
    ]


# ---- the tests


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 200))
def test_a_right_history_is_never_blamed(seed: int, steps: int) -> None:
    report = check(History(Model(random.Random(seed)).run(steps)))
    assert not report.counts, str(report)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_a_broken_history_is_always_blamed(kind: str, seed: int) -> None:
    assert BY_KIND[kind], "every kind is broken here"
    rng = random.Random(seed)
    operations = Model(rng).run(150)
    for corruption in BY_KIND[kind]:
        broken = corruption(list(operations), rng)
        if broken:
            report = check(History(broken))
            assert kind in report.counts, f"{corruption.__name__}: {report}"
            assert 0 < len(report.examples[kind]) <= history.EXAMPLES_MAX


@pytest.mark.parametrize("corruption", [pair for pairs in BY_KIND.values() for pair in pairs], ids=lambda c: c.__name__)
def test_every_corruption_finds_something_to_break(corruption: Corruption) -> None:
    assert any(corruption(Model(random.Random(seed)).run(150), random.Random(seed)) for seed in range(10))


def test_what_power_loss_may_take(tmp_path: Path) -> None:
    """acks=1 before it may be gone, acks=all and what was acknowledged after it may not."""
    log = Log("a", 0, 0)

    def sent(number: int, acks: int, at_ns: int) -> list[Operation]:
        invoked = Operation("send", at_ns, "p", "invoke", *log, value=number, acks=acks, idempotent=True)
        return [invoked, changed(invoked, type="ok", offset=number, at_ns=at_ns + 1)]

    for number, acks, at_ns, lost in [(0, 1, 10, 0), (0, -1, 10, 1), (0, 1, 30, 1), (0, 0, 30, 0)]:
        operations = [
            *sent(number, acks, at_ns), Operation("power-loss", 20), Operation("complete", 50, "final", "ok", *log)
        ]  # fmt: skip
        assert check(History(operations)).lost == lost


def test_what_retention_has_taken_is_not_lost() -> None:
    log = Log("a", 0, 0)
    invoked = Operation("send", 1, "p", "invoke", *log, value=0, idempotent=True)
    operations = [invoked, changed(invoked, type="ok", at_ns=2, offset=10)]
    operations.append(Operation("poll", 3, "c", "ok", *log, session=0, records=((10, text_of("p", log, 0)),)))
    for start, lost in ((0, 1), (10, 1), (11, 0)):
        complete = Operation("complete", 4, "final", "ok", *log, start=start, offset=20)
        report = check(History([*operations, complete]))
        assert (report.lost, report.counts.get("vanished", 0)) == (lost, lost)


def test_stalls_and_figures() -> None:
    log = Log("a", 0, 0)
    operations = []
    for process in ("p", "struck"):
        for number, at_ms in enumerate((10, 20, 520)):
            invoked = Operation("send", at_ms * 1_000_000, process, "invoke", *log, value=number, idempotent=True)
            operations += [invoked, changed(invoked, type="ok", at_ns=invoked.at_ns + 1, offset=-1)]
        operations.append(
            changed(invoked, value=9, at_ns=2_000_000_000) if process == "p" else Operation("struck", 1, "struck")
        )
    report = check(History(operations))
    assert (report.sent, report.acknowledged, report.producer_stall_ms, report.consumer_stall_ms) == (7, 6, 500, 0)


def test_files_are_checked_on_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when a writer was killed in the middle of a line; several files are one history."""
    operations = Model(random.Random(5)).run(100)
    broken = lose(operations, random.Random(5))
    assert broken
    for name, content in (("right", operations), ("broken", broken)):
        one, two = tmp_path / f"{name}-1", tmp_path / f"{name}-2"
        History(content[::2]).save(one)
        History(content[1::2]).save(two)
        with two.open("ab") as file:
            file.write(b'{"op":"send","at')
        assert main([str(one), str(two)]) == (name == "broken")
    assert "lost: 1 times" in capsys.readouterr().out
    assert main([]) == 2


def test_a_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "OPERATIONS_MAX", 2)
    with pytest.raises(HistoryFull):
        History([Operation("power-loss", 1)] * 3)

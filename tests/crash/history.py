"""Checks a history of what clients did and saw against what the appliance promises.

    python -m tests.crash.history FILE...       # JSON lines, one Operation each; exit status 1 with anomalies

The method is that of Jepsen's workload for Kafka, for logs whose offsets have gaps.  Every producer writes rising
numbers to each log, so that a value (``producer|topic|incarnation|partition|number``) is unique and says where it
belongs.  A *log* is one partition of one *incarnation* of a topic: a topic that is deleted and made again is another
topic.

An :class:`Operation` that is sent is recorded twice, when it is invoked and when its outcome is known (``ok``;
``fail``: certainly not stored; ``info``: unknown); one without an outcome is unknown too.  All others are recorded
when they are done, with the time at which they began.  Times are those of CLOCK_MONOTONIC, which all processes of a
machine share.

==========  =======================================================================================================
send        ``value`` to a log; ``ok`` has the ``offset`` that was acknowledged, -1 where the producer is told none
poll        ``records`` (offset, value) that ``process`` was given; of a ``group``; within a ``session`` the
            assignment stays the same, and None says that it may change at any time; incarnation -1: as the values say
assigned    a member of a group begins a session
commit      a member committed ``offset`` for its group
committed   somebody was told that ``offset`` is committed
complete    the polls of ``process`` have covered the log from ``start`` to ``offset``, after everything else
power-loss  what was acknowledged with acks=1 before may be gone
struck      from now on ``process`` itself is disturbed: its pauses are no stalls
==========  =======================================================================================================

Anomalies are found by kind, see ``KINDS``.  What is acknowledged with acks=all outlives everything, with acks=1 the
death of any process; acks=0 promises nothing but what holds for all values: none is duplicated, moved, changed, mixed.
A producer that is not ``idempotent`` may double and reorder its own values; one that never sends a value twice is.
For stalls ``name.1`` and ``name.2`` are one process, that has begun again.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

OPERATIONS_MAX: Final = 4_000_000
EXAMPLES_MAX: Final = 5

KINDS: Final = {
    "lost": "acknowledged, and not in a complete read of its log",
    "duplicate": "stored more than once in spite of idempotence",
    "reordered": "two values of one producer, the later one first",
    "mixed": "read from a log that it was not written to",
    "inconsistent": "one offset with two values, or a value that is not where it was acknowledged",
    "vanished": "read once, and not in a complete read of its log",
    "phantom": "read, and never sent",
    "failed-read": "read, though its producer was told that it is not stored",
    "poll-back": "a consumer was given an offset that is not behind the one before",
    "poll-skip": "a consumer was not given what lies between two of its messages",
    "group-back": "the position of a group went back behind what was committed",
    "group-skip": "before what a group has committed or was given, and never given to a member",
}


class HistoryFull(Exception):
    """More than ``OPERATIONS_MAX`` operations: the run is too long to be checked at once."""


class Log(NamedTuple):
    topic: str
    incarnation: int
    partition: int


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    op: Literal["send", "poll", "assigned", "commit", "committed", "complete", "power-loss", "struck"]
    at_ns: int
    process: str = ""
    type: Literal["invoke", "ok", "fail", "info"] = "ok"
    topic: str = ""
    incarnation: int = 0
    partition: int = 0
    value: int = -1
    offset: int = -1
    acks: int = -1
    idempotent: bool = False
    group: str = ""
    session: int | None = None
    since_ns: int = 0
    start: int = 0
    records: tuple[tuple[int, str], ...] = ()

    @property
    def log(self) -> Log:
        return Log(self.topic, self.incarnation, self.partition)


def text_of(process: str, log: Log, number: int) -> str:
    """The value as it is stored."""
    return f"{process}|{log.topic}|{log.incarnation}|{log.partition}|{number}"


def log_of(text: str) -> Log | None:
    """The log that a value was written to; None for what is no value of a history."""
    parts = text.split("|")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[2:]):
        return None
    return Log(parts[1], int(parts[2]), int(parts[3]))


class History:
    """Operations, at most ``OPERATIONS_MAX``, in the order of their times once they are checked."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = []
        self.extend(operations)

    def append(self, operation: Operation) -> None:
        if len(self.operations) >= OPERATIONS_MAX:
            raise HistoryFull(f"more than {OPERATIONS_MAX} operations")
        self.operations.append(operation)

    def extend(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            self.append(operation)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(msgspec.json.encode(operation) + b"\n" for operation in self.operations)

    @staticmethod
    def read(paths: Iterable[Path]) -> History:
        history = History()
        for path in paths:
            with path.open("rb") as file:
                history.extend(decode_lines(file))
        return history


_decoder = msgspec.json.Decoder(Operation)


def decode_lines(lines: Iterable[bytes]) -> Iterator[Operation]:
    return (
        _decoder.decode(line) for line in lines if line.endswith(b"\n")
    )  # its writer died in the middle of the last


class Report(msgspec.Struct):
    """What was found: how often each kind of anomaly, with examples, and the figures of the run.

    A stall is the longest time between two acknowledgements of one producer, or between two polls with messages of one
    consumer.
    """

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    doubled: int = 0
    producer_stall_ms: int = 0
    consumer_stall_ms: int = 0

    @property
    def lost(self) -> int:
        return self.counts.get("lost", 0)

    def add(self, kind: str, example: str) -> None:
        assert kind in KINDS
        self.counts[kind] = self.counts.get(kind, 0) + 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES_MAX:
            shown.append(example)

    def __str__(self) -> str:
        lines = [
            f"{self.sent} sent, {self.acknowledged} acknowledged, {self.failed} failed, {self.read} read, "
            f"{self.doubled} doubled; longest stall of a producer {self.producer_stall_ms} ms, "
            f"of a consumer {self.consumer_stall_ms} ms"
        ]
        for kind, count in self.counts.items():
            lines += [f"{kind}: {count} times ({KINDS[kind]}), such as", *(f"  {text}" for text in self.examples[kind])]
        return "\n".join(lines)


class _Send:
    """What became of one value."""

    __slots__ = ("acks", "idempotent", "number", "offset", "outcome", "producer", "settled_ns")

    def __init__(self, operation: Operation) -> None:
        self.producer, self.number = operation.process, operation.value
        self.acks, self.idempotent = operation.acks, operation.idempotent
        self.outcome, self.offset, self.settled_ns = "info", -1, 0


class _Seen:
    """What is known of one log: ``sends`` by value, where values were read, and the complete read if there is one."""

    def __init__(self) -> None:
        self.sends: dict[str, _Send] = {}
        self.values: dict[int, set[str]] = defaultdict(set)  # offset -> values read or acknowledged there
        self.offsets: dict[str, set[int]] = defaultdict(set)  # value -> offsets at which it was read
        self.complete: dict[int, str] | None = None
        self.covered = range(0)

    def known(self) -> list[int]:
        """All offsets at which there is a message, ascending."""
        return sorted(self.values)


class _Positions:
    """The positions of a group in one log, as they became known: (when it began, when it was done, offset)."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int]] = []
        self.given: set[int] = set()

    def floors(self, times_ns: Iterable[int]) -> Iterator[int]:
        """For each of the ascending times the largest offset that was known by then; -1 before the first."""
        done = sorted((done_ns, offset) for _, done_ns, offset in self.events)
        at, floor = 0, -1
        for time_ns in times_ns:
            while at < len(done) and done[at][0] < time_ns:
                floor = max(floor, done[at][1])
                at += 1
            yield floor


class Checker:
    """One history, indexed in one pass; then each method finds some kinds of anomalies."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.report = Report()
        self._logs: dict[Log, _Seen] = defaultdict(_Seen)
        self._sessions: dict[tuple[str, str, int | None, Log], list[int]] = defaultdict(list)
        self._began_ns: dict[tuple[str, int | None], int] = {}
        self._groups: dict[tuple[str, Log], _Positions] = defaultdict(_Positions)
        self._power_lost_ns = -1
        self._final: dict[tuple[str, Log], dict[int, str]] = defaultdict(dict)
        self._last_ns: dict[tuple[str, str], int] = {}
        self._stalls_ns: dict[tuple[str, str], int] = defaultdict(int)
        self._struck: set[str] = set()
        ordered = sorted(operations, key=lambda operation: operation.at_ns)
        self._start_ns = ordered[0].at_ns if ordered else 0
        for operation in ordered:
            self._index(operation)

    def check(self) -> Report:
        for log, seen in self._logs.items():
            self._check_values(log, seen)
            self._check_producers(log, seen)
            self._check_complete(log, seen)
        self._check_sessions()
        self._check_groups()
        for (op, _), stall_ns in self._stalls_ns.items():
            name = "producer_stall_ms" if op == "send" else "consumer_stall_ms"
            setattr(self.report, name, max(getattr(self.report, name), stall_ns // 1_000_000))
        return self.report

    # ---- one pass over the history

    def _index(self, given: Operation) -> None:
        if given.op == "send":
            self._index_send(given)
        elif given.op == "poll":
            self._index_poll(given)
        elif given.op == "assigned":
            self._began_ns[given.process, given.session] = given.at_ns
        elif given.op in ("commit", "committed"):
            if given.type == "ok":
                events = self._groups[given.group, given.log].events
                events.append((given.since_ns, given.at_ns, given.offset))
        elif given.op == "complete":
            seen = self._logs[given.log]
            seen.complete = self._final[given.process, given.log]
            seen.covered = range(given.start, given.offset)
        elif given.op == "power-loss":
            self._power_lost_ns = given.at_ns
        else:
            self._struck.add(given.process)

    def _index_send(self, given: Operation) -> None:
        seen = self._logs[given.log]
        text = text_of(given.process, given.log, given.value)
        if given.type == "invoke":
            seen.sends[text] = _Send(given)
            self.report.sent += 1
            return
        send = seen.sends[text]
        send.outcome, send.offset, send.settled_ns = given.type, given.offset, given.at_ns
        if given.type == "ok":
            self.report.acknowledged += 1
            self._progress("send", given)
            if given.offset >= 0:
                seen.values[given.offset].add(text)
        elif given.type == "fail":
            self.report.failed += 1

    def _index_poll(self, given: Operation) -> None:
        self._progress("poll", given)
        self.report.read += len(given.records)
        for offset, text in given.records:
            home = log_of(text)
            log = home if home is not None and given.incarnation < 0 else given.log
            seen = self._logs[log]
            seen.values[offset].add(text)
            seen.offsets[text].add(offset)
            if given.group:
                self._groups[given.group, log].given.add(offset)
            self._sessions[given.process, given.group, given.session, log].append(offset)
            self._final[given.process, log][offset] = text

    def _progress(self, op: str, given: Operation) -> None:
        process = given.process.partition(".")[0]
        who = (op, process)
        before = self._last_ns.get(who)
        self._last_ns[who] = given.at_ns
        if before is not None and process not in self._struck:
            self._stalls_ns[who] = max(self._stalls_ns[who], given.at_ns - before)

    # ---- values

    def _check_values(self, log: Log, seen: _Seen) -> None:
        for text in seen.offsets:
            home = log_of(text)
            if home is not None and home != log:
                self.report.add("mixed", f"{_name(log)}: {text}")
            elif text not in seen.sends:
                self.report.add("phantom", f"{_name(log)}: {text}")
            elif seen.sends[text].outcome == "fail":
                self.report.add("failed-read", f"{_name(log)}: {text}")
        for offset, texts in seen.values.items():
            if len(texts) > 1:
                self.report.add("inconsistent", f"{_name(log)} at {offset}: {' and '.join(sorted(texts))}")
        for text, send in seen.sends.items():
            found = seen.offsets.get(text)
            certain = send.idempotent or (seen.complete is not None and send.offset >= seen.covered.start)
            if certain and send.outcome == "ok" and send.offset >= 0 and found and send.offset not in found:
                self.report.add("inconsistent", f"{text}: acknowledged at {send.offset}, read at {sorted(found)}")

    def _check_producers(self, log: Log, seen: _Seen) -> None:
        placed: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for text, send in seen.sends.items():
            offsets = set(seen.offsets.get(text, ()))
            if send.outcome == "ok" and send.offset >= 0:
                offsets.add(send.offset)
            if len(seen.offsets.get(text, ())) > 1:
                self.report.doubled += 1
                if send.idempotent:
                    self.report.add("duplicate", f"{text}: at {sorted(offsets)}")
            if offsets and send.idempotent:
                placed[send.producer].append((send.number, min(offsets)))
        for producer, numbers in placed.items():
            numbers.sort()
            for (number, offset), (later, other) in pairwise(numbers):
                if other <= offset:
                    self.report.add(
                        "reordered", f"{producer} in {_name(log)}: {number} at {offset}, {later} at {other}"
                    )

    def _check_complete(self, log: Log, seen: _Seen) -> None:
        """Against the complete read, which is nothing but what its reader was given."""
        if seen.complete is None:
            return
        stored = set(seen.complete.values())
        for text, send in seen.sends.items():
            promised = send.acks == -1 or (send.acks != 0 and send.settled_ns > self._power_lost_ns)
            retired = 0 <= send.offset < seen.covered.start
            if send.outcome == "ok" and promised and not retired and text not in stored:
                self.report.add("lost", f"{text}: acknowledged at {send.offset} with acks={send.acks}")
        for text, offsets in seen.offsets.items():
            gone = [offset for offset in offsets if offset >= seen.covered.start and offset not in seen.complete]
            if gone:
                self.report.add("vanished", f"{_name(log)}: {text}, read at {gone}")

    # ---- consumers

    def _check_sessions(self) -> None:
        known = {log: seen.known() for log, seen in self._logs.items()}
        for (process, _, session, log), offsets in self._sessions.items():
            if session is None:
                continue
            places = known[log]
            for before, after in pairwise(offsets):
                if after <= before:
                    self.report.add("poll-back", f"{process}, {_name(log)}: {after} after {before}")
                    continue
                between = places[bisect_left(places, before) + 1 : bisect_left(places, after)]
                if between:
                    self.report.add(
                        "poll-skip", f"{process}, {_name(log)}: {len(between)} between {before} and {after}"
                    )

    def _check_groups(self) -> None:
        first: dict[tuple[str, Log], list[tuple[int, int, str]]] = defaultdict(list)
        for (process, group, session, log), offsets in self._sessions.items():
            began_ns = self._began_ns.get((process, session))
            if group and began_ns is not None:
                first[group, log].append((began_ns, offsets[0], f"{process} began"))
        for (group, log), positions in self._groups.items():
            told = [(since_ns, offset, "committed") for since_ns, _, offset in positions.events]
            told = sorted(told + first[group, log])
            floors = positions.floors(since_ns for since_ns, _, _ in told)
            for (since_ns, offset, what), floor in zip(told, floors, strict=True):
                if offset < floor:
                    at_s = (since_ns - self._start_ns) / 1e9
                    example = f"{group}, {_name(log)}: {what} at {offset} after {floor}, {at_s:.1f} s after the start"
                    self.report.add("group-back", example)
            reached = max([*(offset for _, _, offset in positions.events), *positions.given])
            skipped = [o for o in self._logs[log].known() if o < reached and o not in positions.given]
            for offset in skipped:
                texts = " and ".join(self._logs[log].values[offset])
                self.report.add("group-skip", f"{group}, {_name(log)}: {texts} at {offset}, but went on to {reached}")


def _name(log: Log) -> str:
    return f"{log.topic}#{log.incarnation}-{log.partition}"


def check(history: History) -> Report:
    return Checker(history.operations).check()


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m tests.crash.history FILE...", file=sys.stderr)
        return 2
    report = check(History.read(map(Path, arguments)))
    print(report)
    return 1 if report.counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

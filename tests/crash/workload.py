"""A load of all kinds of clients on an appliance, its history, and the check of it.

    with Workload(directory, server.native, server.kafka, groups=True) as load:
        load.wait_progress()
        ...                         # something bad
        load.wait_progress()        # everybody goes on
        report = load.finish()      # everybody reads everything; then the history is checked

The clients run in processes of their own (``clients.py``): one with all producers, one with the consumers that are
assigned their partitions, and two with a member of each group.  Scenarios may kill or stop any of them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from appliance.client import Admin
from appliance.errors import TopicExists, Unavailable, UnknownPartition
from appliance.records.encode import encode_values

from ..support.group_readers import ROOT
from ..support.native_peer import Peer
from ..support.server import wait_for
from .client import Spec
from .history import History, Log, Operation, Report, check, decode_lines, log_of, text_of
from .load import fetched, leader

T = TypeVar("T")

PROGRESS_S_MAX: Final = 60
END_S_MAX: Final = 60
EXIT_S_MAX: Final = 90
ERROR_CHARACTERS_MAX: Final = 3_000
TOPICS: Final = {"first": 2, "second": 2}
SETTINGS: Final = {"first": {}, "second": {"segment.bytes": "256KiB"}}
FINAL: Final = "final"
KAFKA_GROUP, CONSUMER_GROUP, NATIVE_GROUP = "kafka-group", "consumer-group", "native-group"
MEMBERS: Final = ("members-1", "members-2")


class ClientProcess:
    """Clients in one process; ``collect`` is what they have recorded since the last time."""

    def __init__(self, path: Path, specs: Sequence[Spec]) -> None:
        self._path, self._errors = path, path.with_suffix(".err")
        self.names = {spec.name for spec in specs}
        arguments = [msgspec.json.encode(spec).decode() for spec in specs]
        command = [sys.executable, "-m", "tests.crash.clients", str(path), *arguments]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=errors)
        self._read = 0

    def collect(self) -> list[Operation]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the rest of a line comes later
        self._read += len(whole)
        return list(decode_lines(whole.splitlines(keepends=True)))

    def errors(self) -> str:
        """The end of what it has written to stderr."""
        return self._errors.read_text(errors="replace")[-ERROR_CHARACTERS_MAX:] or "(nothing on stderr)"

    def __str__(self) -> str:
        return f"{self._path.stem} ({', '.join(sorted(self.names))})"

    def stop(self) -> None:
        """SIGTERM; it ends in good order.

        A process that has just been started is given the time to make its file: before that SIGTERM would kill it.
        """
        wait_for(lambda: self._path.exists() or self.process.poll() is not None, f"{self} begins", PROGRESS_S_MAX)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(EXIT_S_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} has not ended within {EXIT_S_MAX} s of SIGTERM:\n{self.errors()}") from None
        assert status == 0, f"{self} has failed with exit status {status}:\n{self.errors()}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Workload:
    """``control`` is the native listener for what this process itself asks; by default ``native``."""

    def __init__(
        self,
        directory: Path,
        native: str,
        kafka: str,
        *,
        control: str = "",
        groups: bool = False,
        raw: bool = True,
        per_second: int = 600,
        topics: Mapping[str, int] = TOPICS,
    ) -> None:
        self.directory = directory
        self.control = control or native
        self.topics = topics
        self.logs = tuple(Log(topic, 0, partition) for topic, count in topics.items() for partition in range(count))
        self.groups = (KAFKA_GROUP, CONSUMER_GROUP, NATIVE_GROUP) if groups else ()
        self.history = History()
        self.processes: dict[str, ClientProcess] = {}
        self.count: Counter[str] = Counter()
        """Acknowledged or read messages by client, and by group."""
        self.readers_of: dict[Log, set[str]] = {}
        """Who has to read which logs to their ends: those of ``topics``, and what scenarios add."""
        self._reached: dict[tuple[str, Log], int] = {}
        self._common: dict[str, Any] = {"native": native, "kafka": kafka, "logs": self.logs}
        self._raw, self._per_second = raw, per_second

    # ---- clients

    def __enter__(self) -> Workload:
        self.directory.mkdir(exist_ok=True)
        with Admin(self.control) as admin:
            for topic, count in self.topics.items():
                create_topic(admin, topic, count, SETTINGS.get(topic))
        self.start("producers", *self._producers())
        readers = [self.spec("kafka-reader", "kafka-reader"), self.spec("native-reader", "native-reader")]
        watch = [self.spec("watch", "watch", groups=self.groups)] if self.groups else []
        self.start("readers", *readers, *watch)
        for name in MEMBERS if self.groups else ():
            self.start_members(name)
        self.readers_of = dict.fromkeys(self.logs, self.witnesses - self.processes["producers"].names)
        return self

    def start(self, name: str, *specs: Spec) -> None:
        self.processes[name] = ClientProcess(self.directory / f"{name}-{len(self.history.operations)}.jsonl", specs)

    def start_members(self, name: str, again: int = 0) -> None:
        """One member of each group, in place of one that was killed: another name for each ``again``."""
        self.start(
            name,
            self.spec("kafka-member", f"kafka-{name}-{again}", group=KAFKA_GROUP),
            self.spec("consumer-member", f"consumer-{name}-{again}", group=CONSUMER_GROUP),
            self.spec("native-member", f"native-{name}-{again}", group=NATIVE_GROUP),
        )

    def spec(self, kind: str, name: str, **fields: Any) -> Spec:
        return Spec(kind, name, **self._common | fields)

    def _producers(self) -> list[Spec]:
        kinds: list[tuple[str, str, int, bool]] = [
            ("kafka-producer", "kafka-all", -1, True),
            ("kafka-producer", "kafka-1", 1, False),
            ("kafka-producer", "kafka-0", 0, False),
            ("native-producer", "native-all", -1, True),
            ("native-producer", "native-1", 1, True),
        ]
        if self._raw:
            kinds.append(("raw-producer", "raw-0", 0, True))
        rate = self._per_second // len(kinds)
        return [self.spec(kind, name, acks=acks, idempotent=once, per_second=rate) for kind, name, acks, once in kinds]

    def strike(self, name: str) -> ClientProcess:
        """The process, which is to be disturbed itself: its pauses are no stalls from now on."""
        for client in self.processes[name].names:
            self.history.append(Operation("struck", time.monotonic_ns(), client))
        return self.processes[name]

    def kill_members(self, name: str, again: int) -> None:
        """kill -9, and another process in its place."""
        self.strike(name).kill()
        self.collect()
        self.start_members(name, again)

    # ---- progress

    def collect(self) -> None:
        """Take over what the clients have recorded."""
        for process in self.processes.values():
            for operation in process.collect():
                self.history.append(operation)
                self._note(operation)

    def take(self, path: Path) -> None:
        """Take over what clients in this process have recorded."""
        self.history.extend(History.read([path]).operations)

    def _note(self, operation: Operation) -> None:
        name = operation.process.partition(".")[0]
        if operation.op == "send" and operation.type == "ok":
            self.count[name] += 1
        elif operation.op == "poll":
            for who in filter(None, (name, operation.group)):
                self.count[who] += len(operation.records)
                for offset, text in operation.records:
                    log = log_of(text) if operation.incarnation < 0 else operation.log
                    key = (who, log or operation.log)
                    self._reached[key] = max(offset, self._reached.get(key, -1))

    @property
    def witnesses(self) -> set[str]:
        """Who has to go on after whatever happens: each producer and reader, and each group as a whole."""
        names = self.processes["producers"].names | self.processes["readers"].names | set(self.groups)
        return names - {"watch"}

    def wait_progress(self, seconds_max: float = PROGRESS_S_MAX, least: int = 1, but: set[str] | None = None) -> None:
        """Until every witness has done something new."""
        self.collect()
        before = self.count.copy()
        missing = self.witnesses - (but or set())

        def all_went_on() -> bool:
            self.collect()
            missing.difference_update([name for name in missing if self.count[name] >= before[name] + least])
            return not missing

        self._wait(all_went_on, lambda: f"these go on: {', '.join(sorted(missing))}", seconds_max)

    def _wait(self, condition: Callable[[], bool], what: Callable[[], str], seconds_max: float) -> None:
        try:
            wait_for(condition, "", seconds_max)
        except AssertionError:
            self.save()
            errors = "\n".join(f"{process}: {process.errors()}" for process in self.processes.values())
            raise AssertionError(f"not within {seconds_max} s: {what()}\n{errors}") from None

    def save(self) -> Path:
        path = self.directory / "history.jsonl"
        self.history.save(path)
        return path

    # ---- the end

    settle: Callable[[], None]
    """Stops the appliance in order, and starts it again; whoever made it sets it."""

    def finish(self) -> Report:
        """Stop producing, let everybody read everything, read it all once more, and check."""
        self.processes["producers"].stop()
        ends = {log: send_last(self.control, self.history, log) for log in self.readers_of}

        def behind() -> list[str]:
            return [
                f"{name} reads {log} to {end}, not only to {self._reached.get((name, log))}"
                for log, end in ends.items()
                for name in sorted(self.readers_of[log])
                if self._reached.get((name, log), -1) < end
            ]

        def all_read() -> bool:
            self.collect()
            return not behind()

        self._wait(all_read, lambda: "; ".join(behind()), END_S_MAX)
        for process in self.processes.values():
            process.stop()
        self.collect()
        for log in self.readers_of:
            read_all(self.control, self.history, log)
        report = check(self.history)
        if report.counts:
            print(f"{report}\n{self.save()}", file=sys.stderr)
        return report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            if process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
                process.kill()


# ---- what the checking process itself writes and reads


def persistently(action: Callable[[], T], *passing: type[Exception], seconds_max: float = PROGRESS_S_MAX) -> T:
    """The result of ``action``, tried again as long as it raises what passes."""
    errors: list[Exception] = []
    results: list[T] = []

    def tried() -> bool:
        try:
            results.append(action())
        except passing as error:
            errors.append(error)
        return bool(results)

    try:
        wait_for(tried, "", seconds_max)
    except AssertionError:
        raise AssertionError(f"still after {seconds_max} s: {errors[-1]!r}") from None
    return results[0]


def create_topic(admin: Admin, name: str, partitions: int, settings: Mapping[str, str | int] | None = None) -> None:
    """Make a topic that is not there yet, tried again for as long as it cannot be made."""
    _once(lambda: admin.create_topic(name, partitions, settings), TopicExists)


def delete_topic(admin: Admin, name: str) -> None:
    """Delete a topic that is there, tried again for as long as it cannot be deleted."""
    _once(lambda: admin.delete_topic(name), UnknownPartition)


def _once(action: Callable[[], object], done: type[Exception]) -> None:
    """Do what can be done once.

    An attempt whose answer is lost or late may have been successful; then the next one is refused with ``done``, by
    Kafka's brokers too, and it is the caller that has to know.  Without an earlier attempt ``done`` is an error.
    """
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        try:
            action()
        except done:
            if attempts == 1:
                raise

    persistently(attempt, Unavailable)


class NotStored(Exception):
    """A message or a question was refused, or is not answered as it should be."""


def send_last(address: str, history: History, log: Log) -> int:
    """Store one more message with acks=all; its offset, at which the log ends."""

    def record(outcome: Any, number: int, offset: int = -1) -> None:
        about = {"value": number, "offset": offset, "idempotent": True}
        history.append(Operation("send", time.monotonic_ns(), FINAL, outcome, *log, **about))

    number = -1

    def attempt() -> int:
        nonlocal number
        number += 1
        record("invoke", number)
        value = text_of(FINAL, log, number).encode()
        with Peer(leader(address, log.topic, log.partition)) as peer:
            batch = encode_values([value], time.time_ns() // 1_000_000)
            error, base, _, message = peer.produce(log.topic, batch, log.partition, acks=-1)
        if error:
            raise NotStored(f"{error} {message}")
        record("ok", number, base)
        return base

    return persistently(attempt, NotStored, OSError, EOFError, KeyError, AssertionError)


def read_all(address: str, history: History, log: Log, process: str = FINAL) -> None:
    """Record a complete read of a log, batch by batch as it is fetched through the native listener."""
    with Peer(leader(address, log.topic, log.partition)) as peer:
        end = peer.end(log.topic, log.partition)
        for some in fetched(peer, log.topic, log.partition, end):
            records = tuple((one.offset, (one.value or b"").decode(errors="replace").rstrip(" ")) for one in some)
            history.append(Operation("poll", time.monotonic_ns(), process, "ok", *log, session=0, records=records))
    history.append(Operation("complete", time.monotonic_ns(), process, "ok", *log, start=0, offset=end))

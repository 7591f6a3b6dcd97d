"""The common parts of the clients of a load: their orders, the file they record in, the thread they run in."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from .history import Log, Operation

FLUSH_S_MAX: Final = 60


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str
    name: str
    native: str
    kafka: str
    logs: tuple[Log, ...] = ()
    group: str = ""
    groups: tuple[str, ...] = ()
    acks: int = -1
    idempotent: bool = True
    per_second: int = 200
    address: str = ""
    """Of an input: its listener, or the directory of its files."""
    flush_s: float = FLUSH_S_MAX
    """How long a producer waits at its end for what is in flight."""


class Recorder:
    """Appends operations to a file, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._lines.append(self._encode(operation))

    def flush(self) -> None:
        with self._lock:
            data = b"".join(line + b"\n" for line in self._lines)
            self._lines.clear()
            while data:
                data = data[os.write(self._fd, data) :]


class Client:
    """One of the kinds above: ``run`` goes on until ``stopping`` is set."""

    def __init__(self, spec: Spec, recorder: Recorder, stopping: threading.Event) -> None:
        self.spec, self.recorder, self.stopping = spec, recorder, stopping
        self.process = spec.name

    def run(self) -> None:
        raise NotImplementedError

    def record(self, op: Any, log: Log | None = None, **fields: Any) -> None:
        place = {} if log is None else {"topic": log.topic, "incarnation": log.incarnation, "partition": log.partition}
        self.recorder.add(Operation(op, time.monotonic_ns(), self.process, **place, **fields))

    def record_poll(
        self, since_ns: int, records: Iterable[tuple[str, int, int, bytes | None]], session: int | None
    ) -> None:
        """Record (topic, partition, offset, value) of each message, and write it all to the file."""
        incarnations = {(log.topic, log.partition): log.incarnation for log in self.spec.logs}
        found: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for topic, partition, offset, value in records:
            found[topic, partition].append((offset, (value or b"").decode(errors="replace").rstrip(" ")))
        for place, entries in found.items():
            log = Log(place[0], incarnations[place], place[1])
            about = {"since_ns": since_ns, "group": self.spec.group, "session": session}
            self.record("poll", log, records=tuple(entries), **about)
        if found:
            self.recorder.flush()


def kafka_settings(spec: Spec) -> dict[str, Any]:
    return {
        "bootstrap.servers": spec.kafka,
        "client.id": spec.name,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 5_000,
        "socket.timeout.ms": 10_000,
        "log_level": 2,
    }


class Guarded(threading.Thread):
    """A thread whose end by an error is the error of whoever waits for it."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        super().__init__()
        self._run, self._arguments = run, arguments
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._run(*self._arguments)
        except Exception as error:
            self.error = error

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error

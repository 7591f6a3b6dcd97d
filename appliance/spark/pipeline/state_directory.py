"""Keeps the state of a pipeline between runs, in its state directory::

    identity        permanent id of the pipeline; names its output, and its producer ids follow from it
    lock            held while the pipeline runs; content: the pid
    checkpoint/     Spark's checkpoint, with the offsets
    spark/          temporary files of Spark
    history.jsonl   the last micro-batches: rows, rates, lag

Any process may read, also while the pipeline runs.  Only the holder of the lock writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...errors import AlreadyRunning
from ..stream_offsets import Positions, from_json

HISTORY_ENTRIES_MAX: Final = 1000


class Progress(msgspec.Struct, frozen=True):
    """One micro-batch; ``lag_bytes``: the unread bytes at its beginning, less those that it read."""

    batch: int
    ended: str
    rows: int
    bytes: int
    seconds: float
    lag_bytes: int

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


class Committed(NamedTuple):
    batch: int
    positions: Positions


class State:
    """The state directory of one pipeline."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        self._history = path / "history.jsonl"
        self._lock: int | None = None
        self._entries: deque[str] | None = None

    def lock(self) -> None:
        """Take the lock.

        Raises:
            AlreadyRunning: another process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise AlreadyRunning(f"process {self.running()} runs the pipeline of {self.path}") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d" % os.getpid(), 0)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def running(self) -> int | None:
        """The pid of the process that runs the pipeline now, or None."""
        path = self.path / "lock"
        try:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0)
        except OSError:
            pass
        return None

    def identity(self) -> str:
        """The pipeline's id.  Created at the first run; "" before."""
        path = self.path / "identity"
        if not path.exists() and self._lock is not None:
            fresh = path.with_name("identity.new")
            fresh.write_text(uuid.uuid4().hex)
            fresh.replace(path)
        return path.read_text() if path.exists() else ""

    def committed(self) -> Committed | None:
        """The last micro-batch that Spark has finished, and the offsets at its end."""
        numbers = [int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")]
        for batch in sorted(numbers, reverse=True):
            with suppress(FileNotFoundError):
                # A version, the query's settings, then a line for each source.
                lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
                return Committed(batch, from_json(json.loads(lines[2]))[0])
        return None

    def add(self, progress: Progress) -> None:
        if self._entries is None:
            kept = self._history.read_text().splitlines() if self._history.exists() else []
            self._entries = deque(kept, HISTORY_ENTRIES_MAX)
        self._entries.append(msgspec.json.encode(progress).decode())
        fresh = self._history.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in self._entries))
        fresh.replace(self._history)

    def history(self) -> list[Progress]:
        if not self._history.exists():
            return []
        return [msgspec.json.decode(line, type=Progress) for line in self._history.read_text().splitlines()]


def progress_of(report: dict[str, Any]) -> Progress:
    """Converts Spark's progress report of a query with one source."""
    source = report["sources"][0]
    start, end, latest = (
        {} if not source[f"{name}Offset"] else from_json(source[f"{name}Offset"])[0]
        for name in ("start", "end", "latest")
    )
    begun = from_json(source["endOffset"])[1] or {}
    first = {**begun, **start}
    return Progress(
        batch=report["batchId"],
        ended=report["timestamp"],
        rows=report["numInputRows"],
        bytes=sum(max(0, offset - first.get(key, offset)) for key, offset in end.items()),
        seconds=report["durationMs"].get("triggerExecution", 0) / 1000,
        lag_bytes=sum(max(0, offset - end.get(key, 0)) for key, offset in latest.items()),
    )

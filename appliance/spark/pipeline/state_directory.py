"""Keeps what a pipeline needs while it runs, and its history, in its state directory::

    lock            held while the pipeline runs; content: the pid
    checkpoint/     Spark's checkpoint of the present run; every run begins with a new one
    spark/          temporary files of Spark
    failure.txt     the whole report of Spark on the last failure
    history.jsonl   the last micro-batches: rows, rates, lag
    counts.json     what became of the lines of each file of the table (see ``line_counts``)

Nothing here says where a pipeline continues: that is recorded with its tables (``resume``).  Any process may read, also
while the pipeline runs.  Only the holder of the lock writes, but for ``counts.json``, which whoever counts replaces.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import deque
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from ...errors import AlreadyRunning
from ...log_access.ranges import Positions
from ..stream_offsets import from_json
from .batch_record import BatchRecord

HISTORY_ENTRIES_MAX: Final = 1000
READ, LINES = "read", "lines"
"""The metric that the query observes, since a row of Spark is a task's work: how many lines it has read."""


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


class PidLock:
    """A file that at most one process holds, with its pid.  A process that ends gives it back."""

    def __init__(self, path: Path, doing: str = "runs the pipeline of") -> None:
        self._path = path
        self._doing = doing
        self._file: int | None = None

    def __enter__(self) -> PidLock:
        """Take the lock.

        Raises:
            AlreadyRunning: another process has it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise AlreadyRunning(f"process {self.holder()} {self._doing} {self._path.parent}") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d" % os.getpid(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def holder(self) -> int | None:
        """The pid of the process that has the lock now, or None."""
        try:
            with self._path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0)
        except OSError:
            pass
        return None


class State:
    """The state directory of one pipeline."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = PidLock(path / "lock")
        self.checkpoint = path / "checkpoint"
        self.failure = path / "failure.txt"
        self._history = path / "history.jsonl"
        self._entries: deque[str] | None = None

    def begin(self) -> None:
        """Remove what an earlier run left to Spark."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.failure.unlink(missing_ok=True)

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


def progress_of(report: dict[str, Any]) -> tuple[Progress, Positions]:
    """Converts Spark's progress report of a pipeline's query.  Also the offsets at the end of the micro-batch."""
    source = report["sources"][0]
    record = msgspec.convert(source["endOffset"], BatchRecord, strict=False)
    latest = from_json(source["latestOffset"] or {})[0]
    seconds = report["durationMs"].get("triggerExecution", 0) / 1000
    begun = datetime.fromisoformat(report["timestamp"])
    ends = record.ends
    progress = Progress(
        batch=record.batch,
        ended=(begun + timedelta(seconds=seconds)).isoformat(timespec="milliseconds"),
        rows=(report.get("observedMetrics", {}).get(READ) or {}).get(LINES) or 0,
        bytes=record.bytes,
        seconds=seconds,
        lag_bytes=sum(max(0, offset - ends.get(key, 0)) for key, offset in latest.items()),
    )
    return progress, ends

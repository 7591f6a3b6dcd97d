"""What a pipeline keeps between runs, and what Spark says of a micro-batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.errors import AlreadyRunning
from appliance.spark.pipeline.state_directory import HISTORY_ENTRIES_MAX, PidLock, Progress, State, progress_of


def test_one_process_holds_a_lock(tmp_path: Path) -> None:
    lock, other = PidLock(tmp_path / "s" / "lock"), PidLock(tmp_path / "s" / "lock")
    assert lock.holder() is None
    with lock:
        assert other.holder() == os.getpid()
        with pytest.raises(AlreadyRunning, match=str(os.getpid())):
            other.__enter__()
    with other:
        assert lock.holder() == os.getpid()
    assert lock.holder() is None


def test_the_history_is_bounded(tmp_path: Path) -> None:
    first = State(tmp_path)
    one = Progress(batch=0, ended="now", rows=10, bytes=1000, seconds=0.5, lag_bytes=0)
    first.add(one)
    second = State(tmp_path)
    for _ in range(HISTORY_ENTRIES_MAX):
        second.add(Progress(1, "later", 1, 1, 1.0, 1))
    history = second.history()
    assert len(history) == HISTORY_ENTRIES_MAX and one not in history
    assert (one.rows_per_s, one.bytes_per_s) == (20, 2000)


def test_progress() -> None:
    read = {"t": {"id": "a", "ranges": {"0": [10, 30], "1": [5, 5]}}}
    record = {"batch": 42, "run": "r", "read": read, "since": {"t": {"0": 0, "1": 5}}}
    report = {
        "batchId": 3,
        "timestamp": "2026-11-20T00:00:00.000Z",
        "numInputRows": 1,
        "observedMetrics": {"read": {"lines": 7}},
        "durationMs": {"triggerExecution": 250},
        "sources": [{"endOffset": record, "latestOffset": {"t": {"0": 40, "1": 6}}}],
    }
    found, ends = progress_of(report)
    assert (found.batch, found.rows, found.bytes, found.lag_bytes, found.seconds) == (42, 7, 20, 11, 0.25)
    assert found.ended == "2026-11-20T00:00:00.250+00:00", "the end, not the start"
    assert ends == {("t", 0): 30, ("t", 1): 5}

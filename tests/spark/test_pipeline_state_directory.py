"""What a pipeline keeps between runs, and what Spark says of a micro-batch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import AlreadyRunning
from appliance.spark.pipeline.state_directory import HISTORY_ENTRIES_MAX, Progress, State, progress_of


def test_one_process_runs_it(tmp_path: Path) -> None:
    state, other = State(tmp_path / "s"), State(tmp_path / "s")
    assert state.running() is None and state.identity() == ""
    state.lock()
    assert other.running() == os.getpid()
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        other.lock()
    identity = state.identity()
    state.unlock()
    other.lock()
    assert identity and other.identity() == identity
    other.unlock()
    assert state.running() is None


def test_the_last_micro_batch_that_is_finished_counts(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.committed() is None
    for name in ("offsets", "commits"):
        (state.checkpoint / name).mkdir(parents=True)
    for batch, offset in ((9, 90), (10, 100), (11, 110)):
        text = f"v1\n{{}}\n{json.dumps({'t': {'0': offset}, '@start': {'t': {'0': 0}}})}\n"
        (state.checkpoint / "offsets" / str(batch)).write_text(text)
    for batch in (9, 10):
        (state.checkpoint / "commits" / str(batch)).write_text("v1\n{}\n")
    (state.checkpoint / "commits" / ".11.tmp").write_text("")
    assert state.committed() == (10, {("t", 0): 100})


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


def told(**source: Any) -> dict[str, Any]:
    offsets = {"startOffset": None, "endOffset": None, "latestOffset": None}
    return {
        "batchId": 3,
        "timestamp": "2026-11-20T00:00:00Z",
        "numInputRows": 7,
        "durationMs": {"triggerExecution": 250},
        "sources": [offsets | source],
    }


def test_progress() -> None:
    start, end, latest = {"t": {"0": 10, "1": 5}}, {"t": {"0": 30, "1": 5}}, {"t": {"0": 40, "1": 6}}
    found = progress_of(told(startOffset=start, endOffset=end, latestOffset=latest))
    assert (found.batch, found.rows, found.bytes, found.lag_bytes, found.seconds) == (3, 7, 20, 11, 0.25)
    first = progress_of(told(endOffset=end | {"@start": {"t": {"0": 20, "1": 0}}}))
    assert (first.bytes, first.lag_bytes) == (15, 0)

"""Hostile requests of both listeners: nobody ends, nothing stays, honest clients go on."""

from __future__ import annotations

import os
from pathlib import Path

from .box import Box, grown

REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "1500"))
SEED = int(os.environ.get("HOSTILE_SEED", "7"))
STALL_MS_MAX = 10_000
"""Of a machine that runs other tests as well; ``python -m tests.hostile`` says what it is on a quiet one."""


def test_hostile_clients_harm_nobody(tmp_path: Path) -> None:
    outcome = Box(tmp_path / "data").attack(REQUESTS, SEED, warm_up=REQUESTS // 2)
    assert outcome.pids_after == outcome.pids_before and outcome.restarts == 0
    assert not outcome.tracebacks, outcome.tracebacks[0]
    assert outcome.sent >= REQUESTS and outcome.replied_bytes > 0
    assert not outcome.honest["faults"], outcome.honest
    assert max(outcome.honest["worst_ms"].values()) < STALL_MS_MAX, outcome.honest
    assert not grown(outcome.before, outcome.after)

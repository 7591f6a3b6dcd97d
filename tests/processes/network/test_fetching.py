"""appliance.processes.network.fetching: what a writer delays is flushed soon for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.broker import plan
from appliance.names import TopicPartition
from appliance.processes.network.fetching import Fetching
from appliance.processes.network.known_partitions import Partition
from appliance.processes.network.wait_lists import DelayedRequest, WaitLists
from appliance.shared.table import ROWS, SegmentTable
from appliance.wire.requests import Fetch, FetchPart, FetchResult

WORKER = 3
WORKERS = 4
WRITTEN = 10


class Steps:
    """A worker that starts a fetch, and a writer of the first partition, whose two steps come at ``moments``.

    Moments of the worker: 0, before it looks for what can be read; 1, before it stores its wait; 2, before it looks for
    what is written; 3, after that.
    """

    def __init__(self, moments: tuple[int, int], partitions: int, readable: int) -> None:
        self._moments, self._readable = moments, readable
        self.now = 0
        self.asked: list[bool] = []
        self.seen = False
        self.wait_lists = WaitLists(WORKER)
        tables = [SegmentTable([0] * (ROWS + 4)) for _ in range(partitions)]
        for table in tables:
            table.publish([0], 0, 0, 0)
        self.table = tables[0]
        link = SimpleNamespace(ask_for_flush=lambda written, now: self.asked.append(now))
        self.partitions = [
            Partition(TopicPartition("t", number), table, cast(Any, None), cast(Any, link), lambda *_: None)
            for number, table in enumerate(tables)
        ]

    def reach(self, moment: int) -> None:
        """Let the writer do what it does by then: store what it writes; look for waiting workers."""
        while self.now <= moment:
            if self._moments[0] == self.now:
                self.table.set_log_end_offset(WRITTEN)
            if self._moments[1] == self.now:
                self.seen = self.table.anybody_waits(WORKERS)
            self.now += 1

    def look_for_what_can_be_read(self, *_: object) -> tuple[list[FetchResult], int]:
        self.reach(0)
        return [FetchResult(0, 0, 0, self._readable, ())] * len(self.partitions), self._readable

    def wait(self, delay: Callable[..., bool], *given: Any) -> bool:
        self.reach(1)
        waits = delay(self.wait_lists, *given)
        self.reach(2)
        return waits


@pytest.mark.parametrize("again", [False, True], ids=["a new fetch", "a fetch that waits again"])
@pytest.mark.parametrize("readable", [0, 5], ids=["nothing", "too little"])
@pytest.mark.parametrize("moments", list(combinations_with_replacement(range(4), 2)), ids=str)
def test_a_writer_sees_who_waits_or_is_asked(
    moments: tuple[int, int], readable: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: in every order of their steps, what is written is not flushed late because neither has seen the other."""
    steps = Steps(moments, 2 if again else 1, readable)
    connections: Any = SimpleNamespace(awaits_announcement=lambda *_: False)
    known: Any = SimpleNamespace(of=lambda _: steps.partitions)
    fetching = Fetching(cast(Any, SimpleNamespace(now_ms=0, stopping=False)), connections, known, steps.wait_lists)
    parts = [FetchPart("t", number, 0, 1 << 20) for number in range(len(steps.partitions))]
    connection: Any = SimpleNamespace(begin=lambda _: None, read_ns=0, delayed=None)
    request = Fetch(None, 500, 100, 1 << 20, parts)
    delay = WaitLists.delay
    if again:
        monkeypatch.setattr(plan, "fetch", lambda *_: ([FetchResult(0, 0, 0, 0, ())] * 2, 0))
        fetching.start(connection, request, 0, memoryview(b""))
    monkeypatch.setattr(plan, "fetch", steps.look_for_what_can_be_read)
    monkeypatch.setattr(WaitLists, "delay", lambda _, *given: steps.wait(delay, *given))
    if again:
        waiting: DelayedRequest = connection.delayed
        fetching.retry(waiting)
    else:
        fetching.start(connection, request, 0, memoryview(b""))
    steps.reach(3)
    assert connection.delayed is not None
    assert steps.seen or steps.asked == [False]

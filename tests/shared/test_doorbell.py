"""appliance.shared.doorbell: no wake-up is lost, whatever the interleaving and the store buffers."""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from appliance.shared.doorbell import Doorbell, fence

# What the worker and the writer do; HIGH_WATERMARK and WAIT start at 0, the worker needs 1.
WORKER = ("store WAIT", "fence", "load HIGH_WATERMARK")
WRITER = ("store HIGH_WATERMARK", "fence", "load WAIT")


@dataclass(frozen=True)
class Machine:
    """Two x86-64 processors: a store waits in its processor's buffer until it drains, which a fence forces."""

    at: tuple[int, int] = (0, 0)
    buffered: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    memory: frozenset[str] = frozenset()
    loaded: tuple[bool | None, bool | None] = (None, None)

    def next_states(self, programs: tuple[tuple[str, ...], tuple[str, ...]]) -> Iterator[Machine]:
        for cpu in (0, 1):
            if self.buffered[cpu]:
                yield self._replace(cpu, memory=self.memory | {self.buffered[cpu][0]}, buffered=self.buffered[cpu][1:])
            if self.at[cpu] == len(programs[cpu]):
                continue
            step, _, cell = programs[cpu][self.at[cpu]].partition(" ")
            if step == "store":
                yield self._replace(cpu, advance=1, buffered=(*self.buffered[cpu], cell))
            elif step == "fence" and not self.buffered[cpu]:
                yield self._replace(cpu, advance=1)
            elif step == "load":
                yield self._replace(cpu, advance=1, loaded=cell in self.memory or cell in self.buffered[cpu])

    def _replace(
        self,
        cpu: int,
        *,
        advance: int = 0,
        memory: frozenset[str] | None = None,
        buffered: tuple[str, ...] | None = None,
        loaded: bool | None = None,
    ) -> Machine:
        at, buffers, loads = list(self.at), list(self.buffered), list(self.loaded)
        at[cpu] += advance
        if buffered is not None:
            buffers[cpu] = buffered
        if loaded is not None:
            loads[cpu] = loaded
        return Machine(
            (at[0], at[1]), (buffers[0], buffers[1]), self.memory if memory is None else memory, (loads[0], loads[1])
        )


def outcomes(worker: tuple[str, ...], writer: tuple[str, ...]) -> set[tuple[bool | None, bool | None]]:
    """Every (worker saw HIGH_WATERMARK, writer saw WAIT) that any interleaving can end with."""
    found: set[tuple[bool | None, bool | None]] = set()
    waiting, seen = [Machine()], set()
    while waiting:
        machine = waiting.pop()
        if machine in seen:
            continue
        seen.add(machine)
        following = list(machine.next_states((worker, writer)))
        waiting += following
        if not following:
            found.add(machine.loaded)
    return found


def test_no_interleaving_loses_a_wake_up() -> None:
    """The worker sleeps only if it saw no HIGH_WATERMARK; then the writer must have seen its wait and rung."""
    assert (False, False) not in outcomes(WORKER, WRITER)


@pytest.mark.parametrize("without", ["worker", "writer"])
def test_each_fence_is_needed(without: str) -> None:
    """The test above could fail: leave either fence out and a wake-up is lost."""
    worker = tuple(step for step in WORKER if step != "fence" or without != "worker")
    writer = tuple(step for step in WRITER if step != "fence" or without != "writer")
    assert (False, False) in outcomes(worker, writer)


def test_a_ring_wakes_epoll_once_and_silence_is_idempotent() -> None:
    bell = Doorbell()
    epoll = select.epoll()
    epoll.register(bell.fd, select.EPOLLIN)
    assert epoll.poll(0) == []
    bell.ring()
    bell.ring()
    assert [fd for fd, _ in epoll.poll(0)] == [bell.fd]
    bell.silence()
    bell.silence()
    assert epoll.poll(0) == []
    epoll.close()


def test_a_fence_can_be_repeated() -> None:
    for _ in range(3):
        fence()

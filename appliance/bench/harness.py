"""Runs workloads on brokers in turn, and collects what was measured.

The rates of one machine change by tens of percent from minute to minute.  So the brokers take turns in every round, in
reverse order in every second round.  A result is a median: of the rates of all rounds, or of the ratios of two brokers
within each round.

Before each run all dirty pages are written to the disk.  Otherwise the kernel writes them 30 seconds later, and a flush
of another workload waits for data of this one.  Before producing, root also drops the page cache, so that all brokers
write to pages that have been used before.  On a virtual machine the first write to a page costs several times as much
as the copying, and it depends on chance which broker gets such pages.  A host may also take pages away that are free
for long, so before each run some memory is used for a moment.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from . import machine
from .compiling import Missing
from .kafka_clients import CLIENTS, KafkaClient, Run, python_client
from .measures import BenchMeasure, BenchResult, MachineLimit, limit_named

SMOKE_SCALE = 200
COUNT_MIN = 200


class Named(Protocol):
    """What takes turns."""

    @property
    def name(self) -> str: ...


class Side(Named, Protocol):
    """What takes turns in a workload that has a rate: a broker with its client."""

    def cpu_s(self) -> float: ...


N = TypeVar("N", bound=Named)
S = TypeVar("S", bound=Side)


@dataclass(frozen=True)
class BenchOptions:
    """``directory``: where brokers keep their data.  ``only``: workloads whose name contains it.  ``peers``: names.

    ``large``: also the sizes that take long, or tens of gigabytes.
    """

    directory: Path
    rounds: int = 3
    smoke: bool = False
    only: str = ""
    client: str = "c"
    peers: frozenset[str] = frozenset()
    large: bool = False
    settings: dict[str, str] = field(default_factory=dict)


class Harness:
    """One question's run.  ``tell`` gets a line of progress after each workload."""

    def __init__(
        self, question: str, title: str, options: BenchOptions, limits: list[MachineLimit], tell: Callable[[str], None]
    ):
        self.options, self._tell = options, tell
        self._began = time.perf_counter()
        self.result = BenchResult(
            question=question, title=title,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), took_s=0.0,
            rounds=1 if options.smoke else options.rounds, smoke=options.smoke,
            machine=machine.describe(options.directory), versions=machine.versions(), parameters={}, limits=limits,
            measures=[], notices=[],
        )  # fmt: skip

    def finish(self) -> BenchResult:
        self.result.took_s = round(time.perf_counter() - self._began, 1)
        return self.result

    def scaled(self, count: int) -> int:
        return max(count // SMOKE_SCALE, COUNT_MIN) if self.options.smoke else count

    def is_chosen(self, workload: str) -> bool:
        return self.options.only in workload

    def note(self, **parameters: object) -> None:
        self.result.parameters |= {name: str(value) for name, value in parameters.items()}

    def notice(self, text: str) -> None:
        """Say that something was skipped, once."""
        if text not in self.result.notices:
            self.result.notices.append(text)
            self._tell(text)

    def kafka_client(self) -> KafkaClient:
        """The client that the options name, or that in Python where C cannot be compiled.

        Raises:
            Missing: there is neither.
        """
        try:
            return CLIENTS[self.options.client]()
        except Missing as missing:
            if self.options.client == "python":
                raise
            self.notice(f"the client in C is skipped, missing: {missing}")
            return python_client()

    @contextlib.contextmanager
    def started(self, makers: Sequence[Callable[[Path], Any]]) -> Iterator[list[Any]]:
        """Brokers in directories of their own, stopped at the end.  What is missing is a notice."""
        with contextlib.ExitStack() as stack:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=self.options.directory)))
            base.chmod(0o755)  # RabbitMQ and others drop root
            running = []
            for number, make in enumerate(makers):
                try:
                    broker = make(base / str(number))
                except Missing as missing:
                    self.notice(f"{getattr(make, 'name', 'a broker')} is skipped, missing: {missing}")
                    continue
                stack.callback(broker.stop)
                running.append(broker)
            yield running

    def turns(self, sides: Sequence[N]) -> Iterator[N]:
        """Yields the sides in turn, round by round, with all dirty pages written before each."""
        for number in range(self.result.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                if not self.options.smoke:
                    os.sync()
                    machine.use_memory()
                yield side

    def run(
        self, workload: str, sides: Sequence[S], prepare: Callable[[S], str], once: Callable[[S, str], Run],
        *, limit: str = "", bytes_each: int = 1, after: Callable[[S, str], object] | None = None,
    ) -> None:  # fmt: skip
        """``prepare`` makes a topic, ``once`` runs a client on it, and ``after`` ends what need not stay.

        Adds the rate of each side, the CPU of its broker while the client ran, that of the client, and of both
        together: what a host pays that has them both.

        ``limit`` names what bounds the rate; ``bytes_each`` is what one message costs of it.
        """
        if not self.is_chosen(workload):
            return
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        cpus: dict[str, list[float]] = {side.name: [] for side in sides}
        clients: dict[str, list[float]] = {side.name: [] for side in sides}
        both: dict[str, list[float]] = {side.name: [] for side in sides}
        checks: dict[str, str] = {}
        for side in self.turns(sides):
            topic = prepare(side)
            before = side.cpu_s()
            run = once(side, topic)
            rates[side.name].append(run.rate)
            broker_cpu_s = side.cpu_s() - before
            cpus[side.name].append(broker_cpu_s / run.count * 1e6)
            both[side.name].append((broker_cpu_s + run.client_cpu_s) / run.count * 1e6)
            clients[side.name].append(run.client_cpu_s / run.seconds)
            checks[side.name] = run.check
            if after is not None:
                after(side, topic)
        for name in rates:
            self.add(workload, name, "rate", rates[name], limit, bytes_each, checks[name])
            self.add(workload, name, "cpu", cpus[name])
            self.add(workload, name, "client", clients[name])
            self.add(workload, name, "both", both[name])

    def figures(self, workload: str, sides: Sequence[N], once: Callable[[N], Mapping[str, float]]) -> None:
        """``once`` measures one side: the values of some :data:`~.quantities.QUANTITIES`; none if it cannot."""
        if not self.is_chosen(workload):
            return
        values_by_side: dict[str, dict[str, list[float]]] = {side.name: {} for side in sides}
        for side in self.turns(sides):
            for what, value in once(side).items():
                values_by_side[side.name].setdefault(what, []).append(value)
        for name, values in values_by_side.items():
            for what in values:
                self.add(workload, name, what, values[what])

    def add(
        self, workload: str, side: str, what: str, values: list[float],
        limit: str = "", bytes_each: int = 1, check: str = "",
    ) -> None:  # fmt: skip
        bound = limit_named(self.result.limits, limit)
        measure = BenchMeasure(workload, side, what, [round(value, 6) for value in values], check=check)
        if bound is not None:
            share = round(measure.median * bytes_each / bound.value, 6)
            measure = msgspec.structs.replace(measure, limit=limit, share=share)
        self.result.measures.append(measure)
        self._tell(f"{workload}: {side}: {what} {measure.median:,.6g}")


def drop_page_cache() -> None:
    """Drop clean pages, if this is root."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")

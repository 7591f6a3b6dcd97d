"""What was measured, as a value that is stored as JSON and drawn as tables and charts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .machine import Machine


class MachineLimit(msgspec.Struct, frozen=True):
    """What the machine itself can do, measured in the same run; ``unit`` is "B/s", "1/s" or "ms"."""

    name: str
    value: float
    unit: str


class BenchMeasure(msgspec.Struct, frozen=True):
    """One quantity of one workload on one side: a value for each round.

    ``what`` is a key of :data:`~.quantities.QUANTITIES`: "rate" (messages/s), "cpu" (s of the broker per million
    messages), "both" (the same of broker and client), "p50_ms", ...  ``limit`` names the :class:`MachineLimit` that
    bounds a rate, and ``share`` is the median's part of it.  ``check`` is the sum of what arrived.
    """

    workload: str
    side: str
    what: str
    values: list[float]
    limit: str = ""
    share: float = 0.0
    check: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


class BenchResult(msgspec.Struct):
    """The answer to one question.  ``notices`` say what was skipped, and why."""

    question: str
    title: str
    date: str
    took_s: float
    rounds: int
    smoke: bool
    machine: Machine
    versions: dict[str, str]
    parameters: dict[str, str]
    limits: list[MachineLimit]
    measures: list[BenchMeasure]
    notices: list[str]

    def find_measure(self, workload: str, side: str, what: str) -> BenchMeasure | None:
        for measure in self.measures:
            if (measure.workload, measure.side, measure.what) == (workload, side, what):
                return measure
        return None

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(measure.workload for measure in self.measures))

    @property
    def sides(self) -> list[str]:
        return list(dict.fromkeys(measure.side for measure in self.measures))

    def store(self, directory: Path) -> Path:
        """Write ``<question>.json``."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.question}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        return path


def load(path: Path) -> BenchResult:
    return msgspec.json.decode(path.read_bytes(), type=BenchResult)


def stored(directory: Path, questions: Sequence[str]) -> dict[str, BenchResult]:
    """The results of these questions that are in ``directory``."""
    paths = {question: directory / f"{question}.json" for question in questions}
    return {question: load(path) for question, path in paths.items() if path.exists()}


def ratios(ours: BenchMeasure, theirs: BenchMeasure) -> list[float]:
    """Ours divided by theirs, round by round."""
    return [a / b for a, b in zip(ours.values, theirs.values, strict=True) if b]


def median_ratio(ours: BenchMeasure, theirs: BenchMeasure) -> float | None:
    ratios_found = ratios(ours, theirs)
    return statistics.median(ratios_found) if ratios_found else None


def limit_named(limits: Sequence[MachineLimit], name: str) -> MachineLimit | None:
    return next((limit for limit in limits if limit.name == name), None)

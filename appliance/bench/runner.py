"""Runs questions one after the other, after the limits of the machine."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from . import limits
from .compiling import Missing
from .harness import SMOKE_SCALE, BenchOptions, Harness
from .measures import BenchResult

LIMITS = "limits"
QUESTIONS = (
    "kafka_rows", "paper_figures", "end_to_end", "fan_out", "many_clients", "sizes", "native_rows", "java_tools",
    "catch_up", "many_partitions", "many_connections", "group_rebalances", "crash_recovery", "idle_costs",
)  # fmt: skip
"""Modules in ``questions``, in the order in which they run and stand on the page."""
LIMITS_S, SMOKE_S = 25, 3


def estimate_s(questions: Sequence[str], options: BenchOptions, stored: Mapping[str, BenchResult]) -> float:
    """About how long :func:`run` takes: as long as the ``stored`` results took, else as long as it took elsewhere.

    What was measured elsewhere is for two processors, with Kafka beside the appliance.
    """
    estimate = LIMITS_S / SMOKE_SCALE if options.smoke else float(LIMITS_S)
    for question in questions:
        before = stored.get(question)
        if options.smoke:
            estimate += SMOKE_S
        elif before is not None and not before.smoke:
            estimate += before.took_s / before.rounds * options.rounds
        else:
            estimate += module_of(question).ROUND_S * options.rounds
    return estimate


def module_of(question: str) -> ModuleType:
    """The module that asks and answers a question."""
    return importlib.import_module(f".questions.{question}", __package__)


def run(
    questions: Sequence[str], options: BenchOptions, tell: Callable[[str], None], done: Callable[[BenchResult], None]
) -> None:
    """Measure the limits, then answer the questions; ``done`` gets each result as soon as there is one.

    Whatever ends a question early, workloads that were measured whole are a result.  A question of which nothing was
    measured has none, so that it replaces no earlier one.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        harness = Harness(LIMITS, "What the machine itself can do", options, [], tell)
        tell("measuring the limits of the machine")
        machine_limits = limits.measure(Path(directory), SMOKE_SCALE if options.smoke else 1, harness.result.notices)
        harness.result.limits += machine_limits
        done(harness.finish())
    for question in questions:
        module = module_of(question)
        harness = Harness(question, module.TITLE, options, machine_limits, tell)
        tell(f"{question}: {module.TITLE}")
        ended = False
        try:
            module.run(harness)
            ended = True
        except Missing as missing:
            harness.notice(f"{question} is skipped, missing: {missing}")
            ended = True
        finally:
            if not ended:
                harness.notice("stopped before its end: the last workloads were not measured")
            result = harness.finish()
            tell(f"{question} took {result.took_s:.0f} s")
            if result.measures:
                done(result)

"""Runs questions one after the other, after the limits of the machine."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import limits
from .compiling import Missing
from .harness import SMOKE_SCALE, Harness, Options
from .measures import Result

LIMITS = "limits"
QUESTIONS = ("kafka_rows", "paper_figures", "end_to_end", "fan_out", "many_clients", "sizes", "native_rows")
"""Modules in ``questions``, in the order in which they run and stand on the page."""
KAFKA_PEER = "kafka"


def run(
    questions: Sequence[str], options: Options, tell: Callable[[str], None], done: Callable[[Result], None]
) -> None:
    """Measure the limits, then answer the questions; ``done`` gets each result as soon as there is one.

    Whatever ends a question early, workloads that were measured whole are a result.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        harness = Harness(LIMITS, "What the machine itself can do", options, [], tell)
        tell("measuring the limits of the machine")
        found = limits.measure(Path(directory), SMOKE_SCALE if options.smoke else 1, harness.result.notices)
        harness.result.limits += found
        done(harness.finish())
    for question in questions:
        module = importlib.import_module(f".questions.{question}", __package__)
        harness = Harness(question, module.TITLE, options, found, tell)
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
            done(harness.finish())

"""Shared by the benchmarks here: an appliance in a temporary directory, and how results are printed.

A benchmark is a file named after its question.  ``--smoke`` runs it at a size that proves that it still works; the
canonical size is its default.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.bench import machine, result_tables
from appliance.bench.brokers import OurBroker
from appliance.bench.measures import BenchResult

PAYLOAD_BYTES = 200


@contextmanager
def appliance(**settings: Any) -> Iterator[OurBroker]:
    """An appliance in a temporary directory, which is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        broker = OurBroker(Path(directory), settings)
        try:
            yield broker
        finally:
            broker.stop()


def headline(question: str, **parameters: Any) -> None:
    of = machine.describe(Path(tempfile.gettempdir()))
    print(question)
    print(f"machine:    {os.cpu_count()} x {of.processor}, Linux {platform.release()}, {of.python}, load {of.load}")
    print("parameters:", ", ".join(f"{name}={value}" for name, value in parameters.items()), flush=True)


def row(name: str, **figures: Any) -> None:
    print(f"  {name:<40}" + "  ".join(f"{label}={text(value)}" for label, value in figures.items()), flush=True)


def text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(result: BenchResult) -> None:
    """Print the table of a result."""
    for fact in result_tables.facts(result):
        print(fact)
    columns = result_tables.columns(result)
    for line in [dict(zip(columns, columns, strict=True)), *result_tables.rows(result)]:
        print("  ".join(f"{line[column]:<38}" if column == "workload" else f"{line[column]:<20}" for column in columns))

"""Shows what runs of a pipeline do and have done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..units import counted, size
from . import output

if TYPE_CHECKING:
    from ..spark.pipeline.pipeline_status import Summary
    from ..spark.pipeline.run import Result
    from ..spark.pipeline.state_directory import Progress


def show_result(result: Result) -> None:
    """What a run has done, and what the table has."""
    seconds = max(result.seconds, 1e-9)
    output.remark(
        f"{counted(result.rows, 'row')}, {size(result.bytes)} in "
        f"{counted(result.batches, 'micro-batch', 'micro-batches')}, {result.seconds:.1f} s: "
        f"{result.rows / seconds:,.0f} rows/s, {result.bytes / seconds / 1e6:.1f} MB/s"
    )
    show_summary(result.summary, result.remark)


def show_summary(summary: Summary, *remarks: str) -> None:
    rows: list[dict[str, Any]] = [
        {"what": f"parsed: {name}", "messages": count} for name, count in summary.parsed.items()
    ]
    rows += [{"what": f"dead letter: {reason}", "messages": count} for reason, count in summary.dead.items()]
    rows += [{"what": f"dropped: {rule}", "messages": count} for rule, count in summary.dropped.items()]
    rows += [{"what": f"not as expected: {rule}", "messages": count} for rule, count in summary.unexpected.items()]
    rows += [{"what": f"column null: {reason}", "messages": count} for reason, count in summary.nulled.items()]
    output.print_rows(rows, ["what", "messages"], title="Lines")
    if summary.audit is not None:
        output.remark(f"audit: {summary.audit}")
    if summary.events:
        output.remark(f"events: {summary.events}")
    for remark in filter(None, remarks):
        output.remark(remark)


@contextmanager
def watching(name: str) -> Iterator[Callable[[Progress], None]]:
    """Shows a line with the progress of the micro-batches on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    rows = 0
    with console.status(f"{name}: starting Spark") as line:

        def show(progress: Progress) -> None:
            nonlocal rows
            rows += progress.rows
            line.update(
                f"{name}: {rows:,} rows, now {progress.rows_per_s:,.0f} rows/s, {progress.bytes_per_s / 1e6:.1f} MB/s, "
                f"lag {size(progress.lag_bytes)}"
            )

        yield show

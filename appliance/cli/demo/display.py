"""Shows the progress of the demo: remarks, and on a terminal one bar for shipped and one for consumed lines."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from .. import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOG_EVERY_S = 5.0


class Display:
    """Use as a context; ``lines`` is the expected total."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._bars: Progress | None = None
        self._tasks: list[TaskID] = []
        self._printed_s = time.monotonic()
        self._printed = (0, 0)

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
            self._tasks = [self._bars.add_task(name, total=self._lines) for name in ("shipped", "consumed")]
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(output.safe(text), highlight=False, markup=False)
        else:
            output.remark(text)

    def show_counts(self, shipped: int, consumed: int) -> None:
        """Show how many lines have been shipped and consumed."""
        if self._bars is not None:
            for task, count in zip(self._tasks, (shipped, consumed), strict=True):
                self._bars.update(task, completed=count)
        elif (shipped, consumed) != self._printed and time.monotonic() - self._printed_s > LOG_EVERY_S:
            self._printed_s, self._printed = time.monotonic(), (shipped, consumed)
            output.remark(f"{shipped:,} of about {self._lines:,} lines shipped, {consumed:,} consumed")

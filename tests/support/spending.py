"""Measures what a call takes, in a process of its own that does nothing else.

tracemalloc counts what all threads of a process allocate, and tests before this one may have left threads behind.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from appliance.errors import ApplianceError

ROOT = Path(__file__).parents[2]


class Spent(NamedTuple):
    """What a call has taken.  ``error``: the name of the class of the product's that it raised, or nothing."""

    peak_bytes: int
    cpu_s: float
    error: str


def spent_by(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Spent]:
    """Call a function of a module with each tuple of arguments, one after another, and again: the second time counts.

    What is made once, and stays, is made the first time.  The other process imports the module of the function, which
    checks its result itself: only errors of the product's do not fail the test.
    """
    request = pickle.dumps((function, list(calls)))
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, cwd=ROOT, input=request, stdout=subprocess.PIPE, check=True)
    return [Spent(*row) for row in pickle.loads(done.stdout)]


def _spend(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, float, str]:
    error = ""
    tracemalloc.start()
    begun_s = time.process_time()
    try:
        function(*arguments)
    except ApplianceError as raised:
        error = type(raised).__name__
    spent = tracemalloc.get_traced_memory()[1], time.process_time() - begun_s, error
    tracemalloc.stop()
    return spent


if __name__ == "__main__":
    call, all_arguments = pickle.load(sys.stdin.buffer)
    rows = []
    for call_arguments in all_arguments:
        _spend(call, call_arguments)
        rows.append(_spend(call, call_arguments))
    pickle.dump(rows, sys.stdout.buffer)

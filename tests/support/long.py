"""Sizes of longer tests: ``LONG=1 make test``, and one size each by variables that CONTRIBUTING.md names."""

from __future__ import annotations

import os
from typing import Final

LONG = bool(os.environ.get("LONG"))
"""Whether tests that are marked ``long`` run, and others with more steps, examples or messages."""
_VARIABLES: Final = (
    "FUZZ_MUTATIONS",
    "INTERLEAVING_STEPS",
    "LOG_MODEL_RUNS",
    "MACHINE_RUNS",
    "POWER_LOSS_RUNS",
    "TRANSACTION_FAULTS",
)
SIZE_IS_CHOSEN: Final = any(variable in os.environ for variable in _VARIABLES)
"""Whether somebody has said how large a test is: it takes as long as that takes, and no time-out ends it."""


def chosen_size(variable: str, usual: int, long: int | None = None) -> int:
    """The number in a variable of the environment, or else one for the suite, or for ``LONG=1``."""
    assert variable in _VARIABLES, variable
    return int(os.environ.get(variable, usual if long is None or not LONG else long))

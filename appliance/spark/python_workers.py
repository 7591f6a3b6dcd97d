"""What Spark's Python workers need: processes that run one task after the other."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_collector() -> None:
    """Take all objects that are there now, as modules and classes, out of garbage collection; once in a process.

    Spark's workers collect after every task.  Going through what is imported here takes 20 to 50 ms of CPU each time,
    which is more than a small task needs.
    """
    gc.freeze()

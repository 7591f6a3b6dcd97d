"""The long run: ``python -m tests.hostile [requests] [seed]``, 100,000 requests unless told otherwise."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .box import GROWTH_MAX, Box, Outcome, grown

WARM_UP = 10_000
"""Not counted: so many requests reach nearly every version of every API, whose codecs are built when they are needed
first.
"""


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        box = Box(Path(directory) / "data")
        show(box.attack(requests, seed, warm_up=max(WARM_UP, requests // 10)))


def show(outcome: Outcome) -> None:
    print(f"{outcome.sent} requests in {outcome.seconds:.0f} s, {outcome.replied_bytes} bytes of replies")
    same = outcome.pids_before == outcome.pids_after
    print(f"processes: {'the same' if same else 'NOT the same'}, {outcome.restarts} restarts,", end=" ")
    print(f"{len(outcome.tracebacks)} tracebacks")
    for pid, before in outcome.before.items():
        after = outcome.after.get(pid, 0)
        print(f"memory of {pid}: {before >> 10} -> {after >> 10} KiB ({after / before - 1:+.0%})")
    within = "not within" if grown(outcome.before, outcome.after) else "within"
    print(f"memory is {within} {GROWTH_MAX:.0%} of what it was")
    for name, worst_ms in sorted(outcome.honest["worst_ms"].items()):
        print(f"{name}: {outcome.honest['done'][name]} times, longest {worst_ms:.0f} ms")
    for text in outcome.tracebacks[:5]:
        print(text)
    for fault in outcome.honest["faults"]:
        print(f"FAULT {fault}")


if __name__ == "__main__":
    main()

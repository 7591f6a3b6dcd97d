"""Lets every fault of the matrix strike for minutes, each on an appliance of its own, and writes the table of results.

    python -m tests.crash.matrix [--minutes 1] [--only WORDS]... [--output FILE]

A row of the table is a fault, what is promised then, and what was measured; rows of faults that do not run this time
stay as they are in the file.  Exit status 1 if a promise was broken; the history of such a run is kept, and named.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from ..support.group_readers import ROOT
from .beds import BEDS, Missing
from .faults import FAULTS, Fault
from .history import Report

TABLE: Final = ROOT / "systemd" / "FAULTS.md"
HEAD: Final = """\
# What faults do

Written by `make chaos`; do not edit. Each row is one fault that struck an appliance again and again while six
producers (librdkafka and the native client; acks all, 1 and 0; idempotent and not), assigned consumers and groups of
both listeners were at work; then everything was read and compared with what had been acknowledged
(`tests/crash/history.py`). *Below inputs* all came through inputs instead: files that were rotated several times a
second, syslog, RELP and HTTP. A line of a file counts as acknowledged once it is written; what the ledger names as a
gap is taken off.

*Injected*: faults. *Acknowledged*: messages. *Lost*: acknowledged with acks=1 or all, and not there. *Doubled*: stored
twice, by producers with and without idempotence. *Other*: anything else that is promised and was not so (order, values
where they belong, what was read stays, groups leave nothing out and do not go back). *Stall*: the longest time in which
a producer was acknowledged nothing, or a consumer read nothing; clients and appliance share the machine, and whatever
else runs on it makes stalls longer. *Named*: the longest time until `appliance doctor` had named a cause that lasts;
more than 5 s is a broken promise. *Run*: date, version of the appliance, and how long the fault struck.

| fault | promise | injected | acknowledged | lost | doubled | other | stall of a producer / consumer | named | run |
|---|---|---|---|---|---|---|---|---|---|
"""


NAMED_S_MAX: Final = 5.0


class Struck(NamedTuple):
    """How often, the longest time until `doctor` had named the cause (None: none lasted), and what came of it."""

    injected: int
    named_s: float | None
    report: Report

    def broken(self) -> str:
        """The promises that were not kept; "" if all were."""
        if self.report.counts:
            return str(self.report)
        return f"named after {self.named_s:.1f} s" if (self.named_s or 0) > NAMED_S_MAX else ""


def run(fault: Fault, directory: Path, minutes: float) -> Struck:
    """Strike until the time is over, at least once."""
    with BEDS[fault.bed](directory) as bed:
        until_s = time.monotonic() + 60 * minutes
        while True:
            fault.strike(bed)
            if time.monotonic() >= until_s:
                return Struck(bed.injected, bed.named_s, bed.load.finish())


def row(fault: Fault, minutes: float, struck: Struck) -> str:
    injected, named_s, report = struck
    doubled = report.counts.get("duplicate", 0)
    other = sum(report.counts.values()) - report.lost - doubled
    fields = [
        *(fault.name, fault.promise, injected, report.acknowledged, report.lost),
        f"{doubled} / {report.doubled - doubled}",
        *(other, f"{report.producer_stall_ms / 1000:.1f} s / {report.consumer_stall_ms / 1000:.1f} s"),
        "" if named_s is None else f"{named_s:.1f} s",
        f"{time.strftime('%Y-%m-%d')}, {version()}, {minutes:g} min",
    ]
    return "| " + " | ".join(map(str, fields)) + " |"


def version() -> str:
    """The last change of the appliance itself."""
    command = ["git", "log", "-1", "--format=%h", "--", "appliance"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "no version"


def merge(table: str, rows: dict[str, str]) -> str:
    """The page with these rows in place of older ones of the same faults, in the order of the faults."""
    known = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines() if line.startswith("| ")}
    known |= rows
    return HEAD + "".join(known[name] + "\n" for name in FAULTS if name in known)


def strike_all(faults: list[Fault], minutes: float, output: Path) -> list[str]:
    """What went wrong; the page has the row of each fault as soon as it is over."""
    failures = []
    for fault in faults:
        directory = Path(tempfile.mkdtemp(prefix="chaos-"))
        print(f"== {fault.name}", file=sys.stderr, flush=True)
        try:
            struck = run(fault, directory, minutes)
        except Missing as missing:
            print(f"skipped: needs {missing}", file=sys.stderr)
            shutil.rmtree(directory)
            continue
        except Exception as error:  # one fault that breaks the appliance does not end the run of the others
            failures.append(f"{fault.name}: {type(error).__name__}: {error}\n  see {directory}")
            print(failures[-1], file=sys.stderr, flush=True)
            continue
        line = row(fault, minutes, struck)
        print(line, flush=True)
        output.write_text(merge(output.read_text() if output.exists() else "", {fault.name: line}))
        if broken := struck.broken():
            failures.append(f"{fault.name}: {broken}\n  see {directory}")
        else:
            shutil.rmtree(directory)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1, help="how long each fault strikes")
    parser.add_argument(
        "--only", action="append", default=[], help="faults whose names contain this; all, if not given"
    )
    parser.add_argument("--output", type=Path, default=TABLE, help="the page with the table")
    given = parser.parse_args()
    chosen = [f for f in FAULTS.values() if not given.only or any(words in f.name for words in given.only)]
    failures = strike_all(chosen, given.minutes, given.output)
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

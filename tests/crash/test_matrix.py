"""Every fault of the matrix, once each: the faults of a bed strike one after the other, and one history is checked.

``make chaos`` lets each strike for minutes, on its own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ..support.long import LONG
from .beds import BEDS, Missing
from .faults import FAULTS, Fault
from .history import Report
from .matrix import HEAD, Struck, merge, row

SHORT = (*(pytest.param(bed, marks=pytest.mark.long) for bed in ("box", "small", "inputs", "pair")), "network")
"""Faults of the long ones take seconds; most have a test of their own, some of the inputs' strike in a test below."""
"""The bed of three nodes is for ``make chaos``: ``test_zookeeper.py`` has such an ensemble."""


@pytest.mark.parametrize("bed", SHORT)
def test_faults_one_after_the_other(bed: str, tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS.values() if fault.bed == bed]
    strike_all(bed, faults * (2 if LONG else 1), tmp_path)  # they must be able to strike again


BELOW_INPUTS = ("an input killed", "ZooKeeper stopped", "all killed at once")
"""Those that strike all the time."""


@pytest.mark.long  # an input that begins before what it had sent is flushed sends that again: see ``positions``
def test_inputs_that_are_killed_and_stopped(tmp_path: Path) -> None:
    strike_all("inputs", [FAULTS[f"{name} below inputs"] for name in BELOW_INPUTS], tmp_path)


def strike_all(bed: str, faults: list[Fault], directory: Path) -> None:
    try:
        with BEDS[bed](directory) as run:
            for fault in faults:
                print(fault.name, flush=True)
                fault.strike(run)
            report = run.load.finish()
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    assert run.injected and not report.counts, str(report)


def test_every_bed_has_faults() -> None:
    assert {fault.bed for fault in FAULTS.values()} == set(BEDS)


def test_rows_of_faults_that_did_not_strike_stay() -> None:
    """In the order of the faults, whichever struck first; what is no fault any more goes."""
    first, second = list(FAULTS.values())[:2]
    report = Report(acknowledged=7, doubled=3, counts={"lost": 1, "duplicate": 2, "mixed": 4}, producer_stall_ms=1_250)
    old, new = row(second, 1, Struck(5, None, report)), row(second, 2, Struck(6, 1.25, report))
    assert "| 5 | 7 | 1 | 2 / 1 | 4 | 1.2 s / 0.0 s |  |" in old and "0.0 s | 1.2 s |" in new
    page = merge("", {second.name: old}) + "| no fault any more | | |\n"
    assert merge(page, {first.name: row(first, 1, Struck(1, None, report))}).splitlines()[-1] == old
    assert merge(page, {second.name: new}) == HEAD + new + "\n"


def test_a_cause_that_is_named_late_is_a_broken_promise() -> None:
    assert Struck(1, 4.9, Report()).broken() == Struck(1, None, Report()).broken() == ""
    assert "5.2 s" in Struck(1, 5.2, Report()).broken()
    assert "lost" in Struck(1, 1.0, Report(counts=Counter(lost=1), examples={"lost": ["x"]})).broken()

"""Every fault of the matrix, once each: the faults of a bed strike one after the other, and one history is checked.

``make chaos`` lets each strike for minutes, on its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .beds import BEDS, Missing
from .faults import FAULTS

SHORT = ("box", "small", "network", "pair")
"""The bed of three nodes is for ``make chaos``: ``test_zookeeper.py`` has such an ensemble."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bed", SHORT)
def test_faults_one_after_the_other(bed: str, tmp_path: Path) -> None:
    try:
        with BEDS[bed](tmp_path) as run:
            for fault in FAULTS.values():
                if fault.bed == bed:
                    print(fault.name, flush=True)
                    fault.strike(run)
            report = run.load.finish()
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    assert run.injected and not report.counts, str(report)


def test_every_bed_has_faults() -> None:
    assert {fault.bed for fault in FAULTS.values()} == set(BEDS)

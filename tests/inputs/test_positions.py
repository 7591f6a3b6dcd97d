"""What a power loss may take of the positions of an input: commits of positions, never names that origins have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.inputs.positions import BlockOrigin, FoundBlock, PositionStore, Source, Span

MARK = "/nowhere/before the call"
PROGRAM = """
import os, sys
from pathlib import Path
from appliance.inputs.positions import PositionStore, Source, Span
store = PositionStore(Path(sys.argv[1]))
store.add_sources([("first", 0, 1, b"")])
store.note(Source(1, "first", 10, 2, b"x", False), Span(1, "t", 0, 0, 1, 0, 10, 1, 1, 10, 0))
os.path.exists(sys.argv[2])
exec(sys.argv[3])
os.path.exists(sys.argv[2])
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("call", "is_durable"),
    [
        ("store.add_sources([('second', 0, 1, b'')])", True),
        ("store.add_partition('t', 1, 7)", True),
        ("store.commit()", False),
    ],
)
def test_what_must_be_durable_is_synced_before_the_call_returns(tmp_path: Path, call: str, is_durable: bool) -> None:
    """Method: the system calls between two marks; the last one of the WAL is a sync, or a write that may be lost."""
    trace = tmp_path / "trace"
    argv = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=pwrite64,fdatasync,fsync,stat,newfstatat"]
    subprocess.run([*argv, sys.executable, "-c", PROGRAM, str(tmp_path / "store"), MARK, call], check=True)
    between = trace.read_text().split(MARK)[1]
    calls = re.findall(r"(pwrite64|fdatasync|fsync)\(\d+<\S+/store-wal>", between)
    assert "pwrite64" in calls
    assert (calls[-1] != "pwrite64") == is_durable


def test_recovery_begins_where_a_topic_that_was_made_again_has_its_last_block(tmp_path: Path) -> None:
    """Its offsets are smaller than those of the one before; what is noted is not taken into account a second time."""
    store = PositionStore(tmp_path / "store")
    (number,) = store.add_sources([("a", 0, 1, b"x")])
    store.add_partition("t", 0, 0)
    spans = [Span(number, "t", 0, offset, 1, start, start + 10, 1, 1, 10, 0) for offset, start in ((1_000, 0), (5, 10))]
    for span in spans:
        store.note(Source(number, "a", span.stop, 2, b"x", False), span)
        store.commit()
    assert store.offset_of("t", 0) == 6
    origin = BlockOrigin(store.id, number, 10, 20, 1, 1, "x")
    assert store.recover([FoundBlock(origin, "t", 0, 5, 1, 9)], minute=0) == []
    assert store.spans(1) == spans
    store.close()

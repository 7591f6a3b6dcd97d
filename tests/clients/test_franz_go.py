"""franz-go's own tests of transactions and of groups, as they are, against an appliance.

Each chains six kinds of consumer groups (range, cooperative-sticky, KIP-848, static members), which come and go, and
counts that every record comes through once.  That of groups checks besides that the offsets of a partition have no
gaps; here they are bytes, so this one check fails.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.server import Server
from .adapters import GO, PROGRAMS, _made

RECORDS = 1_500
KINDS = 6
TIMEOUT_S = 800
MODULE = "github.com/twmb/franz-go"
OFFSETS_WITH_GAPS = ("partition produced offsets out of order", "expected first produced record to partition to have")
BUSY = r"unable to delete .*: (REQUEST_TIMED_OUT|COORDINATOR_LOAD_IN_PROGRESS)"
"""When it tidies up, on a busy machine."""
NOTES = re.compile(rf"deleting (group|topic)|completed in|FAILED TESTING -- NOT DELETING|{BUSY}")


@functools.cache
def own_tests() -> str:
    """franz-go's tests as a program."""

    def make(place: Path) -> None:
        listing = [GO, "list", "-m", "-f", "{{.Dir}}", MODULE]
        subprocess.run([GO, "mod", "download", MODULE], cwd=PROGRAMS, check=True, capture_output=True, timeout=300)
        found = subprocess.run(listing, cwd=PROGRAMS, check=True, capture_output=True, text=True, timeout=60)
        source = place / "source"
        shutil.copytree(found.stdout.strip(), source)
        for each in [source, *source.rglob("*")]:
            each.chmod(each.stat().st_mode | 0o200)
        command = [GO, "test", "-c", "-o", str(place / "tests"), "./pkg/kgo"]
        subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=TIMEOUT_S)

    version = re.search(rf"{MODULE} (\S+)", (PROGRAMS / "go.mod").read_text())
    assert version is not None
    return str(_made(f"franz-go-{version[1]}", make, "no Go, or no module proxy") / "tests")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    own_tests()  # first: it takes minutes, or is skipped
    with Server(tmp_path / "data", **{"zookeeper.nodes": 1}) as started:
        started.wait_for_zookeeper()
        yield started


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("name, gaps", [("TestTxnEtl", ()), ("TestGroupETL", OFFSETS_WITH_GAPS)])
def test_its_own(server: Server, tmp_path: Path, name: str, gaps: tuple[str, ...]) -> None:
    environment = os.environ | {
        "KGO_SEEDS": server.kafka,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    command = [own_tests(), "-test.v", "-test.run", f"^{name}$", "-test.timeout", f"{TIMEOUT_S}s"]
    said = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S + 9)
    results = Counter(re.findall(rf"^ *--- (\w+): {name}/", said.stdout, re.MULTILINE))
    assert results == {"PASS": KINDS}, said.stdout[-3000:] + said.stderr[-1000:]
    remarks = [line for line in re.findall(r"\w+_test\.go:\d+: (.*)", said.stdout) if not NOTES.search(line)]
    assert [line for line in remarks if not line.startswith(gaps or "\0")] == []
    assert bool(said.returncode) == bool(gaps)

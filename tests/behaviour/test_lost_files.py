"""Somebody removes, shortens, overwrites or replaces files under an appliance: what is seen, and how it comes back.

One appliance has a partition for each cell of the matrix: a file of the partition, what happens to it, and whether the
appliance runs meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.errors import OffsetOutOfRange, StorageFault
from appliance.log.files import INDEX_SUFFIX
from appliance.log.partition_directory import METADATA_NAME
from appliance.log.recovery import MARKER_NAME, POINT_NAME
from appliance.records.encode import encode_values

from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.server import Server, runs, wait_for

VALUES = [b"%03d" % number * 100 for number in range(12)]
"""Of the batches of a partition: two in a segment."""
SERVED, DAMAGED, OFFLINE = "", "damaged", "offline"


class Seen(NamedTuple):
    """What ``status`` says of a partition: its state, and words of the reason."""

    state: str
    words: str = ""


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def sealed(directory: Path) -> Path:
    return logs(directory)[2]


def active(directory: Path) -> Path:
    return logs(directory)[-1]


def index(directory: Path) -> Path:
    return sealed(directory).with_suffix(INDEX_SUFFIX)


def whole(directory: Path) -> Path:
    return directory


def named(name: str) -> Callable[[Path], Path]:
    return lambda directory: directory / name


def vanish(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # no partition that is written to has a clean-shutdown marker


def rename(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.elsewhere"))


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 7)


def empty(path: Path) -> None:
    if path.is_dir():
        for each in path.iterdir():
            each.unlink()
    else:
        os.truncate(path, 0)


def overwrite(path: Path) -> None:
    """Bytes in the middle become others; the file keeps its name and size."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xa5" * 100)


def become_garbage(path: Path) -> None:
    path.write_bytes(b"\xa5" * path.stat().st_size)


def become_a_loop(path: Path) -> None:
    """A file that nobody can open, whoever he is: as one of another owner."""
    vanish(path)
    path.symlink_to(path)


def become_a_directory(path: Path) -> None:
    vanish(path)
    path.mkdir()


MISSING = Seen(OFFLINE, "the directory is missing")
LOST = Seen(OFFLINE, "its log is missing")
WHERE = {
    "directory": whole,
    "sealed segment": sealed,
    "active segment": active,
    "index": index,
    POINT_NAME: named(POINT_NAME),
    MARKER_NAME: named(MARKER_NAME),
    METADATA_NAME: named(METADATA_NAME),
}
MATRIX: dict[tuple[str, Callable[[Path], None]], tuple[Seen, Seen]] = {
    # where, what                              seen while it runs, and without any reader       after the next start
    ("directory", vanish): (MISSING, MISSING),
    ("directory", rename): (MISSING, MISSING),
    ("directory", empty): (Seen(OFFLINE, "its log is missing"), LOST),
    ("sealed segment", vanish): (Seen(DAMAGED, "the file is missing"), Seen(OFFLINE, "the next segment starts there")),
    ("sealed segment", rename): (Seen(DAMAGED, "the file is missing"), Seen(OFFLINE, "the next segment starts there")),
    ("sealed segment", shorten): (Seen(DAMAGED, "the file has"), Seen(OFFLINE, "the next segment starts there")),
    ("sealed segment", empty): (Seen(DAMAGED, "the file has 0"), Seen(OFFLINE, "the next segment starts there")),
    ("sealed segment", overwrite): (Seen(DAMAGED, ""), Seen(SERVED)),  # and found by who reads it
    ("sealed segment", become_garbage): (Seen(DAMAGED, ""), Seen(SERVED)),
    ("sealed segment", become_a_loop): (Seen(DAMAGED, "cannot be opened"), Seen(OFFLINE, "")),
    ("sealed segment", become_a_directory): (Seen(DAMAGED, "cannot be read"), Seen(OFFLINE, "")),
    ("active segment", vanish): (Seen(OFFLINE, "was valid up to"), Seen(OFFLINE, "was valid up to")),
    ("active segment", shorten): (Seen(OFFLINE, ""), Seen(OFFLINE, "")),
    ("active segment", empty): (Seen(OFFLINE, "was valid up to"), Seen(OFFLINE, "was valid up to")),
    ("index", vanish): (Seen(SERVED), Seen(SERVED)),
    ("index", shorten): (Seen(SERVED), Seen(SERVED)),
    ("index", become_garbage): (Seen(SERVED), Seen(SERVED)),
    ("index", become_a_loop): (Seen(SERVED), Seen(SERVED)),
    ("index", become_a_directory): (Seen(SERVED), Seen(SERVED)),
    (POINT_NAME, vanish): (Seen(SERVED), Seen(SERVED)),
    (POINT_NAME, empty): (Seen(SERVED), Seen(SERVED)),
    (POINT_NAME, become_a_directory): (Seen(SERVED), Seen(SERVED)),  # until somebody writes
    (MARKER_NAME, vanish): (Seen(SERVED), Seen(SERVED)),
    (METADATA_NAME, vanish): (Seen(SERVED), Seen(SERVED)),
    (METADATA_NAME, become_garbage): (Seen(SERVED), Seen(OFFLINE, METADATA_NAME)),
    (METADATA_NAME, become_a_loop): (Seen(SERVED), Seen(OFFLINE, METADATA_NAME)),
}
CELLS = list(MATRIX)


@pytest.fixture
def server(make_appliance: Callable[..., Server]) -> Iterator[Server]:
    """An appliance with a topic of one partition for each cell, in several segments, and a copy of each directory."""
    server = make_appliance(**{"scrub.bytes_per_second": 0})
    with Peer(server.native) as peer:
        for number in range(len(CELLS)):
            peer.create(f"t{number}", segment_bytes=1024)
            for value in VALUES:
                assert peer.produce(f"t{number}", encode_values([value], 1_000), acks=-1)[0] == 0
    yield server


def directory_of(server: Server, number: int) -> Path:
    return server.data_dir / f"t{number}-0"


def keep(server: Server) -> None:
    """Copy all directories, to put back what is harmed."""
    for number in range(len(CELLS)):
        directory = directory_of(server, number)
        shutil.copytree(directory, server.data_dir.parent / "kept" / directory.name, symlinks=True)


def put_back(server: Server, number: int) -> None:
    """Put back every file of a partition that is gone or another one, as somebody with a backup would."""
    directory = directory_of(server, number)
    kept = server.data_dir.parent / "kept" / directory.name
    if not directory.is_dir():
        shutil.move(kept, directory)
        return
    for path in kept.iterdir():
        file = directory / path.name
        goes_on = path.name in (POINT_NAME, MARKER_NAME)  # the appliance may have written it since
        if file.is_dir() or not file.is_file() or (not goes_on and file.read_bytes() != path.read_bytes()):
            if file.is_dir():
                file.rmdir()
            else:
                file.unlink(missing_ok=True)
            shutil.copy2(path, file)


def harm(server: Server) -> None:
    for number, (where, what) in enumerate(CELLS):
        what(WHERE[where](directory_of(server, number)))


def seen(server: Server, number: int) -> Seen:
    name, state = f"t{number}-0", server.state
    if name in state["offline"]:
        return Seen(OFFLINE, state["offline"][name])
    if name in state["damaged"]:
        return Seen(DAMAGED, " ".join(str(part) for part in state["damaged"][name][0]))
    return Seen(SERVED)


def wrong(server: Server, column: int) -> list[str]:
    """The cells that are not shown as they should be."""
    found = []
    for number, (where, what) in enumerate(CELLS):
        expected, shown = MATRIX[where, what][column], seen(server, number)
        if shown.state != expected.state or expected.words not in shown.words:
            found.append(f"{where} {what.__name__}: {shown} instead of {expected}")
    return found


def wait_for_a_look(server: Server) -> None:
    """Wait until all files are known: what changes before that is not known to have changed."""
    with Peer(server.native) as peer:
        peer.create("canary")
        assert peer.produce("canary", encode_values([b"x"], 1_000), acks=-1)[0] == 0
        vanish(server.data_dir / "canary-0")
        wait_for(lambda: "canary-0" in server.state["offline"], "a look")
        peer.admin("delete_topic", name="canary")
        wait_for(lambda: "canary-0" not in server.state["offline"], "the canary to be gone")


def wait_until_right(server: Server) -> None:
    found: list[str] = []

    def right() -> bool:
        found[:] = wrong(server, 0)
        return not found

    try:
        wait_for(right, "each cell to be as in the matrix")
    except AssertionError as error:
        raise AssertionError(found) from error


def readable(peer: Peer, number: int) -> tuple[bytes, int]:
    """What a consumer from the beginning on gets of a partition, and the error that stops it."""
    offset, data = 0, b""
    while True:
        (error, _, end, size), batches = peer.fetch(f"t{number}", offset)
        data += batches
        offset += size
        if error or offset >= end:
            return data, error


def check_served(server: Server, expected: list[bytes]) -> None:
    with Peer(server.native) as peer:
        got = [readable(peer, number) for number in range(len(CELLS))]
    unlike = {CELLS[number]: one[1] for number, one in enumerate(got) if one != (expected[number], 0)}
    assert not unlike


def contents(server: Server) -> list[bytes]:
    with Peer(server.native) as peer:
        return [readable(peer, number)[0] for number in range(len(CELLS))]


def test_while_it_runs(server: Server) -> None:
    expected = contents(server)
    keep(server)
    wait_for_a_look(server)
    harm(server)
    wait_until_right(server)
    with Peer(server.native) as peer:
        for number, (where, what) in enumerate(CELLS):
            data, error = readable(peer, number)
            state = MATRIX[where, what][0].state
            assert error == (StorageFault.code if state else 0), f"{where} {what.__name__}: {error}"
            assert expected[number].startswith(data)
            if state == OFFLINE:
                assert peer.produce(f"t{number}", encode_values([b"more"], 1_000), acks=-1)[0] == StorageFault.code
    said = run("health", "--data", str(server.data_dir))
    assert said.status == 74 and "is offline" in said.out and "is damaged" in said.out
    for number in range(len(CELLS)):
        put_back(server, number)
    wait_for(lambda: not any(seen(server, number).state for number in range(len(CELLS))), "all to be served again", 60)
    check_served(server, expected)
    with Peer(server.native) as peer:
        for number in range(len(CELLS)):
            wait_for(partial(is_appended, peer, f"t{number}"), f"t{number} to take messages again")


def is_appended(peer: Peer, topic: str) -> bool:
    return bool(peer.produce(topic, encode_values([b"more"], 1_000), acks=-1)[0] == 0)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_while_it_does_not_run(server: Server, end: int) -> None:
    expected = contents(server)
    if end == signal.SIGTERM:
        server.stop()
    else:
        writers = [row["pid"] for row in server.processes("writer")]
        server.kill_supervisor()
        wait_for(lambda: not any(map(runs, writers)), "the writers to close their logs")
    keep(server)
    harm(server)
    server.start()
    assert wrong(server, 1) == []
    with Peer(server.native) as peer:
        for number in range(len(CELLS)):
            assert readable(peer, number)[1] != OffsetOutOfRange.code
    for number in range(len(CELLS)):
        put_back(server, number)
    wait_for(lambda: not any(seen(server, number).state for number in range(len(CELLS))), "all to be served again", 60)
    succeeding("log", "verify", "--data", str(server.data_dir))
    check_served(server, expected)


@pytest.mark.parametrize("what", [vanish, empty])
def test_who_accepts_the_loss_of_a_whole_log_goes_on_behind_its_end(
    make_appliance: Callable[..., Server], what: Callable[[Path], None]
) -> None:
    """Method: the remedy that the reason names, word for word; and a partition beside it is left as it is."""
    server = make_appliance()
    with Peer(server.native) as peer:
        for topic in ("gone", "kept"):
            peer.create(topic)
            assert peer.produce(topic, encode_values([b"a message"], 1_000), acks=-1)[0] == 0
        end = peer.end("gone")
        what(server.data_dir / "gone-0")
        wait_for(lambda: "gone-0" in server.state["offline"], "the loss to be seen")
        wait_for(lambda: "begins an empty log" in server.state["offline"]["gone-0"], "the reason to be known")
        remedy = server.state["offline"]["gone-0"].partition("`appliance ")[2].partition("`")[0].split()
        at = ("--data", str(server.data_dir))
        assert "all its messages are lost" in succeeding(*remedy, "--dry-run", *at).out
        assert "gone-0" in server.state["offline"]
        succeeding(*remedy, "--yes", *at)
        wait_for(lambda: not server.state["offline"], "it to be served")
        assert peer.fetch("gone", 0)[0][0] == OffsetOutOfRange.code
        error, base, *_ = peer.produce("gone", encode_values([b"a new one"], 1_000), acks=-1)
        assert error == 0 and base >= end
        assert peer.end("kept") == end and succeeding("log", "repair", "kept", *at).out.strip() == "nothing to repair"

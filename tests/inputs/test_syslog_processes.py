"""UDP on several processes: each datagram once, each sender in order, and one account of all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.bench.local_appliance import LocalAppliance
from appliance.inputs.process import store_path

from ..support.command_line import run, succeeding
from ..support.ready import free_port
from ..support.server import Server, stopped, wait_for
from .test_syslog import Box, lost_in

PROCESSES = 3
SENDERS = 24
TABLE = '[inputs.net]\ntype = "syslog"\ntopic = "net"\nlisten = ["udp://127.0.0.1:{port}"]\nprocesses = {processes}\n'
MEMBERS = ["net", "net.2", "net.3"]


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Box]:
    file = tmp_path / "appliance.toml"
    file.write_text(TABLE.format(port=free_port(), processes=PROCESSES))
    with Server(tmp_path / "data", file) as server:
        box = Box(server, tmp_path)
        wait_for(lambda: box.input("net")["state"] == "running", "the input")
        yield box


@contextlib.contextmanager
def senders(box: Box) -> Iterator[list[socket.socket]]:
    """Sockets of different ports, which the kernel gives to different processes."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(SENDERS)]
        for sock in socks:
            sock.connect(box.address("udp"))
        yield socks


def taken_by(box: Box) -> dict[str, int]:
    """How many messages are in the ledger of each process, by the id of its store."""
    counts: dict[str, int] = {}
    said = succeeding("inputs", "ledger", "--json", "--data", str(box.server.data_dir))
    for row in json.loads(said.out):
        counts[row["store"]] = counts.get(row["store"], 0) + row.get("messages", 0)
    return counts


def test_each_datagram_comes_once_and_each_sender_in_order(wide: Box) -> None:
    with senders(wide) as socks:
        for number in range(100):
            for index, sock in enumerate(socks):
                sock.send(b"<13>wide %d %d" % (index, number))
    found = [one.value or b"" for one in wide.wait_for(b"wide ", 100 * SENDERS)]
    for index in range(SENDERS):
        mine = [value for value in found if value.startswith(b"<13>wide %d " % index)]
        assert mine == [b"<13>wide %d %d" % (index, number) for number in range(100)]
    wait_for(lambda: wide.input("net")["messages"] == 100 * SENDERS, "what all have counted")
    wide.server.stop()
    wide.server.start()
    counts = taken_by(wide)
    assert len(counts) == PROCESSES and sum(counts.values()) == 100 * SENDERS and all(counts.values())


def test_losses_are_counted_by_socket_and_arrived_and_lost_are_all(wide: Box) -> None:
    with contextlib.ExitStack() as stack:
        for member in MEMBERS:
            stack.enter_context(stopped(wide.pid_of(f" {member}")))
        with senders(wide) as socks:
            for _ in range(5_000):
                for sock in socks:
                    sock.send(b"<13>flood" + b"x" * 500)
    sent = 5_000 * SENDERS
    wait_for(lambda: wide.input("net")["gaps"] >= PROCESSES, "a gap of each socket")

    def all_told() -> bool:
        arrived = sum((one.value or b"").startswith(b"<13>flood") for one in wide.messages())
        return arrived + sum(lost_in(wide)) == sent

    wait_for(all_told, "arrived and lost to be all that was sent")


def test_a_killed_process_begins_again_and_the_account_stays_right(wide: Box) -> None:
    with senders(wide) as socks:
        for round_ in range(3):
            for sock in socks:
                sock.send(b"<13>kept %d" % round_)
            wide.wait_for(b"kept %d" % round_, SENDERS)
            for member in MEMBERS[1:] if round_ < 2 else ():
                pid = wide.pid_of(f" {member}")
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda pid=pid, member=member: wide.pid_of(f" {member}") != pid, "another process")
    wide.server.stop()
    wide.server.start()
    assert sum(taken_by(wide).values()) == 3 * SENDERS


def test_a_reload_changes_how_many_there_are(wide: Box) -> None:
    port = wide.address("udp")[1]
    for processes in (1, 2):
        (wide.place / "appliance.toml").write_text(TABLE.format(port=port, processes=processes))
        succeeding("reload", "--data", str(wide.server.data_dir))
        wait_for(lambda processes=processes: len(wide.server.pids("input")) == processes, "so many processes")
        wait_for(lambda: wide.input("net")["state"] == "running", "the input")
        with senders(wide) as socks:
            for sock in socks:
                sock.send(b"<13>with %d" % processes)
        wide.wait_for(b"with %d" % processes, SENDERS)
    assert store_path(wide.server.data_dir, "net.3").exists(), "its positions, for when it is wanted again"


def test_what_processes_have_left_that_are_no_more_is_accounted_for(wide: Box) -> None:
    """All were killed before they had published anything; then there is one."""
    port = wide.address("udp")[1]
    with senders(wide) as socks:
        for sock in socks:
            sock.send(b"<13>left")
        wide.wait_for(b"left", SENDERS)
    LocalAppliance.kill(wide.server)
    (wide.place / "appliance.toml").write_text(TABLE.format(port=port, processes=1))
    wide.server.start()
    ledger = ("inputs", "ledger", "--json", "--data", str(wide.server.data_dir))
    wait_for(lambda: run(*ledger).status == 0, "the topic of the ledger")
    wait_for(lambda: len(taken_by(wide)) >= PROCESSES - 1, "what the others have left")
    wide.server.stop()
    wide.server.start()
    counts = taken_by(wide)
    assert len(counts) == PROCESSES and sum(counts.values()) == SENDERS

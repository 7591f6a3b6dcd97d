"""The faults of the matrix: each strikes an appliance under load, which must keep the fault's promise.

A fault strikes a :class:`~tests.crash.beds.Run`, waits until it is over, and sees to it that everybody goes on; what
has become of the messages is checked when the load finishes.  Each is one function, registered with the name and the
promise that the table for operators shows.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from appliance.addresses import PLAINTEXT
from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Admin
from appliance.errors import ApplianceError, TopicExists, Unavailable
from appliance.wire import native
from appliance.zookeeper.ensemble import probe

from ..hostile.box import STAYING, addresses_of, attacker
from ..hostile.kafka_frames import NAMES
from ..support.command_line import run as command
from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from ..support.small_machine import fill
from .beds import SESSION_MS, Run, hold, traced
from .churn import churn
from .consumers import SESSION_MS as MEMBER_SESSION_MS
from .workload import MEMBERS, TOPICS, persistently

STOP_S: Final = 1.5 * max(SESSION_MS, MEMBER_SESSION_MS) / 1000
"""Longer than any session of this load."""
MOMENT_S: Final = 2.0
TEN_DAYS_NS: Final = 10 * 86_400 * 10**9
UP_S_MAX: Final = 60
SPARE_DESCRIPTORS: Final = 4
IDLE_CONNECTIONS: Final = 64
SLOW_CONNECTIONS: Final = 32
CRAWLING_BYTES: Final = 4 << 20
HOSTILE_REQUESTS: Final = 150
HOSTILE_PER_SECOND: Final = 50

GOES_ON = "everything acknowledged with acks=1 or all is kept, in order"


class Fault(NamedTuple):
    name: str
    bed: str
    promise: str
    strike: Callable[[Run], None]


FAULTS: dict[str, Fault] = {}


def fault(name: str, bed: str, promise: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def register(strike: Callable[[Run], None]) -> Callable[[Run], None]:
        assert name not in FAULTS
        FAULTS[name] = Fault(name, bed, promise, strike)
        return strike

    return register


def _wait_named(run: Run, words: str, lasts: Callable[[], bool] = lambda: True) -> None:
    """Until `doctor` says it, while the cause lasts, which has just begun."""
    began_s = time.monotonic()
    data = str(run.inside(run.server.data_dir))
    named = lambda: words in command("doctor", "--data", data).out  # noqa: E731
    if (
        wait_for(lambda: "named" if named() else not lasts() and "over", f"doctor to name {words!r}", UP_S_MAX)
        == "named"
    ):
        run.named_s = max(run.named_s or 0, time.monotonic() - began_s)


# ---- processes that die


def _kill(run: Run, role: str) -> None:
    victim = run.pid(role)
    run.kill(victim)
    wait_for(lambda: victim not in run.server.pids(role) and run.server.pids(role), f"another {role}", UP_S_MAX)
    run.load.wait_progress()


@fault("worker killed", "box", "its connections break; " + GOES_ON)
def kill_worker(run: Run) -> None:
    _kill(run, "network")


@fault("writer killed", "box", "its partition waits for recovery; " + GOES_ON)
def kill_writer(run: Run) -> None:
    _kill(run, "writer")


@fault("coordinator killed", "box", "groups rejoin where they were; producers and assigned consumers do not notice")
def kill_coordinator(run: Run) -> None:
    _kill(run, "coordinator")


@fault("supervisor killed", "box", "all end, and go on where they were when it is started again")
def kill_supervisor(run: Run) -> None:
    run.restart(Server.kill_supervisor)
    run.load.wait_progress()


@fault("stopped in order", "box", "as if nothing had happened")
def stop_in_order(run: Run) -> None:
    run.restart(Server.stop)
    run.load.wait_progress()


@fault("ZooKeeper killed", "box", "groups and topic changes wait; producers and assigned consumers do not notice")
def kill_zookeeper(run: Run) -> None:
    _kill(run, "zookeeper")


@fault("members of groups killed", "box", "the others take over at what was committed")
def kill_members(run: Run) -> None:
    run.injected += 1
    run.load.kill_members(MEMBERS[0], run.injected)
    run.load.wait_progress()


# ---- processes that hang


@contextmanager
def _stopped(run: Run, *pids: int) -> Iterator[None]:
    """SIGSTOP, for longer than every session; who is killed for it meanwhile is not there to go on."""
    for pid in pids:
        run.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        yield
        hold(began_s + STOP_S - time.monotonic())
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _others_go_on(run: Run) -> None:
    """Whoever does not need a group goes on all the time: also when the stop has lasted for a while."""
    for _ in range(2):
        run.load.wait_progress(but=set(run.load.groups))
        hold(STOP_S / 3)


@fault("worker stopped", "box", "its connections wait until it goes on or is replaced; " + GOES_ON)
def stop_worker(run: Run) -> None:
    with _stopped(run, victim := run.pid("network")):
        _wait_named(run, f"{victim}")
    run.load.wait_progress()


@fault("writer stopped", "box", "its partition waits until it goes on or is replaced; " + GOES_ON)
def stop_writer(run: Run) -> None:
    with _stopped(run, victim := run.pid("writer")):
        _wait_named(run, f"{victim}")
    run.load.wait_progress()


@fault("coordinator stopped", "box", "groups wait and rejoin; producers and assigned consumers do not notice")
def stop_coordinator(run: Run) -> None:
    with _stopped(run, run.pid("coordinator")):
        _others_go_on(run)
    run.load.wait_progress()


@fault("supervisor stopped", "box", "nobody notices; what dies meanwhile is replaced when it goes on")
def stop_supervisor(run: Run) -> None:
    with _stopped(run, run.pid("supervisor")):
        run.load.wait_progress()
        victim = run.pid("writer")
        run.kill(victim)
    wait_for(lambda: victim not in run.server.pids("writer"), "the writer to be gone", UP_S_MAX)
    run.load.wait_progress()


@fault("ZooKeeper stopped", "box", "sessions end, groups rejoin; producers and assigned consumers do not notice")
def stop_zookeeper(run: Run) -> None:
    with _stopped(run, run.pid("zookeeper")):
        _wait_named(run, "no quorum")
        _others_go_on(run)
    run.load.wait_progress()


@fault("members of groups stopped", "box", "the others take over; what the stopped ones had is not theirs to commit")
def stop_members(run: Run) -> None:
    with _stopped(run, run.load.strike(MEMBERS[1]).process.pid):
        _others_go_on(run)
    run.load.wait_progress()


# ---- inputs: whatever they have taken is there, or named as a gap

TAKEN = "answered and written lines are there once and in order, or in a gap of the ledger"


@fault("an input killed below inputs", "inputs", TAKEN)
def kill_input(run: Run) -> None:
    _kill(run, "input")


@fault("an input stopped below inputs", "inputs", "it goes on or is replaced; " + TAKEN)
def stop_input(run: Run) -> None:
    with _stopped(run, run.pid("input")):
        pass
    run.load.wait_progress()


@fault("writer killed below inputs", "inputs", TAKEN)
def kill_writer_of_input(run: Run) -> None:
    _kill(run, "writer")


@fault("worker killed below inputs", "inputs", TAKEN)
def kill_worker_of_input(run: Run) -> None:
    _kill(run, "network")


@fault("coordinator killed below inputs", "inputs", TAKEN)
def kill_coordinator_of_input(run: Run) -> None:
    _kill(run, "coordinator")


@fault("disk full below inputs", "inputs", "senders are told to wait, files wait; " + TAKEN)
def fill_disk_of_input(run: Run) -> None:
    fill_disk(run)


@fault("supervisor killed below inputs", "inputs", TAKEN)
def kill_supervisor_of_input(run: Run) -> None:
    kill_supervisor(run)


@fault("all killed at once below inputs", "inputs", TAKEN)
def kill_all_of_inputs(run: Run) -> None:
    """Nobody is left who could see that the others are gone, and end in order."""
    run.restart(LocalAppliance.kill)
    run.load.wait_progress()


@fault("ZooKeeper stopped below inputs", "inputs", "no input notices; " + TAKEN)
def stop_zookeeper_of_inputs(run: Run) -> None:
    with _stopped(run, run.pid("zookeeper")):
        _wait_named(run, "no quorum")
        _others_go_on(run)
        _kill(run, "input")
    run.load.wait_progress()


@fault("ZooKeeper killed below inputs", "inputs", "no input notices; " + TAKEN)
def kill_zookeeper_of_inputs(run: Run) -> None:
    _kill(run, "zookeeper")


@fault("stopped in order below inputs", "inputs", "none twice, none left out")
def stop_inputs_in_order(run: Run) -> None:
    stop_in_order(run)


# ---- the ensemble


def _nodes(run: Run) -> dict[str, list[int]]:
    """Pids of the nodes by what they are: leader and followers."""
    modes: dict[str, list[int]] = {}
    addresses = str(run.server.state["zookeeper"]["connect"]).split(",")
    for row in run.server.processes("zookeeper"):  # one that is started again is not there
        port = int(addresses[int(row["node"]) - 1].rpartition(":")[2])
        modes.setdefault(probe(port) or "none", []).append(row["pid"])
    return modes


def _whole(run: Run) -> dict[str, list[int]]:
    def found() -> dict[str, list[int]]:
        modes = _nodes(run)
        return modes if len(modes.get("follower", ())) == 2 and "leader" in modes else {}

    modes: dict[str, list[int]] = wait_for(found, "three nodes serve", UP_S_MAX)
    return modes


@fault("leader of the ensemble killed", "ensemble", "groups wait for a moment; others do not notice")
def kill_leader(run: Run) -> None:
    run.kill(_whole(run)["leader"][0])
    run.load.wait_progress()
    _whole(run)


@fault("quorum of the ensemble lost", "ensemble", "groups and topic changes wait; others do not notice")
def stop_quorum(run: Run) -> None:
    modes = _whole(run)
    with _stopped(run, modes["leader"][0], modes["follower"][0]):
        _wait_named(run, "no quorum")
        _others_go_on(run)
    run.load.wait_progress()
    _whole(run)


@fault("two appliances, one cut off from ZooKeeper", "pair", "no group is coordinated twice; no commit goes back")
def cut_off(run: Run) -> None:
    (proxy,) = run.proxies
    proxy.cut_off()
    run.injected += 1
    hold(STOP_S)
    proxy.join()
    run.load.wait_progress()


# ---- what the machine lacks


@fault("disk full", "small", "produce waits; reading goes on; all goes on when there is room again")
def fill_disk(run: Run) -> None:
    filler = run.inside(run.server.data_dir) / "filler"
    try:
        fill(filler)
        run.injected += 1
        _wait_named(run, "the disk is full")
        hold(MOMENT_S)
    finally:
        filler.unlink(missing_ok=True)
    run.load.wait_progress()


@fault("/dev/shm full", "small", "new topics are refused until there is room; what exists goes on")
def fill_shm(run: Run) -> None:
    filler, name = run.inside("/dev/shm") / "filler", f"needs-memory-{run.injected}"
    with Admin(run.load.control) as admin:
        try:
            fill(filler)
            run.injected += 1
            _wait_named(run, "/dev/shm is full")
            with suppress(ApplianceError):
                admin.create_topic(name, 4)
            run.load.wait_progress()
            _kill(run, "writer")
        finally:
            filler.unlink(missing_ok=True)
        persistently(lambda: _ensure(admin, name, 4), Unavailable)


def _ensure(admin: Admin, name: str, partitions: int) -> None:
    with suppress(TopicExists):
        admin.create_topic(name, partitions)


@fault("fork refused", "small", "what died is replaced when there are processes again; the rest goes on")
def refuse_fork(run: Run) -> None:
    victims = [run.pid("writer"), run.pid("network")]
    with traced(run.pid("supervisor"), "-e", "inject=clone,clone3,fork,vfork:error=EAGAIN"):
        for victim in victims:
            run.kill(victim)
        hold(MOMENT_S)
    run.load.wait_progress()


@contextmanager
def _limited(pid: int, descriptors: int) -> Iterator[None]:
    """A process may open so many files; what is open stays."""
    prlimit = ["prlimit", "--pid", str(pid)]
    shown = [*prlimit, "--nofile", "--output", "SOFT,HARD", "--noheadings", "--raw"]
    before = ":".join(subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split())
    subprocess.run([*prlimit, f"--nofile={descriptors}:"], check=True)
    try:
        yield
    finally:
        subprocess.run([*prlimit, f"--nofile={before}"], stderr=subprocess.DEVNULL)  # it may have ended


def _connect(stack: ExitStack, address: str, count: int) -> None:
    """Connections that send nothing; those that are refused are none."""
    host, _, port = address.rpartition(":")
    for _ in range(count):
        with suppress(OSError):
            stack.enter_context(socket.create_connection((host, int(port)), 1))


@fault("1,024 descriptors", "small", "what died is replaced, new topics are made, connections beyond them are refused")
def few_descriptors(run: Run) -> None:
    """The limit that a shell gives; processes that are forked meanwhile inherit it."""
    name = f"few-descriptors-{run.injected}"
    with ExitStack() as stack:
        for pid in {row["pid"] for row in run.server.state["processes"]} | {run.server.pids("supervisor")[0]}:
            stack.enter_context(_limited(pid, 1_024))
        run.injected += 1
        with Admin(run.load.control) as admin:
            persistently(lambda: _ensure(admin, name, 4), Unavailable)
        with ExitStack() as idle:
            _connect(idle, run.server.native, 2_048)
            _wait_named(run, "limit reached: ")
        _kill(run, "writer")
    run.load.wait_progress()


@fault("descriptors exhausted", "small", "new connections are refused or wait; those that exist go on")
def exhaust_descriptors(run: Run) -> None:
    pids = [*run.server.pids("network"), *run.server.pids("coordinator")]
    with ExitStack() as stack:
        for pid in pids:
            used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
            stack.enter_context(_limited(pid, used + SPARE_DESCRIPTORS))
        run.injected += 1
        for address in (run.server.native, run.server.kafka):
            _connect(stack, address, IDLE_CONNECTIONS // 2)
        hold(MOMENT_S)
        run.load.wait_progress()
    run.load.wait_progress()


# ---- files that are gone


def _rename_directory(directory: Path) -> tuple[Path, Path]:
    """Rename it; return its new and its old name."""
    away = directory.with_name(f"{directory.name}.elsewhere")
    return directory.rename(away), directory


def _rename_active(directory: Path) -> tuple[Path, Path]:
    """Rename the active segment, once it has records; return its new and its old name.

    One that the writer seals meanwhile goes back: what is gone of sealed ones is a damaged range, not an outage.
    """

    def renamed() -> tuple[Path, Path] | None:
        active = max(directory.glob("*.log"))
        if not active.stat().st_size:
            return None
        away = active.rename(active.with_name(f"{active.name}.elsewhere"))
        if max(directory.glob("*.log"), default=active) > active:
            away.rename(active)
            return None
        return away, active

    found: tuple[Path, Path] = wait_for(renamed, f"{directory} to have an active segment with records", UP_S_MAX)
    return found


def _take_away(run: Run, rename: Callable[[Path], tuple[Path, Path]]) -> None:
    """Rename something of a partition until `doctor` names the partition."""
    partition = f"{run.random.choice(list(TOPICS))}-0"
    away, path = rename(run.server.data_dir / partition)
    run.injected += 1
    try:
        _wait_named(run, partition)
        wait_for(lambda: partition in run.server.state["offline"], f"{partition} to be offline", UP_S_MAX)
    finally:
        away.rename(path)
    wait_for(lambda: not run.server.state["offline"], f"{partition} to be served again", UP_S_MAX)
    run.load.wait_progress()


@fault("directory of a partition gone", "network", "it is offline and named until the directory is back; " + GOES_ON)
def take_directory(run: Run) -> None:
    _take_away(run, _rename_directory)


@fault("segment of a partition gone", "network", "it is offline and named until the file is back; " + GOES_ON)
def take_segment(run: Run) -> None:
    _take_away(run, _rename_active)


# ---- disks that fail, clocks that jump


@fault(
    "EIO from a flush", "box", "the partition is offline until it can be flushed again; nothing acknowledged is lost"
)
def fail_flush(run: Run) -> None:
    victim = run.pid("writer")
    with traced(victim, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"):
        wait_for(lambda: run.server.state["offline"], "a partition is offline")
        run.injected += 1
        _wait_named(run, next(iter(run.server.state["offline"])), lambda: bool(run.server.state["offline"]))
    wait_for(lambda: not run.server.state["offline"], "it is served again", UP_S_MAX)
    run.load.wait_progress()


@fault("slow flushes", "box", "acks=all is slower; acks=1 and reading go on")
def slow_flush(run: Run) -> None:
    with ExitStack() as stack:
        for pid in run.server.pids("writer"):
            delay = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_exit=100000"]
            stack.enter_context(traced(pid, *delay))
        run.injected += 1
        hold(MOMENT_S)
        run.load.wait_progress()
    run.load.wait_progress()


def _jump_ms(run: Run) -> int:
    return int((run.server.state.get("clock") or {"jump_ms": 0})["jump_ms"])


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


@fault("wall clock jumps by ten days", "small", "it is told, nothing is deleted by it, and only timestamps show it")
def jump_clock(run: Run) -> None:
    clock = Path(run.server.environment["SKEW_FILE"])
    for skew_ns in (TEN_DAYS_NS, -TEN_DAYS_NS, 0):
        with clock.open("r+b") as file:
            file.write(struct.pack("<q", skew_ns))
        run.injected += 1
        if skew_ns:
            _wait_named(run, "jumped ahead" if skew_ns > 0 else "jumped back")
        wait_for(lambda wanted=skew_ns: _sign(_jump_ms(run)) == _sign(wanted), "the jump to be told", UP_S_MAX)
        run.load.wait_progress(least=20)


# ---- clients and topics


@fault("topics deleted and made again", "network", "no message of one life is in another; others do not notice")
def delete_topics(run: Run) -> None:
    churn(run, 2)


@fault("the same, with groups", "box", "a group reads a topic that was made again from its beginning")
def delete_topics_of_groups(run: Run) -> None:
    churn(run, 2)


@fault("connections cut in mid-frame", "network", "a producer's retry doubles nothing with idempotence")
def cut_connections(run: Run) -> None:
    before = sum(proxy.cuts for proxy in run.proxies)
    for proxy in run.proxies:
        proxy.calm = False
    hold(MOMENT_S)
    for proxy in run.proxies:
        proxy.calm = True
    run.injected += sum(proxy.cuts for proxy in run.proxies) - before
    run.load.wait_progress()


@fault("uploads that crawl", "network", "they take no more than their memory, and others do not notice")
def crawl(run: Run) -> None:
    """Far more than a worker has memory for is announced, and comes a little at a time."""
    size = CRAWLING_BYTES.to_bytes(4, "big")
    with ExitStack() as stack:
        slow = [stack.enter_context(Peer(run.server.native)) for _ in range(SLOW_CONNECTIONS)]
        for peer in slow:
            peer.sock.sendall(size + bytes(1_000))
        run.injected += len(slow)
        for _ in range(3):
            run.load.wait_progress(least=20)
            for peer in slow:
                with suppress(OSError):  # it was closed, since others waited for memory
                    peer.sock.sendall(bytes(1_000))


@fault("readers that do not read", "network", "what they asked for waits, bounded; others do not notice")
def read_nothing(run: Run) -> None:
    topic = next(iter(TOPICS))
    with ExitStack() as stack:
        for _ in range(SLOW_CONNECTIONS):
            peer = stack.enter_context(Peer(run.server.native))
            for _ in range(8):
                peer.send([native.FETCH, 1, 0, 1, 1 << 20, [[topic, 0, 0, 1 << 20]]])
            run.injected += 1
        run.load.wait_progress(least=50)


@fault("hostile clients beside honest ones", "box", "the honest ones do not notice, and nothing is started again")
def attack_both(run: Run) -> None:
    """Requests of ``tests.hostile``, so many a second: more of them take time from all that share the machine."""
    with Admin(run.load.control) as admin:
        for name in NAMES[:4]:
            persistently(lambda: _ensure(admin, name, 1), Unavailable)  # noqa: B023
    before, began_s = _lasting(run), time.monotonic()
    with attacker(addresses_of(run.server, PLAINTEXT), run.random.getrandbits(32)) as one:
        while one.sent < HOSTILE_REQUESTS:
            one.run(1)
            hold(began_s + one.sent / HOSTILE_PER_SECOND - time.monotonic())
        run.load.wait_progress()
    run.injected += one.sent
    gone = before - _lasting(run)
    assert not gone, f"processes of the appliance have died of it: {gone}"


def _lasting(run: Run) -> set[tuple[str, int]]:
    """The processes that do not end by themselves, as openers do, and writers of topics that nobody uses."""
    rows = [row for row in run.server.state["processes"] if row["role"] in STAYING or row.get("topic") in TOPICS]
    return {(row["role"], row["pid"]) for row in rows}

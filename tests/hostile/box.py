"""Runs an appliance under attack beside honest clients, and reports on all three."""

from __future__ import annotations

import json
import os
import select
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from appliance.security.scram import MECHANISMS, encode_verifier, make_verifier
from tests.support.certificates import make_certificates
from tests.support.measures import memory_bytes
from tests.support.native_peer import Peer
from tests.support.server import Server

from .attack import Attacker, Target
from .kafka_frames import NAMES, kafka_frame
from .login_frames import USERS, login_frame, native_login_frame
from .native_frames import HELLO, native_frame
from .tls_records import tls_record

STAYING = ("supervisor", "network", "coordinator", "zookeeper")
"""Roles whose processes never end by themselves; writers retire."""
MEASURED = ("supervisor", "network", "coordinator")
"""Those whose memory is compared; a JVM's is its heap's."""
MEMORY = "Anonymous"
"""The kind of memory: what a process has inherited and allocated.  Two other kinds look like growth and are none: pages
of a worker's arena, which are reserved from its start, count as private once it has touched them, and so does a page
that it has inherited from the supervisor, once a reference count in it has changed.  After 10,000 requests these are 3
and 3 of the 9 MB by which the private memory of a worker has grown, and the arena grows on with the load.
"""
SETTINGS: dict[str, Any] = {
    "zookeeper.nodes": 1,
    "network.workers": 2,
    "topics.partitions_max": 60,
    "topics.auto_create": True,
    "topics.segment.bytes": "1MiB",
    "writer.idle_ms": 1_000,
    "disk.free_bytes_min": 0,
    "disk.bytes_max": "256MiB",
}
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""What the listeners under attack are called in Kafka."""
SETTLE_S_MAX = 30
GROWTH_MAX = 0.2


class Outcome(NamedTuple):
    """``before`` and ``after``: bytes of memory per process; ``honest``: as :mod:`.honest` prints it."""

    sent: int
    seconds: float
    replied_bytes: int
    pids_before: dict[str, list[int]]
    pids_after: dict[str, list[int]]
    restarts: int
    before: dict[int, int]
    after: dict[int, int]
    honest: dict[str, Any]
    tracebacks: list[str]


class Box:
    def __init__(self, data_dir: Path, **settings: Any) -> None:
        listen = {
            f"{protocol}.listen": ", ".join(f"{security}://127.0.0.1:0" for security in LISTENERS)
            for protocol in ("native", "kafka")
        }
        self._server = Server(data_dir, **(SETTINGS | listen | tls_settings(data_dir.parent / "tls") | settings))

    def attack(self, requests: int, seed: int, attackers: int = 2, warm_up: int = 1_000) -> Outcome:
        """Attack until ``requests`` have been sent, after some that fill caches and pools."""
        with self._server as server:
            server.wait_for_zookeeper()
            topic = f"honest-{os.getpid()}"
            with Peer(server.native) as peer:
                for name in (topic, *NAMES[:4]):
                    peer.create(name)
                verifiers = {name: encode_verifier(make_verifier(name, os.urandom(16))) for name in MECHANISMS}
                peer.admin("put_user", name=USERS[0], verifiers=verifiers, new=True)
            self._send(server, warm_up, seed + 1_000, attackers)
            before, pids = self._settled(server), self._pids(server)
            with honest(server, topic) as figures:
                started = time.monotonic()
                sent, replied_bytes = self._send(server, requests, seed, attackers)
                seconds = time.monotonic() - started
            after = self._settled(server, before)
            return Outcome(
                sent, seconds, replied_bytes, pids, self._pids(server),
                sum(row["restarts"] for row in server.state["processes"]),
                before, after, figures, self.tracebacks(),
            )  # fmt: skip

    def tracebacks(self) -> list[str]:
        """The ends of those in the log: a bug, whether or not a process died of it."""
        lines = self._server.log().splitlines()
        return ["\n".join(lines[at : at + 40]) for at, line in enumerate(lines) if "Traceback" in line]

    def _send(self, server: Server, requests: int, seed: int, attackers: int) -> tuple[int, int]:
        """From processes of their own, so that they do not wait for each other."""
        addresses = addresses_of(server, *LISTENERS)
        jobs = [(addresses, requests // attackers, seed + number) for number in range(attackers)]
        with get_context("spawn").Pool(attackers) as pool:
            done = pool.starmap(send, jobs)
        return sum(sent for sent, _ in done), sum(replied for _, replied in done)

    @staticmethod
    def _pids(server: Server) -> dict[str, list[int]]:
        return {role: sorted(server.pids(role)) for role in STAYING}

    def _settled(self, server: Server, before: dict[int, int] | None = None) -> dict[int, int]:
        """Memory of each process, once none has grown since ``before`` or SETTLE_S_MAX have passed."""
        deadline = time.monotonic() + SETTLE_S_MAX

        def measured() -> dict[int, int]:
            return {pid: memory_bytes(pid, MEMORY) for role in MEASURED for pid in server.pids(role)}

        now = measured()
        while before is not None and grown(before, now) and time.monotonic() < deadline:
            select.select([], [], [], 0.5)
            now = measured()
        return now


def grown(before: dict[int, int], after: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Processes that hold more than before by GROWTH_MAX: bytes before and after."""
    pairs = {pid: (was, after.get(pid, 0)) for pid, was in before.items()}
    return {pid: (was, now) for pid, (was, now) in pairs.items() if now > (1 + GROWTH_MAX) * was}


def tls_settings(directory: Path) -> dict[str, str]:
    """A certificate for this host, and the settings that name it."""
    for arguments in (("ca",), ("server", "localhost", "127.0.0.1")):
        assert make_certificates(directory, *arguments).returncode == 0
    return {"tls.certificate": f"{directory}/server.pem", "tls.key": f"{directory}/server.key"}


def addresses_of(server: Server, *securities: str) -> dict[tuple[str, str], str]:
    """Where the listeners of both protocols with these securities are, by protocol and security."""
    return {
        (protocol, security): server.address(protocol, security)
        for protocol in ("native", "kafka")
        for security in securities
    }


def attacker(addresses: dict[tuple[str, str], str], seed: int) -> Attacker:
    """One who attacks all listeners, most often the Kafka one that asks for nothing, which has most to say."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    targets = []
    for (protocol, security), address in addresses.items():
        frame, login, hello = (
            (kafka_frame, login_frame, b"") if protocol == "kafka" else (native_frame, native_login_frame, HELLO)
        )
        tls = trusting if security.endswith("SSL") else None
        targets += [Target(protocol, address, frame, hello, tls)] * (5 if security == "PLAINTEXT" and not hello else 1)
        targets += [Target("login", address, login, hello, tls)] * (2 if security.startswith("SASL") else 1)
        if tls is not None:
            targets.append(Target("handshake", address, tls_record))
    return Attacker(targets, seed)


def send(addresses: dict[tuple[str, str], str], requests: int, seed: int) -> tuple[int, int]:
    with attacker(addresses, seed) as one:
        one.run(requests)
        return one.sent, one.replied_bytes


@contextmanager
def honest(server: Server, topic: str) -> Iterator[dict[str, Any]]:
    """Honest clients while the block runs; the figures are there after it."""
    command = [sys.executable, "-m", "tests.hostile.honest", server.native, server.kafka, topic]
    figures: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield figures
            process.stdin.write("\n")
            process.stdin.flush()
            figures |= json.loads(process.stdout.readline())
        finally:
            process.kill()

"""What access rules cost a request: CPU of the network worker with ``security.authorizer = "acl"``, and without.

    python perf/authorization.py [--smoke] [--requests 20000] [--rounds 7]

Two appliances, one of them with rules, take turns.  A client sends requests of one message each, alternately to two
partitions: so none are joined, and the connection stays with the worker instead of moving to a writer, which asks
nothing.  The aim is 2 %.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _bench import PAYLOAD_BYTES, headline, row

from appliance.addresses import parse_addresses
from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Admin
from appliance.records.encode import encode_values
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from appliance.security.security_file import FILE_NAME, store
from appliance.security.security_state import SecurityState
from appliance.wire import native
from appliance.wire.frames import SIZE_BYTES

TOPIC, OTHER_RULES, PARTITIONS = "web", 200, 2
BATCH = encode_values([bytes(PAYLOAD_BYTES)], 1_000)
CLIENT = "User:ANONYMOUS"
PERCENT_MAX = 2


def rules() -> list[Acl]:
    """Those of the client, and many of others."""
    mine = [(CLIENT, TOPIC, operation) for operation in (Operation.READ, Operation.WRITE)]
    others = [(f"User:{number}", f"topic-{number}", Operation.READ) for number in range(OTHER_RULES)]
    literal, allow = PatternType.LITERAL, Permission.ALLOW
    return [
        Acl(ResourceType.TOPIC, name, literal, who, "*", operation, allow) for who, name, operation in mine + others
    ]


@contextmanager
def serving(data_dir: Path, authorizer: str) -> Iterator[LocalAppliance]:
    data_dir.mkdir(0o700)
    store(data_dir / FILE_NAME, SecurityState(acls=tuple(sorted(rules()))))
    settings = {"network.workers": 1, "security.authorizer": authorizer}
    with LocalAppliance(data_dir, **settings) as server:
        with Admin(server.state["listeners"]["local"]) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield server


class Client:
    """One native connection, with ``in_flight`` requests at a time."""

    def __init__(self, address: str) -> None:
        (host_and_port,) = parse_addresses(address)
        self.sock = socket.create_connection(host_and_port)
        self._replies = self.sock.makefile("rb", 1 << 20)
        self.ask([native.encode_frame([native.HELLO, 0, native.MAGIC, native.VERSION, "perf"])], 1, 1)

    def ask(self, frames: list[bytes], requests: int, in_flight: int) -> None:
        """Send ``frames`` again and again, and read as many replies."""
        endless = itertools.cycle(frames)
        groups = itertools.cycle([b"".join(itertools.islice(endless, in_flight)) for _ in frames])
        for group in itertools.islice(groups, requests // in_flight):
            self.sock.sendall(group)
            for _ in range(in_flight):
                self._replies.read(int.from_bytes(self._replies.read(SIZE_BYTES)))


def produce(partition: int) -> bytes:
    return native.encode_frame([native.PRODUCE, 1, TOPIC, partition, 1, 9_000], len(BATCH)) + BATCH


def fetch(partition: int) -> bytes:
    part = [TOPIC, partition, 0, len(BATCH)]
    return native.encode_frame([native.FETCH, 1, 0, 1, len(BATCH), [part]])


WORKLOADS = {
    "produce, 1 in flight": (produce, 1),
    "produce, 6 in flight": (produce, 6),
    "fetch, 1 in flight": (fetch, 1),
    "fetch, 6 in flight": (fetch, 6),
}


def cpu_us(server: LocalAppliance, client: Client, workload: str, requests: int) -> float:
    """The worker's processor time for one request, in microseconds: a mean of ``requests``."""
    encode, in_flight = WORKLOADS[workload]
    frames = [encode(partition) for partition in range(PARTITIONS)]
    client.ask(frames, requests // 20, in_flight)
    before = server.cpu_s("network")
    client.ask(frames, requests, in_flight)
    return (server.cpu_s("network") - before) * 1e6 / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few requests, one round")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    requests, rounds = (600, 1) if options.smoke else (options.requests, options.rounds)
    headline("What do access rules cost a request?", requests=requests, rounds=rounds, rules=len(rules()))
    with tempfile.TemporaryDirectory(prefix="perf-") as name, ExitStack() as stack:
        servers = {kind: stack.enter_context(serving(Path(name) / (kind or "none"), kind)) for kind in ("", "acl")}
        clients = {kind: Client(server.native) for kind, server in servers.items()}
        for workload in WORKLOADS:
            taken: dict[str, list[float]] = {kind: [] for kind in servers}
            for number in range(rounds):
                for kind in list(servers)[:: 1 if number % 2 else -1]:
                    taken[kind].append(cpu_us(servers[kind], clients[kind], workload, requests))
            ratios = [
                (with_acls / other - 1) * 100 for with_acls, other in zip(taken["acl"], taken[""], strict=True) if other
            ]
            row(
                workload,
                without_us=statistics.median(taken[""]),
                with_us=statistics.median(taken["acl"]),
                more_percent=statistics.median(ratios) if ratios else 0.0,
                aim_percent=PERCENT_MAX,
            )


if __name__ == "__main__":
    main()

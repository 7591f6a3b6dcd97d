"""What do committed offsets and lists of groups cost, beside Apache Kafka?

    python perf/groups.py [--smoke] [--seconds 5] [--groups 5000] [--members 1000] [--peer kafka] [--only WHAT]

Consumers that do not join commit the offset of one partition again and again, each one for a group of its own, with one
request in flight: *commits/s*, *p50* in ms, and the CPU of all the broker's processes for each commit in us.  Then a
group with offsets of 1,000 partitions is read again and again, and so many groups are listed: *cpu* is in ms for each
answer, of the whole broker and (for the appliance) of its coordinator; *first* is what the first one took.  *idle* is
the CPU of the broker in % of a core while all these groups are there and nobody asks.

All members of a classic group but one join together (*all join*), then that one does (*one joins*): the time in ms
from the first request to the answer that brings the last member its assignment, and the broker's CPU in ms.  The others
learn of the one by heartbeats that are sent right behind its request, so that no interval of a client is measured.
"""

from __future__ import annotations

import argparse
import itertools
import selectors
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bench import headline, row
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance import status
from appliance.bench import accounts, brokers

COMMITTERS = (1, 10, 100)
PARTITIONS = 1_000
CREATED_AT_ONCE = 50
"""Requests in flight while groups are made."""
REPEATS = 20
WAIT_S = 120.0
HEARTBEAT_S = 0.005
"""How often the members of a group that has nothing else to do ask whether it rebalances."""
PARTS = ("members", "commits", "lists")
UNKNOWN_MEMBER, REBALANCING = 25, 27
RETRIABLE = struct.pack(">h", REBALANCING)
"""REBALANCE_IN_PROGRESS: not stored in time."""
OFFSET_COMMIT, OFFSET_FETCH, LIST_GROUPS = (8, 2), (9, 2), (16, 0)
JOIN_GROUP, SYNC_GROUP, HEARTBEAT = (11, 2), (14, 1), (12, 1)
FIND_COORDINATOR = (10, 0)
"""Key and version of APIs of Kafka: old versions, which are written by hand soonest."""


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def commit(group: str, topic: str, offsets: dict[int, int]) -> bytes:
    head = string(group) + struct.pack(">i", -1) + string("") + struct.pack(">qi", -1, 1) + string(topic)
    rows = b"".join(struct.pack(">iq", number, offset) + string("") for number, offset in offsets.items())
    return head + struct.pack(">i", len(offsets)) + rows


class Connection:
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self.sock.makefile("rb")
        self._numbers = itertools.count()

    def send(self, api: tuple[int, int], body: bytes) -> None:
        frame = struct.pack(">hhi", *api, next(self._numbers)) + string("perf") + body
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._replies.read(4))
        return self._replies.read(size)[4:]

    def ask(self, api: tuple[int, int], body: bytes) -> bytes:
        self.send(api, body)
        return self.receive()

    def close(self) -> None:
        self._replies.close()
        self.sock.close()


def await_coordinator(connection: Connection, group: str) -> None:
    """Wait until the group can be used: Kafka makes its topic of offsets for the first, and loads its partitions."""
    deadline_s, error = time.perf_counter() + WAIT_S, -1
    while error != UNKNOWN_MEMBER:
        assert time.perf_counter() < deadline_s, f"group {group} is answered {error}"
        connection.ask(FIND_COORDINATOR, string(group))
        reply = connection.ask(HEARTBEAT, string(group) + struct.pack(">i", 0) + string("nobody"))
        (error,) = struct.unpack_from(">h", reply, 4)


def check_commits(reply: bytes, count: int) -> None:
    """Of one topic: no partition was refused."""
    (length,) = struct.unpack_from(">h", reply, 4)
    codes = {code for _, code in struct.iter_unpack(">ih", reply[4 + 2 + length + 4 :])}
    assert codes == {0} and len(reply) == 4 + 2 + length + 4 + 6 * count, reply


def measure_commits(broker: Any, topic: str, committers: int, seconds: float) -> None:
    connections = [Connection(broker.address) for _ in range(committers)]
    selector = selectors.DefaultSelector()
    sent_s = [0.0] * committers
    waits: list[float] = []

    def send(number: int, offset: int) -> None:
        sent_s[number] = time.perf_counter()
        connections[number].send(OFFSET_COMMIT, commit(f"committer-{number}", topic, {0: offset}))

    for number, connection in enumerate(connections):
        await_coordinator(connection, f"committer-{number}")
        send(number, 0)
        check_commits(connection.receive(), 1)
        selector.register(connection.sock, selectors.EVENT_READ, number)
    cpu_s, start_s = broker.cpu_s(), time.perf_counter()
    for number in range(committers):
        send(number, 1)
    while time.perf_counter() - start_s < seconds:
        for key, _ in selector.select(WAIT_S):
            check_commits(connections[key.data].receive(), 1)
            waits.append(time.perf_counter() - sent_s[key.data])
            send(key.data, len(waits))
    took_s, cpu_s = time.perf_counter() - start_s, broker.cpu_s() - cpu_s
    for connection in connections:
        connection.receive()
        connection.close()
    row(
        f"{broker.name}, {committers} committers",
        **{
            "commits/s": float(len(waits) / took_s),
            "p50": statistics.median(waits) * 1000,
            "cpu/commit": cpu_s / len(waits) * 1_000_000,
        },
    )


def coordinator_s(broker: Any) -> float:
    """CPU of the appliance's coordinator; of Kafka, which has no such process, of all."""
    if not isinstance(broker, brokers.OurBroker):
        return float(broker.cpu_s())
    processes = status.collect(broker.data_dir)["processes"]
    return sum(accounts.cpu_s(process["pid"]) for process in processes if process["role"] == "coordinator")


def measure_answers(broker: Any, name: str, repeats: int, ask: Callable[[], None]) -> None:
    start_s = time.perf_counter()
    ask()
    first_s = time.perf_counter() - start_s
    cpu_s, own_s, start_s = broker.cpu_s(), coordinator_s(broker), time.perf_counter()
    for _ in range(repeats):
        ask()
    took_s = time.perf_counter() - start_s
    row(
        f"{broker.name}, {name}",
        **{
            "first": first_s * 1000,
            "mean": took_s / repeats * 1000,
            "cpu": (broker.cpu_s() - cpu_s) / repeats * 1000,
            "cpu coordinator": (coordinator_s(broker) - own_s) / repeats * 1000,
        },
    )


def measure_reading(broker: Any, topic: str, partitions: int, repeats: int) -> None:
    connection = Connection(broker.address)
    offset = 0x0102030405060708
    offsets = dict.fromkeys(range(partitions), offset)
    await_coordinator(connection, "wide")
    check_commits(connection.ask(OFFSET_COMMIT, commit("wide", topic, offsets)), partitions)

    def ask() -> None:
        reply = connection.ask(OFFSET_FETCH, string("wide") + struct.pack(">i", -1))
        assert reply[-2:] == bytes(2) and reply.count(struct.pack(">q", offset)) == partitions

    measure_answers(broker, f"offsets of {partitions:,} partitions", repeats, ask)
    connection.close()


def measure_lists(broker: Any, topic: str, groups: int, repeats: int) -> None:
    connection = Connection(broker.address)
    start_s, again, failed = time.perf_counter(), 0, 0
    for first in range(0, groups, CREATED_AT_ONCE):
        some = range(first, min(groups, first + CREATED_AT_ONCE))
        bodies = [commit(f"listed-{number:06d}", topic, {0: number}) for number in some]
        while bodies:
            for body in bodies:
                connection.send(OFFSET_COMMIT, body)
            replies = [connection.receive() for _ in bodies]
            bodies = [body for body, reply in zip(bodies, replies, strict=True) if reply[-2:] == RETRIABLE]
            again += len(bodies)
    row(f"{broker.name}, groups made", groups=groups, seconds=time.perf_counter() - start_s, again=again)

    def ask() -> None:
        nonlocal failed
        error, count = struct.unpack(">hi", connection.ask(LIST_GROUPS, b"")[:6])
        failed += error != 0 or count < groups

    measure_answers(broker, f"list of {groups:,} groups", repeats, ask)
    if failed:
        row(f"{broker.name}, lists that failed", count=failed)
    connection.close()


def measure_idle(broker: Any, groups: int, seconds: float) -> None:
    cpu_s = broker.cpu_s()
    time.sleep(seconds)
    row(f"{broker.name}, {groups:,} groups at rest", idle=(broker.cpu_s() - cpu_s) / seconds * 100)


class Member:
    """A member of a classic group, with one request in flight."""

    def __init__(self, address: str, group: str) -> None:
        self.connection, self.group = Connection(address), group
        self.id, self.generation, self.asked = "", -1, JOIN_GROUP
        self.settled = self.waits = False

    def send(self, api: tuple[int, int], body: bytes) -> None:
        self.asked, self.waits = api, True
        self.connection.send(api, string(self.group) + body)

    def join(self) -> None:
        self.settled = False
        times, protocols = struct.pack(">ii", 60_000, 60_000), struct.pack(">i", 1) + string("range") + data(bytes(100))
        self.send(JOIN_GROUP, times + string(self.id) + string("consumer") + protocols)

    def heartbeat(self) -> None:
        if not self.waits:
            self.send(HEARTBEAT, struct.pack(">i", self.generation) + string(self.id))

    def on_answer(self) -> None:
        """Go on to the next step of a rebalance."""
        reply, self.waits = self.connection.receive(), False
        (error,) = struct.unpack_from(">h", reply, 4)
        if error == REBALANCING:
            self.join()
        elif error:
            raise RuntimeError(f"{self.asked} is answered {error}")
        elif self.asked == JOIN_GROUP:
            self._sync(reply)
        elif self.asked == SYNC_GROUP:
            self.settled = True

    def _sync(self, reply: bytes) -> None:
        (self.generation,) = struct.unpack_from(">i", reply, 6)
        position, texts = 10, []
        for _ in range(3):  # the protocol, the leader, who this is
            (size,) = struct.unpack_from(">h", reply, position)
            texts.append(reply[position + 2 : position + 2 + size].decode())
            position += 2 + size
        self.id = texts[2]
        (count,) = struct.unpack_from(">i", reply, position)
        position, rows = position + 4, []
        for _ in range(count):  # only the leader is told of the members
            (size,) = struct.unpack_from(">h", reply, position)
            rows.append(reply[position : position + 2 + size] + data(bytes(40)))
            position += 2 + size
            position += 4 + struct.unpack_from(">i", reply, position)[0]
        head = struct.pack(">i", self.generation) + string(self.id) + struct.pack(">i", len(rows))
        self.send(SYNC_GROUP, head + b"".join(rows))


def data(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def settle(members: list[Member], begun_s: float) -> float:
    """Answer until all have what the last generation assigns them; how long that took, in ms."""
    selector = selectors.DefaultSelector()
    for member in members:
        selector.register(member.connection.sock, selectors.EVENT_READ, member)
    while not (all(member.settled for member in members) and len({member.generation for member in members}) == 1):
        ready = selector.select(HEARTBEAT_S)
        for key, _ in ready:
            key.data.on_answer()
        for member in members if not ready else ():
            if member.settled:
                member.heartbeat()
        if time.perf_counter() - begun_s > WAIT_S:
            raise RuntimeError(f"a group has not settled within {WAIT_S} s")
    selector.close()
    return (time.perf_counter() - begun_s) * 1000


def measure_members(broker: Any, count: int) -> None:
    members = [Member(broker.address, f"members-{count}") for _ in range(max(count - 1, 1))]
    await_coordinator(members[0].connection, members[0].group)
    cpu_s, begun_s = broker.cpu_s(), time.perf_counter()
    for member in members:
        member.join()
    all_join, all_cpu_s = settle(members, begun_s), broker.cpu_s() - cpu_s
    late = Member(broker.address, members[0].group)
    cpu_s, begun_s = broker.cpu_s(), time.perf_counter()
    late.join()
    for member in members:
        member.heartbeat()
    one_joins, one_cpu_s = settle([*members, late], begun_s), broker.cpu_s() - cpu_s
    row(
        f"{broker.name}, {count:,} members",
        **{"all join": all_join, "cpu": all_cpu_s * 1000, "one joins": one_joins, "cpu of one": one_cpu_s * 1000},
    )
    for member in (*members, late):
        member.connection.close()


def measure(broker: Any, what: set[str], seconds: float, partitions: int, groups: int, members: int) -> None:
    topic, repeats = "groups", REPEATS if partitions == PARTITIONS else 2
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_S)
    if "members" in what:
        for count in sorted({min(100, members), members}):
            measure_members(broker, count)
    for committers in COMMITTERS if "commits" in what else ():
        measure_commits(broker, topic, committers, seconds)
    if "lists" in what:
        measure_reading(broker, topic, partitions, repeats)
        measure_lists(broker, topic, groups, repeats)
        measure_idle(broker, groups, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--groups", type=int, default=5_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; repeatable")
    parser.add_argument("--peer", choices=["kafka"], help="measure Kafka, too")
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    sizes = (0.5, 10, 20, 3) if options.smoke else (options.seconds, PARTITIONS, options.groups, options.members)
    names = dict(zip(("seconds", "partitions", "groups", "members"), sizes, strict=True))
    headline("Committed offsets, lists and members of groups", **names)
    for make in [brokers.OurBroker] + ([brokers.KafkaBroker] if options.peer else []):
        with tempfile.TemporaryDirectory(prefix="perf-") as directory:
            broker = (
                make(Path(directory), {"zookeeper.nodes": 1}) if make is brokers.OurBroker else make(Path(directory))
            )
            try:
                measure(broker, set(options.only or PARTS), *sizes)
            finally:
                broker.stop()


if __name__ == "__main__":
    main()

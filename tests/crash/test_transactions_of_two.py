"""Transactions of two or three appliances of an ensemble: each coordinates ids and groups, and leads partitions."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.client import Admin
from appliance.client import Producer as NativeProducer
from appliance.errors import ApplianceError, NotLeader, UnstableOffsets
from appliance.groups.group_coordinator import coordinator_of
from appliance.records.encode import encode_values
from appliance.wire import native
from appliance.wire.kafka.metadata_reply import Broker
from appliance.zookeeper import transaction_nodes as nodes
from appliance.zookeeper.ensemble import Ensemble

from ..support.kafka_peer import KafkaPeer
from ..support.native_peer import Peer
from ..support.server import Server, stopped, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect
from .test_transactions import AT_ONCE, FAULTS, IN, OUT, Copier, killed, read

DEADLINE_S = 90.0
HERE, THERE = 1, 2
BOTH = (HERE, THERE)
THREE = (HERE, THERE, 3)
TOPIC = "t"
NO_ID = UUID(int=0)
ROLES = ("writer", "network", "coordinator", "all")


def owned_by(broker_id: int, prefix: str, name_of: Any = lambda name: name, among: Sequence[int] = BOTH) -> str:
    """A name of a transactional id, or a group, that this one of them coordinates."""
    brokers = [Broker(each, "", 0) for each in among]
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(name for name in names if coordinator_of(name_of(name), brokers).id == broker_id)


def id_of(broker_id: int, prefix: str = "tx", among: Sequence[int] = BOTH) -> str:
    return owned_by(broker_id, prefix, lambda name: nodes.slot_path(nodes.slot_of(name)), among)


class Pair:
    """Two appliances, or those of these ids, and a topic with a partition at each."""

    def __init__(self, directory: Path, connect: str, ids: Sequence[int] = BOTH) -> None:
        self.directory, self.ids = directory, ids
        self.shared: dict[str, Any] = {"zookeeper.connect": connect, "zookeeper.session_timeout_ms": 6_000} | ACCESS
        self.own: dict[int, dict[str, Any]] = {each: {"broker.id": each} for each in ids}
        self.servers: dict[int, Server] = {}
        for each in ids:
            self.start(each)
            listening = {"native.listen": self.servers[each].native, "kafka.listen": self.servers[each].kafka}
            self.own[each] |= listening
        self.wait_whole()
        with Admin(self.servers[HERE].native) as admin:
            admin.create_topic(TOPIC, len(ids))
            self.leaders = {row["leader"]: row["partition"] for row in admin.topics([TOPIC])[0]["partitions"]}
        assert self.leaders.keys() == set(ids)
        wait_for(lambda: all(self.knows(each) for each in ids), "all know the topic")

    def start(self, broker_id: int) -> None:
        self.servers[broker_id] = Server(self.directory / str(broker_id), **self.shared, **self.own[broker_id]).start()

    def kill(self, broker_id: int) -> None:
        self.servers[broker_id].kill_supervisor()

    def knows(self, broker_id: int) -> bool:
        with Admin(self.servers[broker_id].native) as admin:
            return any(row["name"] == TOPIC for row in admin.topics())

    def wait_whole(self) -> None:
        """Until each knows all transactions of all: then it can say that an offset of any group is stable."""

        def is_whole(broker_id: int) -> bool:
            try:
                with Admin(self.servers[broker_id].native) as admin:
                    admin.transactions()
                with Peer(self.servers[broker_id].native) as peer:
                    header, _ = peer.call([native.METADATA, 1, []])
                return {row[0] for row in header[2]["brokers"]} == set(self.ids)
            except ApplianceError:
                return False

        wait_for(lambda: all(is_whole(each) for each in self.ids), "all know each other", DEADLINE_S)

    def producer(self, name: str, asked: int = HERE, **settings: Any) -> Producer:
        servers = self.servers[asked].kafka
        made = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0, **settings})
        made.init_transactions(DEADLINE_S)
        return made

    def state(self, name: str, asked: int = HERE) -> str:
        try:
            with Admin(self.servers[asked].native) as admin:
                return str(admin.transaction(name)["state"])
        except ApplianceError:
            return ""

    def read(self, partition: int, isolation: str = "read_committed") -> list[bytes]:
        reader = Consumer(
            {"bootstrap.servers": self.servers[HERE].kafka, "group.id": "r", "isolation.level": isolation}
        )
        part = TopicPartition(TOPIC, partition, 0)
        try:
            _, end = reader.get_watermark_offsets(part, DEADLINE_S)
            reader.assign([part])
            values: list[bytes] = []
            while end and reader.position([part])[0].offset < end:
                values += [each.value() for each in reader.consume(100, 0.2) if each.error() is None]
            return values
        finally:
            reader.close()

    def get(self, *values: bytes) -> None:
        """Readers of committed messages get these from the partitions of both."""
        for partition in self.leaders.values():
            wait_for(lambda at=partition: self.read(at) == list(values), f"{values!r} in {partition}", DEADLINE_S)

    def committed(self, group: str, *, isolation: str = "read_committed") -> int:
        settings = {"bootstrap.servers": self.servers[HERE].kafka, "group.id": group, "isolation.level": isolation}
        reader = Consumer(settings)
        try:
            return int(reader.committed([TopicPartition(TOPIC, 0)], DEADLINE_S)[0].offset)
        finally:
            reader.close()

    def stop(self) -> None:
        for server in self.servers.values():
            server.__exit__(None, None, None)


@pytest.fixture
def pair(tmp_path: Path, standalone: Ensemble) -> Iterator[Pair]:
    made = Pair(tmp_path, fresh_connect(standalone))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Pair]:
    """Three appliances, which each test leaves alive."""
    made = Pair(tmp_path_factory.mktemp("three"), fresh_connect(standalone), THREE)
    yield made
    made.stop()


def send(producer: Producer, value: bytes, partitions: Sequence[int] = (0, 1)) -> None:
    """To these partitions, flushed."""
    for partition in partitions:
        producer.produce(TOPIC, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def offsets_to(producer: Producer, pair: Pair, group: str, offset: int) -> None:
    reader = Consumer({"bootstrap.servers": pair.servers[HERE].kafka, "group.id": group})
    try:
        offsets = [TopicPartition(TOPIC, 0, offset)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), DEADLINE_S)
    finally:
        reader.close()


def check_leaders_are_named(pair: Pair) -> None:
    """Whoever asks the wrong one is told who leads, and where that is (KIP-951)."""
    for asked, leader in (BOTH, BOTH[::-1]):
        with KafkaPeer(pair.servers[asked].kafka) as peer:
            topic_id = peer.ask("Metadata", topics=[{"name": TOPIC, "topic_id": NO_ID}]).topics[0].topic_id
            row = {"index": pair.leaders[leader], "records": encode_values([b"v"], 1_000)}
            topic = {"name": TOPIC, "partition_data": [row]}
            produced = peer.ask("Produce", 12, acks=-1, timeout_ms=1_000, topic_data=[topic])
            at = {"partition": pair.leaders[leader], "current_leader_epoch": -1, "partition_max_bytes": 1_000}
            by_id = {"topic_id": topic_id, "partitions": [at]}
            fetched = peer.ask("Fetch", 17, max_bytes=1_000, session_epoch=-1, topics=[by_id])
        parts = produced.responses[0].partition_responses + fetched.responses[0].partitions
        named = [(part.error_code, part.current_leader.leader_id) for part in parts]
        assert named == [(NotLeader.code, leader)] * 2
        ports = {(node.node_id, node.port) for reply in (produced, fetched) for node in reply.node_endpoints}
        assert ports == {(leader, int(pair.servers[leader].kafka.rsplit(":", 1)[1]))}


@pytest.mark.parametrize("owner", BOTH)
def test_transactions_reach_both_and_commit_offsets_of_groups_of_both(pair: Pair, owner: int) -> None:
    check_leaders_are_named(pair)
    name = id_of(owner)
    producer = pair.producer(name)
    groups = [owned_by(each, "g") for each in BOTH]
    seen: list[bytes] = []
    for number, committing in enumerate((True, False, True), 1):
        value = b"%d" % number
        producer.begin_transaction()
        send(producer, value)
        for group in groups:
            offsets_to(producer, pair, group, number)
        assert [pair.read(each)[-1:] for each in (0, 1)] == [seen[-1:]] * 2, "nothing of an open transaction"
        for group, server in itertools.product(groups, pair.servers.values()):
            with Peer(server.native) as peer:
                header, _ = peer.call([native.ADMIN, 1, "offsets", {"group": group, "stable": [[TOPIC, 0]]}])
                assert header[1] == UnstableOffsets.code, header
        (producer.commit_transaction if committing else producer.abort_transaction)(DEADLINE_S)
        seen += [value] * committing
        pair.get(*seen)
        assert [pair.committed(group) for group in groups] == [int(seen[-1])] * 2
    for asked in BOTH:
        wait_for(lambda asked=asked: pair.state(name, asked) == "CompleteCommit", "its end", DEADLINE_S)


def test_the_deaths_of_both_between_the_decision_and_the_end_delay_it(pair: Pair) -> None:
    """Method: the peer is killed, the transaction is decided, its coordinator is killed; then each comes back."""
    name, group = id_of(HERE), owned_by(THERE, "g")
    producer = pair.producer(name)
    producer.begin_transaction()
    send(producer, b"a")
    offsets_to(producer, pair, group, 7)
    pair.kill(THERE)
    producer.commit_transaction(DEADLINE_S)  # answered once it is decided
    assert pair.state(name) == "PrepareCommit"
    pair.kill(HERE)
    pair.start(THERE)
    pair.start(HERE)
    pair.wait_whole()
    pair.get(b"a")
    wait_for(lambda: pair.state(name) == "CompleteCommit", "its end", DEADLINE_S)
    assert pair.committed(group) == 7
    producer.begin_transaction()
    send(producer, b"b")
    producer.abort_transaction(DEADLINE_S)
    pair.get(b"a")


def test_the_peer_takes_over_what_its_dead_coordinator_has_decided(pair: Pair) -> None:
    """Goal: the marker that could not be written yet is written by whoever has the slot then."""
    name = id_of(HERE)
    producer = pair.producer(name, THERE)
    producer.begin_transaction()
    send(producer, b"a")
    with stopped(pair.servers[THERE].pid_of("coordinator"), may_die=True):  # it takes no markers
        producer.commit_transaction(DEADLINE_S)
        pair.kill(HERE)
    wait_for(lambda: pair.state(name, THERE) == "PrepareCommit", "the slot moves", DEADLINE_S)
    pair.start(HERE)
    pair.wait_whole()
    wait_for(lambda: pair.state(name, THERE) == "CompleteCommit", "its end", DEADLINE_S)
    pair.get(b"a")


def check_last(three: Pair, *values: bytes) -> None:
    """The last committed messages of each partition."""
    for part in three.leaders.values():
        wait_for(lambda at=part: three.read(at)[-len(values) :] == list(values), f"{values!r} in {part}", DEADLINE_S)


def test_a_writer_of_a_peer_that_dies_is_told_again(three: Pair) -> None:
    producer = three.producer(id_of(HERE, among=THREE))
    producer.begin_transaction()
    send(producer, b"a", range(3))
    for each in THREE[1:]:
        for row in three.servers[each].processes("writer"):
            os.kill(row["pid"], signal.SIGKILL)
    send(producer, b"b", range(3))
    producer.commit_transaction(DEADLINE_S)
    check_last(three, b"a", b"b")


@pytest.mark.parametrize("role", ["coordinator", "writer", "network"])
def test_a_peer_that_stands_still_in_the_middle_delays_the_end_and_changes_nothing(three: Pair, role: str) -> None:
    """Method: the processes of a role of the second stand still while a transaction is decided; then comes the next."""
    name, group = id_of(HERE, role, THREE), owned_by(THERE, role, among=THREE)
    producer = three.producer(name)
    for committing, offset in ((True, 7), (False, 8), (True, 9)):
        value = f"{role}-{offset}".encode()
        producer.begin_transaction()
        send(producer, value, range(3))
        offsets_to(producer, three, group, offset)
        with ExitStack() as standing:
            for row in three.servers[THERE].processes(role):
                standing.enter_context(stopped(row["pid"], may_die=True))
            if committing:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
            assert three.state(name) in ("PrepareCommit", "PrepareAbort")
        ended = "CompleteCommit" if committing else "CompleteAbort"
        wait_for(lambda ended=ended: three.state(name) == ended, "its end", DEADLINE_S)
        last = [f"{role}-{offset if committing else 7}".encode()]
        check_last(three, *last)
        wait_for(lambda wanted=offset if committing else 7: three.committed(group) == wanted, "the offset", DEADLINE_S)


def test_native_producers_reach_any_id_through_any(three: Pair) -> None:
    names = [id_of(owner, f"native-{asked}", THREE) for asked, owner in itertools.product(THREE, THREE)]
    for number, name in enumerate(names):
        asked = THREE[number // 3]
        with NativeProducer(three.servers[asked].native, transactional_id=name) as producer, producer.transaction():
            for partition in range(3):
                producer.send(TOPIC, name.encode(), partition=partition)
        wait_for(lambda name=name: three.state(name) == "CompleteCommit", "its end", DEADLINE_S)
    check_last(three, *(name.encode() for name in names))
    for asked in THREE:
        with Admin(three.servers[asked].native) as admin:
            assert {row["id"] for row in admin.transactions()} >= set(names)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_copies_between_two_are_exact_whatever_dies(pair: Pair, seed: int) -> None:
    """As :func:`test_copies_are_exact_whatever_dies`, with processes of both, and now and then all of one."""
    count = FAULTS * 3 * AT_ONCE
    with Admin(pair.servers[HERE].native) as admin:
        admin.create_topic(IN, 1)
        admin.create_topic(OUT, 1)
    addresses = ",".join(server.kafka for server in pair.servers.values())
    source = Producer({"bootstrap.servers": addresses, "linger.ms": 0, "batch.num.messages": 7})
    for number in range(count):
        source.produce(IN, b"%d" % number, partition=0)
    assert source.flush(DEADLINE_S) == 0
    copier = Copier(addresses, count, seed)
    copier.offsets = tuple(offset for offset, _ in read(addresses, IN))
    assert len(copier.offsets) == count
    copier.start()
    chance = random.Random(seed)
    for _ in range(FAULTS):
        before = copier.copied
        wait_for(lambda before=before: copier.copied > before or not copier.is_alive(), "progress", 3 * DEADLINE_S)
        victim, role = chance.choice(BOTH), chance.choice(ROLES)
        if role == "all":
            pair.kill(victim)
            pair.start(victim)
        else:
            killed(pair.servers[victim], role)
    copier.join(5 * DEADLINE_S)
    assert copier.bug is None and not copier.is_alive(), copier.bug
    wait_for(lambda: len(list(read(addresses, OUT))) >= count, "the last stable offset", DEADLINE_S)
    assert [value for _, value in read(addresses, OUT)] == [b"%d" % number for number in range(count)]

"""Transactions of real clients against a real appliance: commit, abort, fencing, offsets, and deaths in the middle."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPythonPartition

from appliance.client import Admin
from appliance.errors import InvalidTransactionState, Unavailable, UnknownTransactionalId

from ..support.command_line import run, succeeding
from ..support.remedies import Remedy
from ..support.server import Server, wait_for
from .adapters import java

DEADLINE_S = 30.0
IDS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"zookeeper.nodes": 1, "transactions.open_ms_warn": 1_000, "disk.check_ms": 200}
    with Server(tmp_path_factory.mktemp("transactions") / "data", **settings) as started:
        started.wait_for_zookeeper()
        yield started


@pytest.fixture
def make(server: Server, topic: str) -> str:
    """A topic with two partitions."""
    with Admin(server.native) as admin:
        admin.create_topic(topic, 2)
    return topic


def new_id() -> str:
    return f"tx-{next(IDS)}"


def producer(server: Server, name: str, **settings: object) -> Producer:
    """A producer that is ready for its first transaction."""
    made = Producer({"bootstrap.servers": server.kafka, "transactional.id": name, "log_level": 0, **settings})
    made.init_transactions(DEADLINE_S)
    return made


def committed(server: Server, group: str, topic: str, number: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, number)], DEADLINE_S)
        return int(found.offset)
    finally:
        consumer.close()


def state(server: Server, name: str) -> str:
    """Kafka's word; "" while the coordinator does not know yet."""
    with Admin(server.native) as admin:
        try:
            return str(admin.transaction(name)["state"])
        except Unavailable:
            return ""


def send(to: Producer, topic: str, *values: bytes) -> None:
    """To both partitions in turn, flushed."""
    for number, value in enumerate(values):
        to.produce(topic, value, partition=number % 2)
    assert to.flush(DEADLINE_S) == 0


def read(server: Server, topic: str, isolation: str = "read_committed", number: int = 0) -> list[bytes]:
    """All that a reader gets of a partition, from its beginning to what is its end now."""
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "reader", "isolation.level": isolation})
    try:
        part = TopicPartition(topic, number, 0)
        _, end = consumer.get_watermark_offsets(part, DEADLINE_S)
        consumer.assign([part])
        found: list[bytes] = []
        while end and consumer.position([part])[0].offset < end:
            found += [each.value() for each in consumer.consume(100, 0.2) if each.error() is None]
        return found
    finally:
        consumer.close()


def gets(server: Server, topic: str, *values: bytes, number: int = 0) -> None:
    """Who reads committed messages gets these: soon, since an end is answered when it is decided."""
    wait_for(lambda: read(server, topic, number=number) == list(values), f"{values!r}", DEADLINE_S)


def test_transactions_end_as_their_producer_says(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name)
    for committing, wanted in ((True, "CompleteCommit"), (False, "CompleteAbort"), (True, "CompleteCommit")):
        one.begin_transaction()
        send(one, make, b"a", b"b")
        assert state(server, name) == "Ongoing"
        (one.commit_transaction if committing else one.abort_transaction)(DEADLINE_S)
        wait_for(lambda wanted=wanted: state(server, name) == wanted, "the end of the transaction", DEADLINE_S)


def test_offsets_are_committed_with_the_transaction_or_not_at_all(server: Server, make: str) -> None:
    one = producer(server, new_id())
    reader = Consumer({"bootstrap.servers": server.kafka, "group.id": make})
    for offset, committing, seen in ((5, True, 5), (9, False, 5), (7, True, 7)):
        one.begin_transaction()
        send(one, make, b"out")
        offsets = [TopicPartition(make, 0, offset)]
        one.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), DEADLINE_S)
        (one.commit_transaction if committing else one.abort_transaction)(DEADLINE_S)
        assert committed(server, make, make) == seen
    reader.close()


def test_what_is_read_is_written_exactly_once(server: Server, make: str) -> None:
    """Consume, transform, produce: the reader's positions go with what was made of what it read."""
    source = Producer({"bootstrap.servers": server.kafka})
    for number in range(40):
        source.produce(make, b"%d" % number, partition=0)
    assert source.flush(DEADLINE_S) == 0
    settings = {"bootstrap.servers": server.kafka, "group.id": make, "auto.offset.reset": "earliest"}
    done: list[bytes] = []
    for aborts in (True, False):  # the first one aborts its second transaction, and goes away
        one = producer(server, f"{make}-tx")
        reader = Consumer({**settings, "enable.auto.commit": False})
        reader.subscribe([make])
        rounds = 0
        while len(done) < 40 and not (aborts and rounds == 2):
            found = [each for each in reader.consume(10, DEADLINE_S) if each.error() is None]
            one.begin_transaction()
            for each in found:
                one.produce(make, each.value() + b"!", partition=1)
            positions = reader.position(reader.assignment())
            one.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), DEADLINE_S)
            rounds += 1
            if aborts and rounds == 2:
                one.abort_transaction(DEADLINE_S)
            else:
                one.commit_transaction(DEADLINE_S)
                done += [each.value() for each in found if each.partition() == 0]
        reader.close()
    assert done == [b"%d" % number for number in range(40)]
    gets(server, make, *(b"%d!" % number for number in range(40)), number=1)


def test_the_next_producer_of_an_id_fences_the_one_before(server: Server, make: str) -> None:
    name = new_id()
    old = producer(server, name)
    old.begin_transaction()
    send(old, make, b"of the old one")
    new = producer(server, name)
    old.produce(make, b"of the old one, too", partition=0)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    new.begin_transaction()
    send(new, make, b"of the new one")
    new.commit_transaction(DEADLINE_S)
    gets(server, make, b"of the new one")


def test_a_transaction_that_takes_too_long_is_aborted(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name, **{"transaction.timeout.ms": 1_000})
    one.begin_transaction()
    send(one, make, b"a")
    wait_for(lambda: state(server, name) == "CompleteAbort", "the abort", DEADLINE_S)
    with pytest.raises(KafkaException):
        one.commit_transaction(DEADLINE_S)


def test_people_see_transactions_and_abort_one(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name)
    one.begin_transaction()
    send(one, make, b"a", b"b")
    at = ("--data", str(server.data_dir))
    (row,) = [row for row in succeeding("transactions", "list", "--open", "--json", *at).json if row["id"] == name]
    assert (row["state"], row["partitions"]) == ("Ongoing", 2) and row["open_ms"] >= 0
    assert name in succeeding("transactions", "list", *at).out
    described = succeeding("transactions", "describe", name, "--json", *at).json
    assert described["parts"] == [[make, 0], [make, 1]]
    assert make in succeeding("transactions", "describe", name, *at).out
    assert "Ongoing" not in succeeding("transactions", "abort", name, "--dry-run", *at).err
    assert state(server, name) == "Ongoing"
    succeeding("transactions", "abort", name, "--yes", *at)
    wait_for(lambda: state(server, name) == "CompleteAbort", "the abort", DEADLINE_S)
    for how in ("--dry-run", "--yes"):
        said = run("transactions", "abort", name, how, *at)
        assert said.status == 65 and "it is CompleteAbort" in said.err, said
    nobody = run("transactions", "describe", "nobody", *at)
    assert nobody.status == 66 and "transactions list" in nobody.err
    with Admin(server.native) as admin:
        with pytest.raises(InvalidTransactionState):
            admin.abort_transaction(name)
        with pytest.raises(UnknownTransactionalId):
            admin.abort_transaction("nobody")
        assert name in {row["id"] for row in admin.transactions()}
    with pytest.raises(KafkaException):
        one.commit_transaction(DEADLINE_S)


def test_a_transaction_that_stays_open_is_named_with_its_remedy(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name)
    one.begin_transaction()
    send(one, make, b"a")
    at = ("--data", str(server.data_dir))

    def found() -> list[dict[str, Any]]:
        rows = run("doctor", "--json", *at).json
        return [row for row in rows if row["condition"] == "TransactionLate" and name in row["what"]]

    (row,) = wait_for(found, "the condition", DEADLINE_S)
    with Remedy(row) as remedy:
        remedy.run("appliance transactions abort", "--yes")
    wait_for(lambda: state(server, name) == "CompleteAbort", "the abort", DEADLINE_S)
    wait_for(lambda: not found(), "the end of the condition", DEADLINE_S)


def kill_coordinator(server: Server, topic: str) -> None:
    os.kill(server.pid_of("coordinator"), signal.SIGKILL)


def writer_of(server: Server, topic: str) -> int:
    """The process of partition 0."""

    def found() -> list[int]:
        return [row["pid"] for row in server.processes("writer") if (row["topic"], row["partition"]) == (topic, 0)]

    return int(wait_for(found, "the writer's process")[0])


def kill_writer(server: Server, topic: str) -> None:
    os.kill(writer_of(server, topic), signal.SIGKILL)


@pytest.mark.parametrize("strike", [pytest.param(kill_coordinator, marks=pytest.mark.long), kill_writer])
def test_a_transaction_outlives_a_process(server: Server, make: str, strike: Callable[[Server, str], None]) -> None:
    name = new_id()
    one = producer(server, name)
    reader = Consumer({"bootstrap.servers": server.kafka, "group.id": make})
    one.begin_transaction()
    send(one, make, b"a", b"b")
    one.send_offsets_to_transaction([TopicPartition(make, 0, 3)], reader.consumer_group_metadata(), DEADLINE_S)
    strike(server, make)
    one.commit_transaction(DEADLINE_S)
    wait_for(lambda: state(server, name) == "CompleteCommit", "the end of the transaction", DEADLINE_S)
    assert committed(server, make, make) == 3
    one.begin_transaction()
    send(one, make, b"c")
    one.abort_transaction(DEADLINE_S)
    one.begin_transaction()
    send(one, make, b"d")
    one.commit_transaction(DEADLINE_S)
    gets(server, make, b"a", b"d")
    gets(server, make, b"b", number=1)
    reader.close()


@pytest.mark.long
def test_a_restart_in_the_middle(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name)
    one.begin_transaction()
    send(one, make, b"a", b"b")
    server.stop()
    server.start()
    server.wait_for_zookeeper()
    wait_for(lambda: state(server, name) == "Ongoing", "what is stored", DEADLINE_S)
    new = producer(server, name)
    assert state(server, name) == "Empty"
    new.begin_transaction()
    send(new, make, b"c")
    new.commit_transaction(DEADLINE_S)
    gets(server, make, b"c")


def test_who_reads_committed_messages_gets_those_of_committed_transactions(server: Server, make: str) -> None:
    one, other, plain = (
        producer(server, new_id()),
        producer(server, new_id()),
        Producer({"bootstrap.servers": server.kafka}),
    )
    for to, values in ((one, (b"kept", b"-")), (other, (b"thrown", b"-"))):
        to.begin_transaction()
        send(to, make, *values)
    plain.produce(make, b"plain", partition=0)
    assert plain.flush(DEADLINE_S) == 0
    assert read(server, make) == []
    assert read(server, make, "read_uncommitted") == [b"kept", b"thrown", b"plain"]
    one.commit_transaction(DEADLINE_S)
    gets(server, make, b"kept")
    other.abort_transaction(DEADLINE_S)
    gets(server, make, b"kept", b"plain")
    assert read(server, make, "read_uncommitted") == [b"kept", b"thrown", b"plain"]


def test_sql_has_what_committed_transactions_have(server: Server, make: str) -> None:
    def counted(where: str) -> int:
        query = f'select count(*) n from "{make}" where {where}'
        return int(succeeding("sql", query, "--json", "--connect", server.native).json["n"])

    one = producer(server, new_id())
    for committing in (True, False, True):
        one.begin_transaction()
        send(one, make, *[b"yes" if committing else b"no"] * 10)
        (one.commit_transaction if committing else one.abort_transaction)(DEADLINE_S)
    one.begin_transaction()
    send(one, make, b"open")
    wait_for(lambda: counted("true") == 20, "committed messages", DEADLINE_S)
    assert counted("value = 'yes'") == 20
    one.commit_transaction(DEADLINE_S)
    wait_for(lambda: counted("true") == 21, "the last one", DEADLINE_S)


def test_a_coordinator_that_dies_between_the_decision_and_its_end(server: Server, make: str) -> None:
    """The decision is durable, the writer has not written its marker: the next coordinator has it written."""
    name = new_id()
    one = producer(server, name)
    one.begin_transaction()
    send(one, make, b"a")
    writer = writer_of(server, make)
    os.kill(writer, signal.SIGSTOP)
    try:
        one.commit_transaction(DEADLINE_S)
        assert state(server, name) == "PrepareCommit"
        kill_coordinator(server, make)
    finally:
        os.kill(writer, signal.SIGCONT)
    wait_for(lambda: state(server, name) == "CompleteCommit", "the end of the transaction", DEADLINE_S)
    gets(server, make, b"a")


def kafka_python(bootstrap: str, topic: str) -> None:
    one = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    one.init_transactions()
    for value, committing in ((b"a", True), (b"b", False), (b"c", True)):
        one.begin_transaction()
        one.send(topic, value, partition=0).get(DEADLINE_S)
        one.send_offsets_to_transaction({KafkaPythonPartition(topic, 0): OffsetAndMetadata(len(value), "", -1)}, topic)
        one.commit_transaction() if committing else one.abort_transaction()
    one.close()


def aiokafka(bootstrap: str, topic: str) -> None:
    async def work() -> None:
        one = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await one.start()
        for value, committing in ((b"a", True), (b"b", False), (b"c", True)):
            await one.begin_transaction()
            await one.send_and_wait(topic, value, partition=0)
            await one.send_offsets_to_transaction({AioPartition(topic, 0): len(value)}, topic)
            await (one.commit_transaction() if committing else one.abort_transaction())
        await one.stop()

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


@pytest.mark.parametrize("client", [kafka_python, aiokafka])
def test_clients_in_python(server: Server, make: str, client: Callable[[str, str], None]) -> None:
    client(server.kafka, make)
    gets(server, make, b"a", b"c")
    assert committed(server, make, make) == 1


@pytest.mark.long
def test_the_client_in_java(server: Server, make: str) -> None:
    said = java("Transactions", server.kafka, make, f"{make}-java").split()
    assert said == ["fenced", "15", "v0", "v2", "v3", "v5", "last"]


@pytest.mark.long
def test_kafkas_own_tool_sees_a_transaction_and_ends_it_in_a_partition(server: Server, make: str) -> None:
    name = new_id()
    one = producer(server, name)
    one.begin_transaction()
    send(one, make, b"a")

    def tool(*words: str) -> str:
        return java("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", server.kafka, *words)

    assert re.search(rf"^{name}\s+\d+\s+\d+\s+Ongoing", tool("list"), re.MULTILINE)
    described = tool("describe", "--transactional-id", name)
    assert "Ongoing" in described and f"{make}-0" in described
    producers = tool("describe-producers", "--topic", make, "--partition", "0")
    (start,) = re.findall(r"(\d+)\s*$", producers.strip())
    tool("abort", "--topic", make, "--partition", "0", "--start-offset", start)
    assert read(server, make) == [] and "None" in tool("describe-producers", "--topic", make, "--partition", "0")

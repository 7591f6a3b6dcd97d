"""Transactions of the native client against a real appliance: all or nothing, whatever dies, and exactly once."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from appliance.client import Admin, GroupConsumer, Producer
from appliance.errors import (
    ApplianceError,
    BadValue,
    InvalidRequest,
    MessageTooLarge,
    ProducerFenced,
    TransactionAborted,
    UnknownPartition,
)

from ..support.command_line import run
from ..support.remedies import Remedy
from ..support.server import Server, wait_for
from ..support.transactional_copier import Copier, read_all, wait_for_markers

TIMEOUT_S = 120
COUNT = 400
TOPIC_PARTITIONS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("native") / "data", **{"zookeeper.nodes": 1}) as started:
        started.wait_for_zookeeper()
        yield started


@pytest.fixture
def made(server: Server, topic: str) -> str:
    with Admin(server.native) as admin:
        admin.create_topic(topic, TOPIC_PARTITIONS)
    return topic


def read(server: Server, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All that is there now, partition by partition, with the markers of what is decided."""
    wait_for_markers(server)
    return [value for _, value in read_all(server, topic, TOPIC_PARTITIONS, isolation)]


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(server: Server, made: str) -> None:
    with Producer(server.native, transactional_id=made) as producer:
        with producer.transaction():
            for number in range(100):
                producer.send(made, b"%d" % number, partition=number % TOPIC_PARTITIONS)
            producer.flush(TIMEOUT_S)
            assert read(server, made) == [], "all is written, and nothing is committed"
            assert len(read(server, made, "read_uncommitted")) == 100
        assert sorted(map(int, read(server, made))) == list(range(100))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(made, b"never").result(TIMEOUT_S)
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(made, b"100", partition=0)
        with producer.transaction():
            pass
        assert sorted(map(int, read(server, made))) == list(range(101))
    with Admin(server.native) as admin:
        assert admin.transaction(made)["open_ms"] is None


def test_it_sends_only_in_a_transaction(server: Server, made: str) -> None:
    with Producer(server.native, transactional_id=made) as producer:
        for send in (
            lambda: producer.send(made, b"x"),
            lambda: producer.send(made, b"x", key=b"k"),
            lambda: producer.send_many(made, [b"x"]),
            lambda: producer.send_block(made, 0, [b"x"], tails=[b"\0"]),
        ):
            with pytest.raises(InvalidRequest, match="in transactions"):
                send()
        with producer.transaction():
            producer.send(made, b"x")
            with pytest.raises(InvalidRequest, match="is open"), producer.transaction():
                pass
        assert read(server, made) == [b"x"]
    with Producer(server.native) as plain, pytest.raises(InvalidRequest, match="no transactional_id"):
        plain.transaction()
    for wrong in ({"acks": 1}, {"idempotent": False}, {"transaction_timeout_ms": 0}):
        with pytest.raises(BadValue):
            Producer(server.native, transactional_id="x", **wrong)
    for name in ("", "x" * 256):
        with pytest.raises(BadValue):
            Producer(server.native, transactional_id=name)


def test_one_message_that_is_refused_aborts_the_others(server: Server, topic: str) -> None:
    with Admin(server.native) as admin:
        admin.create_topic(topic, TOPIC_PARTITIONS, {"max.message.bytes": "2000"})
    with Producer(server.native, transactional_id=topic, codec="gzip") as producer:
        with pytest.raises(TransactionAborted) as raised, producer.transaction():
            producer.send(topic, b"good", partition=0)
            producer.send(topic, os.urandom(5_000), partition=1)
        assert isinstance(raised.value.__cause__, MessageTooLarge)
        with producer.transaction():
            producer.send(topic, b"better", partition=1)
    assert read(server, topic) == [b"better"]


def test_a_second_producer_fences_the_first_and_ends_its_transaction(server: Server, made: str) -> None:
    with (
        Producer(server.native, transactional_id=made) as first,
        Producer(server.native, transactional_id=made) as second,
    ):
        with pytest.raises(ProducerFenced), first.transaction():
            first.send(made, b"first").result(TIMEOUT_S)
            with second.transaction():
                second.send(made, b"second", partition=0)
        assert read(server, made) == [b"second"]
        for _ in range(2):
            with pytest.raises(ProducerFenced), first.transaction():
                pass
        with second.transaction():
            second.send(made, b"again", partition=0)
    assert read(server, made) == [b"second", b"again"]


def test_one_that_takes_too_long_is_aborted_and_fenced(server: Server, made: str) -> None:
    producer = Producer(server.native, transactional_id=made, transaction_timeout_ms=300)
    with producer, Admin(server.native) as admin, pytest.raises(ProducerFenced), producer.transaction():
        producer.send(made, b"late").result(TIMEOUT_S)
        wait_for(lambda: admin.transaction(made)["state"] == "CompleteAbort", "it is aborted", TIMEOUT_S)
    assert read(server, made) == []


def test_the_end_of_a_producer_aborts_what_is_open(server: Server, made: str) -> None:
    producer = Producer(server.native, transactional_id=made)
    with pytest.raises(InvalidRequest, match="was closed"), producer.transaction():
        producer.send(made, b"x").result(TIMEOUT_S)
        producer.close()
        with Admin(server.native) as admin:
            wait_for(lambda: admin.transaction(made)["open_ms"] is None, "it is aborted", TIMEOUT_S)
    assert read(server, made) == []


def test_a_consumer_that_commits_by_itself_cannot_be_in_a_transaction(server: Server, made: str) -> None:
    with Producer(server.native, transactional_id=made) as producer:
        for options in ({"auto_commit": True, "isolation": "read_committed"}, {"auto_commit": False}):
            consumer = GroupConsumer(server.native, made, **options)
            with consumer, pytest.raises(InvalidRequest, match="auto_commit=False"):
                producer.transaction(consumer)


def test_what_an_aborted_transaction_has_read_is_read_again(server: Server, made: str) -> None:
    with Producer(server.native) as filler:
        filler.send_many(made, [b"%d" % number for number in range(50)])
    group, copies = f"{made}-g", f"{made}-copy"
    with Admin(server.native) as admin:
        admin.create_topic(copies, TOPIC_PARTITIONS)
    consumer = GroupConsumer(server.native, group, auto_commit=False, isolation="read_committed")
    with consumer, Producer(server.native, transactional_id=made) as producer:
        (stream,) = consumer.create_message_streams({made: 1})[made]

        def copy(count: int, fails: bool) -> None:
            with producer.transaction(consumer):
                for message in itertools.islice(stream.messages(timeout=TIMEOUT_S), count):
                    producer.send(copies, message.value).result(TIMEOUT_S)
                if fails:
                    raise ZeroDivisionError

        copy(20, False)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                copy(10, True)
        copy(30, False)
        with Admin(server.native) as admin:
            wait_for(lambda: admin.offsets(group) == consumer.positions, "the offsets follow the decision", TIMEOUT_S)
    assert sorted(map(int, read(server, copies))) == list(range(50))


def test_the_page_copies_exactly_once(server: Server, topic: str) -> None:
    """The example of tests/clients/README.md, as it is there, until everything is copied."""
    page = (Path(__file__).parents[1] / "clients" / "README.md").read_text()
    (example,) = re.findall(r"```python\n(import itertools.*?)```", page, re.DOTALL)
    names = {'"orders"': f'"{topic}"', '"bills"': f'"{topic}-bills"', "bills-1": topic, "127.0.0.1:9091": server.native}
    for old, new in names.items():
        assert old in example
        example = example.replace(old, new)
    with Admin(server.native) as admin:
        admin.create_topic(topic, TOPIC_PARTITIONS)
        admin.create_topic(f"{topic}-bills", TOPIC_PARTITIONS)
    orders = [b"order %d" % number for number in range(50)]
    with Producer(server.native) as filler:
        filler.send_many(topic, orders)
    process = subprocess.Popen([sys.executable, "-c", example])
    try:
        wait_for(lambda: len(read(server, f"{topic}-bills")) >= len(orders), "the bills", TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert Counter(read(server, f"{topic}-bills")) == Counter(order.upper() for order in orders)


def test_a_client_of_kafka_and_a_native_one_fence_each_other(server: Server, made: str) -> None:
    settings = {"bootstrap.servers": server.kafka, "transactional.id": made, "log_level": 0}
    kafkas = confluent_kafka.Producer(settings)
    with Producer(server.native, transactional_id=made) as producer:
        with producer.transaction():
            producer.send(made, b"native", partition=0)
        kafkas.init_transactions(TIMEOUT_S)
        kafkas.begin_transaction()
        kafkas.produce(made, b"kafka", partition=0)
        kafkas.commit_transaction(TIMEOUT_S)
        with pytest.raises(ProducerFenced), producer.transaction():
            producer.send(made, b"zombie", partition=0)
    with Producer(server.native, transactional_id=made) as another, another.transaction():
        another.send(made, b"another", partition=0)
    kafkas.begin_transaction()
    kafkas.produce(made, b"zombie", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        kafkas.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError._STATE)
    assert read(server, made) == [b"native", b"kafka", b"another"]


def test_a_topic_that_comes_back_from_the_trash_has_nothing_open(server: Server, made: str) -> None:
    kept = f"{made}-kept"
    with Admin(server.native) as admin, Producer(server.native, transactional_id=made) as producer:
        admin.create_topic(kept, TOPIC_PARTITIONS)
        producer_of_others = Producer(server.native, transactional_id=f"{made}-others")
        with producer_of_others, producer_of_others.transaction():
            with producer.transaction():
                producer.send(kept, b"kept", partition=0)
                producer.send(made, b"of a deleted topic", partition=0).result(TIMEOUT_S)
                admin.delete_topic(made)
            wait_for(lambda: admin.transaction(made)["state"] == "CompleteCommit", "it has ended", TIMEOUT_S)
            producer_of_others.send(kept, b"others", partition=1)
            admin.undelete_topic(made)
            with producer.transaction():
                producer.send(made, b"after", partition=0)
            wait_for(lambda: read(server, made) == [b"after"], "nothing is open there", TIMEOUT_S)
        assert sorted(read(server, kept)) == [b"kept", b"others"], "what is open elsewhere is not touched"


def test_what_hangs_when_zookeeper_has_lost_its_data_is_named_with_its_remedy(
    make_appliance: Callable[..., Server], topic: str
) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1, "disk.check_ms": 500})
    server.wait_for_zookeeper()
    with Admin(server.native) as admin:
        admin.create_topic(topic, TOPIC_PARTITIONS)
    producer = Producer(server.native, transactional_id=topic)
    with pytest.raises(ApplianceError), producer.transaction():
        producer.send(topic, b"lost", partition=0).result(TIMEOUT_S)
        assert server.stop() == 0
        shutil.rmtree(server.data_dir / "zookeeper")
        raise ProducerFenced("the producer ends")
    server.start()
    server.wait_for_zookeeper()
    with Producer(server.native) as plain:
        plain.send(topic, b"behind it", partition=0).result(TIMEOUT_S)
    assert read(server, topic) == [], "its transaction is open, and nobody knows it"
    at = ("--data", str(server.data_dir))

    def found() -> list[dict[str, Any]]:
        rows = run("doctor", "--json", *at).json
        return [row for row in rows if row["condition"] == "TransactionHangs" and f"{topic}-0" in row["what"]]

    with Admin(server.native) as admin, Producer(server.native, transactional_id="another") as another:
        with another.transaction():
            for partition in range(TOPIC_PARTITIONS):  # it holds the last stable offset of partition 1
                another.send(topic, b"of another", partition=partition).result(TIMEOUT_S)
            (finding,) = wait_for(found, "the condition", TIMEOUT_S)
            assert server.state["transactions"]["hanging_in"] == [f"{topic}-0"]
            with Remedy(finding) as remedy:
                (row,) = remedy.run("appliance transactions abort-hanging", "--json").json
                assert admin.hanging_transactions(topic, 0) == [row] and row["first"] == 0
                assert read(server, topic) == [], "a dry run changes nothing"
                assert remedy.run("appliance transactions abort-hanging", "--json").json == [row]
            assert read(server, topic) == [b"behind it"] and admin.hanging_transactions(topic, 0) == []
            wait_for(lambda: not found(), "the end of the condition", TIMEOUT_S)
        assert read(server, topic) == [b"behind it", b"of another", b"of another"]
        with pytest.raises(UnknownPartition):
            admin.abort_hanging(topic, TOPIC_PARTITIONS)
        with pytest.raises(UnknownPartition):
            admin.hanging_transactions(topic, TOPIC_PARTITIONS)


def exactly_once(server: Server, topic: str, steps: list[Callable[[list[Copier]], Any]]) -> None:
    """Two copiers copy, whatever the steps do to them and to the appliance; each message is there once."""
    with Admin(server.native) as admin:
        admin.create_topic(topic, TOPIC_PARTITIONS)
        admin.create_topic(f"{topic}-copy", TOPIC_PARTITIONS)
    wanted = [b"%d" % number for number in range(COUNT)]
    with Producer(server.native, batch_messages_max=7) as filler:
        for number, value in enumerate(wanted):
            filler.send(topic, value, partition=number % TOPIC_PARTITIONS)
    with ExitStack() as stack:
        copiers = []
        for number in range(2):
            copiers.append(Copier(server, topic, number, f"{topic}-copy"))
            stack.callback(copiers[-1].kill)
        for step in steps:
            before = [copier.committed() for copier in copiers]
            wait_for(lambda before=before: progress(copiers, before) or complete(server, topic), "progress", TIMEOUT_S)
            step(copiers)
        wait_for(lambda: complete(server, topic), "everything is copied", TIMEOUT_S)
    assert Counter(read(server, f"{topic}-copy")) == Counter(wanted)


def progress(copiers: list[Copier], before: list[int]) -> bool:
    return sum(copier.committed() for copier in copiers) > sum(before)


def complete(server: Server, topic: str) -> bool:
    return len(read(server, f"{topic}-copy")) >= COUNT


def restart(copiers: list[Copier]) -> None:
    copiers[0].kill()
    copiers[0].start()


def stop_and_continue(copiers: list[Copier]) -> None:
    """For longer than its session, so that the other one takes over its partitions."""
    pid = copiers[1].process.pid
    os.kill(pid, signal.SIGSTOP)
    before = copiers[0].committed()
    wait_for(lambda: copiers[0].committed() >= before + 3, "the other one goes on", TIMEOUT_S)
    os.kill(pid, signal.SIGCONT)


def kill(server: Server, role: str) -> Callable[[list[Copier]], None]:
    return lambda _: server.kill(server.pid_of(role))


def test_copies_are_exact_when_members_die(server: Server, topic: str) -> None:
    exactly_once(server, topic, [restart, restart, restart])


def test_copies_are_exact_when_the_appliance_dies_in_parts(make_appliance: Callable[..., Server], topic: str) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    exactly_once(server, topic, [kill(server, role) for role in ("coordinator", "writer", "network", "coordinator")])

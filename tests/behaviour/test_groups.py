"""Groups of real clients on the real server: members come, go, are killed and restarted; so is the coordinator."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ..support.group_member import CONSUMER_PROTOCOL
from ..support.server import Server, wait_for

CLIENTS = ["confluent", "kafka-python", "aiokafka"]
PARTITIONS = 6
PER_PARTITION = 20
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("groups") / "data"
    settings: dict[str, Any] = {
        "zookeeper.nodes": 1,
        "groups.consumer_heartbeat_ms": 200,
        "groups.consumer_session_ms": 4_000,
    }
    with Server(data_dir, **settings) as running:
        running.wait_for_zookeeper()
        yield running


@pytest.fixture
def topic(server: Server) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    fill(server, name, "a")
    return name


def fill(server: Server, topic: str, turn: str) -> None:
    """PER_PARTITION more messages in each partition: "<turn>-<partition>-<number>"."""
    producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 50})
    for number in range(PER_PARTITION):
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{turn}-{partition}-{number}".encode(), partition=partition)
    assert producer.flush(60) == 0


def written(*turns: str) -> set[str]:
    return {f"{turn}-{p}-{n}" for turn in turns for p in range(PARTITIONS) for n in range(PER_PARTITION)}


class Member:
    """A process of ``tests.support.group_member``, and what it has told."""

    def __init__(self, given: dict[str, Any], selector: selectors.BaseSelector) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.group_member", json.dumps(given)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.owns: list[int] | None = None
        self.history: list[list[int]] = []
        self.got: list[str] = []
        self.stopped = False
        self._rest = b""
        self._selector = selector
        selector.register(self.process.stdout, selectors.EVENT_READ, self)

    def take(self) -> None:
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if not data:
            self._selector.unregister(self.process.stdout)
            self.stopped = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for event in map(json.loads, lines):
            if event[0] == "owns":
                self.owns = event[1]
                self.history.append(event[1])
            elif event[0] == "got":
                self.got.append(event[3])

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"stop\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Crowd:
    """The members of one group.  Nothing is timed: everything waits for what the members tell."""

    def __init__(self, server: Server, topic: str) -> None:
        self.server, self.topic = server, topic
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.all: list[Member] = []
        self.gone: list[Member] = []
        self._selector = selectors.DefaultSelector()

    def join(self, client: str = "confluent", **more: Any) -> Member:
        given = {"client": client, "server": self.server.kafka, "group": self.group, "topic": self.topic}
        member = Member(given | more, self._selector)
        self.all.append(member)
        return member

    def leave(self, member: Member) -> None:
        member.ask_to_stop()
        self.wait_for(lambda: member.stopped, "the member leaves")
        self.all.remove(member)
        self.gone.append(member)

    def kill(self, member: Member) -> None:
        member.process.send_signal(signal.SIGKILL)
        self.all.remove(member)
        self.gone.append(member)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            left = deadline - time.monotonic()
            owned = [member.owns for member in self.all]
            assert left > 0, f"not within {SECONDS_MAX} s: {what}; owned: {owned}"
            for key, _ in self._selector.select(left):
                key.data.take()

    def shared(self) -> bool:
        """Each partition has one owner, and the shares are even."""
        owned = [member.owns or [] for member in self.all]
        sizes = [len(each) for each in owned]
        return (
            sorted(number for each in owned for number in each) == list(range(PARTITIONS))
            and max(sizes) - min(sizes) <= 1
        )

    def wait_until_shared(self) -> None:
        self.wait_for(self.shared, f"{len(self.all)} members share {PARTITIONS} partitions")

    def seen(self) -> set[str]:
        return {text for member in self.all + self.gone for text in member.got}

    def wait_until_seen(self, *turns: str) -> None:
        self.wait_for(lambda: written(*turns) <= self.seen(), f"all of {turns} is read")

    def close(self) -> None:
        for member in self.all + self.gone:
            member.end()
        self._selector.close()


@pytest.fixture
def crowd(server: Server, topic: str) -> Iterator[Crowd]:
    members = Crowd(server, topic)
    yield members
    members.close()


def committed(server: Server, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group})
    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = [part.offset for part in consumer.committed(parts, timeout=60)]
    consumer.close()
    return found


def ends(server: Server, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "nobody"})
    found = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in range(PARTITIONS)]
    consumer.close()
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_one_two_five_and_two_members(crowd: Crowd, client: str) -> None:
    first = crowd.join(client)
    crowd.wait_until_shared()
    crowd.join(client)
    crowd.wait_until_shared()
    crowd.wait_until_seen("a")
    for _ in range(3):
        crowd.join(client)
    crowd.wait_until_shared()
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")
    for member in (first, crowd.all[2], crowd.all[3]):
        crowd.leave(member)
    crowd.wait_until_shared()
    fill(crowd.server, crowd.topic, "c")
    crowd.wait_until_seen("a", "b", "c")
    for member in list(crowd.all):
        crowd.leave(member)
    assert committed(crowd.server, crowd.group, crowd.topic) == ends(crowd.server, crowd.topic), "lag 0"


def test_different_clients_in_one_group(crowd: Crowd) -> None:
    for client in CLIENTS:
        crowd.join(client)
    crowd.wait_until_shared()
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_killed_member_is_replaced_when_its_session_ends(crowd: Crowd, client: str) -> None:
    crowd.join(client)
    victim = crowd.join(client, session_ms=1_500)
    crowd.wait_until_shared()
    crowd.kill(victim)
    crowd.wait_until_shared()
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_restarts_unnoticed(crowd: Crowd, client: str) -> None:
    stays = crowd.join(client, instance="one", session_ms=30_000)
    restarts = crowd.join(client, instance="two", session_ms=30_000)
    crowd.wait_until_shared()
    crowd.wait_until_seen("a")
    had, changes = restarts.owns, len(stays.history)
    crowd.kill(restarts)
    again = crowd.join(client, instance="two", session_ms=30_000)
    crowd.wait_for(lambda: again.owns == had, "the same partitions are back")
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")
    assert len(stays.history) == changes, "the other one was not disturbed"


def test_a_cooperative_group_keeps_what_need_not_move(crowd: Crowd) -> None:
    first = crowd.join(strategy="cooperative-sticky")
    crowd.wait_until_shared()
    crowd.join(strategy="cooperative-sticky")
    crowd.wait_until_shared()
    crowd.join(strategy="cooperative-sticky")
    crowd.wait_until_shared()
    sizes = [len(owned) for owned in first.history]
    assert min(sizes) >= 2, f"it never gave up everything: {first.history}"
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")


@pytest.mark.parametrize("client", [*CLIENTS, CONSUMER_PROTOCOL])
def test_the_coordinator_may_die(crowd: Crowd, client: str) -> None:
    crowd.join(client)
    crowd.join(client)
    crowd.wait_until_shared()
    crowd.wait_until_seen("a")
    wait_for(lambda: min(committed(crowd.server, crowd.group, crowd.topic)) > 0, "a commit in each partition")
    pid = crowd.server.pid_of("coordinator")
    crowd.server.kill(pid)
    wait_for(lambda: crowd.server.pids("coordinator") not in ([], [pid]), "another coordinator")
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")
    for member in list(crowd.all):
        crowd.leave(member)
    assert committed(crowd.server, crowd.group, crowd.topic) == ends(crowd.server, crowd.topic)


@pytest.mark.parametrize("client", [*CLIENTS, pytest.param(CONSUMER_PROTOCOL, marks=pytest.mark.long)])
def test_zookeeper_may_die(crowd: Crowd, client: str) -> None:
    """The group goes on, its commits are made good when ZooKeeper is back."""
    crowd.join(client)
    crowd.join(client)
    crowd.wait_until_shared()
    crowd.wait_until_seen("a")
    pid = crowd.server.pid_of("zookeeper")
    crowd.server.kill(pid)
    fill(crowd.server, crowd.topic, "b")
    crowd.wait_until_seen("a", "b")
    crowd.server.wait_for_zookeeper()
    fill(crowd.server, crowd.topic, "c")
    crowd.wait_until_seen("a", "b", "c")
    for member in list(crowd.all):
        crowd.leave(member)
    assert committed(crowd.server, crowd.group, crowd.topic) == ends(crowd.server, crowd.topic)


def test_the_registry_shows_who_owns_what(crowd: Crowd) -> None:
    crowd.join("confluent")
    crowd.join("kafka-python")
    crowd.wait_until_shared()
    client = crowd.server.zookeeper_client()
    client.start()
    try:
        base = f"/consumers/{crowd.group}"

        def owners() -> list[int]:
            if not client.exists(f"{base}/owners/{crowd.topic}"):
                return []
            return sorted(int(name) for name in client.get_children(f"{base}/owners/{crowd.topic}"))

        wait_for(lambda: owners() == list(range(PARTITIONS)), "all partitions have owners in ZooKeeper")
        assert len(client.get_children(f"{base}/ids")) == 2
        for member in list(crowd.all):
            crowd.leave(member)
        wait_for(lambda: not owners() and not client.get_children(f"{base}/ids"), "nobody is left there")
    finally:
        client.stop()
        client.close()


def test_resuming_in_the_middle_of_a_batch_is_exact(server: Server, topic: str) -> None:
    """Batches hold PER_PARTITION messages; a committed position may lie anywhere inside one."""
    settings = {
        "bootstrap.servers": server.kafka,
        "group.id": f"group-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    for taken in range(5):
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        message = wait_for(lambda: of_partition(consumer, 3), "a message of partition 3")  # noqa: B023
        assert message.value().decode() == f"a-3-{taken}"
        consumer.commit(message=message, asynchronous=False)
        consumer.close()


def of_partition(consumer: Consumer, number: int) -> Any:
    message = consumer.poll(1)
    return message if message is not None and message.partition() == number else None


def test_only_members_commit_while_there_are_members(server: Server, topic: str) -> None:
    settings = {
        "bootstrap.servers": server.kafka,
        "group.id": f"group-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    stranger, member = Consumer(settings), Consumer(settings)
    member.subscribe([topic])
    wait_for(lambda: member.poll(0.1), "a message")
    position = [TopicPartition(topic, 0, 1)]
    with pytest.raises(KafkaException) as raised:
        stranger.commit(offsets=position, asynchronous=False)
    assert raised.value.args[0].name() == "UNKNOWN_MEMBER_ID"
    member.close()
    stranger.commit(offsets=position, asynchronous=False)
    stranger.close()

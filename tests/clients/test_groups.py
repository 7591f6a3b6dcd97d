"""Consumer groups of real clients: members that join, leave and are killed; every message once, none lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.support.native_peer import Peer
from tests.support.server import wait_for

from .adapters import DEADLINE_S, confluent_events, java, new_topic
from .conftest import Broker

PARTITIONS = 6
PER_PARTITION = 50
COMMITS_MAX = 100
REBALANCED = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
"""What a commit is answered when it crosses the reply that ends a rebalance."""
REJOIN = (
    *REBALANCED,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
"""What a commit may be answered when the group has lost its coordinator; the client then joins again."""
ASSIGNORS = ("coordinator-uniform", "coordinator-range")
"""Who assigns in the consumer protocol (KIP-848)."""
STRATEGIES = [
    *("range", "cooperative-sticky"),
    *(
        pytest.param(strategy, marks=pytest.mark.long) for strategy in ("roundrobin", *ASSIGNORS)
    ),  # other tests have such members, too
]


@pytest.fixture
def empty_topic(broker: Broker) -> str:
    name = new_topic()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(DEADLINE_S)
    return name


@pytest.fixture
def topic(broker: Broker, empty_topic: str) -> str:
    fill(broker, empty_topic, 0)
    return empty_topic


def fill(broker: Broker, topic: str, turn: int) -> None:
    """PER_PARTITION more messages in each partition: "turn-partition-number"."""
    producer = Producer({"bootstrap.servers": broker.kafka})
    for partition in range(PARTITIONS):
        for number in range(PER_PARTITION):
            producer.produce(topic, f"{turn}-{partition}-{number}".encode(), partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def settings(broker: Broker, group: str, strategy: str) -> dict[str, Any]:
    """Of a member of the classic protocol; of the consumer protocol, if the strategy is one of ASSIGNORS."""
    protocol = {"partition.assignment.strategy": strategy, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
    if strategy in ASSIGNORS:
        protocol = {"group.protocol": "consumer", "group.remote.assignor": strategy.removeprefix("coordinator-")}
    return {
        "bootstrap.servers": broker.kafka,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
    } | protocol


class Members:
    """Consumers of one group in this process, polled in turn.

    A commit runs in a thread while the others are polled: it may wait behind its member's JoinGroup, which waits until
    they have joined, too, and librdkafka joins in ``poll``.  Until then nothing else is asked of that member: the
    client for Python lets one thread at a time into a consumer.
    """

    def __init__(self, broker: Broker, topic: str, strategy: str) -> None:
        self.group = f"group-{uuid.uuid4()}"
        self._broker = broker
        self._settings = settings(broker, self.group, strategy)
        self._topic = topic
        self.all: list[Consumer] = []
        self.commits_may_fail = False
        self.seen: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor()
        self._commits: dict[Consumer, Future[None]] = {}

    def join(self, strategy: str = "") -> Consumer:
        """``strategy``: that of this member, if it is not that of the others."""
        consumer = Consumer(self._settings if not strategy else settings(self._broker, self.group, strategy))
        consumer.subscribe([self._topic])
        self.all.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.all.remove(consumer)
        while not self._has_committed(consumer):
            self.poll()
        consumer.close()

    def close(self) -> None:
        while self.all:
            self.leave(self.all[0])
        self._threads.shutdown()

    def poll(self) -> None:
        for consumer in self.all:
            if not self._has_committed(consumer):
                continue
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                self.seen[(message.value() or b"").decode()] += 1
                self._commits[consumer] = self._threads.submit(self.commit, consumer, message)

    def _has_committed(self, consumer: Consumer) -> bool:
        """Wait a moment for its commit; an error of the commit is raised here."""
        if consumer in self._commits:
            try:
                self._commits[consumer].result(0.05)
            except TimeoutError:
                return False
            del self._commits[consumer]
        return True

    def commit(self, consumer: Consumer, message: Message) -> None:
        """Commit.  One that is refused because of a rebalance is sent again, at most COMMITS_MAX times.

        With ``commits_may_fail`` one that is refused for any of REJOIN is given up instead.
        """
        for left in range(COMMITS_MAX, 0, -1):
            try:
                consumer.commit(message=message, asynchronous=False)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if self.commits_may_fail:
                    assert code in REJOIN, error
                    return
                assert code in REBALANCED and left > 1, error

    def poll_until_shared(self) -> None:
        """Until each member owns its share and all partitions are owned."""
        owned: list[int] = []
        for _ in range(1_000):
            if all([self._has_committed(consumer) for consumer in self.all]):
                owned = [len(consumer.assignment()) for consumer in self.all]
                if sum(owned) == PARTITIONS and max(owned) - min(owned) <= 1:
                    return
            self.poll()
        raise AssertionError(f"no even share: {owned}")

    def poll_until_seen(self, count: int) -> None:
        for _ in range(100 * count):
            if len(self.seen) >= count:
                return
            self.poll()
        raise AssertionError(f"{len(self.seen)} of {count} messages seen")


@contextmanager
def members(broker: Broker, topic: str, strategy: str) -> Iterator[Members]:
    group = Members(broker, topic, strategy)
    try:
        yield group
    finally:
        group.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_two_five_and_two_members(broker: Broker, topic: str, strategy: str) -> None:
    """Every message once: commits are made after each, and nobody is killed."""
    with members(broker, topic, strategy) as group:
        first = group.join()
        group.poll_until_shared()
        group.join()
        group.poll_until_shared()
        group.poll_until_seen(PARTITIONS * PER_PARTITION // 2)
        for _ in range(3):
            group.join()
        group.poll_until_shared()
        group.leave(first)
        group.leave(group.all[0])
        group.leave(group.all[0])
        group.poll_until_shared()
        fill(broker, topic, 1)
        group.poll_until_seen(2 * PARTITIONS * PER_PARTITION)
        assert set(group.seen.values()) == {1}


MEMBER = """
import sys
from confluent_kafka import Consumer
import json
consumer = Consumer(json.loads(sys.argv[1]))
consumer.subscribe([sys.argv[2]])
while True:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        print("got", flush=True)
"""


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_change_the_protocol_one_after_the_other(broker: Broker, topic: str, strategy: str) -> None:
    """To the consumer protocol and back, as a rolling restart of the clients does: every message once."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})

    def described() -> tuple[ConsumerGroupType, set[str]]:
        found = admin.describe_consumer_groups([group.group])[group.group].result(DEADLINE_S)
        with Peer(broker.native) as peer:
            shown = peer.admin("group", group=group.group)
        assert (shown["protocol"], shown["state"]) == ("kafka", "stable")
        assert {row["id"] for row in shown["members"]} == {member.member_id for member in found.members}
        return found.type, {row["owner"] for row in shown["partitions"]}

    with members(broker, topic, strategy) as group:
        group.join()
        group.join()
        group.poll_until_shared()
        group.poll_until_seen(PARTITIONS * PER_PARTITION // 4)
        kinds = []
        for turn, protocol in enumerate(["coordinator-uniform"] * 2 + [strategy] * 2, 1):
            group.join(protocol)
            group.poll_until_shared()
            fill(broker, topic, turn)
            group.leave(group.all[0])
            group.poll_until_shared()
            kind, owners = described()
            kinds.append(kind)
            assert len(owners) == 2, "both are shown with what they have"
        consumer, classic = ConsumerGroupType.CONSUMER, ConsumerGroupType.CLASSIC
        assert kinds == [consumer, consumer, consumer, classic]
        group.poll_until_seen(5 * PARTITIONS * PER_PARTITION)
        assert set(group.seen.values()) == {1}


@pytest.mark.timeout(400)  # the first time its jars are fetched
@pytest.mark.parametrize("kind", ["eager", pytest.param("cooperative", marks=pytest.mark.long)])
def test_members_of_the_java_client_change_the_protocol(broker: Broker, topic: str, kind: str) -> None:
    found = json.loads(java("Migration", broker.kafka, topic, f"group-{uuid.uuid4()}", kind))
    assert found["sent"] > 0 and (found["twice"], found["lost"]) == (0, 0), found


def test_a_share_consumer_is_told_that_there_are_no_share_groups(broker: Broker, topic: str) -> None:
    """KIP-932.  librdkafka waits for ever, without a word, for a broker that does not list the API."""
    one = ShareConsumer({"bootstrap.servers": broker.kafka, "group.id": topic})
    one.subscribe([topic])

    def poll_until_told() -> None:
        for _ in range(int(DEADLINE_S)):
            one.poll(1)

    with pytest.raises(KafkaException) as told:
        poll_until_told()
    error = told.value.args[0]
    assert error.code() == KafkaError.UNSUPPORTED_VERSION and error.fatal() and "ShareGroupHeartbeat" in str(error)
    one.close()


def test_a_subscription_by_pattern_follows_the_topics(broker: Broker) -> None:
    """The coordinator matches; a topic that is made is read with the next heartbeat."""
    name, admin = new_topic(), AdminClient({"bootstrap.servers": broker.kafka})
    consumer = Consumer(settings(broker, name, "coordinator-uniform"))
    consumer.subscribe([f"^{name}-[ab]$"])
    producer = Producer({"bootstrap.servers": broker.kafka})
    events = confluent_events(consumer)
    for end in ("a", "c", "b"):
        admin.create_topics([NewTopic(f"{name}-{end}", 2, 1)])[f"{name}-{end}"].result(DEADLINE_S)
        producer.produce(f"{name}-{end}", end.encode())
        assert producer.flush(DEADLINE_S) == 0
        if end != "c":
            message = next(events)
            assert (message.error(), message.value()) == (None, end.encode())
    assert {(part.topic[-1], part.partition) for part in consumer.assignment()} == {
        (end, number) for end in "ab" for number in range(2)
    }
    consumer.close()


@pytest.mark.parametrize("strategy", ["range", "coordinator-uniform"])
def test_a_killed_member_is_replaced_after_its_session(broker: Broker, topic: str, strategy: str) -> None:
    """It never committed: all that it had comes to the one that is left."""
    with members(broker, topic, strategy) as group:
        victim = subprocess.Popen(
            [sys.executable, "-c", MEMBER, json.dumps(settings(broker, group.group, strategy)), topic],
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None and victim.stdout.readline() == b"got\n"
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        victim.stdout.close()
        group.join()
        group.poll_until_shared()
        group.poll_until_seen(PARTITIONS * PER_PARTITION)


def test_a_session_lasts_as_long_as_its_group_has_it(broker: Broker, topic: str) -> None:
    """Members of two groups are killed, that of the one with a longer session first: the other goes, and it stays."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    longer, other = (f"group-{uuid.uuid4()}" for _ in range(2))
    entry = ConfigEntry("consumer.session.timeout.ms", "600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, longer, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.GROUP, longer)]).values()
    assert described.result(DEADLINE_S)["consumer.session.timeout.ms"].value == "600000"
    for group in (longer, other):
        member = subprocess.Popen(
            [sys.executable, "-c", MEMBER, json.dumps(settings(broker, group, "coordinator-uniform")), topic],
            stdout=subprocess.PIPE,
        )
        assert member.stdout is not None and member.stdout.readline() == b"got\n"
        member.kill()
        member.wait()
        member.stdout.close()
    with Peer(broker.native) as peer:
        wait_for(lambda: not peer.admin("group", group=other)["members"], "the session of the other is over")
        assert len(peer.admin("group", group=longer)["members"]) == 1


@pytest.mark.parametrize("strategy", ["range", "coordinator-uniform"])
def test_a_static_member_comes_back_without_a_rebalance(broker: Broker, topic: str, strategy: str) -> None:
    group = f"group-{uuid.uuid4()}"
    common = settings(broker, group, strategy)
    if strategy == "range":
        common["session.timeout.ms"] = 30_000
    other = Consumer({**common, "group.instance.id": "b"})
    rebalances: list[object] = []
    other.subscribe([topic], on_assign=lambda _, partitions: rebalances.append(partitions))
    for _ in range(2):
        member = Consumer({**common, "group.instance.id": "a"})
        member.subscribe([topic])
        shared = False
        for _ in range(600):
            other.poll(0.05)
            member.poll(0.05)
            if len(other.assignment()) == len(member.assignment()) == PARTITIONS // 2:
                shared = True
                break
        assert shared
        before = len(rebalances)
        member.close()
    assert len(rebalances) == before
    other.close()


@pytest.mark.timeout(400)  # the first time its jars are fetched
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_of_the_java_client_comes_back_without_a_rebalance(
    broker: Broker, topic: str, protocol: str
) -> None:
    """Its classic metadata differ from what it had before, with a generation in them; its assignment does not."""
    found = json.loads(java("StaticMember", broker.kafka, topic, f"group-{uuid.uuid4()}", protocol))
    assert found["after"] == found["before"] and len(found["before"]) == PARTITIONS // 2
    assert found["rebalances"] == 0


def test_the_coordinator_may_die(broker: Broker, topic: str) -> None:
    """kill -9: members join again, committed offsets are kept, every message is seen."""
    with members(broker, topic, "range") as group:
        group.join()
        group.join()
        group.poll_until_shared()
        group.poll_until_seen(PARTITIONS * PER_PARTITION // 2)
        kill_coordinator(broker)
        group.commits_may_fail = True
        group.poll_until_seen(PARTITIONS * PER_PARTITION)
        fill(broker, topic, 1)
        group.poll_until_seen(2 * PARTITIONS * PER_PARTITION)


def kill_coordinator(broker: Broker) -> None:
    pid = broker.pid_of("coordinator")
    broker.kill(pid)


def restart(broker: Broker) -> None:
    assert broker.stop() == 0
    broker.start()


@pytest.mark.parametrize(
    ("strategy", "strike"),
    [
        ("range", kill_coordinator),
        ("cooperative-sticky", restart),
        ("coordinator-uniform", kill_coordinator),
        pytest.param("range", restart, marks=pytest.mark.long),
        pytest.param("cooperative-sticky", kill_coordinator, marks=pytest.mark.long),
        pytest.param("coordinator-uniform", restart, marks=pytest.mark.long),
    ],
)
def test_members_survive_their_coordinator(
    broker: Broker, empty_topic: str, strategy: str, strike: Callable[[Broker], None]
) -> None:
    """They keep what they own, and commit with the generation that they had; nothing is read twice.

    Messages come when all is shared: on a slow machine the first member would have read all of them before.
    """
    group = f"group-{uuid.uuid4()}"
    common = settings(broker, group, strategy)
    if not strategy.startswith("coordinator"):
        common["session.timeout.ms"] = 30_000
    rebalances: list[str] = []
    consumers = [Consumer(common) for _ in range(2)]
    for number, consumer in enumerate(consumers):
        consumer.subscribe(
            [empty_topic],
            on_assign=lambda _, parts, number=number: rebalances.append(f"{number} is given {parts}"),
            on_revoke=lambda _, parts, number=number: rebalances.append(f"{number} gives up {parts}"),
            on_lost=lambda _, parts, number=number: rebalances.append(f"{number} has lost {parts}"),
        )
    read: Counter[bytes] = Counter()

    def poll_until(holds: Callable[[], bool], what: str) -> None:
        for _ in range(1_200):
            for consumer in consumers:
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    read[message.value() or b""] += 1
            if holds():
                return
        raise AssertionError(what)

    shared = [PARTITIONS // 2] * 2
    poll_until(lambda: [len(consumer.assignment()) for consumer in consumers] == shared, "nothing is shared")
    fill(broker, empty_topic, 0)
    poll_until(lambda: len(read) == PARTITIONS * PER_PARTITION, "not all is read")
    before, owned = list(rebalances), [sorted(map(str, consumer.assignment())) for consumer in consumers]
    strike(broker)
    for consumer in consumers:
        commit_in_the_end(consumer)
    fill(broker, empty_topic, 1)
    poll_until(lambda: len(read) == 2 * PARTITIONS * PER_PARTITION, "what came later is not read")
    assert rebalances == before
    assert [sorted(map(str, consumer.assignment())) for consumer in consumers] == owned
    assert set(read.values()) == {1}
    for consumer in consumers:
        consumer.close()


def commit_in_the_end(consumer: Consumer) -> None:
    """Commit, in spite of errors that pass."""
    passing = (
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
    errors: Counter[str] = Counter()
    for _ in range(600):
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException as failed:
            error = failed.args[0]
            assert error.code() in passing or error.code() < 0, error  # those below 0 are of the client itself
            errors[str(error)] += 1
            consumer.poll(0.1)
    raise AssertionError(f"no commit gets through: {errors}")


def test_committed_offsets_outlive_a_restart(broker: Broker, topic: str) -> None:
    group = f"group-{uuid.uuid4()}"
    consumer = Consumer(settings(broker, group, "range"))
    wanted = [TopicPartition(topic, partition, 10 * partition + 1) for partition in range(PARTITIONS)]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()
    assert broker.stop() == 0
    broker.start()
    consumer = Consumer(settings(broker, group, "range"))
    found = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=DEADLINE_S)
    consumer.close()
    assert [part.offset for part in found] == [part.offset for part in wanted]


def test_a_commit_for_every_message_succeeds_at_any_depth(broker: Broker, topic: str) -> None:
    """Goal: librdkafka pipelines its asynchronous commits; none is refused and the last one stays."""
    answers: list[Any] = []
    conf = settings(broker, "g-" + topic, "range")
    conf["on_commit"] = lambda error, partitions: answers.append(error or [part.error for part in partitions])
    consumer = Consumer(conf)
    consumer.subscribe([topic])
    wanted = PARTITIONS * PER_PARTITION
    for _, message in zip(range(wanted), confluent_events(consumer), strict=False):
        consumer.commit(message, asynchronous=True)
    for _ in range(1_000):
        if len(answers) >= wanted:
            break
        consumer.poll(0.05)
    assert answers == [[None]] * wanted
    found = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=DEADLINE_S)
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=DEADLINE_S)[1] for p in range(PARTITIONS)]
    consumer.close()
    assert [part.offset for part in found] == ends


def test_a_group_that_waits_gets_what_comes(broker: Broker, topic: str) -> None:
    """Caught up and idle in long poll; the next messages arrive without a new rebalance."""
    with members(broker, topic, "cooperative-sticky") as group:
        consumer = group.join()
        group.poll_until_seen(PARTITIONS * PER_PARTITION)
        fill(broker, topic, 1)
        wanted = PARTITIONS * PER_PARTITION
        for _, message in zip(range(wanted), confluent_events(consumer), strict=False):
            assert message.error() is None
            wanted -= 1
        assert wanted == 0

"""The same requests to an appliance and to Apache Kafka 4.4 itself: the answers must be the same.

Kafka's jars are those of the Java client; where they cannot be had, only the appliance is asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.bench import brokers
from appliance.client import Admin, GroupConsumer, Producer
from appliance.config import TOPIC_KEYS
from appliance.errors import DuplicateSequence, InvalidRequest, OutOfOrderSequence, UnknownGroup
from appliance.records.encode import encode_values
from appliance.wire.kafka.codes import Code

from ..support.kafka_peer import KafkaPeer
from ..support.sequence_cases import APPENDED, CASES, EMPTIED, MADE_AGAIN
from ..support.server import wait_for
from .adapters import kafka_jars, new_topic
from .conftest import Broker

SMALL_JVM = ["-Xmx400m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
PRODUCER = 7
NO_COORDINATOR_YET = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
NOT_YET = (3, 5, 6)
"""Kafka leads a new partition a moment after it has been created."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of Apache Kafka."""
    if shutil.which("java") is None:
        pytest.skip("no java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LIB", kafka_jars())
        patch.setattr(brokers, "JVM", SMALL_JVM)
        broker = brokers.KafkaBroker(tmp_path_factory.mktemp("kafka"))
    wait_for(lambda: coordinates(broker.address), "a coordinator of groups")
    yield broker.address
    broker.stop()


def coordinates(address: str) -> bool:
    """Whether Kafka has a coordinator of groups; asking makes its topic.  It may hang up while it starts."""
    with suppress(EOFError), KafkaPeer(address) as peer:
        return bool(find(peer, "any").error_code == 0)
    return False


def find(peer: KafkaPeer, group: str) -> Any:
    return peer.ask("FindCoordinator", 3, key=group, key_type=0)


@pytest.fixture(params=["appliance", "kafka"])
def peer(request: pytest.FixtureRequest) -> Iterator[KafkaPeer]:
    broker = request.getfixturevalue("broker" if request.param == "appliance" else "kafka")
    with KafkaPeer(broker.kafka if isinstance(broker, Broker) else broker) as connected:
        yield connected


def create(peer: KafkaPeer, topic: str, partitions: int = 1) -> None:
    row = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    assert peer.ask("CreateTopics", 4, topics=[row], timeout_ms=30_000).topics[0].error_code == 0

    # A Kafka names leaders before they lead: only what the log itself answers says that it serves.
    rows = [{"partition_index": number, "current_leader_epoch": -1, "timestamp": -1} for number in range(partitions)]

    def served() -> bool:
        asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": rows}]}
        (found,) = peer.ask("ListOffsets", 5, **asked).topics
        return all(part.error_code == 0 for part in found.partitions)

    wait_for(served, f"{topic} to be led")


def delete(peer: KafkaPeer, topic: str) -> None:
    assert peer.ask("DeleteTopics", 3, topic_names=[topic], timeout_ms=30_000).responses[0].error_code == 0


def produce(peer: KafkaPeer, topic: str, batch: bytes) -> Any:
    part = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}

    def ask() -> Any:
        reply = peer.ask("Produce", 8, acks=-1, timeout_ms=10_000, topic_data=[part])
        answer = reply.responses[0].partition_responses[0]
        return answer if answer.error_code not in NOT_YET else None

    return wait_for(ask, f"{topic} to be led")


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_idempotent_producers(peer: KafkaPeer, name: str) -> None:
    topic, bases = new_topic(), []
    create(peer, topic)
    for index, step in enumerate(CASES[name]):
        bases.append(-1)
        if step == MADE_AGAIN:
            delete(peer, topic)
            create(peer, topic)
            bases = [-1] * len(bases)
        elif step == EMPTIED:
            part = {"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}
            peer.ask("DeleteRecords", 1, topics=[part], timeout_ms=30_000)
        else:
            (epoch, sequence, count), answer = step
            numbers = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence}
            said = produce(peer, topic, encode_values([b"v"] * count, 1_000, **numbers))
            bases[-1] = said.base_offset
            what = f"step {index}: {step}"
            if answer == APPENDED:
                assert said.error_code == 0 and said.base_offset not in bases[:-1], what
            elif isinstance(answer, tuple):
                assert (said.error_code, said.base_offset) == (0, bases[answer[1]]), what
            else:
                assert said.error_code == (OutOfOrderSequence if answer is DuplicateSequence else answer).code, what


# ---- fetch sessions


class FetchSession:
    """A session of a topic's partitions 0 and so on: what its replies say."""

    def __init__(self, peer: KafkaPeer, topic: str, version: int) -> None:
        self._peer, self._version = peer, version
        self._named = {"topic": topic}
        if version >= 13:
            self._named = {"topic_id": peer.ask("Metadata", 12, topics=[{"name": topic}]).topics[0].topic_id}
        self.id = self.next_offset = 0

    def ask(self, epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> Any:
        rows = [{"partition": number, "fetch_offset": offset, **ROW} for number, offset in offsets.items()]
        topics = [{**self._named, "partitions": rows}] if rows else []
        forget = [{**self._named, "partitions": list(forgotten)}] if forgotten else []
        session = {"session_id": self.id, "session_epoch": epoch, "forgotten_topics_data": forget}
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        return self._peer.ask("Fetch", self._version, topics=topics, **session, **limits)

    def named(
        self, epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()
    ) -> list[tuple[int, int, bool]]:
        """Number, error, and whether there is data, of the partitions that the reply names."""
        reply = self.ask(epoch, offsets, forgotten)
        assert reply.error_code == 0 and (not self.id or reply.session_id == self.id)
        self.id = reply.session_id
        parts = sorted(
            (part for topic in reply.responses for part in topic.partitions), key=lambda one: one.partition_index
        )
        self.next_offset = max([part.high_watermark for part in parts], default=0)
        return [(part.partition_index, part.error_code, bool(part.records)) for part in parts]


ROW = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_what_the_replies_of_a_fetch_session_name(peer: KafkaPeer, version: int) -> None:
    topic = new_topic()
    create(peer, topic, 3)
    session = FetchSession(peer, topic, version)
    assert session.named(0, {0: 0, 1: 0, 2: 0}) == [(0, 0, False), (1, 0, False), (2, 0, False)]
    assert session.id > 0
    assert session.named(1, {}) == []
    produce(peer, topic, encode_values([b"v"], 1_000))
    assert session.named(2, {}) == session.named(3, {}) == [(0, 0, True)]
    end = session.next_offset
    assert session.named(4, {0: end}) == []
    assert session.ask(4, {}).error_code == 71
    assert session.named(5, {0: end + 1_000}) == session.named(6, {}) == [(0, 1, False)]
    assert session.named(7, {0: end}) == [(0, 0, False)]
    assert session.named(8, {0: 0}, (0,)) == []
    assert session.named(9, {0: 0}) == [(0, 0, True)]
    reply = session.ask(10, {}, (0, 1, 2))
    assert (reply.error_code, reply.session_id) == (0, 0), "nothing is left of it"
    assert session.ask(11, {}).error_code == 70
    session.id = 0
    assert session.named(0, {0: end}) == [(0, 0, False)]
    reply = session.ask(-1, {})
    assert (reply.error_code, reply.session_id) == (0, 0)
    assert session.ask(1, {}).error_code == 70


# ---- groups: the same condition, asked with every verb


def join(peer: KafkaPeer, group: str, *, comes_back: bool = True) -> tuple[str, int]:
    """Become the only member of a group, or only take an id for it; the member id and generation."""
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    offer = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": bytes(10)}]}

    def ask() -> Any:
        reply = peer.ask("JoinGroup", 5, group_id=group, member_id="", group_instance_id=None, **times, **offer)
        return reply if reply.error_code not in NO_COORDINATOR_YET else None

    given = wait_for(ask, "the coordinator to be ready")
    assert given.error_code == Code.MEMBER_ID_REQUIRED, given
    if not comes_back:
        return given.member_id, -1
    name = {"group_id": group, "group_instance_id": None}
    joined = peer.ask("JoinGroup", 5, member_id=given.member_id, **name, **times, **offer)
    assert joined.error_code == 0, joined
    mine = [{"member_id": joined.member_id, "assignment": bytes(10)}]
    member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assert peer.ask("SyncGroup", 3, **name, **member, assignments=mine).error_code == 0
    return joined.member_id, joined.generation_id


def leave(peer: KafkaPeer, group: str, member_id: str) -> None:
    member = [{"member_id": member_id, "group_instance_id": None}]
    assert peer.ask("LeaveGroup", 3, group_id=group, members=member).error_code == 0


def commit(peer: KafkaPeer, group: str, topic: str, offset: int = 1) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    row = {"name": topic, "partitions": [part]}

    def ask() -> list[int]:
        reply = peer.ask("OffsetCommit", 3, group_id=group, generation_id_or_member_epoch=-1, topics=[row])
        code = reply.topics[0].partitions[0].error_code
        return [code] if code not in NO_COORDINATOR_YET else []

    (code,) = wait_for(ask, "the coordinator to be ready")
    return int(code)


def only_given_an_id(peer: KafkaPeer, group: str, topic: str) -> None:
    join(peer, group, comes_back=False)


def with_a_member(peer: KafkaPeer, group: str, topic: str) -> None:
    join(peer, group)


def emptied(peer: KafkaPeer, group: str, topic: str) -> None:
    leave(peer, group, join(peer, group)[0])


def emptied_with_a_commit(peer: KafkaPeer, group: str, topic: str) -> None:
    emptied(peer, group, topic)
    commit(peer, group, topic)


def only_committed(peer: KafkaPeer, group: str, topic: str) -> None:
    commit(peer, group, topic)


def never_there(peer: KafkaPeer, group: str, topic: str) -> None:
    commit(peer, f"{group}-other", topic)  # the coordinator is there


STANDINGS = {
    # described, listed, its topic's offset deleted, itself deleted, listed after that
    only_given_an_id: ("Empty", True, 0, 0, False),
    with_a_member: ("Stable", True, 0, Code.NON_EMPTY_GROUP, True),
    emptied: ("Empty", True, 0, 0, False),
    emptied_with_a_commit: ("Empty", True, 0, 0, False),
    only_committed: ("Empty", True, 0, 0, False),
    never_there: ("Dead", False, Code.GROUP_ID_NOT_FOUND, Code.GROUP_ID_NOT_FOUND, False),
}


@pytest.mark.parametrize("make", STANDINGS)
def test_every_verb_knows_the_same_groups(
    peer: KafkaPeer, make: Callable[[KafkaPeer, str, str], None], request: pytest.FixtureRequest
) -> None:
    topic = new_topic()
    group = f"group-of-{topic}"
    create(peer, topic)
    make(peer, group, topic)

    def listed() -> bool:
        return group in {row.group_id for row in peer.ask("ListGroups", 4, states_filter=[]).groups}

    (described,) = peer.ask("DescribeGroups", 4, groups=[group]).groups
    before = described.group_state, listed()
    if make is only_given_an_id and "[kafka-" in request.node.name:
        before = "Empty", True  # Kafka describes and lists what it has stored of it, now or a moment later, or never
    row = {"name": topic, "partitions": [{"partition_index": 0}]}
    offsets = peer.ask("OffsetDelete", 0, group_id=group, topics=[row]).error_code
    (deleted,) = peer.ask("DeleteGroups", 1, groups_names=[group]).results
    assert (*before, offsets, deleted.error_code, listed()) == STANDINGS[make]


@pytest.mark.parametrize("make", STANDINGS)
def test_native_verbs_know_the_same_groups(broker: Broker, make: Callable[[KafkaPeer, str, str], None]) -> None:
    topic = new_topic()
    group = f"group-of-{topic}"
    states = {"Empty": "empty", "Stable": "stable"}
    described, listed, _, deleted, after = STANDINGS[make]

    def shown(admin: Admin) -> list[str]:
        return [row["state"] for row in admin.groups() if row["group"] == group]

    with KafkaPeer(broker.kafka) as peer, Admin(broker.native) as admin:
        create(peer, topic)
        make(peer, group, topic)
        assert shown(admin) == ([states[described]] if listed else [])
        if listed:
            assert admin.group(group)["state"] == states[described]
        else:
            with pytest.raises(UnknownGroup):
                admin.group(group)
        error = {0: None, Code.NON_EMPTY_GROUP: InvalidRequest, Code.GROUP_ID_NOT_FOUND: UnknownGroup}[deleted]
        with pytest.raises(error) if error else nullcontext():
            admin.delete_offsets(group)
        assert bool(shown(admin)) is after


@pytest.mark.parametrize("offset", [5, 0, -1, -2, -5, 2**63 - 1])
def test_every_offset_that_is_committed_is_returned(peer: KafkaPeer, offset: int) -> None:
    topic = new_topic()
    group = f"group-of-{topic}"
    create(peer, topic)
    assert commit(peer, group, topic, offset) == 0
    for topics in ([{"name": topic, "partition_indexes": [0]}], None):
        (row,) = peer.ask("OffsetFetch", 5, group_id=group, topics=topics).topics
        (found,) = row.partitions
        assert (found.committed_offset, found.metadata, found.error_code) == (offset, "note", 0)


def test_a_negative_offset_is_none_to_native_groups(broker: Broker) -> None:
    topic = new_topic()
    group = f"group-of-{topic}"
    with KafkaPeer(broker.kafka) as peer, Admin(broker.native) as admin:
        create(peer, topic)
        assert commit(peer, group, topic, -2) == 0
        assert admin.offsets(group) == {} and admin.group(group)["partitions"] == []
    with Producer(broker.native) as producer:
        producer.send(topic, b"first").result(60)
    with GroupConsumer(broker.native, group) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        assert next(iter(stream)).value == b"first"


# ---- settings

OTHER_VALUES = {
    "retention.ms": "3600000", "retention.bytes": "1073741824", "segment.bytes": "2097152", "segment.ms": "3600000",
    "max.message.bytes": "2000000", "flush.messages": "0", "flush.ms": "5000", "flush.bytes": "65536",
    "message.timestamp.type": "LogAppendTime", "message.validate": "true", "index.interval.bytes": "8192",
    "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25", "min.compaction.lag.ms": "1000",
    "max.compaction.lag.ms": "86400000", "delete.retention.ms": "3600000",
}  # fmt: skip
TOPIC_RESOURCE, SET = 2, 0


def test_what_kafkas_tools_are_shown_can_be_copied_to_a_kafka(broker: Broker, kafka: str) -> None:
    """Method: a topic has another value for everything that it can set; all that is shown is set at a Kafka."""
    topic = new_topic()
    assert OTHER_VALUES.keys() == TOPIC_KEYS.keys()
    with Admin(broker.native) as admin:
        admin.create_topic(topic, 1, OTHER_VALUES)
    with KafkaPeer(broker.kafka) as ours, KafkaPeer(kafka) as theirs:
        create(theirs, topic)
        asked = [{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": None}]
        (shown,) = ours.ask("DescribeConfigs", 3, resources=asked).results
        (known,) = theirs.ask("DescribeConfigs", 3, resources=asked).results
        assert {row.name for row in shown.configs} <= {row.name for row in known.configs}
        rows = [{"name": row.name, "config_operation": SET, "value": row.value} for row in shown.configs]
        change = [{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": rows}]
        (answer,) = theirs.ask("IncrementalAlterConfigs", 1, resources=change).responses
        assert answer.error_code == 0, answer
        (back,) = ours.ask("IncrementalAlterConfigs", 1, resources=change).responses
        assert back.error_code == 0, back


# ---- producers


def producers_of(peer: KafkaPeer, topic: str) -> list[tuple[int, ...]]:
    row = {"name": topic, "partition_indexes": [0]}
    (part,) = peer.ask("DescribeProducers", 0, topics=[row]).topics[0].partitions
    assert part.error_code == 0, part
    return sorted(
        (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset)
        for one in part.active_producers
    )


def write_as(peer: KafkaPeer, topic: str, producer_id: int, epoch: int, sequence: int, count: int) -> None:
    numbers = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    batch = encode_values([b"v"] * count, 1_000 * producer_id, **numbers)
    assert produce(peer, topic, batch).error_code == 0


def test_producers_are_described(peer: KafkaPeer) -> None:
    topic = new_topic()
    create(peer, topic)
    assert producers_of(peer, topic) == []
    produce(peer, topic, encode_values([b"plain"], 1_000))
    assert producers_of(peer, topic) == []
    write_as(peer, topic, 7, 0, 0, 3)
    write_as(peer, topic, 7, 0, 3, 2)
    write_as(peer, topic, 8, 2, 40, 1)
    assert producers_of(peer, topic) == [(7, 0, 4, 7_000, -1), (8, 2, 40, 8_000, -1)]
    write_as(peer, topic, 7, 1, 0, 1)
    assert producers_of(peer, topic) == [(7, 1, 0, 7_000, -1), (8, 2, 40, 8_000, -1)]


def test_producers_are_described_whatever_became_of_their_writer(tmp_path: Path) -> None:
    topic = new_topic()
    with Broker(tmp_path / "data", {"zookeeper.nodes": 0}) as broker:
        with KafkaPeer(broker.kafka) as peer:
            create(peer, topic)
            write_as(peer, topic, 7, 0, 0, 3)
            broker.kill(broker.pid_of("writer"))
            assert producers_of(peer, topic) == [(7, 0, 2, 7_000, -1)]
        broker.stop()
        broker.start()
        with KafkaPeer(broker.kafka) as peer:
            assert producers_of(peer, topic) == [(7, 0, 2, 7_000, -1)] and not broker.pids("writer")

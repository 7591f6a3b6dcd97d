"""appliance.processes.snapshot: after any changes, and whenever it joins, a worker has the coordinator's state."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.addresses import PLAINTEXT, Listener
from appliance.catalog import Topic, new_id
from appliance.config import TopicSettings
from appliance.processes import messages, snapshot
from appliance.processes.message_stream import OVERHEAD_BYTES, REPLY_BYTES_MAX, MessageReader, packed
from appliance.processes.messages import FROM_COORDINATOR_STREAM, Facts, RequestAnswered, SnapshotChange
from appliance.processes.snapshot import Publisher, WorkerSnapshot
from appliance.security.scram import Verifier
from appliance.security.security_state import SecurityState

FACTS = Facts("cluster", 1, True, "zk:2181", {"kafka": "", "native": ""}, {}, TopicSettings())


NOBODY = SecurityState()


def over_the_stream(change: SnapshotChange) -> SnapshotChange:
    reader = MessageReader(FROM_COORDINATOR_STREAM, REPLY_BYTES_MAX + OVERHEAD_BYTES)
    reader.feed(packed(change))
    received = reader.take_message()
    assert received is not None and not isinstance(received, RequestAnswered)
    return received


class Worker:
    def __init__(self) -> None:
        self.publisher, self.snapshot = Publisher(), WorkerSnapshot()
        self.told: list[SnapshotChange] = []

    def tell(self, facts: Facts, topics: dict[str, Topic], security: SecurityState = NOBODY) -> None:
        self.told += [over_the_stream(change) for change in self.publisher.changes(facts, topics, security)]

    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.told))):
            self.snapshot.apply_change(self.told.pop(0))


class Machine(RuleBasedStateMachine):
    """Topics come, change and go, brokers too; workers are told, read some of it, and meet new coordinators."""

    @initialize()
    def begin(self) -> None:
        self.facts, self.topics, self.security = FACTS, dict[str, Topic](), NOBODY
        self.workers = [Worker(), Worker()]
        self.size = snapshot.TOPICS_PER_MESSAGE
        snapshot.TOPICS_PER_MESSAGE = 2  # type: ignore[misc]

    def teardown(self) -> None:
        if hasattr(self, "size"):
            snapshot.TOPICS_PER_MESSAGE = self.size  # type: ignore[misc]

    @rule(name=st.sampled_from("abcdefg"), count=st.integers(0, 3))
    def change(self, name: str, count: int) -> None:
        """Created, altered, made again, or (0 partitions) deleted; the catalog makes new objects each time."""
        self.topics = {other: topic for other, topic in self.topics.items() if other != name}
        if count:
            self.topics[name] = Topic(name, {n: [n % 3, 1] for n in range(count)}, {"retention.ms": "5"}, new_id())

    @rule(peers=st.sets(st.sampled_from([0, 2])), auto_create=st.booleans())
    def move(self, peers: set[int], auto_create: bool) -> None:
        listeners = {peer: {"kafka": f"host{peer}:9092", "native": ""} for peer in peers}
        self.facts = Facts(
            "cluster", 1, auto_create, "zk:2181", {"kafka": "", "native": "n:1"}, listeners, TopicSettings()
        )

    @rule(user=st.sampled_from("abc"), iterations=st.integers(4096, 4098))
    def add_user(self, user: str, iterations: int) -> None:
        verifier = Verifier(b"salt", iterations, b"stored", b"server")
        self.security = SecurityState({**self.security.users, user: {"SCRAM-SHA-256": verifier}})

    @rule(worker=st.integers(0, 1))
    def tell(self, worker: int) -> None:
        self.workers[worker].tell(self.facts, self.topics, self.security)

    @rule(worker=st.integers(0, 1), count=st.integers(1, 5))
    def take(self, worker: int, count: int) -> None:
        self.workers[worker].take(count)

    @rule(worker=st.integers(0, 1))
    def meet_a_new_coordinator(self, worker: int) -> None:
        """What the old one had not sent in full is lost; the topics are other objects."""
        self.workers[worker].told.clear()
        self.workers[worker].publisher = Publisher()
        self.topics = {name: Topic(name, t.partitions, t.settings, t.id) for name, t in self.topics.items()}

    @rule(worker=st.integers(0, 1))
    def catch_up(self, worker: int) -> None:
        one = self.workers[worker]
        one.tell(self.facts, self.topics, self.security)
        one.take(len(one.told))
        seen = one.snapshot
        assert seen.complete and seen.topics() == self.topics and seen.auto_create == self.facts.auto_create
        assert seen.security == self.security
        assert seen.names == {bytes.fromhex(topic.id): name for name, topic in self.topics.items()}
        kafka, native = (Listener(protocol, PLAINTEXT, "here:1") for protocol in ("kafka", "native"))
        assert [broker.id for broker in seen.brokers(kafka)] == sorted({1, *self.facts.peers})
        assert [broker.host for broker in seen.brokers(native)] == [
            self.facts.advertised["native"].partition(":")[0] or "here"
        ]
        for topic in self.topics.values():
            for number in topic.partitions:
                leader = topic.leader(number)
                assert seen.leader(topic, number) == (leader if leader in {1, *self.facts.peers} else -1)
            assert seen.settings(topic).retention_ms == 5

    @invariant()
    def what_is_shown_was_whole_once(self) -> None:
        for one in getattr(self, "workers", []):
            assert one.snapshot.complete or not one.snapshot.topics()


TestSnapshot = Machine.TestCase


def test_nothing_is_told_when_nothing_has_changed() -> None:
    worker = Worker()
    topics = {"a": Topic("a", {0: [1]}, {}, new_id())}
    worker.tell(FACTS, topics)
    assert [type(change) for change in worker.told] == [
        messages.SnapshotBegins,
        messages.FactsChanged,
        messages.SecurityPublished,
        messages.TopicsChanged,
        messages.SnapshotEnds,
    ]
    worker.told.clear()
    worker.tell(FACTS, topics)
    worker.tell(Facts("cluster", 1, True, "zk:2181", {"kafka": "", "native": ""}, {}, TopicSettings()), topics)
    assert worker.told == []


def test_a_snapshot_that_is_being_replaced_is_used_until_the_new_one_is_whole() -> None:
    worker = Worker()
    old = {"a": Topic("a", {0: [1]}, {}, new_id())}
    worker.tell(FACTS, old)
    worker.take(10)
    worker.publisher = Publisher()
    new = {"b": Topic("b", {0: [1]}, {}, new_id())}
    worker.tell(FACTS, new)
    for _ in range(4):
        worker.take(1)
        assert worker.snapshot.topics() == old
        assert list(worker.snapshot.names.values()) == ["a"]
    revision = worker.snapshot.revision
    worker.take(1)
    assert worker.snapshot.names == {bytes.fromhex(new["b"].id): "b"}
    assert worker.snapshot.topics() == new and worker.snapshot.revision != revision

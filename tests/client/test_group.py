"""appliance.client.group: real consumers, a real appliance, a real ZooKeeper; and admin.py on the way."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka.admin import AdminClient

from appliance.client import (
    EARLIEST,
    LATEST,
    Admin,
    Blacklist,
    Consumer,
    GroupConsumer,
    MessageStream,
    Producer,
    Whitelist,
)
from appliance.errors import (
    BadValue,
    ClientBroken,
    InvalidRequest,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    ZooKeeperAway,
)

from ..support.ready import readable
from ..support.server import Server, wait_for

TIMEOUT_S = 60
QUIET_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("groups") / "data", **{"zookeeper.nodes": 1}) as running:
        running.wait_for_zookeeper()
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.native) as running:
        yield running


def fill(server: Server, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Numbered messages spread over the partitions by key."""
    values = [b"%d" % i for i in range(first, first + count)]
    with Producer(server.native) as producer:
        for value in values:
            producer.send(topic, value, key=value)
    return values


def join(server: Server, group: str, **options: Any) -> GroupConsumer:
    options = {"session_timeout_ms": 2_000, "auto_commit_ms": 100} | options
    return GroupConsumer(server.native, group, **options)


class Reader:
    """Threads that read streams into lists, until the consumer is closed."""

    def __init__(self, *streams: MessageStream) -> None:
        self.seen: list[tuple[int, int, bytes | None]] = []
        self.threads = [threading.Thread(target=self._read, args=(stream,)) for stream in streams]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: MessageStream) -> None:
        for message in stream:
            self.seen.append((message.partition, message.offset, message.value))

    def values(self) -> list[bytes | None]:
        return [value for _, _, value in list(self.seen)]

    def join(self) -> None:
        for thread in self.threads:
            thread.join(TIMEOUT_S)


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_for(condition, what, TIMEOUT_S)


def test_two_members_share_a_topic_and_hand_over_without_loss_or_repeat(
    server: Server, admin: Admin, topic: str
) -> None:
    """Paper, consumer groups: each message to one member; orderly changes of membership repeat nothing."""
    admin.create_topic(topic, 4)
    values = fill(server, topic, 500)
    with join(server, topic) as one:
        first = Reader(*one.create_message_streams({topic: 2})[topic])
        until(lambda: len(first.seen) == 500, "the only member reads everything")
        assert sorted(one.owned.values()) == [0, 0, 1, 1]
        with join(server, topic) as two:
            second = Reader(*two.create_message_streams({topic: 1})[topic])
            until(lambda: len(two.owned) == 1 and len(one.owned) == 3, "range assignment: 3 streams, 4 partitions")
            values += fill(server, topic, 500, 500)
            until(lambda: len(first.seen) + len(second.seen) == 1000, "both read")
            assert {p for p, _, _ in second.seen} == {place[1] for place in two.owned}
        second.join()
        until(lambda: len(one.owned) == 4, "the one that stays takes over")
        values += fill(server, topic, 100, 1000)
        until(lambda: len(first.seen) + len(second.seen) >= 1100, "it reads on")
    first.join()
    assert Counter(first.values() + second.values()) == Counter(values)
    for reader in (first, second):
        for partition in range(4):
            offsets = [offset for p, offset, _ in reader.seen if p == partition]
            assert offsets == sorted(offsets)


def test_the_next_consumer_goes_on_where_the_last_one_stopped(server: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    values = fill(server, topic, 100)
    with join(server, topic) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        got = [message.value for message in itertools.islice(stream.messages(TIMEOUT_S), 40)]
    assert admin.offsets(topic)[topic, 0] > 0
    with join(server, topic) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        got += [value for batch in stream.batches(QUIET_S) for value in batch.values]
        report = admin.group(topic)
    assert report["members"][0]["id"] == consumer.consumer_id
    assert got[:40] == values[:40] and Counter(got) == Counter(values)
    admin.delete_offsets(topic)
    with pytest.raises(UnknownGroup):
        admin.group(topic)


def test_an_exception_leaves_its_message_to_be_delivered_again(server: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    fill(server, topic, 10)
    with pytest.raises(ArithmeticError), join(server, topic) as consumer:
        for message in consumer.create_message_streams({topic: 1})[topic][0]:
            if message.value == b"5":
                raise ArithmeticError("processing failed")
    with join(server, topic) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        assert next(stream.messages(TIMEOUT_S)).value == b"5"


def test_manual_commit_is_all_that_counts(server: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    fill(server, topic, 10)
    for expected in (b"0", b"4"):
        with join(server, topic, auto_commit=False) as consumer:
            messages = consumer.create_message_streams({topic: 1})[topic][0].messages(TIMEOUT_S)
            assert next(messages).value == expected
            if expected == b"0":
                for _ in range(3):
                    next(messages)
                consumer.commit()
                next(messages)
    with join(server, topic, auto_commit=False) as consumer:
        consumer.create_message_streams({topic: 1})
        until(lambda: consumer.owned, "it joins")
        consumer.commit({(topic, 0): 77})
    assert admin.offsets(topic) == {(topic, 0): 77}


def numbered(server: Server, topic: str, counts: range) -> None:
    """Messages ``PARTITION-NUMBER`` in both partitions, a few in a batch."""
    with Producer(server.native, batch_messages_max=7) as producer:
        for number in counts:
            for partition in (0, 1):
                producer.send(topic, b"%d-%d" % (partition, number), partition=partition)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_owned_partitions_are_paused_and_sought_in_any_order(
    server: Server, admin: Admin, topic: str, isolation: str
) -> None:
    """Against a model: each partition is handed out in order from where it stands, and not while it is paused."""
    admin.create_topic(topic, 2)
    numbered(server, topic, range(100))
    rng = random.Random(isolation)
    options: dict[str, Any] = {"auto_commit": False, "isolation": isolation, "wait_ms_max": 20}
    with GroupConsumer(server.native, topic, **options) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        messages = stream.messages(TIMEOUT_S)
        offsets: dict[tuple[str, int], list[int]] = {(topic, partition): [] for partition in (0, 1)}
        with Consumer(server.native) as plain:
            plain.assign(list(offsets))
            while any(len(found) < 100 for found in offsets.values()):
                for message in plain.poll(TIMEOUT_S):
                    offsets[message[:2]].append(message.offset)
        first = next(messages)
        stands = {part: int(part == first[:2]) for part in offsets}
        wait_for(lambda: len(consumer.owned) == 2, "the rebalance", TIMEOUT_S)
        for _ in range(150):
            part = (topic, rng.randrange(2))
            match rng.choice(("read", "read", "pause", "resume", "seek", "commit")):
                case "read" if any(stands[each] < 100 for each in offsets.keys() - consumer.paused()):
                    message = next(messages)
                    assert message[:2] not in consumer.paused()
                    assert message.value == b"%d-%d" % (message.partition, stands[message[:2]])
                    stands[message[:2]] += 1
                case "pause":
                    consumer.pause(part)
                case "resume":
                    consumer.resume(part)
                case "seek":
                    stands[part] = rng.randrange(100)
                    consumer.seek(*part, offsets[part][stands[part]])
                case "commit":
                    consumer.commit()
                    assert consumer.committed([part]).get(part, -1) == consumer.positions.get(part, -1)
        consumer.resume()
        for part in offsets:
            consumer.seek(*part, EARLIEST)
        again = [next(messages).value for _ in range(200)]
        for partition in (0, 1):
            assert [value for value in again if value and value[0] == 48 + partition] == [
                b"%d-%d" % (partition, number) for number in range(100)
            ]
        assert consumer.offsets_at(EARLIEST) == {part: 0 for part in offsets}
        assert admin.offsets_at(LATEST, offsets) == consumer.offsets_at(LATEST)


def test_a_pause_holds_for_what_has_arrived_already_and_ends_with_the_ownership(
    server: Server, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 2)
    numbered(server, topic, range(20))
    with join(server, topic) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        messages = stream.messages(TIMEOUT_S)
        first = next(messages)
        wait_for(lambda: len(consumer.owned) == 2, "the rebalance", TIMEOUT_S)
        consumer.pause(first[:2])
        rest = [next(messages) for _ in range(20)]
        assert {message.partition for message in rest} == {1 - first.partition}
        assert list(stream.messages(QUIET_S / 4)) == []
        position = {first[:2]: first.offset + 1}
        wait_for(lambda: consumer.committed([first[:2]]) == position, "the commit of the paused one", TIMEOUT_S)
        with pytest.raises(InvalidRequest, match="not owned"):
            consumer.pause((topic, 7))
        consumer.pause()
        assert consumer.paused() == set(consumer.owned)
        with join(server, topic) as other:
            other.create_message_streams({topic: 1})
            wait_for(lambda: len(consumer.owned) == len(other.owned) == 1, "the second member", TIMEOUT_S)
            assert consumer.paused() == set(consumer.owned) and not other.paused()
        wait_for(lambda: len(consumer.owned) == 2, "the first one alone", TIMEOUT_S)
        assert len(consumer.paused()) == 1
        consumer.resume()
        assert len([next(messages) for _ in range(19)]) == 19


def test_latest_and_time_decide_where_a_new_group_begins(server: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    with Producer(server.native) as producer:
        for second in range(10):
            producer.send(topic, b"%d" % second, timestamp=1000 * second)
    with join(server, f"{topic}-time", start=7000) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        assert next(stream.messages(TIMEOUT_S)).value == b"7"
    with join(server, f"{topic}-latest", start="latest") as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        until(lambda: consumer.positions, "it knows where the end is")
        fill(server, topic, 1, 10)
        assert next(stream.messages(TIMEOUT_S)).value == b"10"


def test_patterns_take_present_and_future_topics(server: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(f"{topic}-a", 1)
    admin.create_topic(f"{topic}-x", 1)
    fill(server, f"{topic}-a", 5)
    with join(server, f"{topic}-white") as white, join(server, f"{topic}-black") as black:
        (stream,) = white.create_message_streams_by_filter(Whitelist(f"{topic}-a,{topic}-b"))
        others = black.create_message_streams_by_filter(Blacklist(rf"(?!{topic}-).*|{topic}-x"), 2)
        reader, other = Reader(stream), Reader(*others)
        until(lambda: len(reader.seen) == 5, "present topics")
        admin.create_topic(f"{topic}-b", 2)
        fill(server, f"{topic}-b", 5, 5)
        fill(server, f"{topic}-x", 5, 10)
        until(lambda: len(reader.seen) == 10 and len(other.seen) == 10, "future topics")
        assert (
            {place[0] for place in white.owned} == {place[0] for place in black.owned} == {f"{topic}-a", f"{topic}-b"}
        )
        assert {place[1] for place in black.owned if place[0] == f"{topic}-b"} == {0, 1}
        assert sorted(black.owned[f"{topic}-b", p] for p in (0, 1)) == [0, 1], "sub-streams share a topic"
    reader.join()
    other.join()


CHILD = """
import sys
from appliance.client import GroupConsumer
address, group, topic = sys.argv[1:]
with GroupConsumer(address, group, session_timeout_ms=2000, auto_commit_ms=50) as consumer:
    for message in consumer.create_message_streams({topic: 1})[topic][0]:
        print(message.partition, message.offset, message.value.decode(), flush=True)
"""


def test_a_killed_member_loses_nothing(server: Server, admin: Admin, topic: str) -> None:
    """At least once: what the killed member had not committed is delivered again, to the others."""
    admin.create_topic(topic, 2)
    values = fill(server, topic, 300)
    command = [sys.executable, "-c", CHILD, server.native, topic, topic]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."})
    assert child.stdout is not None
    assert readable(child.stdout, TIMEOUT_S)
    with join(server, topic) as consumer:
        reader = Reader(*consumer.create_message_streams({topic: 1})[topic])
        until(lambda: len(consumer.owned) == 1, "they share")
        values += fill(server, topic, 300, 300)
        child.send_signal(signal.SIGKILL)
        output = child.communicate()[0]
        until(lambda: len(consumer.owned) == 2, "its partitions are taken over")
        by_child = [line.split()[2] for line in output.splitlines() if len(line.split()) == 3]
        until(lambda: {*by_child, *reader.values()} >= set(values), "everything was delivered")
    reader.join()


def test_a_member_that_slept_through_its_session_comes_back(server: Server, admin: Admin, topic: str) -> None:
    """Stopped for longer than its lease it owns nothing when it wakes; it registers anew and gets its share."""
    admin.create_topic(topic, 2)
    command = [sys.executable, "-c", CHILD, server.native, topic, topic]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."})
    try:
        with join(server, topic) as consumer:
            reader = Reader(*consumer.create_message_streams({topic: 1})[topic])
            until(lambda: len(consumer.owned) == 1, "they share")
            child.send_signal(signal.SIGSTOP)
            until(lambda: len(consumer.owned) == 2, "its partition is taken over")
            values = fill(server, topic, 200)
            until(lambda: len(reader.seen) == 200, "by us")
            child.send_signal(signal.SIGCONT)
            until(lambda: len(consumer.owned) == 1, "it is back")
        reader.join()
        assert Counter(reader.values()) == Counter(values)
    finally:
        child.kill()
        assert child.communicate()[0].strip() == b"", "what others have read and committed is not repeated"


def test_wrong_use_is_named(server: Server, admin: Admin, topic: str, appliance: Server) -> None:
    for start in ("middle", -5):
        with pytest.raises(BadValue):
            GroupConsumer(server.native, topic, start=start)
    with join(server, topic) as consumer:
        with pytest.raises(InvalidRequest, match="create"):
            consumer.commit()
        with pytest.raises(InvalidRequest):
            consumer.create_message_streams({topic: 0})
        with pytest.raises(BadValue, match="not a pattern"):
            consumer.create_message_streams_by_filter("(")
        consumer.create_message_streams({topic: 1})
        with pytest.raises(InvalidRequest, match="once"):
            consumer.create_message_streams({topic: 1})
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.commit()
    with GroupConsumer(appliance.native, topic) as alone, pytest.raises(ZooKeeperAway, match=r"zookeeper\.nodes"):
        alone.create_message_streams({topic: 1})


class Bug(Exception):
    """What no one expects."""


CALLS: dict[str, Callable[[GroupConsumer, MessageStream], object]] = {
    "messages": lambda consumer, stream: next(stream.messages(TIMEOUT_S)),
    "batches": lambda consumer, stream: next(stream.batches(TIMEOUT_S)),
    "commit": lambda consumer, stream: consumer.commit(),
    "close": lambda consumer, stream: consumer.close(),
}


@pytest.mark.parametrize("thread", ["member", "fetch"])
@pytest.mark.parametrize("call", CALLS)
def test_the_end_of_a_thread_reaches_every_call(
    server: Server, admin: Admin, topic: str, thread: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no member that holds partitions and reads nothing.  Method: a bug in each thread, then each call."""
    admin.create_topic(topic, 1)
    consumer = join(server, topic)
    (stream,) = consumer.create_message_streams({topic: 1})[topic]
    until(lambda: consumer.owned, "it joins")
    broken = {"member": consumer._member, "fetch": consumer._fetcher}[thread]
    monkeypatch.setattr(broken, "poll", lambda *_: _raise(Bug("here")))
    consumer._fetcher.wake()
    if call in ("commit", "close"):
        until(lambda: consumer._threads.error, "the thread ends")
    with pytest.raises(ClientBroken, match=f"the {thread} thread") as said:
        CALLS[call](consumer, stream)
    assert isinstance(said.value.__cause__, Bug)
    if thread == "member":
        with join(server, topic) as other:
            other.create_message_streams({topic: 1})
            until(lambda: other.owned, "the others take over without being asked")
    if call != "close":
        with pytest.raises(ClientBroken):
            consumer.close()


def _raise(error: Exception) -> None:
    raise error


def test_a_broken_consumer_does_not_hide_what_ended_its_block(
    server: Server, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic, 1)
    with pytest.raises(KeyboardInterrupt), join(server, topic) as consumer:
        consumer.create_message_streams({topic: 1})
        monkeypatch.setattr(consumer._fetcher, "poll", lambda *_: _raise(Bug("here")))
        until(lambda: consumer._threads.error, "the thread ends")
        raise KeyboardInterrupt


HOSTILE = [
    *(b"*1*(a+)+b", b"!1!(a|a)*b", b"*1*" + b"(" * 500, b"*1*(.*a){900}b", b"*999999999999*.*", b"*1*" + b"a?" * 5000),
    *(b"\xff\xfe", b"[]", b'{"t": 1000000000000}', b'{"t": 1e400}', b"*x*y", b"*1*(?i)a", b""),
]


def test_what_another_member_registers_can_neither_hang_nor_end_the_others(
    server: Server, admin: Admin, topic: str
) -> None:
    """Goal: a group is stopped by none of its members.  Method: names that such patterns take an age for."""
    name = "a" * 200
    admin.create_topic(name, 2)  # one of the hostile members wants one
    zookeeper = server.zookeeper_client()
    zookeeper.start(TIMEOUT_S)
    try:
        for i, value in enumerate(HOSTILE):
            zookeeper.create(f"/consumers/{topic}/ids/hostile-{i}", value, ephemeral=True, makepath=True)
        with join(server, topic) as consumer:
            consumer.create_message_streams_by_filter(Whitelist("a+"))
            assert until(lambda: consumer.owned, "it joins") == {(name, 1): 0}
    finally:
        zookeeper.stop()
        zookeeper.close()
        admin.delete_topic(name)


@pytest.mark.parametrize("offset", [-5, "7", 10**30, None, 1.5])
def test_what_is_no_offset_is_not_committed(server: Server, admin: Admin, topic: str, offset: Any) -> None:
    """Nor what belongs to a partition of another member, or of nobody; the group can be used as before."""
    admin.create_topic(topic, 1)
    with join(server, topic, auto_commit=False) as consumer:
        consumer.create_message_streams({topic: 1})
        until(lambda: consumer.owned, "it joins")
        with pytest.raises(InvalidRequest, match="offset"):
            consumer.commit({(topic, 0): offset})
        consumer.commit({(topic, 0): 7, (topic, 99): 8, ("elsewhere", 0): 9})
    assert admin.offsets(topic) == {(topic, 0): 7}


def test_what_others_make_in_zookeeper_hides_no_group(server: Server, admin: Admin, topic: str) -> None:
    """Names that are none, offsets beyond 64 bits."""
    admin.create_topic(topic, 2)
    admin.commit(topic, {(topic, 0): 5, (topic, 1): 6})
    zookeeper = server.zookeeper_client()
    zookeeper.start(TIMEOUT_S)
    others = ["/consumers/%FF", "/consumers/%zz", "/consumers/%41", f"/consumers/{topic}/ids/%FF"]
    try:
        for path in others:
            zookeeper.create(path, b"", makepath=True)
        zookeeper.set(f"/consumers/{topic}/offsets/{topic}/1", b"1" + b"0" * 30)
        assert topic in {row["group"] for row in admin.groups()}
        assert admin.offsets(topic) == {(topic, 0): 5}
        admin.commit(topic, {(topic, 1): 8})
        assert admin.offsets(topic) == {(topic, 0): 5, (topic, 1): 8}
    finally:
        for path in others:
            zookeeper.delete(path)
        zookeeper.stop()
        zookeeper.close()
    admin.delete_topic(topic)


@pytest.mark.parametrize("count", [250, pytest.param(5_000, marks=pytest.mark.long)])
def test_many_groups_are_listed(server: Server, admin: Admin, topic: str, count: int) -> None:
    """By both listeners: more than are asked for at once, and as many as take longer than one question may."""
    names = {f"{topic}-{number:04}" for number in range(count)}
    zookeeper = server.zookeeper_client()
    zookeeper.start(TIMEOUT_S)
    try:
        zookeeper.ensure_path("/consumers")
        made = [zookeeper.create_async(f"/consumers/{name}/offsets/{topic}/0", b"5", makepath=True) for name in names]
        for (
            node
        ) in made:  # a group is listed before its last node is there, which then stands in the way of its deletion
            node.get(timeout=TIMEOUT_S)
        assert until(lambda: names <= {row["group"] for row in admin.groups()}, "all are listed")
        kafka = AdminClient({"bootstrap.servers": server.kafka})
        listed = kafka.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        assert names <= {row.group_id for row in listed.valid} and not listed.errors
    finally:
        for name in names:
            zookeeper.delete(f"/consumers/{name}", recursive=True)
        zookeeper.stop()
        zookeeper.close()


def test_a_member_that_is_refused_leaves_what_it_has_registered(
    server: Server, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A native consumer started in a Kafka group by mistake: the group goes on, also when it is founded anew."""
    admin.create_topic(topic, 1)
    zookeeper = server.zookeeper_client()
    zookeeper.start(TIMEOUT_S)

    def registered() -> list[str]:
        ids = f"/consumers/{topic}/ids"
        return sorted(zookeeper.get_children(ids)) if zookeeper.exists(ids) else []

    def kafka_member() -> KafkaConsumer:
        member = KafkaConsumer({"bootstrap.servers": server.kafka, "group.id": topic})
        member.subscribe([topic])
        until(lambda: member.poll(0.1) is None and member.assignment(), "the Kafka member has the partition")
        return member

    try:
        kafka = kafka_member()
        before = until(registered, "it is registered")
        with join(server, topic) as mistaken:
            stream = mistaken.create_message_streams({topic: 1})[topic][0]
            with pytest.raises(InvalidRequest, match="Kafka listener"):
                next(stream.messages(TIMEOUT_S))
            until(lambda: registered() == before, "the refused one has left")
            kafka.close()
            kafka_member().close()
        assert not [text for text in caplog.messages if "leaves" in text], "it was never in the group"
    finally:
        zookeeper.stop()
        zookeeper.close()


def test_admin_verbs(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2, {"retention.ms": "1d"})
    with pytest.raises(TopicExists):
        admin.create_topic(topic)
    admin.alter_topic(topic, {"retention.ms": None}, partitions=3)
    (found,) = admin.topics([topic])
    assert found["name"] == topic and len(found["partitions"]) == 3 and found["own"] == {}
    assert topic in {row["name"] for row in admin.topics()}
    assert admin.ensure_topic(topic)["partitions"] == 3
    assert admin.init_producer()["producer_id"] != admin.init_producer()["producer_id"]
    admin.commit(topic, {(topic, 0): 5, (topic, 1): 6})
    assert admin.offsets(topic) == {(topic, 0): 5, (topic, 1): 6}
    assert topic in {row["group"] for row in admin.groups()}
    assert admin.status()["state"] == "serving"
    admin.delete_offsets(topic, [(topic, 0), (topic, 1)])
    assert admin.offsets(topic) == {}
    admin.delete_topic(topic)
    with pytest.raises(UnknownPartition):
        admin.topics([topic])


def test_several_appliances_share_one_ensemble(
    server: Server, admin: Admin, topic: str, make_appliance: Callable[..., Server]
) -> None:
    """A topic's partitions are spread over them; producer, consumer and group find each where it is."""
    other = make_appliance(**server.zookeeper_access | {"zookeeper.nodes": 0, "broker.id": 7})
    with Admin(other.native) as there:
        until(lambda: {row["name"] for row in there.topics()} >= {row["name"] for row in admin.topics()}, "it joined")
        there.create_topic(topic, 4)
        (found,) = there.topics([topic])
        assert {row["leader"] for row in found["partitions"]} == {0, 7}
    until(lambda: topic in {row["name"] for row in admin.topics()}, "the other knows it, too")
    values = [b"%d" % i for i in range(400)]
    with Producer(server.native) as producer:
        for i, value in enumerate(values):
            producer.send(topic, value, partition=i % 4)
    with Consumer(other.native) as consumer:
        consumer.assign_topic(topic)
        assert Counter(message.value for message in consumer.messages(QUIET_S)) == Counter(values)
    with join(other, topic) as member:
        reader = Reader(*member.create_message_streams({topic: 1})[topic])
        until(lambda: len(reader.seen) == len(values), "a group reads from both")
    reader.join()
    assert Counter(reader.values()) == Counter(values)

"""appliance.processes.coordinator.native_api: native metadata and admin verbs, from a real coordinator."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from appliance import config as configs
from appliance.config import TopicSettings
from appliance.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidSetting,
    InvalidTopic,
    UnknownGroup,
    UnknownPartition,
)
from appliance.partition_states import OFFLINE
from appliance.security.credentials import Credentials
from appliance.security.login_exchange import Exchange
from appliance.wire import native
from appliance.zookeeper.ensemble import Ensemble
from appliance.zookeeper.operations import Operation, ask, create
from appliance.zookeeper.paths import (
    BROKER_IDS,
    TOPICS,
    BrokerInfo,
    Subscription,
    TopicInfo,
    TopicPartition,
    consumer,
    encode_broker,
    encode_owner,
    encode_subscription,
    encode_topic,
    owner,
)
from appliance.zookeeper.session import Session

from ...support.coordinator_fixture import Rig
from ...support.log_batches import batch, filled
from ...support.ready import readable
from ...support.server import secret_in
from ...support.zookeeper_fixture import ACCESS_KEYS, LOGIN, fresh_connect, result_of

SMALL_SEGMENTS = TopicSettings(segment_bytes=1024)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, configs.load(overrides=["zookeeper.nodes=0"])) as rig:
        yield rig


@pytest.fixture
def grouped(tmp_path: Path, standalone: Ensemble) -> Iterator[Rig]:
    connect = fresh_connect(standalone)
    with Rig(tmp_path, configs.load(overrides=[f"zookeeper.connect={connect}", *ACCESS_KEYS])) as rig:
        yield rig


def write(rig: Rig, topic: str, batches: list[bytes], settings: TopicSettings = SMALL_SEGMENTS) -> list[int]:
    """A real log in partition 0 of a topic that was just made, shown in its table; where its batches start."""
    log = filled(rig.data_dir / f"{topic}-0", batches, settings)
    rig.tables[topic, 0].publish(log.bases, log.start, log.end_offset, log.records)
    starts = [0]
    for raw in batches:
        starts.append(starts[-1] + len(raw))
    return starts


def meddle(rig: Rig, operation: Operation[Any]) -> None:
    session = Session(rig.config.zookeeper.connect, 6_000, login=LOGIN)
    session.start()
    try:
        result_of(session, operation, timeout_ms=60_000)
    finally:
        session.close()


# ---- metadata and topics


def test_metadata_names_the_address_that_the_client_came_by(alone: Rig) -> None:
    assert alone.metadata(listener="192.0.2.7:9091")["brokers"] == [[0, "192.0.2.7", 9091]]
    assert alone.metadata(listener="[2001:db8::7]:9091")["brokers"] == [[0, "2001:db8::7", 9091]]


def test_an_advertised_address_is_told_to_everybody(tmp_path: Path) -> None:
    keys = ["zookeeper.nodes=0", "native.advertised=logs.example:7000"]
    with Rig(tmp_path, configs.load(overrides=keys)) as rig:
        assert rig.metadata()["brokers"] == [[0, "logs.example", 7000]]


def test_metadata_of_all_of_some_and_of_unknown_topics(alone: Rig) -> None:
    alone.admin("create_topic", name="b")
    alone.admin("create_topic", name="a", partitions=2)
    assert [row["name"] for row in alone.metadata()["topics"]] == ["a", "b"]
    rows = alone.metadata("b", "none", "b")["topics"]
    assert [(row["name"], row["error"]) for row in rows] == [("b", 0), ("none", UnknownPartition.code)]
    assert alone.metadata()["cluster"] and alone.metadata()["zookeeper"] == ""


def test_topics_are_described_with_what_is_in_them(alone: Rig) -> None:
    alone.admin("create_topic", name="logs", settings={"segment.bytes": "1KiB"})
    values = [b"x" * 100] * 5
    starts = write(alone, "logs", [batch(values)] * 4)
    (topic,) = alone.admin("topics", names=["logs"])
    assert topic["own"] == {"segment.bytes": "1024"} and topic["settings"]["segment.bytes"] == "1024"
    assert topic["sources"].keys() == topic["settings"].keys()
    assert {name for name, source in topic["sources"].items() if source == "topic"} == {"segment.bytes"}
    (row,) = topic["partitions"]
    assert row == {
        "partition": 0,
        "leader": 0,
        "start": 0,
        "end": starts[-1],
        "bytes": starts[-1],
        "messages": 20,
        "state": "online",
    }
    # Retention has taken the first segment: what is left is counted from the log, not from its beginning.
    table = alone.tables["logs", 0]
    second = table.snapshot().bases[1]
    table.retire_before(second)
    (row,) = alone.admin("topics", names=["logs"])[0]["partitions"]
    assert (row["start"], row["messages"]) == (second, 20 - 5 * starts.index(second))
    table.set_state(OFFLINE)
    assert alone.admin("topics", names=["logs"])[0]["partitions"][0]["state"] == "offline"


def test_wrong_settings_and_counts_are_refused_with_the_remedy(alone: Rig) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"settings": {"retention.mss": 1}}, InvalidSetting, "retention.ms"),
        ({"settings": {"retention.ms": "soon"}}, InvalidSetting, "retention.ms = 'soon'"),
        ({"settings": {"max.message.bytes": "1GiB"}}, InvalidSetting, "network.frame_bytes_max"),
        ({"partitions": 0}, InvalidPartitions, "at least 1"),
        ({"partitions": 10_001}, InvalidPartitions, "topics.partitions_max"),
        ({"partitions": "many"}, InvalidRequest, "partitions"),
    ]
    for arguments, error, text in cases:
        code, message = alone.refusal("create_topic", name="logs", **arguments)
        assert (code, text in message) == (error.code, True), message  # type: ignore[attr-defined]
    assert alone.metadata()["topics"] == []


def test_names_that_metrics_could_not_tell_apart_are_refused(alone: Rig) -> None:
    alone.admin("create_topic", name="a.b_c")
    for name in ("a_b.c", "a.b.c", "a_b_c"):
        code, message = alone.refusal("create_topic", name=name)
        assert code == InvalidTopic.code and "collides with 'a.b_c'" in message
        assert alone.refusal("ensure_topic", name=name)[0] == InvalidTopic.code
    for name in ("a-b.c", "a.b", "abc"):
        alone.admin("create_topic", name=name)


def test_reserved_names_are_made_only_by_who_asks_for_that(alone: Rig) -> None:
    for name in ("__consumer_offsets", "__mine"):
        assert alone.refusal("ensure_topic", name=name)[0] == UnknownPartition.code
        alone.admin("create_topic", name=name)
        alone.admin("ensure_topic", name=name)


def test_settings_are_set_and_taken_back_one_by_one(alone: Rig) -> None:
    alone.admin("create_topic", name="logs", settings={"retention.ms": "1h", "flush.messages": 0})
    alone.admin("alter_topic", name="logs", settings={"retention.ms": None, "retention.bytes": "1GiB"})
    assert alone.admin("topics")[0]["own"] == {"flush.messages": "0", "retention.bytes": "1073741824"}
    assert alone.settings["logs", 0]["retention.ms"] == "604800000"
    assert alone.refusal("alter_topic", name="logs", settings={"flush.message": None})[0] == InvalidSetting.code
    alone.admin("alter_topic", name="logs", settings={"min.insync.replicas": 1, "preallocate": None})
    assert alone.admin("topics")[0]["own"]["min.insync.replicas"] == "1"
    assert "min.insync.replicas" not in alone.settings["logs", 0], "what changes nothing is not the writers' business"
    assert alone.refusal("alter_topic", name="logs", partitions=1)[0] == InvalidPartitions.code
    assert alone.refusal("alter_topic", name="none")[0] == UnknownPartition.code
    assert alone.admin("alter_topic", name="logs", partitions=3) == {"name": "logs", "partitions": 3}
    assert sorted(alone.tables) == [("logs", 0), ("logs", 1), ("logs", 2)]


def test_a_missing_topic_is_made_only_where_that_is_configured(alone: Rig, tmp_path: Path) -> None:
    first, second = (alone.admin("ensure_topic", name="logs") for _ in range(2))
    assert (first.pop("created"), second.pop("created")) == (True, False) and first == second
    data_dir = tmp_path / "strict"
    data_dir.mkdir()
    keys = ["zookeeper.nodes=0", "topics.auto_create=false"]
    with Rig(data_dir, configs.load(overrides=keys)) as strict:
        assert strict.refusal("ensure_topic", name="logs")[0] == UnknownPartition.code


def test_status_is_told_from_inside(alone: Rig) -> None:
    alone.admin("create_topic", name="logs")
    (partition,) = alone.admin("status")["partitions"]
    assert (partition["topic"], partition["partition"]) == ("logs", 0)


# ---- groups


def test_without_zookeeper_there_are_no_groups_and_the_answer_says_so(alone: Rig) -> None:
    verbs: list[tuple[str, dict[str, Any]]] = [("groups", {}), ("group", {"group": "g"}), ("offsets", {"group": "g"})]
    for verb, arguments in verbs:
        code, message = alone.refusal(verb, **arguments)
        assert code == InvalidRequest.code and "zookeeper" in message


def test_offsets_are_committed_listed_and_deleted(grouped: Rig) -> None:
    grouped.admin("create_topic", name="logs", partitions=2)
    grouped.admin("commit", group="readers", offsets=[["logs", 0, 5], ["logs", 1, 7]])
    grouped.admin("commit", group="readers", offsets=[["logs", 1, 3]])  # an operator may go back
    assert grouped.admin("offsets", group="readers") == [["logs", 0, 5], ["logs", 1, 3]]
    assert grouped.admin("groups") == [{"group": "readers", "protocol": "", "state": "empty", "members": 0}]
    assert grouped.refusal("commit", group="readers", offsets=[["logs", 2, 1]])[0] == UnknownPartition.code
    assert grouped.refusal("commit", group="readers", offsets=[["logs", 0, -1]])[0] == InvalidRequest.code
    assert grouped.refusal("commit", group="", offsets=[["logs", 0, 1]])[0] == InvalidRequest.code
    grouped.admin("delete_offsets", group="readers", partitions=[["logs", 1]])
    assert grouped.admin("offsets", group="readers") == [["logs", 0, 5]]
    grouped.admin("delete_offsets", group="readers")
    assert grouped.admin("groups") == [] and grouped.admin("offsets", group="readers") == []
    assert grouped.refusal("delete_offsets", group="readers")[0] == UnknownGroup.code
    assert grouped.refusal("group", group="readers")[0] == UnknownGroup.code


def test_a_group_has_settings_before_and_after_it_exists(grouped: Rig) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    altered = grouped.admin("alter_group", group="later", settings={session: "2m"})
    assert altered == {
        "group": "later",
        "settings": {session: 120_000, heartbeat: 5_000},
        "sources": {session: "group", heartbeat: "default"},
    }
    described = grouped.admin("group", group="later")
    assert described == altered | {"protocol": "", "state": "configured", "members": [], "partitions": []}
    assert grouped.admin("groups") == [], "it is no group yet"
    grouped.admin("create_topic", name="logs")
    grouped.admin("commit", group="later", offsets=[["logs", 0, 0]])
    described = grouped.admin("group", group="later")
    assert (described["state"], described["settings"][session]) == ("empty", 120_000)
    grouped.admin("delete_offsets", group="later")
    grouped.kill()
    grouped.fork()
    grouped.until(lambda: grouped.native(native.ADMIN, "group", {"group": "later"})[0] == 0)
    assert grouped.admin("group", group="later")["settings"][session] == 120_000
    for settings in ({session: 1}, {session: "5s"}, {session: "soon"}, {"retention.ms": 1}):
        assert grouped.refusal("alter_group", group="later", settings=settings)[0] == InvalidSetting.code
    grouped.admin("alter_group", group="later", settings={session: None, heartbeat: None})
    assert grouped.refusal("group", group="later")[0] == UnknownGroup.code


def test_what_other_brokers_store_is_asked_from_them(grouped: Rig) -> None:
    """Method: a partition registered for broker 9, whose native listener is a socket of this test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        info = BrokerInfo("i", "h", native=f"127.0.0.1:{listener.getsockname()[1]}")
        meddle(grouped, ask([create(f"{BROKER_IDS}/9", encode_broker(info))]))
        topic = TopicInfo({0: [9], 1: [8]}, {}, "f" * 32)
        meddle(grouped, ask([create(f"{TOPICS}/logs", encode_topic(topic))]))
        grouped.until(lambda: grouped.metadata("logs")["topics"][0]["partitions"] == [[0, 9], [1, -1]])
        grouped.admin("commit", group="readers", offsets=[["logs", 0, 70], ["logs", 1, 5]])
        token = grouped.post_admin("group", group="readers")
        grouped.until(lambda: readable(listener))
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as received:
            kind, number, *_ = read_frame(received)
            assert kind == native.HELLO
            peer.sendall(native.encode_frame([number, 0, 1, 9, {}]))
            log_in(peer, received, secret_in(grouped.data_dir))
            _, number, parts, *_ = read_frame(received)
            assert parts == [["logs", 0, -2, -1], ["logs", 0, -1, -1], ["logs", 0, -2, 70]]
            peer.sendall(native.encode_frame([number, 0, [[0, 50, -1, 5], [0, 100, -1, 15], [0, 70, 0, 9]]]))
            here, gone = grouped.result(token)[2]["partitions"]
        assert (here["end"], here["lag_messages"], here["lag_bytes"], here["lost_bytes"]) == (100, 6, 30, 0)
        assert (gone["offset"], gone["end"], gone["lag_messages"], gone["lost_bytes"]) == (5, None, None, None)

        # A peer that hangs up, or answers nonsense, costs its own numbers only.
        for answer in (b"", b"\xff" * 8, native.encode_frame([1, 0, 1, 9, {}]) + native.encode_frame([2, 0, [[1]]])):
            token = grouped.post_admin("topics")
            grouped.until(lambda: readable(listener))
            peer, _ = listener.accept()
            peer.sendall(answer)
            peer.close()
            (row, _) = grouped.result(token)[2][0]["partitions"]
            assert (row["leader"], row["end"], row["state"]) == (9, None, "elsewhere")


def read_frame(received: BinaryIO) -> list[Any]:
    """The header of the next request."""
    return native.decode_header(memoryview(received.read(int.from_bytes(received.read(4), "big"))))[0]


def log_in(peer: socket.socket, received: BinaryIO, secret: bytes) -> None:
    """Play the other broker in the login that comes before the first question."""
    exchange = Exchange((), Credentials({}, secret), brokers=True)
    for _ in range(2):
        kind, token, mechanism, message, *_ = read_frame(received)
        assert kind == native.LOGIN
        if mechanism:
            exchange.choose(mechanism)
        peer.sendall(native.encode_frame([token, 0, "", exchange.respond(message), 0, mechanism is None]))


def test_lag_is_exact_in_messages_bytes_and_seconds(grouped: Rig) -> None:
    grouped.admin("create_topic", name="logs", partitions=3)
    now_ms = time.time_ns() // 1_000_000
    batches = [batch([b"line"] * 10, now_ms - 1000 * age_s) for age_s in (300, 200, 100)]
    starts = write(grouped, "logs", batches)
    middle = starts[2] - 4  # four messages of the second batch are still to be read
    grouped.admin("commit", group="readers", offsets=[["logs", 0, middle], ["logs", 1, 0]])
    part = TopicPartition("logs", 0)
    subscription = encode_subscription(Subscription({"logs": 2}))
    meddle(grouped, ask([create(consumer("readers", "r-1"), subscription)]))
    meddle(grouped, ask([create(owner("readers", part), encode_owner("r-1", 1))]))
    group = grouped.admin("group", group="readers")
    silent = {"silent_s": None}  # it was written into ZooKeeper by hand: nobody hears it
    assert group["members"] == [{"id": "r-1", "client": "", "host": "", "partitions": [["logs", 0]]} | silent]
    assert (group["protocol"], group["state"]) == ("native", "stable")
    first, second = group["partitions"]
    for time_ms in (first.pop("committed_ms"), first.pop("owned_ms")):
        assert now_ms - 1_000 <= time_ms < now_ms + 600_000
    assert first.pop("why") == "r-1 reads it and commits: it is behind, and goes on"
    assert (second["why"], second["owned_ms"]) == ("all is read", None)
    seconds = first.pop("lag_seconds")
    assert 199 < seconds < 260
    assert first == {
        "topic": "logs",
        "partition": 0,
        "owner": "r-1",
        "offset": middle,
        "end": starts[3],
        "lag_messages": 14,
        "lag_bytes": starts[3] - middle,
        "lost_bytes": 0,
        "note": "",
    }
    assert (second["lag_messages"], second["lag_bytes"], second["lag_seconds"]) == (0, 0, 0.0)

    grouped.admin("commit", group="readers", offsets=[["logs", 0, starts[3]]])
    caught_up = grouped.admin("group", group="readers")["partitions"][0]
    assert (caught_up["lag_messages"], caught_up["lag_bytes"], caught_up["lag_seconds"]) == (0, 0, 0.0)
    assert grouped.refusal("delete_offsets", group="readers")[0] == InvalidRequest.code  # it has a member

"""appliance.processes.coordinator.coordinator: the real process; the test is its supervisor and its network worker."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from appliance import config as configs
from appliance.addresses import PLAINTEXT, Listener
from appliance.catalog import Catalog, CatalogChange, Removal, new_id
from appliance.errors import (
    BadValue,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    StorageFault,
    TopicExists,
    UnknownPartition,
    WriterGone,
    ZooKeeperAway,
)
from appliance.processes.coordinator.native_api import NativeApi
from appliance.processes.message_stream import MessageReader, packed
from appliance.processes.messages import (
    FROM_COORDINATOR_STREAM,
    ConnectZooKeeper,
    ForwardRequest,
    RequestAnswered,
    WorkerStreamOpened,
)
from appliance.security.principals import Origin
from appliance.wire import native
from appliance.zookeeper import cluster_identity
from appliance.zookeeper.ensemble import Ensemble
from appliance.zookeeper.operations import Node, Operation, Refused, ask, delete, get, list_children, remove_tree
from appliance.zookeeper.paths import TOPICS, BrokerInfo, TopicInfo, decode_broker, encode_topic, topic
from appliance.zookeeper.session import Session

from ...support.coordinator_fixture import LISTENER, Rig, pump
from ...support.ready import writable
from ...support.server import stopped
from ...support.zookeeper_fixture import ACCESS_KEYS, LOGIN, fresh_connect, result_of, running, share_login

T = TypeVar("T")
LOCAL = ["zookeeper.nodes=0"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Rig]:
    """A coordinator without any ZooKeeper."""
    with Rig(tmp_path, configs.load(overrides=LOCAL)) as rig:
        yield rig


def test_a_created_topic_is_there_for_everyone(alone: Rig) -> None:
    assert alone.admin("create_topic", name="logs", partitions=3) == {"name": "logs", "partitions": 3}
    assert sorted(alone.tables) == [("logs", 0), ("logs", 1), ("logs", 2)]
    (topic,) = alone.metadata("logs")["topics"]
    assert topic["error"] == 0 and topic["partitions"] == [[0, 0], [1, 0], [2, 0]]
    assert topic["settings"]["retention.ms"] == "604800000"


def test_state_comes_back_after_kill_9(alone: Rig) -> None:
    alone.admin("create_topic", name="logs", partitions=2, settings={"retention.ms": "1h"})
    first = alone.admin("init_producer")["producer_id"]
    alone.kill()
    alone.fork()
    (topic,) = alone.metadata()["topics"]
    assert topic["partitions"] == [[0, 0], [1, 0]] and topic["settings"]["retention.ms"] == "3600000"
    assert alone.admin("init_producer")["producer_id"] != first


def test_what_a_killed_coordinator_had_begun_is_finished(tmp_path: Path) -> None:
    """Method: a catalog as it is between its store and the supervisor's answer, for a creation and a
    deletion.
    """
    with Rig(tmp_path, configs.load(overrides=LOCAL)) as rig:
        rig.admin("create_topic", name="made", partitions=1)
        rig.admin("create_topic", name="gone", partitions=1)
        rig.kill()
        catalog = Catalog.load(tmp_path)
        catalog.topics["made"].partitions[1] = [0]
        gone = catalog.topics["gone"]
        catalog.change(CatalogChange(drop="gone", note=Removal("gone", gone.id, [0])))
        rig.fork()
        rig.until(lambda: not Catalog.load(tmp_path).removals and ("made", 1) in rig.tables)
        assert sorted(rig.tables) == [("made", 0), ("made", 1)]


def test_a_supervisor_that_cannot_open_a_partition_makes_the_creation_fail_as_a_whole(alone: Rig) -> None:
    alone.refusals["logs", 1] = ("StorageFault", f"mkdir: {errno.errorcode[errno.EIO]}")
    code, message = alone.refusal("create_topic", name="logs", partitions=2)
    assert code == StorageFault.code and "logs-1: mkdir" in message
    assert alone.metadata()["topics"] == [] and not alone.tables
    del alone.refusals["logs", 1]
    alone.admin("create_topic", name="logs", partitions=2)


def test_creations_side_by_side_make_one_topic(alone: Rig) -> None:
    tokens = [alone.post_admin("create_topic", name="logs") for _ in range(20)]
    codes = sorted(alone.result(token)[0] for token in tokens)
    assert codes == [0] + [TopicExists.code] * 19


def test_a_deleted_topic_is_gone_and_its_name_free_once_its_files_are(alone: Rig) -> None:
    alone.admin("create_topic", name="logs")
    alone.silent = True
    token = alone.post_admin("delete_topic", name="logs")
    alone.until(lambda: alone.metadata()["topics"] == [])  # both requests may be under way at once
    waiting = alone.post_admin("create_topic", name="logs")
    alone.silent = False
    assert alone.result(token)[0] == 0
    assert alone.result(waiting)[0] in (0, WriterGone.code)
    assert alone.deleted == [("logs", 0)]


def test_bad_requests_are_answered_and_garbage_closes_the_connection(alone: Rig) -> None:
    assert alone.refusal("create_topic", name="a/b")[0] == InvalidTopic.code
    assert alone.refusal("delete_topic", name="none")[0] == UnknownPartition.code
    assert alone.refusal("make_coffee")[0] == InvalidRequest.code
    code, message = alone.refusal("create_topic", name="a", partition=3)
    assert code == InvalidRequest.code and "partition" in message
    for frame in (b"", b"\0\1\xc1", native.encode_frame([9, 1])[4:], native.encode_frame([3, 1, "logs"])[4:]):
        token = alone.post("native", frame)
        alone.until(lambda token=token: token in alone.replies)
        assert alone.replies[token] is None
    assert alone.metadata()["topics"] == []


def test_both_listeners_see_the_same_topics(alone: Rig) -> None:
    metadata_all = bytes.fromhex("0003 0001 00000007 ffff ffffffff".replace(" ", ""))  # Metadata v1, no client id
    token = alone.post("kafka", metadata_all, "192.0.2.7:9092")
    alone.until(lambda: token in alone.replies)
    assert b"192.0.2.7" in (alone.replies[token] or b"") and b"logs" not in (alone.replies[token] or b"")
    alone.admin("create_topic", name="logs")
    token = alone.post("kafka", metadata_all)
    alone.until(lambda: token in alone.replies)
    assert b"logs" in (alone.replies[token] or b"")
    token = alone.post("kafka", b"\0\3")
    alone.until(lambda: token in alone.replies)
    assert alone.replies[token] is None


def test_a_bug_in_answering_costs_one_connection_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = NativeApi.answer

    async def answer_or_break(api: NativeApi, frame: bytes, origin: Origin) -> bytes:
        if b"break" in frame:
            raise ZeroDivisionError("a bug")
        return await answer(api, frame, origin)

    monkeypatch.setattr(NativeApi, "answer", answer_or_break)
    with Rig(tmp_path, configs.load(overrides=LOCAL)) as rig:
        token = rig.post_admin("break")
        rig.until(lambda: token in rig.replies)
        assert rig.replies[token] is None and rig.metadata()["topics"] == []


def test_metadata_of_thousands_of_partitions_fits(alone: Rig) -> None:
    alone.admin("create_topic", name="wide", partitions=3000)
    (topic,) = alone.metadata()["topics"]
    assert topic["partitions"] == [[partition, 0] for partition in range(3000)]
    assert len(alone.admin("topics")[0]["partitions"]) == 3000


def test_a_worker_that_asks_without_listening_is_not_read_any_more(alone: Rig) -> None:
    """Goal: bounded memory, and everything is answered once it listens.  Method: fill the stream both ways."""
    frame = native.encode_frame([native.METADATA, 7, ["x" * 200] * 5])[4:]
    origin = Origin(Listener("native", PLAINTEXT, LISTENER), "p:1")
    token = 1 << 40  # no other request has it
    message = packed(ForwardRequest(token, origin, frame))
    whole, sent = message * 64, 0
    while writable(alone.stream, 0.3 if sent > 100 * len(message) else 60):  # 0.3: nobody reads any more
        sent += alone.stream.send(whole[sent % len(message) :])
    assert sent < 64 << 20
    alone.stream.setblocking(True)
    rest = len(message) - sent % len(message)
    pushing = threading.Thread(target=alone.stream.sendall, args=(message[-rest:],))
    pushing.start()
    reader, answered = MessageReader(FROM_COORDINATOR_STREAM, 1 << 20), 0
    while answered < (sent + rest) // len(message):
        reader.feed(alone.stream.recv(1 << 20))
        messages = iter(reader.take_message, None)
        answered += sum(isinstance(message, RequestAnswered) and message.token == token for message in messages)
    pushing.join()
    alone.stream.setblocking(False)
    assert alone.metadata()["topics"] == []


def test_a_replaced_worker_is_served_and_the_old_one_costs_nothing(alone: Rig) -> None:
    old = alone.stream
    alone.stream, child_end = socket.socketpair()
    alone.stream.setblocking(False)
    alone.channel.send(WorkerStreamOpened(0), [child_end.fileno()])
    child_end.close()
    old.close()
    assert alone.metadata()["topics"] == []


def test_stop_and_a_lost_supervisor_end_the_process(tmp_path: Path) -> None:
    with Rig(tmp_path, configs.load(overrides=LOCAL)) as rig:
        rig.metadata()
        assert rig.stop() == 0
        rig.fork()
        rig.metadata()
        rig.channel.close()
        assert rig._reap() == 0


# ---- with ZooKeeper


@pytest.fixture
def connect(standalone: Ensemble) -> str:
    return fresh_connect(standalone)


def member(tmp_path: Path, connect: str, broker_id: int, *settings: str) -> Rig:
    """One of several appliances that share an ensemble."""
    data_dir = tmp_path / str(broker_id)
    data_dir.mkdir(exist_ok=True)
    keys = [f"zookeeper.connect={connect}", f"broker.id={broker_id}", *ACCESS_KEYS, *settings]
    return Rig(data_dir, configs.load(overrides=keys))


def ask_zookeeper(connect: str, operation: Operation[T]) -> T:
    """Look into, or meddle with, ZooKeeper from outside."""
    session = Session(connect, 6_000, login=LOGIN)
    session.start()
    try:
        return result_of(session, operation, timeout_ms=20_000)
    finally:
        session.close()


def test_the_cluster_has_its_id_when_zookeeper_is_said_to_be_connected(tmp_path: Path, connect: str) -> None:
    """That is what READY waits for; clients ask for the id as soon as they are served."""
    for broker_id in range(3):
        with member(tmp_path, connect, broker_id) as rig:
            rig.until(lambda rig=rig: rig.zookeeper.get("state") == "connected")
            assert rig.metadata()["cluster"] != ""


def test_a_broker_with_an_ensemble_of_its_own_has_a_cluster_id_before_that_is_up(tmp_path: Path, connect: str) -> None:
    share_login(tmp_path)
    with Rig(tmp_path, configs.load(overrides=["zookeeper.nodes=1"])) as rig:
        cluster = rig.metadata()["cluster"]
        assert cluster != ""
        rig.channel.send(ConnectZooKeeper(connect))
        rig.until(lambda: rig.zookeeper.get("state") == "connected")
        rig.admin("create_topic", name="logs")
        assert rig.metadata()["cluster"] == cluster
        rig.until(lambda: isinstance(ask_zookeeper(connect, ask([get(cluster_identity.CLUSTER_ID)]))[0], Node))
        assert ask_zookeeper(connect, cluster_identity.cluster_id("another")) == cluster


def test_a_topic_is_spread_over_the_brokers_and_known_to_all(tmp_path: Path, connect: str) -> None:
    with member(tmp_path, connect, 0) as one, member(tmp_path, connect, 1) as two:
        two.fork_again(listeners={"native": "127.0.0.1:9191"})
        pump([one, two], lambda: len(one.metadata()["brokers"]) == len(two.metadata()["brokers"]) == 2)
        assert one.metadata()["brokers"] == [[0, "127.0.0.1", 9091], [1, "127.0.0.1", 9191]]
        pump([one, two], lambda: one.metadata()["cluster"] == two.metadata()["cluster"] != "")
        one.admin("create_topic", name="logs", partitions=5, settings={"retention.ms": "2h"})
        pump([one, two], lambda: len(one.tables) + len(two.tables) == 5)
        assert sorted([*one.tables, *two.tables]) == [("logs", partition) for partition in range(5)]
        pump([one, two], lambda: two.metadata()["topics"])
        (known,) = two.metadata()["topics"]
        assert known == one.metadata()["topics"][0] and known["settings"]["retention.ms"] == "7200000"
        assert sorted(leader for _, leader in known["partitions"]) in ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])

        two.admin("alter_topic", name="logs", settings={"retention.ms": None}, partitions=6)
        pump([one, two], lambda: len(one.tables) + len(two.tables) == 6)
        pump([one, two], lambda: len(one.metadata()["topics"][0]["partitions"]) == 6)
        assert one.metadata()["topics"][0]["settings"]["retention.ms"] == "604800000"

        two.admin("delete_topic", name="logs")
        pump([one, two], lambda: not one.tables and not two.tables)

        session = "consumer.session.timeout.ms"
        for setter, reader, value in ((one, two, 60_000), (two, one, 70_000)):
            setter.admin("alter_group", group="later", settings={session: value})
            pump([one, two], lambda reader=reader, value=value: setting(reader, "later", session) == value)
        assert one.metadata()["topics"] == two.metadata()["topics"] == []


def setting(reader: Rig, group: str, key: str) -> Any:
    """None while the broker does not know the group."""
    code, _, result = reader.native(native.ADMIN, "group", {"group": group})
    return result["settings"][key] if code == 0 else None


def test_a_broker_that_was_away_learns_what_happened(tmp_path: Path, connect: str) -> None:
    """Deleted, deleted and created again, created: all while this broker's coordinator was not there."""
    quick = ["zookeeper.session_timeout_ms=1000"]
    with member(tmp_path, connect, 0, *quick) as away, member(tmp_path, connect, 1) as other:
        pump([away, other], lambda: len(other.metadata()["brokers"]) == 2)
        for name in ("gone", "again", "stays"):
            other.admin("create_topic", name=name, partitions=2)
        pump([away, other], lambda: len(away.tables) == 3)
        away.kill()
        other.admin("delete_topic", name="gone")
        other.admin("delete_topic", name="again")
        pump([other], lambda: len(other.metadata()["brokers"]) == 1)
        other.admin("create_topic", name="again", partitions=3)
        other.admin("create_topic", name="new", partitions=1)
        away.fork()
        names = lambda: [row["name"] for row in away.metadata()["topics"]]  # noqa: E731
        pump([away, other], lambda: names() == ["again", "new", "stays"] and len(away.tables) == 1)
        assert sorted(name for name, _ in away.deleted) == ["again", "gone"]


def test_partitions_that_no_topic_was_stored_for_go_with_their_topic(tmp_path: Path, connect: str) -> None:
    """The coordinator is killed after partitions were opened for it, and before it has stored their topic."""
    quick = ["zookeeper.session_timeout_ms=1000"]
    with member(tmp_path, connect, 0, *quick) as away, member(tmp_path, connect, 1) as other:
        pump([away, other], lambda: len(other.metadata()["brokers"]) == 2)
        away.answers_creations = False
        for name in ("gone", "again"):
            other.admin("create_topic", name=name, partitions=2)
        pump([away, other], lambda: len(away.tables) == 2)
        away.kill()
        for name in ("gone", "again"):
            other.admin("delete_topic", name=name)
        other.admin("create_topic", name="again", partitions=4)
        away.answers_creations = True
        away.fork()
        pump([away, other], lambda: len(away.metadata()["topics"]) == 1 and len(away.deleted) == 2)
        pump([away, other], lambda: len(away.tables) + len(other.tables) == 4)
        assert {name for name, _ in [*away.tables, *other.tables]} == {"again"}
        assert sorted(row["name"] for row in away.admin("trash")) == ["again", "gone"]


def test_zookeeper_that_lost_its_data_costs_nobody_a_log(tmp_path: Path, connect: str) -> None:
    with member(tmp_path, connect, 0) as rig:
        rig.admin("create_topic", name="logs", partitions=2, settings={"segment.ms": "1d"})
        rig.kill()
        for path in ("/brokers", "/cluster"):
            ask_zookeeper(connect, remove_tree(path))
        rig.fork()
        rig.admin("create_topic", name="more")
        rig.until(lambda: isinstance(ask_zookeeper(connect, ask([get(topic("logs"))]))[0], tuple))
        assert sorted(rig.tables) == [("logs", 0), ("logs", 1), ("more", 0)] and not rig.deleted

        # The same under the eyes of a running coordinator: topic nodes vanish, and are registered again.
        ask_zookeeper(connect, ask([delete(topic("logs"))]))
        rig.until(lambda: ask_zookeeper(connect, ask([get(topic("logs"))]))[0] is not Refused.NO_NODE)
        assert not rig.deleted


def test_a_topic_registered_by_hand_is_made_here(tmp_path: Path, connect: str) -> None:
    from appliance.zookeeper.operations import create

    with member(tmp_path, connect, 3) as rig:
        info = TopicInfo({0: [3], 1: [9]}, {"retention.ms": "5"}, new_id())
        ask_zookeeper(connect, ask([create(f"{TOPICS}/logs", encode_topic(info))]))
        rig.until(lambda: ("logs", 0) in rig.tables)
        assert rig.settings["logs", 0]["retention.ms"] == "5"
        rig.until(lambda: rig.metadata()["topics"])
        (known,) = rig.metadata()["topics"]
        assert known["partitions"] == [[0, 3], [1, -1]]


def test_the_registration_names_listeners_and_partitions_and_outlives_the_coordinator(
    tmp_path: Path, connect: str
) -> None:
    def registered() -> Node | None:
        (node,) = ask_zookeeper(connect, ask([get("/brokers/ids/7")]))
        return node if isinstance(node, Node) else None

    def described(node: Node | None) -> BrokerInfo | None:
        info = None if node is None else decode_broker("", node.value)
        return info if info and info.partitions == {"logs": [0, 1]} else None

    with member(tmp_path, connect, 7, "kafka.advertised=logs.example:9092") as rig:
        rig.admin("create_topic", name="logs", partitions=2)
        rig.until(lambda: described(registered()))
        before = registered()
        info = described(before)
        assert before is not None and info is not None
        assert (info.native, info.kafka) == ("127.0.0.1:9091", "logs.example:9092")
        rig.kill()
        rig.fork()  # its node is replaced before the killed one's session expires: peers never see it missing
        rig.until(lambda: (node := registered()) and node.owner != before.owner)
        assert rig.stop() == 0
        assert registered() is None


def test_a_broker_that_lost_its_session_registers_again(tmp_path: Path, connect: str) -> None:
    """Method: a coordinator that is stopped for longer than its session lives, as by a paused machine."""

    def registered() -> bool:
        return ask_zookeeper(connect, ask([get("/brokers/ids/0")]))[0] is not Refused.NO_NODE

    with member(tmp_path, connect, 0, "zookeeper.session_timeout_ms=1000") as rig:
        rig.until(registered)
        with stopped(rig.pid):
            rig.until(lambda: not registered())
        rig.until(registered)
        rig.admin("create_topic", name="logs")


def test_a_second_broker_with_the_same_id_keeps_its_hands_off(tmp_path: Path, connect: str) -> None:
    quick = ["disk.check_ms=200", "zookeeper.session_timeout_ms=1000"]
    with member(tmp_path, connect, 0) as first:
        first.admin("create_topic", name="logs", partitions=2)
        first.until(lambda: ask_zookeeper(connect, ask([get("/brokers/ids/0")]))[0] is not Refused.NO_NODE)
        data_dir = tmp_path / "other"
        data_dir.mkdir()
        keys = [f"zookeeper.connect={connect}", "native.advertised=second:1", *ACCESS_KEYS, *quick]
        with Rig(data_dir, configs.load(overrides=keys)) as second:
            pump([first, second], lambda: second.zookeeper.get("state") == "connected")
            code, message = second.refusal("create_topic", name="more")
            assert code == ZooKeeperAway.code and "until its session is over" in message, "perhaps it was itself"
            second.until(lambda: second.refusal("create_topic", name="more")[0] == BadValue.code)
            code, message = second.refusal("create_topic", name="more")
            assert "broker.id = 0" in message and "another appliance has this id" in message
            assert second.metadata()["topics"] == [] and not second.tables
            first.stop()  # it gives the id back: the second may take it, and what is registered under it
            second.until(lambda: len(second.tables) == 2)


def test_zookeeper_away_fails_what_needs_it_soon_and_nothing_else(tmp_path: Path) -> None:
    with (
        running(tmp_path / "ensemble", 1) as ensemble,
        member(tmp_path, ensemble.connect, 0, "zookeeper.session_timeout_ms=2000") as rig,
    ):
        rig.admin("create_topic", name="logs", partitions=1)
        rig.admin("commit", group="readers", offsets=[["logs", 0, 0]])
        ensemble.stop()
        refused = [rig.post_admin("create_topic", name="more"), rig.post_admin("group", group="readers")]
        assert [row["name"] for row in rig.metadata()["topics"]] == ["logs"]
        assert rig.admin("init_producer")["epoch"] == 0
        assert [rig.result(token)[0] for token in refused] == [ZooKeeperAway.code] * 2
        rig.until(lambda: rig.zookeeper.get("state") in ("suspended", "lost"))
        rig.kill()
        rig.fork()  # a start without ZooKeeper serves what is on disk
        assert [row["name"] for row in rig.metadata()["topics"]] == ["logs"]
        ensemble.start_node(0)
        rig.until(lambda: rig.zookeeper.get("state") == "connected", 30)
        rig.admin("create_topic", name="more")
        assert rig.admin("offsets", group="readers") == [["logs", 0, 0]]


def test_a_deletion_without_zookeeper_is_refused_and_one_that_loses_it_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with (
        running(tmp_path / "ensemble", 1) as ensemble,
        member(tmp_path, ensemble.connect, 0, "zookeeper.session_timeout_ms=2000", "disk.check_ms=200") as rig,
    ):
        for name in ("kept", "lost"):
            rig.admin("create_topic", name=name)
            rig.admin("commit", group="readers", offsets=[[name, 0, 0]])
        rig.silent = True  # the supervisor answers the deletion's order when ZooKeeper is away
        losing = rig.post_admin("delete_topic", name="lost")
        rig.until(lambda: [removal.name for removal in Catalog.load(rig.data_dir).removals] == ["lost"])
        ensemble.stop()
        rig.silent = False
        code, message, _ = rig.result(losing)
        assert code == RequestTimedOut.code and "is deleted" in message
        assert rig.refusal("delete_topic", name="kept")[0] == ZooKeeperAway.code
        assert [row["name"] for row in rig.metadata()["topics"]] == ["kept"]
        assert ("kept", 0) in rig.tables and ("lost", 0) not in rig.tables
        assert [removal.name for removal in Catalog.load(rig.data_dir).removals] == ["lost"]
        rig.kill()  # what is pending outlives the coordinator
        rig.fork()
        ensemble.start_node(0)
        rig.until(lambda: not Catalog.load(rig.data_dir).removals, 40)
        assert rig.admin("offsets", group="readers") == [["kept", 0, 0]]
        left = ask_zookeeper(ensemble.connect, list_children("/consumers/readers/offsets"))
        assert left == ["kept"]
        rig.admin("create_topic", name="lost")
        assert rig.admin("offsets", group="readers") == [["kept", 0, 0]]

"""Two real coordinators and one ensemble; the network between one of them and ZooKeeper is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import config as configs
from appliance.groups.group_coordinator import coordinator_of
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code
from appliance.wire.kafka.metadata_reply import Broker
from appliance.zookeeper.ensemble import Ensemble

from ...clients.proxy import CuttingProxy
from ...support.coordinator_fixture import Rig, pump
from ...support.kafka_apis_fixture import SUBSCRIPTION
from ...support.kafka_messages import decode_response, fill, message, request_frame
from ...support.server import stopped
from ...support.zookeeper_fixture import ACCESS_KEYS, fresh_connect

KEY = {api.name: key for key, api in APIS.items()}
KAFKA = "127.0.0.1:9092"
SESSION_MS = 2_000
GROUP = next(f"g{n}" for n in range(99) if coordinator_of(f"g{n}", [Broker(0, "", 0), Broker(1, "", 0)]).id == 1)


class Pair:
    """Brokers 0 and 1; broker 1 coordinates GROUP while both live, and can be cut off from ZooKeeper."""

    def __init__(self, rigs: list[Rig], proxy: CuttingProxy) -> None:
        self.rigs, self.proxy = rigs, proxy

    def pump(self, condition: Any, timeout_s: float = 60) -> None:
        pump(self.rigs, condition, timeout_s)

    def ask(self, broker: int, name: str, version: int | None = None, **values: Any) -> Any:
        key = KEY[name]
        version = APIS[key].version_max if version is None else version
        frame = request_frame(key, version, fill(message(key, "Request")._struct, version, values))
        rig = self.rigs[broker]
        token = rig.post("kafka", frame, KAFKA)
        self.pump(lambda: token in rig.replies)
        return decode_response(key, version, rig.replies.pop(token) or b"")

    def coordinator(self, asked: int) -> int:
        """-1: it does not know now."""
        found = self.ask(asked, "FindCoordinator", 2, key=GROUP)
        return -1 if found.error_code else int(found.node_id)

    def join(self, broker: int) -> tuple[int, dict[str, Any]]:
        """The error, and what a member says of itself afterwards."""
        protocols = [{"name": "range", "metadata": SUBSCRIPTION}]
        times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 3_000}
        joined = self.ask(
            broker, "JoinGroup", 3, group_id=GROUP, protocol_type="consumer", protocols=protocols, **times
        )
        who = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
        if not joined.error_code:
            assignments = [{"member_id": joined.member_id, "assignment": b""}]
            assert self.ask(broker, "SyncGroup", 3, assignments=assignments, **who).error_code == 0
        return joined.error_code, who

    def join_soon(self, broker: int) -> dict[str, Any]:
        error, who = self.join(broker)
        while error:
            assert error == Code.COORDINATOR_NOT_AVAILABLE
            self.pump(lambda: True)
            error, who = self.join(broker)
        return who

    def commit(self, broker: int, who: dict[str, Any], offset: int) -> int:
        values = {"group_id": GROUP, "member_id": who["member_id"]}
        values["generation_id_or_member_epoch"] = who["generation_id"]
        partition = {"partition_index": 0, "committed_offset": offset}
        reply = self.ask(broker, "OffsetCommit", 7, topics=[{"name": "logs", "partitions": [partition]}], **values)
        return int(reply.topics[0].partitions[0].error_code)

    def position(self, broker: int) -> int:
        topics = [{"name": "logs", "partition_indexes": [0]}]
        reply = self.ask(broker, "OffsetFetch", 5, group_id=GROUP, topics=topics)
        return int(reply.topics[0].partitions[0].committed_offset)

    def beat(self, broker: int, who: dict[str, Any]) -> int:
        return int(self.ask(broker, "Heartbeat", 3, **who).error_code)


@pytest.fixture
def pair(tmp_path: Path, standalone: Ensemble) -> Iterator[Pair]:
    chroot = fresh_connect(standalone).partition("/")[2]
    with CuttingProxy(1, 0) as proxy:
        proxy.calm = True  # it cuts when it is told to, not at random
        host, _, port = standalone.connect.rpartition(":")
        proxy.target = (host, int(port))
        rigs = []
        for broker_id, address in enumerate((standalone.connect, proxy.address)):
            data_dir = tmp_path / str(broker_id)
            data_dir.mkdir()
            keys = [f"zookeeper.connect={address}/{chroot}", f"broker.id={broker_id}"]
            keys += [f"zookeeper.session_timeout_ms={SESSION_MS}", *ACCESS_KEYS]
            rigs.append(Rig(data_dir, configs.load(overrides=keys)))
        with rigs[0], rigs[1]:
            for broker_id, rig in enumerate(rigs):
                rig.fork_again({"native": f"127.0.0.1:{9091 + broker_id}", "kafka": f"127.0.0.1:{9095 + broker_id}"})
            both = Pair(rigs, proxy)
            both.pump(lambda: all(len(rig.metadata()["brokers"]) == 2 for rig in rigs))
            rigs[0].admin("create_topic", name="logs")
            both.pump(lambda: all(rig.metadata()["topics"] for rig in rigs))
            yield both


def test_a_coordinator_that_is_cut_off_coordinates_nothing_and_its_commits_are_never_stored(pair: Pair) -> None:
    assert pair.coordinator(0) == pair.coordinator(1) == 1
    first = pair.join_soon(1)
    assert pair.commit(1, first, 50) == 0 and pair.beat(1, first) == 0
    pair.proxy.cut_off()
    pair.pump(lambda: pair.coordinator(0) == 0)
    assert pair.coordinator(1) == -1, "it knows that it may not be"
    assert pair.beat(1, first) == Code.COORDINATOR_NOT_AVAILABLE
    assert pair.join(1)[0] == Code.COORDINATOR_NOT_AVAILABLE
    second = pair.join_soon(0)
    assert pair.commit(0, second, 1_000) == 0 and pair.position(0) == 1_000
    rig = pair.rigs[1]
    partition = {"partition_index": 0, "committed_offset": 60}
    who = {"member_id": first["member_id"], "generation_id_or_member_epoch": first["generation_id"]}
    values = {"group_id": GROUP, "topics": [{"name": "logs", "partitions": [partition]}], **who}
    key = KEY["OffsetCommit"]
    token = rig.post("kafka", request_frame(key, 7, fill(message(key, "Request")._struct, 7, values)), KAFKA)
    pair.proxy.join()
    pair.pump(lambda: token in rig.replies)
    code = decode_response(key, 7, rig.replies[token] or b"").topics[0].partitions[0].error_code
    assert code in (Code.NOT_COORDINATOR, Code.REBALANCE_IN_PROGRESS, Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION)
    # Both live again: the group goes back to broker 1, with the newest position and without the old members.
    pair.pump(lambda: pair.coordinator(0) == pair.coordinator(1) == 1)
    assert pair.beat(0, second) in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
    assert pair.beat(1, first) in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION)
    third = pair.join_soon(1)
    assert pair.position(1) == 1_000
    assert pair.commit(1, third, 1_001) == 0 and pair.position(1) == 1_001


def test_a_coordinator_that_slept_through_its_session_writes_nothing_when_it_wakes(pair: Pair) -> None:
    first = pair.join_soon(1)
    assert pair.commit(1, first, 50) == 0
    with stopped(pair.rigs[1].pid):
        both, pair.rigs = pair.rigs, [pair.rigs[0]]
        pair.pump(lambda: pair.coordinator(0) == 0)
        second = pair.join_soon(0)
        assert pair.commit(0, second, 1_000) == 0
        pair.rigs = both
    assert pair.commit(1, first, 60) != 0, "the first thing that it does"
    pair.pump(lambda: pair.coordinator(0) == pair.coordinator(1) == 1)
    pair.join_soon(1)
    assert pair.position(1) == 1_000


def test_a_short_cut_costs_nobody_his_group(pair: Pair) -> None:
    """The same session comes back: what was claimed is still claimed, and what was committed meanwhile is stored."""
    first = pair.join_soon(1)
    assert pair.commit(1, first, 50) == 0
    pair.proxy.cut_off()
    rig = pair.rigs[1]
    pair.pump(lambda: rig.zookeeper.get("state") == "suspended")
    pair.proxy.join()
    assert pair.commit(1, first, 60) == 0
    pair.pump(lambda: rig.zookeeper.get("state") == "connected")
    assert pair.beat(1, first) == 0 and pair.position(1) == 60


def test_whichever_broker_is_asked_the_groups_coordinator_moves_its_positions(pair: Pair) -> None:
    """Without its peers' sockets a broker cannot forward: what is seen here is that it does not write by itself."""
    pair.rigs[1].admin("commit", group=GROUP, offsets=[["logs", 0, 7]])
    assert pair.rigs[0].admin("offsets", group=GROUP) == [["logs", 0, 7]]
    code, _ = pair.rigs[0].refusal("commit", group=GROUP, offsets=[["logs", 0, 8]])
    assert code == 8, "BROKER_NOT_AVAILABLE: nobody listens where broker 1 says"
    code, _ = pair.rigs[0].refusal("commit", group=GROUP, offsets=[["logs", 0, 8]], forwarded=True)
    assert code == Code.NOT_COORDINATOR
    assert pair.rigs[1].admin("offsets", group=GROUP) == [["logs", 0, 7]]

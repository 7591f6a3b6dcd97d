"""appliance.processes.coordinator: the real process; the test is its supervisor and its network worker."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import config as configs
from appliance.catalog import Catalog
from appliance.errors import (
    InvalidRequest,
    InvalidTopic,
    StorageFault,
    TopicExists,
    UnknownPartition,
    WriterGone,
)
from appliance.wire import native

from .coordinator_fixture import Rig

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
        del catalog.topics["gone"]
        catalog.deleting = {("gone", 0)}
        catalog.store()
        rig.fork()
        rig.until(lambda: not Catalog.load(tmp_path).deleting)
        assert sorted(rig.tables) == [("made", 0), ("made", 1)]


def test_a_supervisor_that_cannot_open_a_partition_makes_the_creation_fail_as_a_whole(alone: Rig) -> None:
    alone.refusals["logs", 1] = (StorageFault.code, f"mkdir: {errno.errorcode[errno.EIO]}")
    code, message = alone.refusal("create_topic", name="logs", partitions=2)
    assert code == StorageFault.code and "logs-1: mkdir" in message
    assert alone.metadata()["topics"] == [] and not alone.tables
    del alone.refusals["logs", 1]
    alone.admin("create_topic", name="logs", partitions=2)


def test_creations_side_by_side_make_one_topic(alone: Rig) -> None:
    frame = native.encode_frame([native.ADMIN, 7, "create_topic", {"name": "logs"}])[4:]
    codes = sorted(alone.result(token)[0] for token in [alone.post("native", frame) for _ in range(20)])
    assert codes == [0] + [TopicExists.code] * 19


def test_a_deleted_topic_is_gone_and_its_name_free_once_its_files_are(alone: Rig) -> None:
    alone.admin("create_topic", name="logs")
    alone.silent = True
    token = alone.post("native", native.encode_frame([native.ADMIN, 7, "delete_topic", {"name": "logs"}])[4:])
    create = native.encode_frame([native.ADMIN, 7, "create_topic", {"name": "logs"}])[4:]
    assert alone.metadata()["topics"] == []
    waiting = alone.post("native", create)
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


def test_a_replaced_worker_is_served_and_the_old_one_costs_nothing(alone: Rig) -> None:
    import socket

    old = alone.stream
    alone.stream, child_end = socket.socketpair()
    alone.stream.setblocking(False)
    alone.channel.send(["worker", 0], [child_end.fileno()])
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

"""Lag of groups, measured from outside of the coordinator, beside what it says itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Producer
from appliance.client.admin import Admin
from appliance.metrics.lag_watch import Lag, LagWatch
from appliance.names import TopicPartition
from appliance.records.encode import encode_values
from appliance.zookeeper.ensemble import Ensemble

from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    settings: dict[str, Any] = {"topics.segment.bytes": 1024, "topics.index.interval.bytes": 256}
    settings |= {"zookeeper.connect": fresh_connect(standalone)} | ACCESS
    with Server(tmp_path_factory.mktemp("lag") / "data", **settings) as server:
        server.wait_for_zookeeper()
        yield server


def test_lag_is_what_the_coordinator_says(server: Server) -> None:
    with Admin(server.native) as admin, Producer(server.native, acks=-1) as producer:
        admin.create_topic("t", 2)
        sent = [producer.send("t", b"x" * 100, partition=n % 2).result(60) for n in range(60)]
        ends = {(row["partition"]): row["end"] for row in admin.topics(["t"])[0]["partitions"]}
        server.wait_for_tables("t", 2)
        watch = LagWatch(server.data_dir, "test")
        assert watch.measure().by_group == {}

        admin.commit("half", {("t", 0): sent[30].offset, ("t", 1): ends[1]})
        admin.commit("all", {("t", 0): ends[0], ("t", 1): ends[1]})
        found = watch.measure()
        assert found.left_out == 0
        assert found.by_group["all", "t"] == Lag(0, 0, 0.0, 0)
        told = {row["partition"]: row for row in admin.group("half")["partitions"]}
        half = found.by_group["half", "t"]
        assert (half.messages, half.bytes) == (told[0]["lag_messages"], told[0]["lag_bytes"])
        assert half.messages > 0
        assert half.seconds == pytest.approx(told[0]["lag_seconds"], abs=5)

        producer.send("t", b"late", partition=1).result(60)
        wait_for(lambda: watch.measure().by_group["all", "t"].messages == 1, "the new message to count")
        admin.commit("half", {("t", 0): ends[0]})
        assert watch.measure().by_group["half", "t"].messages == 1, "only what is new in the other partition"


def test_what_did_not_change_is_not_measured_again(server: Server) -> None:
    with Admin(server.native) as admin, Producer(server.native, acks=-1) as producer:
        producer.send("u", b"x").result(60)
        admin.commit("once", {("u", 0): 0})
        server.wait_for_tables("u")
        watch = LagWatch(server.data_dir, "test")
        first = watch.measure()
        known = watch._known["once", TopicPartition("u", 0)]
        assert watch.measure().by_group["once", "u"].messages == first.by_group["once", "u"].messages == 1
        assert watch._known["once", TopicPartition("u", 0)] is known


def test_a_message_without_a_time_is_of_no_age(server: Server) -> None:
    """Not as old as 1970, neither for the metrics nor for `groups describe`."""
    with Admin(server.native) as admin, Peer(server.native) as peer:
        admin.create_topic("untimed", 1)
        assert peer.produce("untimed", encode_values([b"x"], -1), acks=-1)[0] == 0
        admin.commit("untimed", {("untimed", 0): 0})
        server.wait_for_tables("untimed")
        lag = LagWatch(server.data_dir, "test").measure().by_group["untimed", "untimed"]
        (row,) = admin.group("untimed")["partitions"]
    assert (lag.messages, lag.seconds) == (row["lag_messages"], row["lag_seconds"]) == (1, 0.0)


def test_what_is_removed_unread_is_lost_and_no_progress(server: Server) -> None:
    with Admin(server.native) as admin, Producer(server.native, acks=-1) as producer:
        middle = [producer.send("v", b"x" * 100).result(60) for _ in range(2)][1].offset
        admin.commit("late", {("v", 0): 0})
        server.wait_for_tables("v")
        watch = LagWatch(server.data_dir, "test")
        assert watch.measure().by_group["late", "v"].lost_bytes == 0
        admin.delete_records("v", 0, middle)
        wait_for(lambda: watch.measure().by_group["late", "v"].lost_bytes == middle, "the loss to be seen")
        assert watch.measure().by_group["late", "v"].messages == 1
        (told,) = admin.group("late")["partitions"]
        assert told["lost_bytes"] == middle
        admin.commit("late", {("v", 0): middle})
        assert watch.measure().by_group["late", "v"].lost_bytes == 0

"""appliance.client.cluster_client: who leads what, from whoever answers."""

from __future__ import annotations

import threading

import pytest

from appliance.client.cluster_client import Cluster
from appliance.errors import ApplianceError, BrokerAway, InvalidRequest, NotLeader, UnknownPartition
from appliance.wire.requests import EARLIEST, LATEST

from ..support.client_peer import Peer
from ..support.server import wait_for


def test_asks_whoever_answers_and_remembers_who_did_not() -> None:
    with Peer({"t": 2}) as peer:
        cluster = Cluster(["127.0.0.1:1", peer.address])
        view = cluster.refresh(["t"])
        assert view.topics["t"].leaders == (0, 0) and view.cluster_id == "test"
        assert cluster.leader("t", 1) == 0 and cluster.address(0)[0] == "127.0.0.1"
        cluster.close()


def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    with Peer({"t": 1}) as peer:
        cluster = Cluster(peer.address)
        cluster.refresh(None)
        peer.hang_up()
        assert cluster.admin("init_producer", {})["epoch"] == 0
        cluster.close()


def test_what_is_wrong_is_named() -> None:
    with Peer({"t": 2}) as peer:
        peer.leaders[("t", 1)] = -1
        cluster = Cluster(peer.address)
        with pytest.raises(UnknownPartition, match="no topic 't'"):
            cluster.topic("t")
        cluster.refresh(["t", "nowhere"])
        with pytest.raises(UnknownPartition):
            cluster.topic("nowhere")
        with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
            cluster.leader("t", 2)
        with pytest.raises(NotLeader, match="t-1"):
            cluster.leader("t", 1)
        with pytest.raises(InvalidRequest, match="unknown verb"):
            cluster.admin("dance", {})
        cluster.close()
        with pytest.raises(BrokerAway, match="closed"):
            cluster.refresh(None)
    cluster = Cluster(peer.address)
    with pytest.raises(BrokerAway, match="is an appliance running"):
        cluster.refresh(None)


@pytest.mark.parametrize("broken", [b"", b"\x00\x00\x00\x01\xc1", b"\x7f\xff\xff\xff"])
def test_a_connection_that_failed_in_any_way_is_not_used_again(broken: bytes) -> None:
    """Goal: an answer to one request is never taken for that to another.  Method: break each kind of call."""
    with Peer({"t": 1}) as peer:
        cluster = Cluster(peer.address, request_timeout_ms=5_000)
        cluster.refresh(["t"])
        control = cluster._control
        assert control is not None
        peer.instead = broken
        with pytest.raises(ApplianceError):
            cluster.refresh(["t"])
        assert cluster._control is None and control.fileno() < 0
        peer.instead = None
        assert cluster.refresh(["t"]).topics["t"].leaders == (0,)
        cluster.close()


def test_a_request_under_way_ends_when_the_cluster_is_closed() -> None:
    with Peer({"t": 1}) as peer:
        cluster = Cluster(peer.address)
        cluster.refresh(["t"])
        peer.answering = False
        seen = peer.requests
        ended: list[ApplianceError] = []

        def ask() -> None:
            try:
                cluster.refresh(["t"])
            except ApplianceError as error:
                ended.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: peer.requests > seen, "it has asked")
        cluster.close()
        asking.join(5)
        assert isinstance(ended[0], BrokerAway)


def test_offsets_come_from_each_leader_and_late_times_mean_the_end() -> None:
    brokers: list[Peer] = []
    with Peer({"t": 2}, broker_id=0, brokers=brokers) as one, Peer({"t": 2}, broker_id=1, brokers=brokers) as two:
        for peer in brokers:
            peer.leaders = {("t", 0): 0, ("t", 1): 1}
        one.log("t", 0).data += bytes(10)
        two.log("t", 1).data += bytes(20)
        cluster = Cluster(one.address)
        cluster.refresh(["t"])
        places = [("t", 0), ("t", 1)]
        assert cluster.offsets(dict.fromkeys(places, LATEST)) == {("t", 0): 10, ("t", 1): 20}
        assert cluster.offsets(dict.fromkeys(places, EARLIEST)) == {("t", 0): 0, ("t", 1): 0}
        assert cluster.offsets({("t", 0): 5, ("t", 1): EARLIEST}) == {("t", 0): 10, ("t", 1): 0}
        cluster.close()

"""appliance.processes.coordinator.change_log: what the coordinator refuses for lack of a right is in the audit log."""

from __future__ import annotations

from collections.abc import Callable

from appliance.client import Admin
from appliance.security.audit_log import Reason
from appliance.wire import native

from ...rules.test_api_rights_matrix import REQUESTS
from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.server import Server, wait_for

ASKED = {
    "JoinGroup": "readers",
    "OffsetCommit": "readers",
    "OffsetFetch": "readers",
    "DescribeGroups": "readers",
    "FindCoordinator": "readers",
    "Metadata": "seen",
    "CreateTopics": "seen",
    "DeleteTopics": "seen",
    "DescribeConfigs": "seen",
    "CreateAcls": "kafka-cluster",
    "InitProducerId": "kafka-cluster",
}
"""What the line of each API names, of the requests of the matrix."""


def refusals(server: Server) -> list[str]:
    """The lines about refusals, without the ports of clients."""
    lines = [line.partition("refused: ")[2] for line in server.log().splitlines() if " audit: refused: " in line]
    return [
        " ".join("from=" if word.startswith("from=127.0.0.1:") else word for word in line.split()) for line in lines
    ]


def test_refusals_of_both_listeners_have_a_line_and_are_counted(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"security.authorizer": "acl"})
    with Admin(server.state["listeners"]["local"]) as admin:
        admin.create_topic("seen")
    with KafkaPeer(server.kafka) as peer:
        for api in ASKED:
            peer.ask(api, **REQUESTS[api])
        peer.ask("ListGroups")  # leaves out, and refuses nothing
        peer.ask("Metadata", topics=None)
    with Peer(server.native) as native_peer:
        for verb, given in (("delete_topic", {"name": "seen"}), ("users", {}), ("group", {"group": "readers"})):
            assert native_peer.call([native.ADMIN, 1, verb, given])[0][1] in (29, 30, 31)
        native_peer.call([native.METADATA, 1, ["seen"]])
    said = [f"{api} {name}" for api, name in ASKED.items()]
    said += ["delete_topic seen", "users kafka-cluster", "group readers", "Metadata seen"]
    expected = sorted(f'reason=denied who=User:ANONYMOUS from= what="{what}"' for what in said)
    wait_for(lambda: len(refusals(server)) >= len(expected), "the lines are written")
    assert sorted(refusals(server)) == expected
    counted = lambda: server.state["refusals"].get(Reason.DENIED.value) == len(expected)  # noqa: E731
    wait_for(counted, "status has their number")

"""appliance.kafka_apis.credentials_api: users as Kafka's tools see and change them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.security.scram import is_password, make_verifier, salted_password
from appliance.security.security_state import SecurityState
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import Client, FakeCluster, run

SALT = b"salt"
UNACCEPTABLE = 93


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096, **values: Any) -> dict[str, Any]:
    salted = salted_password({2: "SCRAM-SHA-512"}.get(mechanism, "SCRAM-SHA-256"), b"secret", SALT, iterations)
    row = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": SALT, "salted_password": salted}
    return row | values


def deletion(name: str = "alice", mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def alter(cluster: FakeCluster, *upsertions: dict[str, Any], deletions: tuple[dict[str, Any], ...] = ()) -> list[Any]:
    request = {"upsertions": list(upsertions), "deletions": list(deletions)}
    reply = run(Client(cluster).ask("AlterUserScramCredentials", **request))
    return [(row.user, row.error_code) for row in reply.results]


def describe(cluster: FakeCluster, *names: str) -> list[Any]:
    users = [{"name": name} for name in names] if names else None
    reply = run(Client(cluster).ask("DescribeUserScramCredentials", users=users))
    assert reply.error_code == 0
    return [
        (row.user, row.error_code, [(info.mechanism, info.iterations) for info in row.credential_infos])
        for row in reply.results
    ]


def test_a_user_is_made_described_changed_and_deleted() -> None:
    cluster = FakeCluster()
    assert alter(cluster, upsertion(), upsertion(mechanism=2, iterations=8192)) == [("alice", 0)]
    verifier = cluster.security.state.users["alice"]["SCRAM-SHA-256"]
    assert is_password("SCRAM-SHA-256", b"secret", verifier) and not is_password("SCRAM-SHA-256", b"x", verifier)
    assert describe(cluster) == describe(cluster, "alice") == [("alice", 0, [(1, 4096), (2, 8192)])]
    assert alter(cluster, deletions=(deletion(),)) == [("alice", 0)]
    assert describe(cluster) == [("alice", 0, [(2, 8192)])]
    assert alter(cluster, upsertion(), deletions=(deletion(mechanism=2),)) == [("alice", 0)]
    assert describe(cluster) == [("alice", 0, [(1, 4096)])]
    assert alter(cluster, deletions=(deletion(),)) == [("alice", 0)] and cluster.security.state.users == {}


def test_who_is_missing_or_asked_for_twice_is_told() -> None:
    cluster = FakeCluster()
    described = [(name, error) for name, error, _ in describe(cluster, "a", "b", "b")]
    assert described == [("a", Code.RESOURCE_NOT_FOUND), ("b", Code.DUPLICATE_RESOURCE)]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (upsertion(iterations=4095), UNACCEPTABLE),
        (upsertion(iterations=16385), UNACCEPTABLE),
        (upsertion(salted_password=b"short"), UNACCEPTABLE),
        (upsertion(salt=b""), UNACCEPTABLE),
        (upsertion(mechanism=0), 33),
        (upsertion(mechanism=3), 33),
        (upsertion(name=""), Code.INVALID_REQUEST),
        (upsertion(name="a\nb"), Code.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused_and_others_are_not_affected(row: dict[str, Any], code: int) -> None:
    cluster = FakeCluster()
    assert alter(cluster, row, upsertion("bob")) == [(row["name"], code), ("bob", 0)]
    assert cluster.security.state.users.keys() == {"bob"}


def test_all_changes_of_a_user_are_made_or_none() -> None:
    cluster = FakeCluster()
    assert alter(cluster, upsertion(), deletions=(deletion(mechanism=2),)) == [("alice", Code.RESOURCE_NOT_FOUND)]
    assert alter(cluster, upsertion(), deletions=(deletion(),)) == [("alice", Code.DUPLICATE_RESOURCE)]
    assert cluster.security.state.users == {}


def test_without_zookeeper_users_are_described_and_not_changed() -> None:
    cluster = FakeCluster()
    cluster.security.state = SecurityState({"alice": {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", b"x", 4096)}})
    cluster.away = True
    assert alter(cluster, upsertion("bob")) == [("bob", Code.COORDINATOR_NOT_AVAILABLE)]
    assert describe(cluster) == [("alice", 0, [(1, 4096)])]

"""Access rules over the Kafka protocol: as Kafka's tools add, show and delete them, in every version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from appliance.security.principals import ANONYMOUS
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run

CREATION: dict[str, Any] = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}
CREATION |= {"principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
EVERYTHING: dict[str, Any] = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
EVERYTHING |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
MAY_ALTER = Acl(
    ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, ANONYMOUS, "*", Operation.ALTER, Permission.ALLOW
)


def cluster() -> FakeCluster:
    """One whose clients may change access rules."""
    made = FakeCluster()
    made.authorizes = True
    made.security.state = type(made.security.state)(acls=(MAY_ALTER,))
    return made


def versions(name: str) -> range:
    api = APIS[KEY[name]]
    return range(api.version_min, api.version_max + 1)


@pytest.mark.parametrize("version", versions("CreateAcls"))
def test_rules_are_added_shown_and_deleted(version: int) -> None:
    made = cluster()
    client = Client(made)
    other = CREATION | {"resource_name": "u-", "resource_pattern_type": 4, "permission_type": 2}
    for _ in range(2):  # again changes nothing
        reply = run(client.ask("CreateAcls", version, creations=[CREATION, other]))
        assert [(row.error_code, row.error_message) for row in reply.results] == [(0, None)] * 2
    assert len(made.security.state.acls) == 3
    reply = run(client.ask("DescribeAcls", version, **(EVERYTHING | {"resource_type_filter": 2})))
    shown = [
        (resource.resource_name, resource.pattern_type, [rule.operation for rule in resource.acls])
        for resource in reply.resources
    ]
    assert (reply.error_code, shown) == (0, [("t", 3, [3]), ("u-", 4, [3])])
    matching = EVERYTHING | {"resource_type_filter": 2, "resource_name_filter": "u-1", "pattern_type_filter": 2}
    reply = run(client.ask("DeleteAcls", version, filters=[matching, EVERYTHING | {"principal_filter": "User:none"}]))
    deleted = [[rule.resource_name for rule in row.matching_acls] for row in reply.filter_results]
    assert deleted == [["u-"], []]
    assert [acl.name for acl in made.security.state.acls] == ["t", "kafka-cluster"]


def test_rules_of_roles_are_shown_as_such_and_for_each_user() -> None:
    """A tool that knows users only sees who may do what, and cannot delete what it has not seen the origin of."""
    made = cluster()
    made.security.state = msgspec.structs.replace(made.security.state, roles={"readers": ("a", "b")})
    client = Client(made)
    run(client.ask("CreateAcls", creations=[CREATION | {"principal": "Role:readers"}, CREATION]))
    reply = run(client.ask("DescribeAcls", **(EVERYTHING | {"resource_name_filter": "t"})))
    assert [rule.principal for each in reply.resources for rule in each.acls] == ["Role:readers", "User:a", "User:b"]
    reply = run(client.ask("DescribeAcls", **(EVERYTHING | {"principal_filter": "User:b"})))
    assert [(each.resource_name, len(each.acls)) for each in reply.resources] == [("t", 1)]
    of_b, of_a = EVERYTHING | {"principal_filter": "User:b"}, EVERYTHING | {"principal_filter": "User:a"}
    refused, deleted = run(client.ask("DeleteAcls", filters=[of_b, of_a])).filter_results
    assert refused.error_code == Code.INVALID_REQUEST and "roles revoke readers b" in refused.error_message
    assert [rule.principal for rule in deleted.matching_acls] == ["User:a"], "its own; that of the role stays"
    assert {acl.principal for acl in made.security.state.acls} == {ANONYMOUS, "Role:readers"}
    reply = run(client.ask("CreateAcls", creations=[CREATION | {"principal": "Role:typo"}]))
    assert reply.results[0].error_code == Code.INVALID_REQUEST and "no role 'typo'" in reply.results[0].error_message


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation": 1},
        {"operation": 99},
        {"principal": "a"},
        {"resource_name": ""},
        {"resource_pattern_type": 2},
        {"resource_type": 4},
    ],
)
def test_a_rule_that_means_nothing_is_refused_by_itself(wrong: dict[str, Any]) -> None:
    made = cluster()
    reply = run(Client(made).ask("CreateAcls", creations=[CREATION | wrong, CREATION]))
    assert [row.error_code for row in reply.results] == [Code.INVALID_REQUEST, 0]
    assert reply.results[0].error_message
    assert len(made.security.state.acls) == 2


def test_an_unknown_number_in_a_filter_is_refused() -> None:
    client = Client(cluster())
    reply = run(client.ask("DeleteAcls", filters=[EVERYTHING | {"operation": 99}]))
    assert [row.error_code for row in reply.filter_results] == [Code.INVALID_REQUEST]
    assert run(client.ask("DescribeAcls", **(EVERYTHING | {"operation": 99}))).error_code == Code.INVALID_REQUEST


def test_without_zookeeper_nothing_is_changed() -> None:
    made = cluster()
    made.away = True
    client = Client(made)
    assert [row.error_code for row in run(client.ask("CreateAcls", creations=[CREATION])).results] == [15]
    assert [row.error_code for row in run(client.ask("DeleteAcls", filters=[EVERYTHING])).filter_results] == [15]


@pytest.mark.parametrize("version", versions("DescribeAcls"))
def test_who_may_not_see_rules_is_told_so(version: int) -> None:
    made = cluster()
    made.security.state = type(made.security.state)()
    reply = run(Client(made).ask("DescribeAcls", version, **EVERYTHING))
    assert (reply.error_code, reply.resources) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
    assert reply.error_message == "not permitted on the cluster"


@pytest.mark.parametrize("version", versions("DescribeAcls"))
def test_without_an_authorizer_there_are_no_rules(version: int) -> None:
    client, disabled = Client(FakeCluster()), Code.SECURITY_DISABLED
    reply = run(client.ask("DescribeAcls", version, **EVERYTHING))
    assert (reply.error_code, reply.resources) == (disabled, []) and "security.authorizer" in reply.error_message
    reply = run(client.ask("CreateAcls", version, creations=[CREATION] * 2))
    assert [row.error_code for row in reply.results] == [disabled] * 2
    reply = run(client.ask("DeleteAcls", version, filters=[EVERYTHING] * 2))
    assert [(row.error_code, row.matching_acls) for row in reply.filter_results] == [(disabled, [])] * 2

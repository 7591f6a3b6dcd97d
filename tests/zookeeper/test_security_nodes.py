"""appliance.zookeeper.security_nodes: what is stored is found again, as Kafka would, and changes do not collide."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue, InvalidRequest
from appliance.security.accounts import OPEN, Account
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from appliance.security.quotas import Quota
from appliance.security.roles import RoleDeletion, created
from appliance.security.rule_changes import added
from appliance.security.scram import Verifier, make_verifier
from appliance.security.security_state import SecurityState
from appliance.security.user_changes import alter_account
from appliance.zookeeper.operations import Operation as ZooKeeperOperation
from appliance.zookeeper.operations import ask, create, delete
from appliance.zookeeper.security_nodes import REVISION, alter_state, read_state

from ..support.zookeeper_fixture import Tree

ALICE = make_verifier("SCRAM-SHA-256", b"secret", 4096, b"salt")
ACL = Acl(ResourceType.TOPIC, "logs", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)

names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=8)
verifiers = st.builds(
    Verifier,
    st.binary(min_size=1, max_size=30),
    st.integers(4096, 16384),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
)
users = st.dictionaries(names, st.fixed_dictionaries({"SCRAM-SHA-256": verifiers}), max_size=3)
acls = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER]),
    names,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    names.map("User:{}".format),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.READ, Operation.ALL, Operation.DESCRIBE_CONFIGS]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
name_or_default = st.just("") | names
entities = st.one_of(
    st.tuples(st.tuples(st.just("user"), name_or_default)),
    st.tuples(st.tuples(st.just("client-id"), name_or_default)),
    st.tuples(st.tuples(st.just("client-id"), name_or_default), st.tuples(st.just("user"), name_or_default)),
)
limits = st.floats(0.1, 1e12).map(lambda value: (("producer_byte_rate", value),))
quotas = st.lists(st.builds(Quota, entities, limits), max_size=3, unique_by=lambda quota: quota.entity)
accounts = st.builds(
    Account, st.booleans(), st.sampled_from([0, 1, 10**12]), st.sampled_from(["", "once", "again"])
).filter(lambda account: account != OPEN)
states = st.builds(
    lambda users, acls, quotas, accounts, roles: SecurityState(
        users, tuple(sorted(acls)), tuple(sorted(quotas)), accounts=accounts, roles=roles
    ),
    users,
    st.sets(acls, max_size=4),
    quotas,
    st.dictionaries(names, accounts, max_size=3),
    st.dictionaries(names, st.sets(names, max_size=3).map(lambda users: tuple(sorted(users))), max_size=3),
)


@given(st.lists(states, min_size=1, max_size=3))
def test_any_state_after_any_other_is_read_back(chain: list[SecurityState]) -> None:
    tree = Tree()
    for state in chain:
        tree.run(alter_state(lambda _, state=state: state))  # type: ignore[misc]
        assert tree.run(read_state()) == (state, True)


def write(path: str, value: bytes) -> ZooKeeperOperation[None]:
    yield from ask([create(path, value)])


def ask_delete(path: str) -> ZooKeeperOperation[None]:
    yield from ask([delete(path)])


def test_the_nodes_are_those_of_kafka() -> None:
    """Expected: what a Kafka 3 broker with ZooKeeper writes."""
    tree = Tree()
    quota = Quota((("user", "alice"),), (("producer_byte_rate", 1024.0),))
    state = SecurityState({"alice": {"SCRAM-SHA-256": ALICE}}, (ACL,), (quota,))
    tree.run(alter_state(lambda _: state))
    node = json.loads(tree.nodes["/config/users/alice"].value)
    assert node["version"] == 1 and node["config"]["producer_byte_rate"] == "1024"
    verifier = dict(part.split("=", 1) for part in node["config"]["SCRAM-SHA-256"].split(","))
    assert verifier.keys() == {"salt", "stored_key", "server_key", "iterations"}
    assert (verifier["salt"], verifier["iterations"]) == ("c2FsdA==", "4096")
    assert json.loads(tree.nodes["/kafka-acl/Topic/logs"].value) == {
        "version": 1,
        "acls": [{"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}],
    }


def overtaken(
    tree: Tree, slow: ZooKeeperOperation[SecurityState], quick: ZooKeeperOperation[SecurityState]
) -> SecurityState:
    """What the slow change returns, if the quick one is made between its reading and its writing."""
    requests, has_overtaken = next(slow), False
    with pytest.raises(StopIteration) as finished:
        while True:
            if any(request.verb == "multi" for request in requests) and not has_overtaken:
                has_overtaken = True
                tree.run(quick)
            requests = slow.send([tree.answer(request) for request in requests])
    state = finished.value.value
    assert isinstance(state, SecurityState)
    return state


@pytest.mark.parametrize("deletes_first", [True, False])
def test_a_role_that_another_broker_deletes_leaves_no_rule(deletes_first: bool) -> None:
    """Or the rule would be there for the next role of the name."""
    tree = Tree()
    tree.run(alter_state(created("readers")))
    addition = alter_state(lambda state: added(state, [msgspec.structs.replace(ACL, principal="Role:readers")]))
    deletion = alter_state(RoleDeletion("readers"))
    if deletes_first:
        with pytest.raises(InvalidRequest, match="there is no role"):
            overtaken(tree, addition, deletion)
    else:
        assert overtaken(tree, deletion, addition).acls == ()
    state, _ = tree.run(read_state())
    assert state.acls == () and state.roles == {}


def test_two_who_change_something_both_succeed() -> None:
    tree = Tree()

    def add(user: str) -> ZooKeeperOperation[SecurityState]:
        return alter_state(lambda state: SecurityState({**state.users, user: {"SCRAM-SHA-256": ALICE}}))

    assert overtaken(tree, add("a"), add("b")).users.keys() == {"a", "b"}


def test_the_same_change_again_changes_nothing_and_a_change_is_announced() -> None:
    tree = Tree()
    state = SecurityState({"alice": {"SCRAM-SHA-256": ALICE}})
    tree.run(alter_state(lambda _: state))
    announced = tree.nodes[REVISION].value
    tree.run(alter_state(lambda _: state))
    assert tree.nodes[REVISION].value == announced
    tree.run(alter_state(lambda _: SecurityState()))
    assert tree.nodes[REVISION].value != announced and "/config/users/alice" not in tree.nodes


def test_what_cannot_be_read_is_left_out_but_for_rules(caplog: pytest.LogCaptureFixture) -> None:
    tree = Tree()
    tree.run(alter_state(lambda _: SecurityState({"alice": {"SCRAM-SHA-256": ALICE}})))
    tree.run(write("/config/users/bob", b"junk"))
    secret = b'{"config": {"SCRAM-SHA-256": "salt=QQ==,stored_key=U0VDUkVU,server_key=U0VDUkVU,iterations=1"}}'
    tree.run(write("/config/users/carol", secret))
    state, _ = tree.run(read_state())
    assert state.users.keys() == {"alice"}
    assert "/config/users/bob" in caplog.text and "/config/users/carol" in caplog.text
    assert "U0VDUkVU" not in caplog.text
    assert state.accounts == {"bob": Account(locked=True)}
    for path, value in (("/security/roles/readers", b"junk"), ("/kafka-acl/Topic/logs", b'{"acls": [{"host": "a"}]}')):
        tree.run(write(path, value))
        with pytest.raises(BadValue, match=path):
            tree.run(read_state())
        tree.run(ask_delete(path))


@pytest.mark.parametrize(
    "value",
    [
        b'{"version": 1, "config": {"locked": true}}',
        b'{"version": 1, "config": {"locked": "true", "expires_ms": 1}}',
        b'{"version": 1, "config": {"expires_ms": "-1"}}',
        b"junk",
    ],
)
def test_a_damaged_node_lets_nobody_in_until_the_user_is_unlocked(value: bytes) -> None:
    tree = Tree()
    tree.run(write("/config/users/CN%3Dweb", value))
    state, _ = tree.run(read_state())
    assert state.accounts["CN=web"].refusal(now_ms=2)
    tree.run(alter_state(alter_account("CN=web", locked=False, expires_ms=0)))
    assert tree.run(read_state())[0].accounts == {}

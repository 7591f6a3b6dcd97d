"""appliance.security.roles: users may what their roles allow, and changes of roles say what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.errors import InvalidRequest, UnknownUser
from appliance.security import roles as roles_module
from appliance.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, Rights
from appliance.security.authorizer import ACL, Authorizer
from appliance.security.principals import Origin
from appliance.security.roles import RoleDeletion, created, effective, regranted
from appliance.security.rule_changes import RuleDeletion, added
from appliance.security.scram import Verifier
from appliance.security.security_state import SecurityState

LISTENER = Listener("kafka", PLAINTEXT, "127.0.0.1:9092")
USERS = ("alice", "bob", "carol")
ROLES = ("readers", "writers", "nobody")
VERIFIERS = {"SCRAM-SHA-256": Verifier(b"salt", 4096, b"key", b"key")}
START = SecurityState(users=dict.fromkeys(USERS, VERIFIERS))

rules = st.builds(
    Acl,
    st.just(ResourceType.TOPIC),
    st.sampled_from(["a", "ab", "b", "*"]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([f"User:{user}" for user in (*USERS, "*")] + [f"Role:{role}" for role in ROLES]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
states = st.builds(
    lambda acls, roles: SecurityState(acls=tuple(sorted(acls)), roles=roles),
    st.sets(rules, max_size=8),
    st.dictionaries(
        st.sampled_from(ROLES), st.sets(st.sampled_from(USERS)).map(lambda users: tuple(sorted(users))), max_size=3
    ),
)


@given(states, st.sampled_from(USERS), st.sampled_from(["10.0.0.1", "10.0.0.2"]), st.booleans())
def test_a_user_may_what_the_effective_rules_say(state: SecurityState, user: str, host: str, open_: bool) -> None:
    """What tools are shown, without any roles, decides the same."""
    authorizer = Authorizer(ACL, "", without_acl=open_)
    authorizer.enforce(state)
    access = authorizer.access(Origin(LISTENER, f"{host}:1", f"User:{user}"))
    shown = Rights([rule.acl for rule in effective(state, AclFilter())], without_acl=open_)
    for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
        for topic in ("a", "ab", "b", "c"):
            expected = shown.access(f"User:{user}", host).may(operation, ResourceType.TOPIC, topic)
            assert access.may(operation, ResourceType.TOPIC, topic) is expected


@given(states, st.builds(AclFilter, principal=st.none() | st.sampled_from(["User:alice", "Role:readers"])))
def test_a_filter_selects_of_what_is_effective(state: SecurityState, chosen: AclFilter) -> None:
    every = list(effective(state, AclFilter()))
    assert list(effective(state, chosen)) == [rule for rule in every if chosen.selects(rule.acl)]


def rule(principal: str, topic: str = "web") -> Acl:
    whose = ResourceType.TOPIC, topic, PatternType.LITERAL, principal, "*"
    return Acl(*whose, Operation.READ, Permission.ALLOW)


def made() -> SecurityState:
    """Readers have a rule, and alice and bob are readers; alice has a rule of her own."""
    state = regranted("readers", ["bob", "alice"], [], without_password=False)(created("readers")(START))
    return added(state, [rule("Role:readers"), rule("User:alice", "hers")])


def test_a_new_role_has_no_rules() -> None:
    """Rules for a role that there is not may stand in ZooKeeper, from Kafka's tools."""
    left = (rule("Role:readers"), rule("User:alice"))
    change = created("readers")
    state = change(SecurityState(acls=left))
    assert state.acls == (rule("User:alice"),) and state.roles == {"readers": ()}
    given = added(state, [rule("Role:readers")])
    assert change(given) == given


def test_a_change_accepts_its_own_result() -> None:
    """It is made again when a reply was lost."""
    state = made()
    for change in (
        created("writers"),
        regranted("readers", ["carol"], ["alice"], without_password=False),
        RoleDeletion("readers"),
    ):
        after = change(state)
        assert change(after) == after != state


def test_a_deletion_takes_the_rules_and_leaves_those_of_users() -> None:
    deletion = RoleDeletion("readers")
    state = deletion(made())
    assert not state.roles and state.acls == (rule("User:alice", "hers"),)
    assert deletion.users == ("alice", "bob") and deletion.rules == [rule("Role:readers")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (created("readers"), "there is a role 'readers' already"),
        (regranted("typo", ["alice"], [], without_password=True), "there is no role 'typo'"),
        (RoleDeletion("typo"), "there is no role 'typo'"),
        (lambda state: added(state, [rule("Role:typo")]), "there is no role 'typo'"),
        (lambda state: added(state, [rule("Role:")]), "there is no role ''"),
    ],
)
def test_a_wrong_name_is_refused(change: Callable[[SecurityState], SecurityState], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        change(made())


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "a\n", "x" * 250])
def test_a_role_has_a_name_that_can_be_typed(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a role's name has 1 to 249"):
        created(name)


def test_a_role_is_given_to_users_that_there_are() -> None:
    with pytest.raises(UnknownUser, match="no user 'dave' with a password"):
        regranted("readers", ["dave"], [], without_password=False)(made())
    state = regranted("readers", ["CN=dave"], [], without_password=True)(made())
    assert state.roles["readers"] == ("CN=dave", "alice", "bob")
    with pytest.raises(UnknownUser, match="'carol' does not have the role"):
        regranted("readers", [], ["carol"], without_password=False)(state)
    with pytest.raises(InvalidRequest, match="one by one"):
        regranted("readers", ["*"], [], without_password=True)


def test_what_holds_through_a_role_is_not_deleted_unsaid() -> None:
    """A deletion that would leave everything as it is says where the rule comes from."""
    state = made()
    of_bob, of_alice = AclFilter(principal="User:bob"), AclFilter(principal="User:alice")
    deletion = RuleDeletion([of_bob, of_alice, AclFilter(principal="User:carol")])
    assert deletion(state).acls == (rule("Role:readers"),)
    assert "`appliance roles revoke readers bob`" in deletion.refusal(of_bob)
    assert not deletion.refusal(of_alice) and not deletion.refusal(AclFilter(principal="User:carol"))
    whole = RuleDeletion([AclFilter(name="web")])
    assert not [acl for acl in whole(state).acls if acl.name == "web"] and not whole.refusal(AclFilter(name="web"))


@pytest.mark.parametrize("bound", ["ROLES_MAX", "GRANTS_MAX", "EFFECTIVE_MAX"])
def test_roles_are_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = {"ROLES_MAX": 1, "GRANTS_MAX": 2, "EFFECTIVE_MAX": 4}
    monkeypatch.setattr(roles_module, bound, most[bound])
    state = made()
    change = {
        "ROLES_MAX": created("writers"),
        "GRANTS_MAX": regranted("readers", ["carol"], [], without_password=False),
        "EFFECTIVE_MAX": lambda state: added(state, [rule("Role:readers", "other")]),
    }[bound]
    with pytest.raises(InvalidRequest, match=f": {most[bound]} at most"):
        change(state)


def test_a_state_survives_the_way_to_a_worker() -> None:
    state = made()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SecurityState) == state

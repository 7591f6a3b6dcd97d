"""Decisions are those of a model that goes through all rules one after another, as Kafka's documentation has them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import Listener, address_text
from appliance.errors import InvalidRequest
from appliance.security.acls import (
    ANYBODY,
    DECISIONS_MAX,
    HOSTS_MAX,
    OPERATIONS,
    UNRESTRICTED,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rights,
    check_rule,
    parse,
    word,
)
from appliance.security.authorizer import Authorizer
from appliance.security.local_users import user_of
from appliance.security.principals import Origin

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE, HOST = "User:alice", "10.0.0.1"

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ba"])
PRINCIPALS = st.sampled_from([ALICE, "User:bob", "User:ANONYMOUS"])
HOSTS = st.sampled_from([HOST, "10.0.0.2", "2001:db8::1"])
NETWORKS = {
    "10.0.0.0/31": [HOST],
    "10.0.0.0/8": [HOST, "10.0.0.2"],
    "10.0.0.2/31": ["10.0.0.2"],
    "2001:db8::/32": ["2001:db8::1"],
    "0.0.0.0/0": [HOST, "10.0.0.2"],
}
"""And the hosts that they have."""
SOME_OPERATIONS = [READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.DELETE]
ACLS = st.builds(
    Acl,
    resource=st.sampled_from([TOPIC, GROUP]),
    name=NAMES,
    pattern=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.one_of(PRINCIPALS, st.just(ANYBODY)),
    host=st.one_of(HOSTS, st.sampled_from(["*", *NETWORKS])),
    operation=st.sampled_from([*SOME_OPERATIONS, Operation.ALL]),
    permission=st.sampled_from([ALLOW, DENY]),
)


def acl(
    operation: Operation = READ,
    name: str = "web",
    permission: Permission = ALLOW,
    principal: str = ALICE,
    host: str = "*",
    pattern: PatternType = LITERAL,
    resource: ResourceType = TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def is_about(one: Acl, resource: ResourceType, name: str) -> bool:
    if one.resource != resource:
        return False
    if one.pattern == PREFIXED:
        return name[: len(one.name)] == one.name
    return one.name in ("*", name)


def model(
    acls: Sequence[Acl], principal: str, host: str, operation: Operation, resource: ResourceType, name: str, open_: bool
) -> bool:
    """Kafka's rules, word by word."""
    about = [one for one in acls if is_about(one, resource, name)]
    ours = [
        one
        for one in about
        if one.principal in (principal, "User:*") and (one.host in (host, "*") or host in NETWORKS.get(one.host, ()))
    ]
    for one in ours:
        if one.permission == DENY and one.operation in (operation, Operation.ALL):
            return False
    enough = {operation, Operation.ALL}
    if operation == DESCRIBE:
        enough |= {READ, WRITE, Operation.DELETE, Operation.ALTER}
    if operation == Operation.DESCRIBE_CONFIGS:
        enough.add(Operation.ALTER_CONFIGS)
    if any(one.permission == ALLOW and one.operation in enough for one in ours):
        return True
    return open_ and not about


@given(
    st.lists(ACLS, max_size=8),
    PRINCIPALS,
    HOSTS,
    st.sampled_from(SOME_OPERATIONS),
    st.sampled_from(["a", "ab", "abc", "b", "ba", "c"]),
    st.booleans(),
)
def test_decides_as_the_model(
    acls: list[Acl], principal: str, host: str, operation: Operation, name: str, open_: bool
) -> None:
    access = Rights(acls, without_acl=open_).access(principal, host)
    for _ in range(2):  # decided, and remembered
        assert access.may(operation, TOPIC, name) is model(acls, principal, host, operation, TOPIC, name, open_)


@given(st.lists(ACLS, max_size=6), PRINCIPALS, HOSTS, st.booleans())
def test_may_some_says_whether_any_name_is_allowed(acls: list[Acl], principal: str, host: str, open_: bool) -> None:
    """Names longer than any in a rule stand for all others."""
    names = ["a", "ab", "abc", "b", "ba", "*", "a~", "ab~", "abc~", "b~", "ba~", "*~", "~"]
    access = Rights(acls, without_acl=open_).access(principal, host)
    some = any(model(acls, principal, host, WRITE, TOPIC, name, open_) for name in names)
    if not open_:  # with it, Kafka does not look whether there is a resource without rules
        assert access.may_some(WRITE, TOPIC) is some
    else:
        assert access.may_some(WRITE, TOPIC) >= some


def test_a_denial_wins_and_implies_nothing() -> None:
    access = Rights([acl(READ), acl(READ, permission=DENY)]).access(ALICE, HOST)
    assert not access.may(READ, TOPIC, "web")
    assert access.may(DESCRIBE, TOPIC, "web"), "the denial of Read is none of Describe"


def test_super_users_may_everything_whatever_is_denied() -> None:
    rights = Rights([acl(Operation.ALL, "*", DENY)], {ALICE})
    assert rights.access(ALICE, HOST).may(Operation.DELETE, TOPIC, "web")
    assert rights.access(ALICE, HOST).unrestricted
    assert not rights.access("User:bob", HOST).may(READ, TOPIC, "web")


def test_without_authorizer_everybody_may_everything() -> None:
    assert UNRESTRICTED.may(Operation.ALTER, CLUSTER)
    assert UNRESTRICTED.may_some(WRITE, TOPIC)
    assert UNRESTRICTED.writable["anything"]
    assert not UNRESTRICTED.writable, "it remembers nothing"
    assert UNRESTRICTED.operations(GROUP, "g") == OPERATIONS[GROUP]


def test_lists_the_allowed_operations() -> None:
    access = Rights([acl(READ), acl(Operation.ALTER_CONFIGS, "w", pattern=PREFIXED)]).access(ALICE, HOST)
    assert access.operations(TOPIC, "web") == {3, 8, 10, 11}
    assert access.operations(CLUSTER) == frozenset()


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        ("0:0:0:0:0:0:0:1", ("::1", 9, 0, 0)),
        ("2001:DB8::00ff", ("2001:db8::ff", 9, 0, 0)),
        ("10.0.0.1", ("::ffff:10.0.0.1", 9, 0, 0)),
        ("::ffff:10.0.0.1", ("10.0.0.1", 9)),
        ("10.0.0.1", ("10.0.0.1", 9)),
    ],
)
def test_a_host_is_the_same_however_it_is_written(written: str, peer: tuple[object, ...]) -> None:
    """A denial holds also for IPv4 at a socket of both, and as Java writes IPv6."""
    host = Origin(Listener("kafka", "PLAINTEXT", "h:1"), address_text(peer)).host
    everybody = acl()
    rights = Rights([everybody, msgspec.structs.replace(everybody, host=written, permission=DENY)])
    assert not rights.access(ALICE, host).may(READ, TOPIC, "web")
    assert rights.access(ALICE, "10.0.0.2").may(READ, TOPIC, "web")


def test_who_has_no_address_comes_from_no_network() -> None:
    rights = Rights([acl(), acl(permission=DENY, host="0.0.0.0/0")])
    assert rights.access(ALICE, "unix").may(READ, TOPIC, "web")
    assert not rights.access(ALICE, HOST).may(READ, TOPIC, "web")


def test_what_was_stored_before_hosts_were_checked_is_about_nobody() -> None:
    rights = Rights([acl(), acl(permission=DENY, host="10.0.0.1/8"), acl(permission=DENY, host="localhost")])
    assert rights.access(ALICE, HOST).may(READ, TOPIC, "web")


def test_remembers_a_bounded_number_of_hosts() -> None:
    rights = Rights([acl(host="10.0.0.0/8")])
    for number in range(HOSTS_MAX + 10):
        assert rights.access(ALICE, f"10.0.{number >> 8}.{number & 255}").may(READ, TOPIC, "web")
    assert len(rights._rules_from) <= HOSTS_MAX


def test_remembers_a_bounded_number_of_decisions() -> None:
    access = Rights([acl(READ, "t", pattern=PREFIXED)]).access(ALICE, HOST)
    for number in range(2 * DECISIONS_MAX + 1):
        assert access.readable[f"t{number}"]
    assert len(access.readable) <= DECISIONS_MAX


def test_hosts_without_rules_of_their_own_share_their_access() -> None:
    rights = Rights([acl(READ, host=HOST)])
    assert rights.access(ALICE, HOST).may(READ, TOPIC, "web")
    assert rights.access(ALICE, "10.9.9.9").host == rights.access(ALICE, "10.8.8.8").host == "*"
    assert not rights.access(ALICE, "10.9.9.9").may(READ, TOPIC, "web")


FILTERED = [
    acl(READ, "web"),
    acl(WRITE, "web", DENY, "User:bob", HOST),
    acl(READ, "*"),
    acl(READ, "we", pattern=PREFIXED),
    acl(READ, "x", pattern=PREFIXED),
    acl(READ, "web", resource=GROUP),
]


@pytest.mark.parametrize(
    ("chosen", "selected"),
    [
        (AclFilter(), [0, 1, 2, 3, 4, 5]),
        (AclFilter(resource=TOPIC, name="web"), [0, 1]),
        (AclFilter(name="web", pattern=LITERAL), [0, 1, 5]),
        (AclFilter(resource=TOPIC, name="web", pattern=PatternType.MATCH), [0, 1, 2, 3]),
        (AclFilter(pattern=PREFIXED), [3, 4]),
        (AclFilter(name="we", pattern=PREFIXED), [3]),
        (AclFilter(name="web", pattern=PREFIXED), []),
        (AclFilter(pattern=PatternType.MATCH), [0, 1, 2, 3, 4, 5]),
        (AclFilter(principal="User:bob"), [1]),
        (AclFilter(host=HOST), [1]),
        (AclFilter(operation=WRITE), [1]),
        (AclFilter(permission=ALLOW), [0, 2, 3, 4, 5]),
    ],
)
def test_filters_select_as_in_kafka(chosen: AclFilter, selected: list[int]) -> None:
    assert [number for number, one in enumerate(FILTERED) if chosen.selects(one)] == selected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (acl(Operation.ANY), "one operation"),
        (acl(pattern=PatternType.MATCH), "Literal or Prefixed"),
        (acl(name=""), "name"),
        (acl(principal="alice"), "User:NAME"),
        (acl(principal="user:alice"), "nobody is called 'user:alice'"),
        (acl(principal="Group:ops"), "Role:NAME"),
        (acl(principal="User:"), "printable"),
        (acl(principal="User: bob"), "blank"),
        (acl(principal="User:bob "), "blank"),
        (acl(principal="User:b*"), r"ends with \*"),
        (acl(principal="User:" + "x" * 250), "printable"),
        (acl(principal="User:Mu\u0308ller"), "Müller"),
        (acl(host=""), "host"),
        (acl(host="localhost"), "no client comes from 'localhost'"),
        (acl(host="10.0.0.01"), "no client comes from"),
        (acl(host="10.0.0.7 "), "no client comes from"),
        (acl(host="10.0.0.*"), "no client comes from"),
        (acl(host="10.0.0.7/8"), "behind its mask"),
        (acl(host="10.0.0.0/33"), "no client comes from"),
        (acl(host="::ffff:a00:0/104"), "written as such"),
        (acl(name="x" * 256), "name"),
        (acl(Operation.ALTER, "web", resource=CLUSTER), "kafka-cluster"),
    ],
)
def test_refuses_rules_that_mean_nothing(wrong: Acl, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_rule(wrong)


@given(ACLS)
def test_survives_the_way_to_another_process(one: Acl) -> None:
    check_rule(one)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Acl) == one


@pytest.mark.parametrize("kind", [Operation, ResourceType, PatternType, Permission])
def test_words_are_those_of_kafka(kind: type[Operation]) -> None:
    for value in kind:
        assert parse(kind, word(value)) is parse(kind, value.name) is value
    assert word(Operation.DESCRIBE_CONFIGS) == "DescribeConfigs"
    with pytest.raises(InvalidRequest, match="must be one of"):
        parse(kind, "shout")


def test_only_the_kernel_says_who_is_an_administrator() -> None:
    """A user that has logged in, or a certificate, is none, whatever its name; nor is another user of this host."""
    own = Authorizer("acl", "", False)
    local, remote = Listener("native", "PLAINTEXT", "unix:/s"), Listener("native", "SASL_SSL", "127.0.0.1:1")
    for name in ("root", user_of(os.geteuid())):
        assert own.access(Origin(local, "unix:7", f"User:{name}")).unrestricted
        for where in ("127.0.0.1:5", "unix:7"):
            assert not own.access(Origin(remote, where, f"User:{name}")).unrestricted
    assert not own.access(Origin(local, "unix:7", "User:nobody-else")).unrestricted

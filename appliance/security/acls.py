"""Decides who may do what, by access control lists as Kafka has them.

An :class:`Acl` allows or denies a principal, from a host, an operation on a resource.  :class:`Rights` holds all of
them; :class:`Access` is the part of them that concerns one client, indexed so that a decision is one look-up.

The decision, as in Kafka's StandardAuthorizer::

    super user                                                    allowed
    an ACL denies the operation, or All, on the resource          denied
    an ACL allows the operation, one that implies it, or All      allowed
    no ACL of any principal is about the resource                 ``without_acl``, as allow.everyone.if.no.acl.found
    else                                                          denied

An ACL is about a resource if its pattern is literal and has the resource's name or ``*``, or is prefixed and the name
begins with it.  Read, Write, Delete and Alter imply Describe, AlterConfigs implies DescribeConfigs; a denial implies
nothing.  ``User:*`` means every principal, ``Role:NAME`` those who have the role (:mod:`.roles`), the host ``*`` every
host.  Hosts are addresses or networks (``10.0.0.0/8``), not names.

Brokers of this cluster (``Broker:…``) have the rights that they need from each other, BROKER_RULES, and no others.

Bounds: ``ACLS_MAX`` ACLs; ``DECISIONS_MAX`` remembered decisions of each right of a client; ``HOSTS_MAX`` remembered
hosts.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from ..addresses import parse_network
from ..errors import InvalidRequest
from ..names import GROUP_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX
from .principals import BROKER_PREFIX, ROLES, USERS, name_fault, user_of_principal

ACLS_MAX: Final = 10_000
DECISIONS_MAX: Final = 1_000
HOSTS_MAX: Final = 10_000
PRINCIPAL_CHARACTERS_MAX: Final = 1_000
"""Characters of a principal: enough for the subject of a certificate."""
HOST_CHARACTERS_MAX: Final = 64
NAME_CHARACTERS_MAX: Final = max(TOPIC_CHARACTERS_MAX, GROUP_CHARACTERS_MAX)
ANY: Final = "*"
ANYBODY: Final = "User:*"
NO_ROLES: Final[Mapping[str, Sequence[str]]] = {}
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type Cluster."""


class Operation(IntEnum):
    """Kafka's AclOperation.  ANY is for filters alone."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ResourceType.  ANY is for filters alone."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of an ACL's resource is meant.  ANY and MATCH are for filters alone."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's AclPermissionType.  ANY is for filters alone."""

    ANY = 1
    DENY = 2
    ALLOW = 3


Word = TypeVar("Word", Operation, ResourceType, PatternType, Permission)

OPERATIONS: Final[dict[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset({
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    }),
    ResourceType.GROUP: frozenset({
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    }),
    ResourceType.CLUSTER: frozenset({
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    }),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}  # fmt: skip
"""The operations that apply to each type of resource."""
IMPLIED: Final[dict[Operation, Operation]] = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


class Acl(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One rule.  ``name`` is that of the resource, or its beginning if ``pattern`` is PREFIXED, or ``*``."""

    resource: ResourceType
    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    pattern: PatternType
    principal: Annotated[str, Meta(pattern=r"\A[^:]+:", max_length=PRINCIPAL_CHARACTERS_MAX)]
    host: Annotated[str, Meta(min_length=1, max_length=HOST_CHARACTERS_MAX)]
    operation: Operation
    permission: Permission


BROKER_RULES: Final = tuple(
    Acl(resource, ANY, PatternType.LITERAL, f"{BROKER_PREFIX}*", ANY, operation, Permission.ALLOW)
    for resource, operation in (
        (ResourceType.TOPIC, Operation.READ),
        (ResourceType.GROUP, Operation.READ),
        (ResourceType.GROUP, Operation.DELETE),
        (ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE),
        (ResourceType.CLUSTER, Operation.CLUSTER_ACTION),
    )
)
"""To ask for offsets, to pass changes of committed offsets on to the coordinator of their group, and for what only
brokers ask each other: steps and lists of transactions, and what is in the trash."""


class AclFilter(msgspec.Struct, frozen=True):
    """Selects ACLs.  None and ANY select all; the pattern MATCH selects all that are about the resource ``name``."""

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def selects(self, acl: Acl) -> bool:
        return (
            self.resource in (ResourceType.ANY, acl.resource)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.pattern in (PatternType.ANY, PatternType.MATCH, acl.pattern)
            and (self.name is None or self._selects_name(acl))
        )

    def _selects_name(self, acl: Acl) -> bool:
        assert self.name is not None
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANY)


def check_rule(acl: Acl) -> None:
    """Check a rule that is to be added.

    Raises:
        InvalidRequest: the message says what is wrong.
    """
    if acl.resource is ResourceType.ANY or acl.operation is Operation.ANY or acl.permission is Permission.ANY:
        raise InvalidRequest("an access rule names one type of resource, one operation (or All), and Allow or Deny")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest("the pattern of an access rule is Literal or Prefixed")
    if not acl.principal.startswith((USERS, ROLES)):
        # Another kind, or 'user:', would be stored and hold for nobody: what it denies would stay allowed.
        raise InvalidRequest(f"nobody is called {acl.principal!r:.300}: a principal is User:NAME, or Role:NAME")
    lengths = {"name": NAME_CHARACTERS_MAX, "principal": PRINCIPAL_CHARACTERS_MAX, "host": HOST_CHARACTERS_MAX}
    for field, most in lengths.items():
        if not 1 <= len(getattr(acl, field)) <= most:
            raise InvalidRequest(f"{field}: an access rule has one of 1 to {most} characters")
    user = user_of_principal(acl.principal)
    if acl.principal.startswith(USERS) and acl.principal != ANYBODY and (why := name_fault(user)):
        raise InvalidRequest(f"nobody is called {acl.principal!r:.300}: {why}")
    if acl.host != ANY:
        _check_host(acl.host)
    if acl.resource is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidRequest(f"the only resource of the type Cluster is {CLUSTER_NAME!r}")


def _check_host(host: str) -> None:
    """Raises InvalidRequest: no client has this address."""
    try:
        network = parse_network(host) if "/" in host else ipaddress.ip_address(host)
    except ValueError:
        raise InvalidRequest(
            f"no client comes from {host!r}: a host is *, an address such as 10.0.0.7, or a network such as 10.0.0.0/8"
            " or 2001:db8::/32, without bits behind its mask"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise InvalidRequest(f"no client comes from {host!r}: addresses of IPv4 are written as such, 10.0.0.0/8")


def word(value: Operation | ResourceType | PatternType | Permission) -> str:
    """The word that Kafka's tools and registry use: "DescribeConfigs"."""
    return "".join(part.capitalize() for part in value.name.split("_"))


def parse(kind: type[Word], text: str) -> Word:
    """The value of a word, in any case, with or without ``_`` and ``-``.

    Raises:
        InvalidRequest: there is no such word; the message has all.
    """
    plain = text.replace("_", "").replace("-", "").lower()
    for value in kind:
        if word(value).lower() == plain:
            return value
    raise InvalidRequest(f"{text!r:.40}: must be one of {', '.join(map(word, kind))}")


class _Names:
    """The resources that some ACLs are about: literal names, beginnings of names, or all."""

    __slots__ = ("all", "literal", "prefixes")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        by_pattern: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        for acl in acls:
            by_pattern[acl.pattern].add(acl.name)
        self.literal = frozenset(by_pattern[PatternType.LITERAL])
        self.prefixes = tuple(sorted(by_pattern[PatternType.PREFIXED]))
        self.all = ANY in self.literal

    def __bool__(self) -> bool:
        return bool(self.literal or self.prefixes)

    def __contains__(self, name: str) -> bool:
        return self.all or name in self.literal or name.startswith(self.prefixes)

    def contains_some_of(self, others: _Names) -> bool:
        """Whether there may be a name here that is not one of ``others``."""
        if others.all:
            return False
        if self.all:
            return True
        return any(name not in others for name in self.literal) or any(
            not prefix.startswith(others.prefixes) for prefix in self.prefixes
        )


_NONE: Final = _Names()


class Decisions(dict[str, bool]):
    """Decisions about one right, by the name of the resource; ``decisions[name]`` decides what is not known yet."""

    __slots__ = ("_allowed", "_covered", "_denied")

    def __init__(self, allowed: _Names, denied: _Names, covered: _Names | None) -> None:
        """``covered``: the resources that any ACL is about, if all others are open to everybody."""
        self._allowed, self._denied, self._covered = allowed, denied, covered

    def __missing__(self, name: str) -> bool:
        allowed = name not in self._denied and (
            name in self._allowed or (self._covered is not None and name not in self._covered)
        )
        if len(self) >= DECISIONS_MAX:
            self.clear()
        self[name] = allowed
        return allowed

    @property
    def some(self) -> bool:
        """Whether there may be a resource that is allowed."""
        if self._denied.all:
            return False
        return self._covered is not None or self._allowed.contains_some_of(self._denied)


class _Always(Decisions):
    """Allows everything, and remembers nothing."""

    __slots__ = ()

    def __missing__(self, name: str) -> bool:
        return True

    @property
    def some(self) -> bool:
        return True


_ALWAYS: Final = _Always(_NONE, _NONE, None)


def _is_network(host: str) -> bool:
    """Whether it is a network; what an earlier release has stored may be nothing that a client comes from."""
    try:
        return "/" in host and bool(parse_network(host))
    except ValueError:
        return False


def _spelled_as_peers(host: str) -> str:
    """An address as those of clients are written: Kafka's tools write ``0:0:0:0:0:0:0:1`` for ``::1``."""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


class Access:
    """What one principal may do from one host.  Immutable, apart from remembered decisions.

    ``readable``, ``writable`` and ``describable`` decide about topics: they are asked for each request to them.
    """

    __slots__ = (
        *("__weakref__", "_administrator", "_decisions", "describable", "host"),
        *("principal", "readable", "rights", "writable"),
    )

    def __init__(self, rights: Rights, principal: str, host: str, administrator: bool = False) -> None:
        """``administrator``: it may do everything, whatever its principal may."""
        self.principal, self.host, self.rights = principal, host, rights
        self._administrator = administrator
        self._decisions: dict[tuple[int, int], Decisions] | None = None
        if not administrator and not rights.is_unrestricted(principal):
            self._decisions = {}
        self.readable = self.decisions(Operation.READ, ResourceType.TOPIC)
        self.writable = self.decisions(Operation.WRITE, ResourceType.TOPIC)
        self.describable = self.decisions(Operation.DESCRIBE, ResourceType.TOPIC)

    @property
    def unrestricted(self) -> bool:
        """Whether everything is allowed."""
        return self._decisions is None

    def decisions(self, operation: Operation, resource: ResourceType) -> Decisions:
        """The decisions about one right."""
        if self._decisions is None:
            return _ALWAYS
        decisions = self._decisions.get((operation, resource))
        if decisions is None:
            decisions = self.rights.decisions(self.principal, self.host, operation, resource)
            self._decisions[operation, resource] = decisions
        return decisions

    def may(self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        return self.decisions(operation, resource)[name]

    def may_some(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the operation is allowed on at least one resource that may exist, as authorizeByResourceType."""
        return self.decisions(operation, resource).some

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
        """The allowed ones of the operations that apply to this type of resource."""
        every = OPERATIONS[resource]
        if self.unrestricted:
            return every
        return frozenset(operation for operation in every if self.may(operation, resource, name))


class NotedAccess(Access):
    """The access of the client of one request: notes which rights have been asked of it."""

    __slots__ = ("asked",)

    def __init__(self, access: Access) -> None:
        self.principal, self.host, self.rights = access.principal, access.host, access.rights
        self._administrator, self._decisions = access._administrator, access._decisions
        self.asked: set[tuple[Operation, ResourceType]] = set()

    def decisions(self, operation: Operation, resource: ResourceType) -> Decisions:
        self.asked.add((operation, resource))
        return super().decisions(operation, resource)

    @property
    def readable(self) -> Decisions:  # type: ignore[override]  # an attribute of Access, where no call may cost time
        return self.decisions(Operation.READ, ResourceType.TOPIC)

    @property
    def writable(self) -> Decisions:  # type: ignore[override]
        return self.decisions(Operation.WRITE, ResourceType.TOPIC)

    @property
    def describable(self) -> Decisions:  # type: ignore[override]
        return self.decisions(Operation.DESCRIBE, ResourceType.TOPIC)


class Rights:
    """All ACLs, and who needs none.  Immutable: a change makes a new one.

    Args:
        acls: the rules.
        super_users: principals that may do everything.
        without_acl: what holds for a resource that no ACL is about.
        enforced: False if everybody may do everything.
        roles: principal → the principals of its roles, whose rules are its own, too (:mod:`.roles`).
    """

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        super_users: Set[str] = frozenset(),
        *,
        without_acl: bool = False,
        enforced: bool = True,
        roles: Mapping[str, Sequence[str]] = NO_ROLES,
    ) -> None:
        self.enforced = enforced
        self._roles = roles
        self._super_users = super_users
        self._without_acl = without_acl
        self._by_principal: dict[str, list[Acl]] = defaultdict(list)
        self._by_resource: dict[ResourceType, list[Acl]] = defaultdict(list)
        for acl in acls:
            if ":" in acl.host:
                acl = msgspec.structs.replace(acl, host=_spelled_as_peers(acl.host))
            self._by_principal[acl.principal].append(acl)
            self._by_resource[acl.resource].append(acl)
        hosts = {acl.host for listed in self._by_principal.values() for acl in listed}
        self._networks = {host: parse_network(host) for host in hosts if _is_network(host)}
        self._hosts = frozenset(hosts - self._networks.keys())
        self._rules_from: dict[str, frozenset[str]] = {}
        """What rules call a host, by host: its address and its networks."""

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def is_unrestricted(self, principal: str) -> bool:
        return not self.enforced or self.is_super_user(principal)

    def effective_host(self, host: str) -> str:
        """The host itself if some ACL is about it; ANY stands for all others, which have the same rights."""
        return host if len(self._names_of(host)) > 1 else ANY

    def _names_of(self, host: str) -> frozenset[str]:
        """The hosts of all rules that are about one."""
        names = self._rules_from.get(host)
        if names is None:
            named = {host} & self._hosts
            if self._networks:
                try:
                    address = ipaddress.ip_address(host)
                    named |= {name for name, network in self._networks.items() if address in network}
                except ValueError:  # who comes through a Unix socket has no address
                    pass
            if len(self._rules_from) >= HOSTS_MAX:
                self._rules_from.clear()
            names = self._rules_from[host] = frozenset(named | {ANY})
        return names

    def access(self, principal: str, host: str) -> Access:
        """What a principal may do from a host."""
        return Access(self, principal, self.effective_host(host))

    def decisions(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> Decisions:
        """The decisions about one right of a principal at a host; see :meth:`Access.decisions`."""
        allowed, denied, hosts = [], [], self._names_of(host)
        for acl in self._about(principal):
            if acl.resource is not resource or acl.host not in hosts:
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    denied.append(acl)
            elif acl.operation in (operation, Operation.ALL) or IMPLIED.get(acl.operation) is operation:
                allowed.append(acl)
        is_open = self._without_acl and not principal.startswith(BROKER_PREFIX)
        covered = _Names(self._by_resource.get(resource, ())) if is_open else None
        return Decisions(_Names(allowed), _Names(denied), covered)

    def _about(self, principal: str) -> Iterable[Acl]:
        """The rules about a principal: its own, those of its roles, and those of everybody."""
        if principal.startswith(BROKER_PREFIX):
            return BROKER_RULES
        whose = principal, *self._roles.get(principal, ()), ANYBODY
        return [acl for subject in whose for acl in self._by_principal.get(subject, ())]


UNRESTRICTED: Final = Rights(enforced=False).access("User:ANONYMOUS", ANY)
"""The access of everybody while there is no authorization."""

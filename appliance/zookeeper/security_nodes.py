"""Stores users, roles, access rules and quotas in ZooKeeper, as Kafka keeps them, and reads them: as operations::

    path                                       value, JSON
    /config/users/<user>                       {"version": 1, "config": {"SCRAM-SHA-256": verifier, quota: number,
                                                "locked": "true", "expires_ms": number, "ended": text}}
    /config/users/<user>/clients/<client id>   {"version": 1, "config": {quota: number}}
    /config/clients/<client id>                as above
    /kafka-acl/<type>/<name>                   {"version": 1, "acls": [{principal, permissionType, operation, host}]}
    /kafka-acl-extended/prefixed/<type>/<name> as above
    /security/roles/<name>                     {"version": 1, "users": [name]}; its rules are those of Role:<name>
    /security/revision                         a new text after each change: what brokers watch
    /security/secret                           the secret that brokers share, in hexadecimal digits; stored once

A verifier is Kafka's text ``salt=…,stored_key=…,server_key=…,iterations=…``; numbers are text, too.  Names are
percent-encoded as Kafka encodes them; the default of all users or clients is called ``<default>``.

A verifier or a quota that cannot be read is logged and left out.  A user whose node cannot be read is locked: that
might have been decided.  An access rule or a role that cannot be read raises BadValue: it might deny something.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec

from ..errors import BadValue, ZooKeeperAway
from ..security.accounts import OPEN, Account
from ..security.acls import Acl, PatternType, Permission, ResourceType
from ..security.acls import Operation as AclOperation
from ..security.quotas import CLIENT_ID, KEYS, USER, Quota
from ..security.scram import MECHANISMS, Verifier, decode_verifier, encode_verifier
from ..security.security_state import SecurityState
from .broker_registry import readable
from .operations import (
    ATTEMPTS_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    Request,
    ask,
    children,
    create,
    delete,
    get,
    list_children,
    multi,
    read_children,
    set_value,
)

log = logging.getLogger(__name__)

REVISION: Final = "/security/revision"
SECRET: Final = "/security/secret"
ROLES: Final = "/security/roles"
SECRET_BYTES_MIN: Final = 16
_CONFIG: Final = {"users": USER, "clients": CLIENT_ID}
"""The directories of /config, and Kafka's names of the entities in them."""
_ACLS: Final = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
_DEFAULT: Final = "<default>"
_VERSION: Final = 1


class _ConfigNode(msgspec.Struct):
    config: dict[str, str] = {}
    version: int = _VERSION


class _Rule(msgspec.Struct):
    principal: str
    permissionType: str
    operation: str
    host: str


class _RulesNode(msgspec.Struct):
    acls: list[_Rule] = []
    version: int = _VERSION


class _RoleNode(msgspec.Struct):
    users: list[str] = []
    version: int = _VERSION


class Tree(NamedTuple):
    """The nodes that are there; ``inner``: those of users that have a node ``clients`` below them."""

    nodes: dict[str, Node]
    inner: frozenset[str]
    secret: bytes
    revision: int | None
    """The version of /security/revision, None: nothing was ever stored.  It was read before all else, so that a change
    by its version knows all changes before it: that of a role, and one that gives it a rule, have no other node in
    common."""

    def __repr__(self) -> str:
        return f"<Tree, {len(self.nodes)} nodes>"


def encode_name(name: str) -> str:
    return (
        quote(name, safe="", errors="surrogatepass")
        .replace("~", "%7E")
        .replace(".", "%2E" if name in (".", "..") else ".")
    )


# ---- state to nodes


def nodes_of(state: SecurityState) -> dict[str, bytes]:
    """The path and value of every node."""
    configs: dict[str, dict[str, str]] = {}
    for user, verifiers in state.users.items():
        path = _entity_path((("user", user),))
        configs[path] = {mechanism: encode_verifier(verifier) for mechanism, verifier in sorted(verifiers.items())}
    for user, account in state.accounts.items():
        configs.setdefault(_entity_path((("user", user),)), {}).update(_account_texts(account))
    for quota in state.quotas:
        limits = {name: f"{value:.17g}" for name, value in quota.limits}
        configs.setdefault(_entity_path(quota.entity), {}).update(limits)
    rules: dict[str, list[_Rule]] = {}
    for acl in state.acls:
        path = f"{_ACLS[acl.pattern]}/{_word(acl.resource)}/{encode_name(acl.name)}"
        rule = _Rule(acl.principal, _word(acl.permission), _word(acl.operation), acl.host)
        rules.setdefault(path, []).append(rule)
    nodes = {path: encode_config(config) for path, config in configs.items()}
    nodes |= {path: msgspec.json.encode(_RulesNode(some)) for path, some in rules.items()}
    roles = state.roles.items()
    return nodes | {f"{ROLES}/{encode_name(name)}": msgspec.json.encode(_RoleNode([*users])) for name, users in roles}


def _entity_path(entity: tuple[tuple[str, str], ...]) -> str:
    names = {kind: encode_name(name) if name else _DEFAULT for kind, name in entity}
    if USER not in names:
        return f"/config/clients/{names[CLIENT_ID]}"
    below = f"/clients/{names[CLIENT_ID]}" if CLIENT_ID in names else ""
    return f"/config/users/{names[USER]}{below}"


# ---- nodes to state


def state_of(nodes: Mapping[str, Node]) -> SecurityState:
    """Raises BadValue when an access rule or a role cannot be read."""
    users: dict[str, dict[str, Verifier]] = {}
    accounts: dict[str, Account] = {}
    quotas: list[Quota] = []
    acls: list[Acl] = []
    roles: dict[str, tuple[str, ...]] = {}
    for path, node in sorted(nodes.items()):
        if path.startswith(f"{ROLES}/"):
            roles[unquote(path.removeprefix(f"{ROLES}/"))] = _role(path, node.value)
        elif path.startswith("/config/"):
            entity = _entity(path)
            config = readable(decode_config, path, node.value)
            config = {"locked": "damaged"} if config is None else config
            verifiers = dict(_verifiers(path, config))
            if verifiers and len(entity) == 1 and entity[0][0] == "user":
                users[entity[0][1]] = verifiers
            if len(entity) == 1 and entity[0][0] == "user" and (account := _account(path, config)) != OPEN:
                accounts[entity[0][1]] = account
            limits = tuple(sorted(_limits(path, config)))
            if limits:
                quotas.append(Quota(entity, limits))
        else:
            acls += _acls(path, node.value)
    return SecurityState(users, tuple(sorted(set(acls))), tuple(sorted(quotas)), accounts=accounts, roles=roles)


def _entity(path: str) -> tuple[tuple[str, str], ...]:
    _, _, *words = path.split("/")
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(sorted((_CONFIG[kind], "" if name == _DEFAULT else unquote(name)) for kind, name in pairs))


def encode_config(config: dict[str, str]) -> bytes:
    """The value of a node below /config."""
    return msgspec.json.encode(_ConfigNode(config))


def decode_config(path: str, value: bytes) -> dict[str, str]:
    """Of such a node.  Raises BadValue."""
    try:
        return msgspec.json.decode(value or b"{}", type=_ConfigNode).config
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadValue(f"ZooKeeper node {path} cannot be read: {error}; correct or delete the node") from None


def _verifiers(path: str, config: Mapping[str, str]) -> Iterator[tuple[str, Verifier]]:
    for mechanism in sorted(config.keys() & MECHANISMS.keys()):
        try:
            yield mechanism, decode_verifier(mechanism, config[mechanism])
        except ValueError as error:
            log.error("ZooKeeper node %s: %s", path, error)


def _account_texts(account: Account) -> dict[str, str]:
    texts = {"locked": "true" if account.locked else "", "expires_ms": str(account.expires_ms or "")}
    return {name: text for name, text in (texts | {"ended": account.ended}).items() if text}


def _account(path: str, config: Mapping[str, str]) -> Account:
    """What is decided of a user; a time that cannot be read has passed: nobody is let in by a damaged node."""
    try:
        expires_ms = int(config.get("expires_ms", 0))
        if expires_ms < 0:
            raise ValueError
    except ValueError:
        log.error("ZooKeeper node %s: the value of expires_ms is no time", path)
        expires_ms = 1
    return Account("locked" in config, expires_ms, config.get("ended", ""))


def _limits(path: str, config: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name in sorted(config.keys() & set(KEYS)):
        try:
            yield name, float(config[name])
        except ValueError:
            log.error("ZooKeeper node %s: the value of %s is no number", path, name)


def _acls(path: str, value: bytes) -> Iterator[Acl]:
    pattern = next(pattern for pattern, above in _ACLS.items() if path.startswith(above + "/"))
    resource, name = path.removeprefix(_ACLS[pattern] + "/").split("/")
    try:
        for rule in msgspec.json.decode(value or b"{}", type=_RulesNode).acls:
            subject = (_WORDS[resource], unquote(name), pattern, rule.principal, rule.host)
            yield msgspec.convert((*subject, _WORDS[rule.operation], _WORDS[rule.permissionType]), Acl)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise BadValue(f"ZooKeeper node {path} cannot be read: {error}; correct or delete the node") from None


def _role(path: str, value: bytes) -> tuple[str, ...]:
    """The users that have a role.  Raises BadValue."""
    try:
        return tuple(sorted(set(msgspec.json.decode(value or b"{}", type=_RoleNode).users)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadValue(f"ZooKeeper node {path} cannot be read: {error}; correct or delete the node") from None


def _word(value: IntEnum) -> str:
    """Kafka's word: DescribeConfigs for DESCRIBE_CONFIGS."""
    return "".join(part.capitalize() for part in value.name.split("_"))


_WORDS: Final = {_word(value): value.value for kind in (AclOperation, Permission, ResourceType) for value in kind}


# ---- operations


def read_tree() -> Operation[Tree]:
    nodes: dict[str, Node] = {}
    inner: set[str] = set()
    (revision,) = yield [get(REVISION)]
    for kind in _CONFIG:
        above = f"/config/{kind}"
        nodes |= {f"{above}/{name}": node for name, node in (yield from read_children(above)).items()}
    users = [path for path in nodes if path.startswith("/config/users/")]
    lists = yield from ask([children(f"{path}/clients") for path in users])
    for path, names in zip(users, lists, strict=True):
        if names is not Refused.NO_NODE:
            inner.add(path)
            clients = [f"{path}/clients/{name}" for name in names]
            client_nodes = yield from ask([get(client) for client in clients])
            nodes |= {
                client: node for client, node in zip(clients, client_nodes, strict=True) if isinstance(node, Node)
            }
    for above in _ACLS.values():
        for resource_type in (yield from list_children(above)):
            rules = yield from read_children(f"{above}/{resource_type}")
            nodes |= {f"{above}/{resource_type}/{name}": node for name, node in rules.items()}
    nodes |= {f"{ROLES}/{name}": node for name, node in (yield from read_children(ROLES)).items()}
    (secret,) = yield [get(SECRET)]
    return Tree(nodes, frozenset(inner), _secret(secret), revision.version if isinstance(revision, Node) else None)


def _secret(node: object) -> bytes:
    """The secret that brokers share; b"" when there is none."""
    try:
        secret = bytes.fromhex(node.value.decode()) if isinstance(node, Node) else b""
    except ValueError:
        secret = b""
    return secret if len(secret) >= SECRET_BYTES_MIN else b""


def read_state() -> Operation[tuple[SecurityState, bool]]:
    """The state, and whether anything of it was ever stored.  Raises BadValue."""
    tree = yield from read_tree()
    return _state(tree), tree.revision is not None


def _state(tree: Tree) -> SecurityState:
    return msgspec.structs.replace(state_of(tree.nodes), secret=tree.secret)


def share_secret(mine: bytes) -> Operation[bytes]:
    """Store the secret of this broker, unless there is one; return the one that is stored."""
    for _ in range(ATTEMPTS_MAX):
        (node,) = yield [get(SECRET)]
        if secret := _secret(node):
            return secret
        value = mine.hex().encode()
        exists = isinstance(node, Node)
        yield from ask([set_value(SECRET, value, node.version) if exists else create(SECRET, value)])
    raise ZooKeeperAway(f"ZooKeeper node {SECRET} keeps changing; try again")


def alter_state(change: Callable[[SecurityState], SecurityState]) -> Operation[SecurityState]:
    """Store a change of the state, in one transaction, and return the new state.

    ``change`` is called again when others write meanwhile, or when a reply was lost: it accepts a state that has the
    change already.

    Raises:
        BadValue: an access rule or a role cannot be read.
        Whatever ``change`` raises.
    """
    for _ in range(ATTEMPTS_MAX):
        tree = yield from read_tree()
        before = _state(tree)
        after = change(before)
        if after == before and tree.revision is not None:
            return after
        parts = list(_changes(tree, nodes_of(before), nodes_of(after)))
        new = [part for part in parts if part.verb == "create"] + ([create(REVISION)] if tree.revision is None else [])
        yield from ask([create(parent) for parent in sorted({part.path.rpartition("/")[0] for part in new})])
        stamp = uuid4().hex.encode()
        revision = tree.revision
        parts.append(create(REVISION, stamp) if revision is None else set_value(REVISION, stamp, revision))
        (reply,) = yield [multi(parts)]
        if not isinstance(reply, Failed | Refused):
            return after
    raise ZooKeeperAway("users, access rules or quotas keep changing; try again")


def _changes(tree: Tree, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Request]:
    for path in sorted(before.keys() | after.keys()):
        value, node = after.get(path), tree.nodes.get(path)
        if before.get(path) == value:
            continue
        if node is None:
            yield create(path, value or b"")
        elif value is not None:
            yield set_value(path, value, node.version)
        elif path in tree.inner:
            yield set_value(path, encode_config({}), node.version)
        else:
            yield delete(path, node.version)

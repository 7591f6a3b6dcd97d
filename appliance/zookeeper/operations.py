"""Defines requests to ZooKeeper, their replies, and *operations* made of them, as values without I/O.

An operation is a generator.  It yields a list of :class:`Request`, receives the list of their replies in the same
order, and returns its result.  :class:`~.session.Session` runs operations from an event loop.
The tests run the same operations against a dictionary, one request at a time in any order.

A reply is a :class:`Refused`, or by verb::

    get, exists            a Node
    children               a list of names
    create, set            the node's version (create: 0)
    delete, check, sync    0
    multi                  the list of its parts' replies, or Failed: a multi carries out all of its parts or none

:func:`check_request` checks paths and sizes before anything is sent, because an invalid request would end kazoo's
thread or ZooKeeper's connection.

A session repeats requests whose reply was lost.  So every operation must accept its own earlier success as an answer:
NODE_EXISTS with its own value, NO_NODE after its own delete, BAD_VERSION after its own set.  When ZooKeeper does not
answer in time, the generator is closed; state kept between operations must be right at every ``yield``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ..errors import ConfigFault, InvalidRequest, ZooKeeperAway

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
ATTEMPTS_MAX = 8  # rounds of reading and trying again inside one operation
WINDOW = 500  # requests in flight for one operation
REQUEST_BYTES_MAX: Final = 1_000_000
"""Most bytes of one request, of all parts of a multi together.  ZooKeeper closes the connection at 1 MiB."""
PART_BYTES: Final = 128
"""Bytes of a request besides path and value, rounded up."""
VERSION_MAX: Final = 2**31 - 1
_PATH: Final = re.compile(
    r"/|(?:/(?!\.\.?(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]+)+"
)
"""What ZooKeeper accepts as a path."""


class Request(NamedTuple):
    verb: str
    path: str
    value: bytes = b""
    version: int = -1  # -1: any
    ephemeral: bool = False
    watch: Callable[..., None] | None = None
    parts: tuple[Request, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on the wire, rounded up; also for a path that UTF-8 cannot encode."""
        path = self.path
        own = len(path) if path.isascii() else len(path.encode("utf-8", "surrogatepass"))
        return own + len(self.value) + PART_BYTES + sum([part.size for part in self.parts])


class Node(NamedTuple):
    value: bytes
    version: int
    owner: int  # session id of an ephemeral node, else 0
    modified_ms: int  # since 1970
    size: int = 0  # of the value in bytes; also in the reply to exists
    children_zxid: int = 0  # of the last change of its children: grows with each, also over another node of this path


class Refused(enum.Enum):
    NO_NODE = enum.auto()
    NODE_EXISTS = enum.auto()
    BAD_VERSION = enum.auto()
    NOT_EMPTY = enum.auto()


class Failed(NamedTuple):
    """A multi that was not carried out: the index, from 0, of the part that was refused, and why."""

    part_index: int
    refused: Refused


Operation: TypeAlias = Generator[list[Request], list[Any], T]


def get(path: str, watch: Callable[..., None] | None = None) -> Request:
    return Request("get", path, watch=watch)


def exists(path: str, watch: Callable[..., None] | None = None) -> Request:
    return Request("exists", path, watch=watch)


def children(path: str, watch: Callable[..., None] | None = None) -> Request:
    return Request("children", path, watch=watch)


def create(path: str, value: bytes = b"", *, ephemeral: bool = False) -> Request:
    """Send it through :func:`ask`, which creates missing parents."""
    return Request("create", path, value, ephemeral=ephemeral)


def set_value(path: str, value: bytes, version: int) -> Request:
    return Request("set", path, value, version)


def delete(path: str, version: int = -1) -> Request:
    return Request("delete", path, version=version)


def check_version(path: str, version: int) -> Request:
    """Part of a multi: the node must have this version."""
    return Request("check", path, version=version)


def sync() -> Request:
    """Reads after it see every write that was acknowledged to any client before it."""
    return Request("sync", "/")


def multi(parts: Iterable[Request]) -> Request:
    """Carries out all parts (create, set, delete, check) or none.  Creates no parents."""
    return Request("multi", "/", parts=tuple(parts))


def grouped(
    values: Mapping[K, V], size_of: Callable[[K, V], int], count_max: int, bytes_max: int
) -> Iterator[dict[K, V]]:
    """Yields what one transaction takes at a time; one that is larger than ``bytes_max`` by itself goes alone."""
    some: dict[K, V] = {}
    size = 0
    for key, value in values.items():
        own = size_of(key, value)
        if some and (len(some) == count_max or size + own > bytes_max):
            yield some
            some, size = {}, 0
        some[key] = value
        size += own
    if some:
        yield some


def check_request(request: Request) -> None:
    """Raises InvalidRequest for a request that ZooKeeper does not accept, which must not be sent."""
    for part in (request, *request.parts):
        if _PATH.fullmatch(part.path) is None:
            raise InvalidRequest(f"{part.path!r:.200} cannot be the path of a ZooKeeper node")
        if not -1 <= part.version <= VERSION_MAX:
            raise InvalidRequest(f"{part.version} is no version of a ZooKeeper node")
    if request.size > REQUEST_BYTES_MAX:
        raise InvalidRequest(
            f"{request.path!r:.200}: a request of {request.size} bytes; ZooKeeper accepts {REQUEST_BYTES_MAX}"
        )


def ask(requests: Sequence[Request]) -> Operation[list[Any]]:
    """Send any number of requests, at most WINDOW at a time.  Returns the replies in the order of the requests.

    ZooKeeper carries out the requests of one session in the order of sending.
    """
    replies: list[Any] = []
    for start in range(0, len(requests), WINDOW):
        replies += yield list(requests[start : start + WINDOW])
    for _ in range(ATTEMPTS_MAX):
        orphans = [i for i, reply in enumerate(replies) if reply is Refused.NO_NODE and requests[i].verb == "create"]
        if not orphans:
            return replies
        yield from _create_parents({requests[i].path for i in orphans})
        for start in range(0, len(orphans), WINDOW):
            some = orphans[start : start + WINDOW]
            for i, reply in zip(some, (yield [requests[i] for i in some]), strict=True):
                replies[i] = reply
    raise ZooKeeperAway(f"the parents of {requests[orphans[0]].path} keep vanishing; try again")


def _create_parents(paths: set[str]) -> Operation[None]:
    # kazoo's makepath would go on creating nodes after its caller has given up.
    parents = {path[:at] for path in paths for at in range(1, len(path)) if path[at] == "/"}
    (root,) = yield [exists("/")]
    if root is Refused.NO_NODE:  # the path in the connect string: its last part may be missing
        (reply,) = yield [create("/")]
        if reply is Refused.NO_NODE:
            raise ConfigFault("the path in zookeeper.connect does not exist; create all but its last part")
    for _, level in groupby(sorted(parents, key=_depth), _depth):
        missing = list(level)
        for start in range(0, len(missing), WINDOW):
            yield [create(parent) for parent in missing[start : start + WINDOW]]


def _depth(path: str) -> int:
    return path.count("/")


def list_children(path: str) -> Operation[list[str]]:
    """The names below ``path``, sorted; none when there is no such node."""
    (names,) = yield [children(path)]
    return [] if names is Refused.NO_NODE else sorted(names)


def read_children(path: str) -> Operation[dict[str, Node]]:
    """Name -> node of each child of ``path``; children that vanish meanwhile are left out."""
    names = yield from list_children(path)
    nodes = yield from ask([get(f"{path}/{name}") for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if isinstance(node, Node)}


def hold_ephemeral(path: str, value: bytes, session_id: int, ours: Callable[[bytes], bool]) -> Operation[bool]:
    """Have an ephemeral node of this session at ``path``, with ``value``.  False when the node is somebody else's.

    A node by an earlier session of ours (``ours`` recognises its value) is replaced: it would vanish when that session
    expires.  One multi deletes and creates it, so that no reader finds it missing.
    """
    for _ in range(ATTEMPTS_MAX):
        (reply,) = yield from ask([create(path, value, ephemeral=True)])
        if reply is not Refused.NODE_EXISTS:
            return True
        (node,) = yield [get(path)]
        if not isinstance(node, Node):
            continue
        if node.owner == session_id:
            if node.value != value:
                yield [set_value(path, value, node.version)]
            return True
        if not ours(node.value):
            return False
        (reply,) = yield [multi([delete(path, node.version), create(path, value, ephemeral=True)])]
        if not isinstance(reply, Failed):
            return True
    raise ZooKeeperAway(f"{path} keeps changing")


def remove_tree(path: str) -> Operation[None]:
    """Delete a node with everything below it; tries again, ATTEMPTS_MAX times, while others add nodes."""
    for _ in range(ATTEMPTS_MAX):
        for name in (yield from list_children(path)):
            yield from remove_tree(f"{path}/{name}")
        (reply,) = yield [delete(path)]
        if reply is not Refused.NOT_EMPTY:
            return
    raise ZooKeeperAway(f"{path} keeps growing")

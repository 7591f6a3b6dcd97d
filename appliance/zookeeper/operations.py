"""Work on ZooKeeper as values: requests, replies and *operations*, whoever carries them out.

An operation is a generator: it yields a list of :class:`Request`, receives the list of their replies in the same order,
and returns its result.  :class:`~.session.Session` runs operations, either from an event loop or blocking a thread; the
tests run the same operations against a dictionary, one request at a time in any order.

A reply is, by verb: ``get`` and ``exists`` a :class:`Node`, ``children`` a list of names, ``create`` and
``set`` the node's version, ``delete``, ``check`` and ``sync`` 0; or a :class:`Refused`.  ``multi`` carries out
all of its parts or none: its reply is the list of theirs, or :class:`Failed`, which names the one in the way.

Paths and sizes are checked by :func:`check_request` before anything is sent: kazoo's threads, and ZooKeeper's
connection, end at what they cannot take.

Whoever runs an operation repeats requests whose reply was lost.  So every operation must accept its own earlier success
as an answer: NODE_EXISTS with its own value, NO_NODE after its own delete, BAD_VERSION after its own set.  When
ZooKeeper does not answer in time, the generator is closed; state kept between operations must be right at every
``yield``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ..errors import ConfigFault, InvalidRequest, ZooKeeperAway

T = TypeVar("T")
ATTEMPTS_MAX = 8  # rounds of look-and-try-again inside one operation
WINDOW = 500  # requests in flight for one operation
REQUEST_BYTES_MAX: Final = 1_000_000
"""Path and value of one request, all parts of a multi together.  ZooKeeper closes the connection at 1 MiB."""
PART_BYTES: Final = 128
"""What a request takes besides path and value, rounded up."""
VERSION_MAX: Final = 2**31 - 1
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
"""Characters that ZooKeeper does not take in a path."""


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
        """Bytes on the wire, rounded up.  A path that UTF-8 cannot spell counts all the same."""
        own = len(self.path.encode("utf-8", "surrogatepass")) + len(self.value) + PART_BYTES
        return own + sum(part.size for part in self.parts)


class Node(NamedTuple):
    value: bytes
    version: int
    owner: int  # session id of an ephemeral node, else 0
    modified_ms: int  # since 1970
    size: int = 0  # of the value in bytes, also when only asked whether the node exists


class Refused(enum.Enum):
    NO_NODE = enum.auto()
    NODE_EXISTS = enum.auto()
    BAD_VERSION = enum.auto()
    NOT_EMPTY = enum.auto()


class Failed(NamedTuple):
    """A multi that was not carried out: the index, from 0, of the part that was refused, and how."""

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
    """To be sent through :func:`ask`, which creates parents that are missing."""
    return Request("create", path, value, ephemeral=ephemeral)


def set_value(path: str, value: bytes, version: int) -> Request:
    return Request("set", path, value, version)


def delete(path: str, version: int = -1) -> Request:
    return Request("delete", path, version=version)


def check(path: str, version: int) -> Request:
    """Part of a multi: the node must have this version."""
    return Request("check", path, version=version)


def sync() -> Request:
    """Reads that follow see all that anybody was told to be stored before."""
    return Request("sync", "/")


def multi(parts: Iterable[Request]) -> Request:
    """Parts (create, set, delete, check) that happen together or not at all; no parents are made."""
    return Request("multi", "/", parts=tuple(parts))


def check_request(request: Request) -> None:
    """Raises InvalidRequest: ZooKeeper cannot take this, so it must not be sent."""
    for part in (request, *request.parts):
        if not _is_path(part.path):
            raise InvalidRequest(f"{part.path!r:.200} cannot be the path of a ZooKeeper node")
        if not -1 <= part.version <= VERSION_MAX:
            raise InvalidRequest(f"{part.version} is no version of a ZooKeeper node")
    if request.size > REQUEST_BYTES_MAX:
        raise InvalidRequest(
            f"{request.path!r:.200}: {request.size} bytes are more than ZooKeeper takes at once ({REQUEST_BYTES_MAX})"
        )


def _is_path(path: str) -> bool:
    names = path.split("/")
    fits = names[0] == "" and not any(name in ("", ".", "..") for name in names[1:])
    return path == "/" or (len(names) > 1 and fits and _UNFIT.search(path) is None)


def ask(requests: Sequence[Request]) -> Operation[list[Any]]:
    """Send any number of requests, at most WINDOW at a time; the replies in their order.

    ZooKeeper takes the requests of one session in the order in which they were sent.
    """
    replies: list[Any] = []
    for start in range(0, len(requests), WINDOW):
        replies += yield list(requests[start : start + WINDOW])
    for _ in range(ATTEMPTS_MAX):
        orphans = [i for i, reply in enumerate(replies) if reply is Refused.NO_NODE and requests[i].verb == "create"]
        if not orphans:
            return replies
        yield from _create_parents({requests[i].path for i in orphans})
        for i in orphans:
            (replies[i],) = yield [requests[i]]
    raise ZooKeeperAway(f"what lies above {requests[orphans[0]].path} keeps vanishing")


def _create_parents(paths: set[str]) -> Operation[None]:
    # Not by kazoo's makepath: it goes on creating after its caller has given up, overtaken by later requests.
    parents = {path[:at] for path in paths for at in range(1, len(path)) if path[at] == "/"}
    (root,) = yield [exists("/")]
    if root is Refused.NO_NODE:  # the path in the connect string: its last part may be missing
        (reply,) = yield [create("/")]
        if reply is Refused.NO_NODE:
            raise ConfigFault("the path in zookeeper.connect does not exist; create all but its last part")
    for parent in sorted(parents, key=len):
        yield [create(parent)]


def list_children(path: str) -> Operation[list[str]]:
    """The names below ``path``, sorted; none when there is no such node."""
    (names,) = yield [children(path)]
    return [] if names is Refused.NO_NODE else sorted(names)


def read_children(path: str) -> Operation[dict[str, Node]]:
    """Name -> node of everything directly below ``path``; what vanishes meanwhile is left out."""
    names = yield from list_children(path)
    nodes = yield from ask([get(f"{path}/{name}") for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if isinstance(node, Node)}


def hold_ephemeral(path: str, value: bytes, session_id: int, ours: Callable[[bytes], bool]) -> Operation[bool]:
    """Have an ephemeral node of this session at ``path``, with ``value``.

    A node left by a former session of ours (``ours`` recognises its value) is replaced: kept, it would vanish
    when that session expires, and nobody would put it back.  False when the node is somebody else's.
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
        yield [delete(path, node.version)]
    raise ZooKeeperAway(f"{path} keeps changing")


def remove_tree(path: str) -> Operation[None]:
    """Delete a node with everything below it, also if others add to it meanwhile (within bounds)."""
    for _ in range(ATTEMPTS_MAX):
        for name in (yield from list_children(path)):
            yield from remove_tree(f"{path}/{name}")
        (reply,) = yield [delete(path)]
        if reply is not Refused.NOT_EMPTY:
            return
    raise ZooKeeperAway(f"{path} keeps growing")

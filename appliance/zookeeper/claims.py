"""Claims the coordination of a group, and writes its committed offsets under that claim: operations, without I/O::

    path                                      kind        value
    /consumers/<group>                        persistent  GroupInfo, JSON; empty while nothing is known
    /consumers/<group>/claim-<epoch>          ephemeral   Claimant, JSON: the coordinator of the group
    /consumers/<group>/snapshot               persistent  what members were told (``groups.snapshots``)
    /consumers/<group>/offsets/<topic>/<n>    persistent  a committed offset

A claim's epoch is a text that is never used again.  :func:`claim_group` creates the node in one multi with a write to
the group's own node, at the version that was read together with the list of claims.  So when two brokers try at once,
one fails.  A claim by an earlier run of the same data directory is replaced.

Every write of :func:`write`, :func:`write_together`, :func:`expire` and :func:`remove` is a multi that begins with a
check of the claim's node, or has one for each group.  ZooKeeper carries it out only while that claim exists, so a
coordinator that lost its claim or its session cannot write.
Requests of one session are carried out in the order of sending.  A write that was given up therefore comes before all
later ones, or never.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from ..errors import ApplianceError, BadValue, InvalidRequest, NotCoordinator, ZooKeeperAway
from ..names import TopicPartition, is_topic
from . import paths
from .broker_registry import readable
from .group_registry import GroupRegistry
from .operations import (
    ATTEMPTS_MAX,
    PART_BYTES,
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    Request,
    ask,
    check_version,
    children,
    create,
    delete,
    get,
    grouped,
    list_children,
    multi,
    set_value,
    sync,
)
from .paths import CommittedOffset

CLAIM: Final = "claim-"
PARTS_MAX: Final = 400
"""Most committed offsets in one multi, and most parts of one that groups share."""
PARTS_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
SNAPSHOT_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
PATH_REST_BYTES: Final = 32
"""Bytes of the path of an offset besides a path of the group and the topic's name, rounded up."""
LOOKS_MAX: Final = 2
"""How often a shared write looks at the offsets of all its groups again, before a group has to go by itself."""


class GroupInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a group that outlives its members.

    ``active_ms``: when the group last had members, ms since 1970; 0 = never.
    """

    protocol_type: str = ""
    active_ms: int = 0


class Claimant(msgspec.Struct, frozen=True):
    """The broker that makes a claim.  ``instance`` names its data directory, as in the broker's registration."""

    broker: int
    instance: str


class Claimed(NamedTuple):
    """A claim of ours: its own node, and value and version of the node that is claimed.  Each claim adds 1 to it."""

    path: str
    value: bytes
    version: int


Stamp: TypeAlias = tuple[int, ...]


class Stored(NamedTuple):
    """The committed offsets of a group as they were read, each node's value.

    ``stamp`` changes whenever the offsets in a topic come or go without a claim: with the topic.
    """

    stamp: Stamp
    values: dict[TopicPartition, bytes]


class Held(NamedTuple):
    """A claim of ours: its node, the group's GroupInfo, and the value of each committed offset's node.

    ``above``: the nodes above these that are known to be there.  A write makes the others in its own transaction.
    """

    path: str
    info: GroupInfo
    values: dict[TopicPartition, bytes]
    above: set[str]

    @property
    def group_path(self) -> str:
        return self.path.rpartition("/")[0]


class Taken(NamedTuple):
    """A claim that has been made, and what was stored then.

    ``snapshot``: of the members, b"": there was none.  ``stamp``: of :class:`Stored`.  ``has_members``: whether members
    were registered, by a coordinator before.
    """

    held: Held
    snapshot: bytes
    stamp: Stamp
    has_members: bool


class GroupNodes(NamedTuple):
    """A group, read without a claim.

    ``members``: whether it has any, of either listener.  ``nodes``: those of its committed offsets.
    ``has_snapshot``: whether a coordinator has stored some members.
    """

    info: GroupInfo
    members: bool
    nodes: dict[TopicPartition, Node]
    has_snapshot: bool


def decode_info(value: bytes) -> GroupInfo:
    """Decodes a group's node.  One that cannot be read counts as empty; the next coordinator replaces it."""
    try:
        return msgspec.json.decode(value, type=GroupInfo) if value else GroupInfo()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return GroupInfo()


def claim_group(group: str, claimant: Claimant, epoch: str, *, make: bool) -> Operation[Taken | None]:
    """Claim a group.  One that does not exist is created; with ``make`` false the result is None instead.

    Raises:
        ZooKeeperAway: another coordinator has it, or it keeps changing.
    """
    reads = [
        *_stamped(group),
        get(paths.snapshot(group)),
        *map(children, (paths.offsets(group), paths.consumers(group))),
    ]
    taken = yield from _claim(paths.group(group), claimant, epoch, f"group {group!r}", make=make, reads=reads)
    if taken is None:
        return None
    claimed, (*stamped, snapshot, topics, members) = taken
    above = set() if isinstance(topics, Refused) else {paths.offsets(group), *_topic_paths(group, topics)}
    nodes = (yield from _offset_nodes({group: sorted(_names(topics))}))[group]
    values = {part: node.value for part, node in nodes.items()}
    held = Held(claimed.path, decode_info(claimed.value), values, above)
    snapshot_bytes = snapshot.value if isinstance(snapshot, Node) else b""
    return Taken(held, snapshot_bytes, _stamp(stamped), bool(_names(members)))


def claim(path: str, claimant: Claimant, epoch: str, what: str, *, make: bool) -> Operation[Claimed | None]:
    """Claim what the node ``path`` stands for, ``what`` in texts; see :func:`claim_group`."""
    taken = yield from _claim(path, claimant, epoch, what, make=make, reads=())
    return None if taken is None else taken[0]


def _claim(
    path: str, claimant: Claimant, epoch: str, what: str, *, make: bool, reads: Sequence[Request]
) -> Operation[tuple[Claimed, list[Any]] | None]:
    """The claim, and the replies to ``reads``, which are sent behind the request that makes it, in one round trip."""
    own = f"{path}/{CLAIM}{epoch}"
    for _ in range(ATTEMPTS_MAX):
        node, names = yield [get(path), children(path)]
        is_new = isinstance(node, Refused) or isinstance(names, Refused)
        if is_new:
            if not make:
                return None
            parts, claimed = [create(path)], Claimed(own, b"", 0)
        else:
            others = [f"{path}/{name}" for name in names if name.startswith(CLAIM)]
            if own in others:  # created already: the reply was lost
                return Claimed(own, node.value, node.version), (yield from ask(reads))
            leftovers = yield from _our_leftovers(what, others, claimant)
            parts = [set_value(path, node.value, node.version), *(delete(leftover, 0) for leftover in leftovers)]
            claimed = Claimed(own, node.value, node.version + 1)
        reply, *replies = yield [multi([*parts, create(own, msgspec.json.encode(claimant), ephemeral=True)]), *reads]
        if not isinstance(reply, Failed):
            return claimed, replies
        if is_new and reply.refused is Refused.NO_NODE:  # nor is there a node above it
            yield from ask([create(path)])
    raise ZooKeeperAway(f"the coordinator of {what} keeps changing; try again")


def _our_leftovers(what: str, others: list[str], claimant: Claimant) -> Operation[list[str]]:
    leftovers = []
    for path, node in zip(others, (yield from ask([get(path) for path in others])), strict=True):
        if not isinstance(node, Node):
            continue
        try:
            holder = msgspec.json.decode(node.value, type=Claimant)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadValue(f"ZooKeeper node {path} is no claim of a coordinator: delete it") from None
        if holder != claimant:
            raise ZooKeeperAway(f"broker {holder.broker} still coordinates {what}; try again")
        leftovers.append(path)
    return leftovers


def stored_offsets(group: str) -> Operation[Stored]:
    """All committed offsets of a group, as they are after all earlier writes of this session."""
    nodes = yield _stamped(group)
    values = {part: node.value for part, node in (yield from offset_nodes(group)).items()}
    return Stored(_stamp(nodes), values)


def stamp_of(group: str) -> Operation[Stamp]:
    """See :class:`Stored`."""
    yield [sync()]
    return _stamp((yield _stamped(group)))


def _stamped(group: str) -> list[Request]:
    return [get(path) for path in (paths.group(group), paths.offsets(group))]


def _stamp(nodes: Sequence[Node | Refused]) -> Stamp:
    return tuple(node.children_zxid if isinstance(node, Node) else 0 for node in nodes)


def offset_nodes(group: str) -> Operation[dict[TopicPartition, Node]]:
    """The nodes of all committed offsets of a group."""
    return (yield from _offset_nodes({group: (yield from list_children(paths.offsets(group)))}))[group]


def _offset_nodes(topics: Mapping[str, Sequence[str]]) -> Operation[dict[str, dict[TopicPartition, Node]]]:
    """Those of several groups, by the names of the nodes below ``offsets`` of each."""
    pairs = [(group, topic) for group, names in topics.items() for topic in names if is_topic(topic)]
    listed = yield from ask([children(paths.offsets(group, topic)) for group, topic in pairs])
    parts = [
        (group, TopicPartition(topic, int(name)))
        for (group, topic), names in zip(pairs, listed, strict=True)
        if not isinstance(names, Refused)
        for name in names
        if name.isdecimal()
    ]
    nodes = yield from ask([get(paths.offset(group, part)) for group, part in parts])
    nodes_of_groups: dict[str, dict[TopicPartition, Node]] = {group: {} for group in topics}
    for (group, part), node in zip(parts, nodes, strict=True):
        if isinstance(node, Node):
            nodes_of_groups[group][part] = node
    return nodes_of_groups


def read(group: str, parts: Collection[TopicPartition] | None) -> Operation[dict[TopicPartition, CommittedOffset]]:
    """The committed offsets of these partitions, or all of the group.  Needs no claim.

    The ``sync`` makes all earlier writes visible, whichever node of the ensemble answers.
    """
    yield [sync()]
    if parts is None:
        return decoded(group, {part: node.value for part, node in (yield from offset_nodes(group)).items()})
    nodes = yield from ask([get(paths.offset(group, part)) for part in parts])
    parts_and_nodes = zip(parts, nodes, strict=True)
    return decoded(group, {part: node.value for part, node in parts_and_nodes if isinstance(node, Node)})


def decoded(group: str, values: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, CommittedOffset]:
    """Those that can be read; others are named in the log."""
    offsets = {}
    for part, value in values.items():
        try:
            offsets[part] = paths.parse_offset(value)
        except ValueError:
            readable(paths.decode_offset, paths.offset(group, part), value)
    return offsets


def write(
    group: str,
    held: Held,
    changes: Mapping[TopicPartition, CommittedOffset | None],
    info: GroupInfo | None = None,
) -> Operation[None]:
    """Store committed offsets, delete those that are None, store ``info`` if given.  Updates ``held.values``.

    Raises:
        NotCoordinator: the claim is gone.  Of a large write, earlier parts may have been carried out.
    """
    yield from _write_values(group, held, encoded(changes), info)


def encoded(changes: Mapping[TopicPartition, CommittedOffset | None]) -> dict[TopicPartition, bytes | None]:
    return {part: None if to is None else paths.encode_offset(to) for part, to in sorted(changes.items())}


def _write_values(
    group: str, held: Held, values: Mapping[TopicPartition, bytes | None], info: GroupInfo | None
) -> Operation[None]:
    if info is not None:
        (reply,) = yield [
            multi([check_version(held.path, -1), set_value(paths.group(group), msgspec.json.encode(info), -1)])
        ]
        if isinstance(reply, Failed):
            raise _lost(group)
    for some in _chunks(held, values):
        for _ in range(ATTEMPTS_MAX):
            (reply,) = yield [multi([check_version(held.path, -1), *offset_requests(held, some)])]
            if not isinstance(reply, Failed):
                break
            if reply.part_index == 0:
                raise _lost(group)
            yield from read_again([GroupWrite(group, held, some)])
        else:
            raise ZooKeeperAway(f"offsets of group {group!r} keep changing; try again")
        note_values(held, some)


class _Offsets(Protocol):
    @property
    def group(self) -> str: ...
    @property
    def held(self) -> Held: ...
    @property
    def values(self) -> Mapping[TopicPartition, bytes | None]: ...


class GroupWrite(NamedTuple):
    """What is to be stored of a group: values of offsets, None: delete it, and ``info``, if it is given."""

    group: str
    held: Held
    values: Mapping[TopicPartition, bytes | None]
    info: GroupInfo | None = None

    @property
    def requests(self) -> list[Request]:
        """The parts of a multi, by what is known of the offsets; the first checks the claim."""
        group = self.group
        info = [] if self.info is None else [set_value(paths.group(group), msgspec.json.encode(self.info), -1)]
        return [check_version(self.held.path, -1), *info, *offset_requests(self.held, self.values)]

    def cost(self) -> tuple[int, int]:
        """Parts that it has, by what is known of the offsets, and most bytes of these.

        What is not known may need as many again.
        """
        held, missing = self.held, _missing(self.held, self.values)
        size = _size(held, "") + sum([_size(held, part.topic, value) for part, value in self.values.items()])
        if self.info is not None:
            size += _size(held, "", msgspec.json.encode(self.info))
        size += sum([PART_BYTES + len(path) for path in missing])
        return 1 + (self.info is not None) + len(missing) + len(self.values), size


def fits(parts: int, size: int) -> bool:
    """Whether one transaction may have so many parts and bytes, and as many again for what is not known yet."""
    return parts <= PARTS_MAX and size <= PARTS_BYTES_MAX


def write_together(writes: Sequence[GroupWrite]) -> Operation[list[ApplianceError | None]]:
    """Store offsets of several groups in one transaction, as :func:`write` does those of one.  For each group None: it
    is done, or why it is not.
    """
    outcomes: dict[str, ApplianceError | None] = {}
    undecided, alone, looks = list(writes), [], 0
    while len(undecided) > 1:
        parts = [(write, request) for write in undecided for request in write.requests]
        (reply,) = yield [multi(request for _, request in parts)]
        if not isinstance(reply, Failed):
            for write in undecided:
                note_values(write.held, write.values)
                outcomes[write.group] = None
            undecided = []
            continue
        culprit, request = parts[reply.part_index]
        if request.verb == "check":
            outcomes[culprit.group] = _lost(culprit.group)
            undecided.remove(culprit)
        elif looks < LOOKS_MAX:  # nodes are not as they are known
            looks += 1
            yield from read_again(undecided)
        else:
            undecided.remove(culprit)
            alone.append(culprit)
    for write in undecided + alone:
        outcomes[write.group] = yield from _outcome(write)
    return [outcomes[write.group] for write in writes]


def _outcome(write: GroupWrite) -> Operation[ApplianceError | None]:
    try:
        yield from _write_values(write.group, write.held, write.values, write.info)
    except ApplianceError as error:
        return error
    return None


def save(group: str, held: Held, snapshot: bytes | None, *, is_there: bool) -> Operation[bool]:
    """Store the snapshot of a group, or (None) delete it.

    It is one request: a second one could come behind that of a later call, when this one was given up.

    Args:
        is_there: whether one is stored already, as far as is known.

    Returns:
        Whether it is done; if not, the opposite of ``is_there`` is true.

    Raises:
        NotCoordinator: the claim is gone.
    """
    path = paths.snapshot(group)
    change = delete(path)
    if snapshot is not None:
        change = set_value(path, snapshot, -1) if is_there else create(path, snapshot)
    (reply,) = yield [multi([check_version(held.path, -1), change])]
    if not isinstance(reply, Failed):
        return True
    if reply.part_index == 0:
        raise _lost(group)
    return snapshot is None  # there was none


def note_values(held: Held, values: Mapping[TopicPartition, bytes | None]) -> None:
    """These offsets are stored, or deleted."""
    for part, value in values.items():
        if value is None:
            held.values.pop(part, None)
        else:
            if part not in held.values:
                held.above.update(_above(held, part.topic))
            held.values[part] = value


def _above(held: Held, topic: str) -> tuple[str, str]:
    """The nodes above the offsets in a topic."""
    offsets = f"{held.group_path}/offsets"
    return offsets, f"{offsets}/{topic}"


def _missing(held: Held, values: Mapping[TopicPartition, bytes | None]) -> list[str]:
    """The nodes above these offsets that are not known to be there, each before those below it."""
    known = held.values
    new_topics = {part.topic for part, value in values.items() if value is not None and part not in known}
    return sorted({path for topic in new_topics for path in _above(held, topic)} - held.above) if new_topics else []


def _topic_paths(group: str, topics: Iterable[str]) -> list[str]:
    return [paths.offsets(group, topic) for topic in topics if is_topic(topic)]


def _lost(group: str) -> NotCoordinator:
    return NotCoordinator(f"this broker does not coordinate group {group!r} any more; try again")


def offset_requests(held: Held, values: Mapping[TopicPartition, bytes | None]) -> Iterator[Request]:
    """The parts of a multi that store these offsets, or delete those that are None, by what is known of them."""
    for path in _missing(held, values):
        yield create(path)
    group_path = held.group_path
    for part, value in values.items():
        path, there = paths.offset_below(group_path, part), part in held.values
        if value is not None:
            yield set_value(path, value, -1) if there else create(path, value)
        elif there:
            yield delete(path)


def read_again(writes: Sequence[_Offsets]) -> Operation[None]:
    """Correct what is known of these offsets after a write that found other nodes; create missing parents."""
    topics = {
        (write.group, part.topic) for write in writes for part, value in write.values.items() if value is not None
    }
    yield from ask([create(paths.offsets(group, topic)) for group, topic in sorted(topics)])
    for write in writes:
        for topic in {part.topic for part, value in write.values.items() if value is not None}:
            write.held.above.update(_above(write.held, topic))
    writes_and_parts = [(write, part) for write in writes for part in write.values]
    nodes = yield from ask([get(paths.offset(write.group, part)) for write, part in writes_and_parts])
    for (write, part), node in zip(writes_and_parts, nodes, strict=True):
        if isinstance(node, Node):
            write.held.values[part] = node.value
        else:
            write.held.values.pop(part, None)


def _size(held: Held, topic: str, value: bytes | None = None) -> int:
    """Most bytes of the request that stores an offset in a topic, or makes the node above it.

    No path is longer than that of the claim with the topic's name; names are of ASCII there (``paths.encode_name``).
    """
    return len(held.path) + len(topic) + PATH_REST_BYTES + len(value or b"") + PART_BYTES


def _chunks(held: Held, values: Mapping[TopicPartition, bytes | None]) -> Iterator[dict[TopicPartition, bytes | None]]:
    """In each the offsets of one transaction; half of what one takes is left for the nodes above them."""
    return grouped(values, lambda part, value: _size(held, part.topic, value), PARTS_MAX, PARTS_BYTES_MAX)


def expire(group: str, held: Held, old: Mapping[TopicPartition, Node]) -> Operation[int]:
    """Delete committed offsets that have not changed since they were read.  Returns how many.

    Raises:
        NotCoordinator: the claim is gone.
    """
    gone = 0
    for part, node in sorted(old.items()):
        (reply,) = yield [multi([check_version(held.path, -1), delete(paths.offset(group, part), node.version)])]
        if isinstance(reply, Failed) and reply.part_index == 0:
            raise _lost(group)
        if not isinstance(reply, Failed):
            held.values.pop(part, None)
            gone += 1
    return gone


def release(held: Held) -> Operation[None]:
    """Delete the claim.  The committed offsets stay."""
    yield [delete(held.path)]


def withdraw(path: str, claimant: Claimant) -> Operation[None]:
    """Delete every claim of this broker on the node ``path``, also one whose creation was never answered."""
    theirs = [f"{path}/{name}" for name in (yield from list_children(path)) if name.startswith(CLAIM)]
    value = msgspec.json.encode(claimant)
    for own, node in zip(theirs, (yield from ask([get(path) for path in theirs])), strict=True):
        if isinstance(node, Node) and node.value == value:
            yield [delete(own)]


def vacate(group: str, held: Held) -> Operation[None]:
    """Delete the claim and the group's nodes.  Nothing stays of a group without offsets and members."""
    yield [multi([check_version(held.path, -1), delete(paths.snapshot(group))])]
    yield from release(held)
    yield from GroupRegistry().prune(group)


def remove(group: str, held: Held) -> Operation[None]:
    """Delete a group with all its committed offsets, then the claim.

    Raises:
        InvalidRequest: it has live members; stop them first.
        NotCoordinator: the claim is gone.
    """
    members = yield from list_children(paths.consumers(group))
    if members:
        raise InvalidRequest(f"group {group!r} has {len(members)} live members; stop them first")
    held.values.update((yield from stored_offsets(group)).values)
    yield from write(group, held, dict.fromkeys(held.values))
    yield from vacate(group, held)


def read_groups(groups: Sequence[str]) -> Operation[dict[str, GroupNodes]]:
    """Read these groups; those that there are not are left out."""
    replies = yield from ask(
        [
            request
            for group in groups
            for request in (
                get(paths.group(group)),
                *(children(path) for path in (paths.group(group), paths.consumers(group), paths.offsets(group))),
            )
        ]
    )
    rows = {group: replies[4 * place : 4 * place + 4] for place, group in enumerate(groups)}
    rows = {group: row for group, row in rows.items() if isinstance(row[0], Node)}
    offsets = yield from _offset_nodes({group: _names(row[3]) for group, row in rows.items()})
    return {
        group: GroupNodes(
            decode_info(node.value), bool(_names(members)), offsets[group], paths.snapshot(group) in _below(group, own)
        )
        for group, (node, own, members, _) in rows.items()
    }


def _names(listed: list[str] | Refused) -> list[str]:
    return [] if isinstance(listed, Refused) else listed


def _below(group: str, listed: list[str] | Refused) -> set[str]:
    return {f"{paths.group(group)}/{name}" for name in _names(listed)}

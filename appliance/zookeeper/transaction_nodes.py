"""The nodes in which the coordinators of transactions keep what they know: operations, without I/O::

    path                                   kind        value
    /transactions/<slot>                   persistent  empty; its version is the coordinator's epoch
    /transactions/<slot>/claim-<epoch>     ephemeral   Claimant, JSON: the coordinator of the slot (``claims.py``)
    /transactions/<slot>/ids/<id>          persistent  the state of a transactional id (``transactions/transaction.py``)

A transactional id belongs to one of SLOTS slots, and a slot to one broker at a time, as a partition of
__transaction_state does in Kafka.  Every write is a multi that begins with a check of the slot's claim, so that a
coordinator that lost its claim or its session cannot write.

Every write names the version of the node that it changes.  A write that was given up, because ZooKeeper did not answer
in time, may have been carried out all the same; the next one finds another version then, and reads what is stored.
So the offsets of a transaction, which are stored in one step with its end (:func:`commit`), are never stored twice:
the second time might undo a later commit.  Those of a group that another broker coordinates, this one stores
(:func:`hand_over`), in one step with the state without them: so they are not stored twice either, whoever asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ..errors import NotCoordinator, ZooKeeperAway
from ..names import TopicPartition
from . import claims, paths
from .claims import Claimant, Claimed, Held
from .operations import (
    ATTEMPTS_MAX,
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Request,
    ask,
    check_version,
    create,
    delete,
    get,
    list_children,
    multi,
    read_children,
    set_value,
    sync,
)

TRANSACTIONS: Final = "/transactions"
SLOTS: Final = 8
CHANGES_MAX: Final = 400
"""Most nodes that one multi changes."""
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2


class NodeChange(NamedTuple):
    """A node of the slot gets another value, None: is deleted.  ``version``: the one it has now; ABSENT: none."""

    path: str
    value: bytes | None
    version: int

    @property
    def request(self) -> Request:
        if self.value is None:
            return delete(self.path, self.version)
        return (
            create(self.path, self.value) if self.version == ABSENT else set_value(self.path, self.value, self.version)
        )


ABSENT: Final = -2
"""Instead of a version: there is no such node."""


class StoredGroupOffsets(NamedTuple):
    """Committed offsets of a group that is claimed by us, as they are stored."""

    group: str
    held: Held
    values: Mapping[TopicPartition, bytes]


def slot_of(transactional_id: str) -> int:
    """The same in each process and release: it says where an id is stored."""
    digest = hashlib.blake2b(transactional_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SLOTS


def slot_path(slot: int) -> str:
    return f"{TRANSACTIONS}/{slot}"


def id_path(transactional_id: str) -> str:
    return f"{slot_path(slot_of(transactional_id))}/ids/{paths.encode_name(transactional_id)}"


def claim_slot(slot: int, claimant: Claimant, epoch: str) -> Operation[Claimed]:
    """Claim a slot; the version of the claim is the coordinator's epoch.

    Raises:
        ZooKeeperAway: another coordinator has it, or it keeps changing.
    """
    yield from ask([create(f"{slot_path(slot)}/ids")])
    claimed = yield from claims.claim(slot_path(slot), claimant, epoch, f"transactions {slot}", make=True)
    assert claimed is not None, "it was made"
    return claimed


def read(slot: int) -> Operation[dict[str, Node]]:
    """All ids of a slot; the ``sync`` makes all earlier writes visible, whichever node of the ensemble answers."""
    yield [sync()]
    nodes = yield from read_children(f"{slot_path(slot)}/ids")
    return {name: nodes[paths.encode_name(name)] for name in paths.decode_names(nodes)}


def have_ids(slots: Collection[int]) -> Operation[bool]:
    """Whether one of these slots has an id, by all earlier writes, whichever node of the ensemble answers."""
    yield [sync()]
    for slot in sorted(slots):
        if (yield from list_children(f"{slot_path(slot)}/ids")):
            return True
    return False


def read_one(transactional_id: str) -> Operation[Node | None]:
    """The node of an id, as :func:`read` reads it; None: there is none."""
    yield [sync()]
    (node,) = yield [get(id_path(transactional_id))]
    return node if isinstance(node, Node) else None


def write(claim: Claimed, changes: Sequence[NodeChange]) -> Operation[list[int]]:
    """Carry out changes of different nodes; the new versions, in their order, ABSENT for what is deleted.

    Nodes that have other versions than expected, after writes that were given up, are changed all the same.

    Raises:
        NotCoordinator: the claim is gone.  Some of the changes may have been carried out.
    """
    versions: dict[str, int] = {}
    undone = list(changes)
    for _ in range(ATTEMPTS_MAX):
        batches = list(_batches(undone))
        replies = yield [
            multi([check_version(claim.path, -1), *(change.request for change in batch)]) for batch in batches
        ]
        undone = []
        for batch, reply in zip(batches, replies, strict=True):
            if not isinstance(reply, Failed):
                versions |= {change.path: _version_after(change) for change in batch}
            elif reply.part_index == 0:
                raise _lost()
            else:
                for change in batch:
                    outcome = yield from _look(change)
                    if isinstance(outcome, NodeChange):
                        undone.append(outcome)
                    else:
                        versions[change.path] = outcome
        if not undone:
            return [versions[change.path] for change in changes]
    raise ZooKeeperAway("transactions keep changing; try again")


def commit(
    claim: Claimed, end: NodeChange, offsets: Sequence[StoredGroupOffsets]
) -> Operation[int | StoredGroupOffsets]:
    """Store the end of a transaction together with the offsets that it commits, all or nothing.

    Returns the new version.  Or one of ``offsets``: the claim of its group is gone, and nothing was stored.

    Raises:
        NotCoordinator: the claim is gone.
        TransactionChanged: another state is stored than that which ends: some of ``offsets`` may have been stored with
            it.
    """
    for _ in range(ATTEMPTS_MAX):
        parts = [check_version(claim.path, -1), end.request]
        owners: list[StoredGroupOffsets | None] = [None, None]
        for group_offsets in offsets:
            requests = [
                check_version(group_offsets.held.path, -1),
                *claims.offset_requests(group_offsets.held, group_offsets.values),
            ]
            parts += requests
            owners += [group_offsets] * len(requests)
        (reply,) = yield [multi(parts)]
        if not isinstance(reply, Failed):
            for group_offsets in offsets:
                claims.note_values(group_offsets.held, group_offsets.values)
            return _version_after(end)
        if reply.part_index == 0:
            raise _lost()
        owner = owners[reply.part_index]
        if owner is None:
            outcome = yield from _look(end)
            if not isinstance(outcome, NodeChange):  # carried out before, with the offsets
                yield from claims.read_again(offsets)
                return outcome
            raise TransactionChanged("the transaction has changed; try again")
        elif parts[reply.part_index].verb == "check":
            return owner
        else:
            yield from claims.read_again(offsets)
    raise ZooKeeperAway("the end of a transaction keeps changing; try again")


def hand_over(end: NodeChange, offsets: StoredGroupOffsets) -> Operation[int | StoredGroupOffsets]:
    """Store offsets of a group, and in the same step a transaction that has not these any more.

    It needs no claim on the slot: the version in ``end`` is that of the state in which the offsets were decided.

    Returns the new version.  Or ``offsets``: the claim of the group is gone, and nothing was stored.

    Raises:
        ZooKeeperAway: the transaction has changed: look at it again.
    """
    requests = [end.request, check_version(offsets.held.path, -1)]
    for _ in range(ATTEMPTS_MAX):
        (reply,) = yield [multi([*requests, *claims.offset_requests(offsets.held, offsets.values)])]
        if not isinstance(reply, Failed):
            claims.note_values(offsets.held, offsets.values)
            return _version_after(end)
        if reply.part_index == 0:
            raise ZooKeeperAway("the transaction has changed; try again")
        if reply.part_index == 1:
            return offsets
        yield from claims.read_again([offsets])
    raise ZooKeeperAway("the end of a transaction keeps changing; try again")


class SlotLost(NotCoordinator):
    """The claim of a slot is another's: all that is known of its ids may be old."""


class TransactionChanged(ZooKeeperAway):
    """A state is stored that who ends the transaction does not know."""


def _lost() -> SlotLost:
    return SlotLost("this broker does not coordinate the transaction any more; try again")


def _look(change: NodeChange) -> Operation[int | NodeChange]:
    """What has become of a change that was refused: the version, if it holds already, else what is to be tried."""
    (node,) = yield [get(change.path)]
    if not isinstance(node, Node):
        return ABSENT if change.value is None else change._replace(version=ABSENT)
    return node.version if node.value == change.value else change._replace(version=node.version)


def _version_after(change: NodeChange) -> int:
    if change.value is None:
        return ABSENT
    return 0 if change.version == ABSENT else change.version + 1


def _batches(changes: Sequence[NodeChange]) -> list[list[NodeChange]]:
    batches: list[list[NodeChange]] = []
    room = 0
    for change in changes:
        room -= change.request.size
        if not batches or room < 0 or len(batches[-1]) == CHANGES_MAX:
            batches.append([])
            room = BATCH_BYTES_MAX - change.request.size
        batches[-1].append(change)
    return batches

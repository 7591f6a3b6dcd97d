"""Makes a group of the classic protocol one of the consumer protocol, and back, while its members go on (KIP-848).

Both ways from snapshot to snapshot (:mod:`.snapshots`): what members were told stays so.

A group of the classic protocol is changed when a member of the other one joins, in a generation that all have: in a
rebalance nobody knows what its members read.  In such a generation a member reads what it was assigned, and maybe what
it has owned before and was assigned no more: clients of the cooperative protocol say in JoinGroup what they own, give
up what the answer to SyncGroup does not name, and join again.  Such partitions are others' only when it has done that.

A group of the consumer protocol is changed back when only members of the classic one are left
(:attr:`~.consumer_group.ConsumerGroup.can_be_classic`).

Kafka upgrades a group in the middle of a rebalance, too, and downgrades one whose members have not all come to the same
epoch.  Then a partition that a member has not given up yet may be another's, and members lose what they read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..catalog import Topic
from ..errors import BadValue, OutOfResources
from ..names import TopicPartition
from ..wire.kafka.codes import Code
from .assignors import IdAndNumber
from .consumer_groups import ConsumerGroups
from .consumer_member import Classic, ConsumerMember
from .consumer_protocol import TYPE, decode_assignment, decode_subscription, encode_assignment
from .members import elected
from .membership import ClassicGroups
from .messages import Limits, Metadata
from .snapshots import ClassicMember, ClassicSnapshot, ConsumerSnapshot

log = logging.getLogger(__name__)


class Migration:
    """Moves groups between the two that keep them.  No I/O; the clock is an argument."""

    def __init__(self, membership: ClassicGroups, consumers: ConsumerGroups, limits: Limits) -> None:
        self._membership, self._consumers, self._limits = membership, consumers, limits

    def upgrade(self, name: str, instance: str | None, topics: Mapping[str, Topic], now_ms: int) -> tuple[Code, str]:
        """Make way for a member of the consumer protocol, which joins the group, maybe as ``instance``.

        Returns:
            An error and its message: the group has members of the classic protocol, and stays one of it.
            COORDINATOR_LOAD_IN_PROGRESS, on which clients try again: it is in the middle of a rebalance.
        """
        group = self._membership.get(name)
        if group is None:
            return Code.NONE, ""
        if not group.members:  # clients that were given ids join again
            self._membership.dissolve(name, Code.UNKNOWN_MEMBER_ID)
            return Code.NONE, ""
        others = f"group {name!r} has members of the classic protocol"
        if not self._limits.upgrades:
            return Code.GROUP_ID_NOT_FOUND, f"{others}, and groups.migration does not let it change"
        snapshot = group.snapshot()
        if snapshot is None:
            return Code.COORDINATOR_LOAD_IN_PROGRESS, f"{others}, which rebalance"
        if len(group.members) >= self._limits.members_max and instance not in group.roster.static:
            return Code.GROUP_MAX_SIZE_REACHED, f"a group has at most {self._limits.members_max} members"
        try:
            self._consumers.restore(name, to_consumer(snapshot, topics), now_ms)
        except BadValue as error:
            return Code.GROUP_ID_NOT_FOUND, f"{others}, and cannot change: {error}"
        except OutOfResources as error:
            return Code.GROUP_MAX_SIZE_REACHED, str(error)
        self._membership.hand_over(name)
        log.info("group %r: the consumer protocol, with %d members of the classic one", name, len(snapshot.members))
        return Code.NONE, ""

    def downgrade(self, now_ms: int) -> dict[str, ClassicSnapshot]:
        """Move the groups that can be groups of the classic protocol again.

        Returns:
            What their members know, by name, which is to be stored.  A group for which there is no room stays.
        """
        moved = {}
        for name in self._consumers.take_classic():
            group = self._consumers.get(name)
            snapshot = group.snapshot() if group is not None and group.can_be_classic else None
            if snapshot is None:
                continue
            moved[name] = to_classic(snapshot)
            try:
                self._membership.take_over(name, moved[name], now_ms)
            except OutOfResources as error:
                log.warning("group %r stays in the consumer protocol: %s", name, error)
                del moved[name]
                continue
            self._consumers.hand_over(name)
            log.info("group %r: the classic protocol again, with %d members", name, len(snapshot.members))
        return moved


def to_consumer(snapshot: ClassicSnapshot, topics: Mapping[str, Topic]) -> ConsumerSnapshot:
    """The same group in the consumer protocol; what members have of ``topics`` stays theirs.

    Raises:
        BadValue: its members are no consumers, or their assignor tells them more than their partitions.
    """
    if snapshot.protocol_type != TYPE:
        raise BadValue(f"its members are of the type {snapshot.protocol_type!r}")
    offered = {member.id: decode_subscription(_offer(member, snapshot.protocol)) for member in snapshot.members}
    assigned = {
        member.id: _parts(decode_assignment(member.assignment, offered[member.id].user_data), topics)
        for member in snapshot.members
    }
    owners = {part: member_id for member_id, parts in assigned.items() for part in parts}
    epoch = snapshot.generation
    members = []
    for stored in snapshot.members:
        subscription = offered[stored.id]
        revoking = [part for part in _parts(subscription.owned, topics) if part not in owners]
        owners |= dict.fromkeys(revoking, stored.id)
        member = ConsumerMember(
            *(stored.id, stored.instance, stored.client_id, stored.client_host, subscription.rack),
            rebalance_ms=stored.rebalance_ms,
            topics=frozenset(subscription.topics),
            epoch=epoch,
            previous_epoch=epoch,
            assigned=dict.fromkeys(assigned[stored.id], epoch),
            revoking=dict.fromkeys(revoking, epoch),
            target=frozenset(assigned[stored.id]),
            classic=Classic(stored.session_ms, tuple(Metadata(*offer) for offer in stored.protocols)),
        )
        members.append(member.snapshot())
    read = {name for member in members for name in member.topics if name in topics}
    names = {topic.id: name for name, topic in topics.items() if name in read or _is_owned(topic, owners)}
    return ConsumerSnapshot(epoch, epoch, "", names, (), tuple(members))  # no topics: they may have grown since then


def to_classic(snapshot: ConsumerSnapshot) -> ClassicSnapshot:
    """The same group in the classic protocol, which all of its members use; it has no leader yet."""
    offers = [[Metadata(*offer) for offer in member.protocols] for member in snapshot.members]
    names = snapshot.names
    return ClassicSnapshot(
        snapshot.epoch,
        TYPE,
        elected(offers),
        "",
        tuple(
            ClassicMember(
                *(member.id, member.instance, member.client_id, member.client_host),
                *(member.session_ms, member.rebalance_ms, member.protocols),
                encode_assignment(sorted((names[id], number) for (id, number), _ in member.assigned if id in names)),
            )
            for member in snapshot.members
        ),
    )


def _offer(member: ClassicMember, protocol: str) -> bytes:
    return next((data for name, data in member.protocols if name == protocol), b"")


def _parts(partitions: Iterable[TopicPartition], topics: Mapping[str, Topic]) -> set[IdAndNumber]:
    return {
        (topics[name].id, number) for name, number in partitions if name in topics and number in topics[name].partitions
    }


def _is_owned(topic: Topic, owners: Mapping[IdAndNumber, str]) -> bool:
    return any((topic.id, number) in owners for number in topic.partitions)

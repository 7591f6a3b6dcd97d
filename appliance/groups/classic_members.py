"""Members of the classic protocol in a group of the consumer protocol (KIP-848), so that clients change one by one.

They are members like the others, and the coordinator assigns their partitions, too.  What a heartbeat does for the
others, JoinGroup does for them: it says what the member owns, and brings it a step further.  It never waits.  The
member's epoch is its generation, and no member leads::

    JoinGroup    what it owns, what it subscribes to ──▶ the next step; the generation
    SyncGroup                                        ──▶ what it has now
    Heartbeat    ──▶ REBALANCE_IN_PROGRESS while there is a step for it to take; it has its rebalance timeout for that

Clients of the eager protocol own nothing when they join; those of the cooperative one say what they still read, and
join again when they have given up what they were told no more.

Rules and error codes are those of Kafka 4's GroupMetadataManager (classicGroupJoinToConsumerGroup and what follows it),
but for one thing: an id that neither is a member's nor was given out lately has to join anew, without what it owned.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadValue
from ..wire.kafka.codes import Code
from .consumer_group import JOIN, Beat, ConsumerGroup, TopicsView
from .consumer_member import NO_MATCHING, Classic, ConsumerMember
from .consumer_protocol import TYPE, OfferedSubscription, decode_subscription, encode_assignment
from .members import common_protocols
from .messages import Join, Joined, Sync, Synced


def join(group: ConsumerGroup, join: Join, new_id: Callable[[], str], view: TopicsView, now_ms: int) -> Joined:
    """Answer a JoinGroup, after the next step of its member.  ``new_id``: see :class:`~.membership.ClassicGroups`."""
    member_id, error = _identify(group, join, new_id, now_ms)
    if error:
        return Joined(error, member_id)
    try:
        subscription = _subscription(group, member_id, join)
    except BadValue:
        return Joined(Code.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
    present = group.members.get(member_id)
    beat = Beat(
        member_id=member_id,
        epoch=JOIN if present is None else present.epoch,
        instance=join.instance,
        rack=subscription.rack,
        client_id=join.client_id,
        client_host=join.client_host,
        rebalance_ms=join.rebalance_ms,
        topics=frozenset(subscription.topics),
        matching=NO_MATCHING,
        assignor="",
        owned=frozenset((view.topics[name].id, number) for name, number in subscription.owned if name in view.topics),
        full=True,
        classic=Classic(join.session_ms, join.protocols),
    )
    group.expected.pop(member_id, None)
    beaten = group.beat(beat, view, now_ms)
    if beaten.error:
        return Joined(beaten.error, join.member_id)
    member = group.members[member_id]
    if not member.revoking:
        member.act_by_ms = now_ms + member.rebalance_ms  # it has to sync
    return Joined(Code.NONE, member_id, member.epoch, TYPE, join.protocols[0].protocol)


def sync(group: ConsumerGroup, sync: Sync, now_ms: int) -> Synced:
    """Answer a SyncGroup with what its member has."""
    member, error = _member(group, sync.member_id, sync.instance, sync.generation)
    if member is None or member.classic is None:
        return Synced(error)
    protocol = member.classic.protocols[0].protocol
    if sync.protocol_type not in (None, TYPE) or sync.protocol not in (None, protocol):
        return Synced(Code.INCONSISTENT_GROUP_PROTOCOL)
    group.renew(member, now_ms)
    if member.epoch < group.epoch and not member.revoking:
        return Synced(Code.REBALANCE_IN_PROGRESS)
    if not member.revoking:
        member.act_by_ms = None
    named = sorted((group.names[id], number) for id, number in member.assigned if id in group.names)
    return Synced(Code.NONE, TYPE, protocol, encode_assignment(named))


def heartbeat(group: ConsumerGroup, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
    member, error = _member(group, member_id, instance, generation)
    if member is None:
        return error
    group.renew(member, now_ms)
    if not _has_to_join(group, member):
        return Code.NONE
    if member.act_by_ms is None:
        member.act_by_ms = now_ms + member.rebalance_ms
    return Code.REBALANCE_IN_PROGRESS


def _has_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether its next JoinGroup takes a step."""
    if member.epoch < group.epoch or member.revoking:
        return True
    return member.waits and any(part not in group.owners for part in member.target - member.assigned.keys())


def _identify(group: ConsumerGroup, join: Join, new_id: Callable[[], str], now_ms: int) -> tuple[str, Code]:
    """The id of who joins, or why it may not."""
    if not join.member_id:
        member_id = join.new_member_id(new_id())
        if not join.id_wanted or join.instance is not None:
            return member_id, Code.NONE
        if group.is_full:
            return "", Code.GROUP_MAX_SIZE_REACHED
        group.expected[member_id] = now_ms + min(join.session_ms, group.limits.id_wait_ms)
        return member_id, Code.MEMBER_ID_REQUIRED
    if join.instance is None and group.expected.get(join.member_id, now_ms) > now_ms:
        return join.member_id, Code.NONE
    return join.member_id, _member(group, join.member_id, join.instance, None)[1]


def _subscription(group: ConsumerGroup, member_id: str, join: Join) -> OfferedSubscription:
    """What the member subscribes to and owns.

    Raises:
        BadValue: it is no consumer, or has no protocol in common with the others of the classic protocol.
    """
    replaced = group.static.get(join.instance) if join.instance is not None else None
    others = [
        other.classic.protocols
        for other in group.members.values()
        if other.classic is not None and other.id not in (member_id, replaced)
    ]
    if join.protocol_type != TYPE or not join.protocols or not common_protocols([*others, join.protocols]):
        raise BadValue("its protocols are not those of the others")
    return decode_subscription(join.protocols[0].data)


def _member(
    group: ConsumerGroup, member_id: str, instance: str | None, generation: int | None
) -> tuple[ConsumerMember | None, Code]:
    """The member of the classic protocol with this id, or the error if there is none.  ``generation`` None: any."""
    if instance is not None:
        holder = group.static.get(instance)
        if holder not in (None, member_id):
            return None, Code.FENCED_INSTANCE_ID
        if holder is None:
            return None, Code.UNKNOWN_MEMBER_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return None, Code.UNKNOWN_MEMBER_ID
    if generation not in (None, member.epoch):
        return None, Code.ILLEGAL_GENERATION
    return member, Code.NONE

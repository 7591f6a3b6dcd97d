"""Answers ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848); the rules are in :mod:`.consumer_group`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from ..errors import ApplianceError
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Handler, retriable
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import asked_id
from .assignors import ASSIGNORS, IdAndNumber
from .consumer_group import JOIN, Beat, Beaten, ConsumerGroup, TopicsView
from .consumer_member import LEFT, ConsumerMember, Matching
from .group_coordinator import GroupCoordinator
from .store import GroupStore
from .topic_patterns import SubscribedPatterns

ID_OF_CLIENT_FROM: Final = 1
"""Version of ConsumerGroupHeartbeat from which the client makes the member id."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's numbers of the protocols of members in ConsumerGroupDescribe."""


class ConsumerGroupApi:
    """Answers the heartbeats of members, and describes their groups."""

    def __init__(self, coordinator: GroupCoordinator, store: GroupStore) -> None:
        self._coordinator, self._store = coordinator, store
        self._groups = coordinator.consumers
        self._patterns = SubscribedPatterns()

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "ConsumerGroupHeartbeat": self._heartbeat,
            "ConsumerGroupDescribe": self._describe,
        }

    # -- heartbeats -----------------------------------------------------------------------------------

    async def _heartbeat(self, call: Call) -> Answer:
        name = call.request.group_id
        fault = self._fault(call) or await self._refusal(call)
        if fault is not None:
            return self._answer(name, fault)
        view = TopicsView(self._store.revision, self._store.topics())
        try:
            beat = self._beat(call, view)
        except ValueError as bad:
            return self._answer(name, Beaten(Code.INVALID_REGULAR_EXPRESSION, str(bad)))
        fault = self._refuse_other_protocols(beat, name)
        if fault is not None:
            return self._answer(name, fault)
        answer = self._groups.beat(name, beat, view, self._coordinator.now_ms())
        self._coordinator.carry_out()
        code = await self._coordinator.settle(name)
        return self._answer(name, Beaten(code) if code else answer)

    async def _refusal(self, call: Call) -> Beaten | None:
        """Refuse what this broker may not answer now."""
        name, joins = call.request.group_id, call.request.member_epoch == JOIN
        error = self._coordinator.refuse(name, call.listener)
        if not error and joins:
            error = await self._used_natively(name)
        error = error or await self._coordinator.load(name, make=joins)
        return Beaten(Code(error)) if error else None

    async def _used_natively(self, name: str) -> Code:
        """Refuse a group whose members use the native listener."""
        if self._groups.get(name) is None:
            try:
                if await self._coordinator.has_native_members(name):
                    return Code.GROUP_ID_NOT_FOUND
            except ApplianceError as error:
                return Code(retriable(error, Code.COORDINATOR_NOT_AVAILABLE))
        return Code.NONE

    def _refuse_other_protocols(self, beat: Beat, name: str) -> Beaten | None:
        """Refuse a group whose members do not use this protocol; Kafka says that there is no such consumer group.

        Those of the classic protocol let others in, if they can.
        """
        if self._coordinator.is_native(name):
            return Beaten(Code.GROUP_ID_NOT_FOUND, f"group {name!r} has members of the native listener")
        error, message = self._coordinator.upgrade(name, beat.instance) if beat.epoch == JOIN else (Code.NONE, "")
        return Beaten(error, message) if error else None  # what was moved is carried out with what follows

    def _fault(self, call: Call) -> Beaten | None:
        """What is wrong with a request by itself."""
        request, epoch = call.request, call.request.member_epoch
        names = request.subscribed_topic_names
        fault = ""
        if not request.member_id and (call.version >= ID_OF_CLIENT_FROM or epoch != JOIN):
            fault = "the member id is missing"
        elif request.instance_id == "" or request.rack_id == "":
            fault = "instance id and rack id may be null, but not empty"
        elif epoch < LEFT:
            fault = f"there is no member epoch {epoch}"
        elif epoch == LEFT and request.instance_id is None:
            fault = "only a static member can leave for a while: the instance id is missing"
        elif epoch == JOIN and request.rebalance_timeout_ms < 0:
            fault = "a member that joins has to say its rebalance timeout"
        elif epoch == JOIN and request.topic_partitions != []:
            fault = "a member that joins owns no partitions"
        elif epoch == JOIN and names is None and not request.subscribed_topic_regex:
            fault = "a member that joins has to subscribe to topics"
        if fault:
            return Beaten(Code.INVALID_REQUEST, fault)
        if request.server_assignor and request.server_assignor not in ASSIGNORS:
            offered = ", ".join(ASSIGNORS)
            return Beaten(Code.UNSUPPORTED_ASSIGNOR, f"there is no assignor {request.server_assignor!r}: {offered} are")
        hidden = [topic for topic in names or () if not call.access.describable[topic]]
        if hidden:
            return Beaten(Code.TOPIC_AUTHORIZATION_FAILED, f"not permitted on topic {hidden[0]!r}")
        return None

    def _beat(self, call: Call, view: TopicsView) -> Beat:
        """Raises ValueError: the regular expression is none."""
        request = call.request
        names, owned = request.subscribed_topic_names, request.topic_partitions
        says_topics = names is not None or request.subscribed_topic_regex is not None
        return Beat(
            member_id=request.member_id or self._coordinator.new_id(),
            epoch=request.member_epoch,
            instance=request.instance_id,
            rack=request.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            rebalance_ms=request.rebalance_timeout_ms,
            topics=None if names is None else frozenset(names),
            matching=self._matching(call, view),
            assignor=request.server_assignor,
            owned=None if owned is None else _parts(owned),
            full=says_topics and request.rebalance_timeout_ms >= 0 and owned is not None,
        )

    def _matching(self, call: Call, view: TopicsView) -> Matching | None:
        """What the member's regular expression matches of what it may see; None: as before."""
        request = call.request
        group = self._groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        pattern = request.subscribed_topic_regex
        if pattern is None:
            if member is None or not member.matching.pattern:
                return None
            pattern = member.matching.pattern
        of = view.revision, call.access.rights
        if member is not None and member.matching.pattern == pattern and member.matching.of == of:
            return None
        matched = self._patterns.topics(pattern, view)
        if not call.access.unrestricted:
            matched = frozenset(name for name in matched if call.access.describable[name])
        return Matching(pattern, matched, of)

    def _answer(self, group: str, beaten: Beaten) -> Answer:
        assignment = None
        if beaten.assignment is not None:
            assignment = {"topic_partitions": _partition_rows(beaten.assignment)}
        return {
            "error_code": beaten.error,
            "error_message": beaten.message,
            "member_id": beaten.member_id or None,
            "member_epoch": beaten.epoch,
            "heartbeat_interval_ms": self._groups.limits_of(group).consumer_heartbeat_ms,
            "assignment": assignment,
        }

    # -- describing -----------------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Answer:
        return {"groups": [{"group_id": name} | self._described(name, call) for name in call.request.group_ids]}

    def _described(self, name: str, call: Call) -> dict[str, Any]:
        nothing: dict[str, Any] = {"members": []}
        if not call.may(Operation.DESCRIBE, ResourceType.GROUP, name):
            return nothing | {"error_code": Code.GROUP_AUTHORIZATION_FAILED}
        error = self._coordinator.refuse(name, call.listener)
        group = self._groups.get(name)
        if error or group is None:
            message = None if error else f"group {name!r} has no members of the consumer protocol"
            return nothing | {"error_code": error or Code.GROUP_ID_NOT_FOUND, "error_message": message}
        with_operations = call.request.include_authorized_operations
        may = call.access.describable
        if not all(may[topic] for member in group.members.values() for topic in member.subscription):
            message = "it has topics that you may not describe"
            return nothing | {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": message}
        return {
            "error_code": Code.NONE,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor,
            "members": [_described_member(group, member) for member in group.members.values()],
            "authorized_operations": call.access.operations(ResourceType.GROUP, name) if with_operations else None,
        }


def _described_member(group: ConsumerGroup, member: ConsumerMember) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.matching.pattern or None,
        "assignment": {"topic_partitions": _partition_rows(member.assigned, group.names)},
        "target_assignment": {"topic_partitions": _partition_rows(member.target, group.names)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _parts(topics: Iterable[Any]) -> frozenset[IdAndNumber]:
    return frozenset((asked_id(topic.topic_id).hex, number) for topic in topics for number in topic.partitions)


def _partition_rows(parts: Collection[IdAndNumber], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Partitions as the wire has them; with ``names`` also those, and without topics that have none any more."""
    topics: dict[str, list[int]] = {}
    for id, number in sorted(parts):
        topics.setdefault(id, []).append(number)
    if names is None:
        return [{"topic_id": UUID(id), "partitions": numbers} for id, numbers in topics.items()]
    return [
        {"topic_id": UUID(id), "topic_name": names[id], "partitions": numbers}
        for id, numbers in topics.items()
        if id in names
    ]

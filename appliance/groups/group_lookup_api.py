"""Answers DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from ..errors import ApplianceError, UnknownGroup
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Handler, retriable
from ..wire.kafka.codes import Code
from . import consumer_protocol
from .group_coordinator import GroupCoordinator
from .group_state import Group, GroupState
from .store import GroupStore, RegisteredGroup

CLASSIC: Final = "classic"
"""Kafka's name for groups whose members compute the assignment."""
CONSUMER: Final = "consumer"
"""Kafka's name for groups of the consumer protocol (KIP-848), while they have members."""

NOT_FOUND_FROM: Final = 6
"""First version of DescribeGroups that has an error for a group that there is not (KIP-1043)."""
_NOT_FOUND: Final = {"error_code": Code.GROUP_ID_NOT_FOUND, "error_message": "there is no group of this name"}


class GroupLookupApi:
    """Describes, lists and deletes groups of either listener."""

    def __init__(self, coordinator: GroupCoordinator, store: GroupStore) -> None:
        self._coordinator, self._store = coordinator, store
        self._membership = coordinator.membership

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "DescribeGroups": self._describe,
            "ListGroups": self._list,
            "DeleteGroups": self._delete,
        }

    async def _describe(self, call: Call) -> Answer:
        return {"groups": [{"group_id": name} | await self._describe_one(name, call) for name in call.request.groups]}

    async def _describe_one(self, name: str, call: Call) -> dict[str, Any]:
        if not call.may(Operation.DESCRIBE, ResourceType.GROUP, name):
            return {"error_code": Code.GROUP_AUTHORIZATION_FAILED, "group_state": ""}
        with_operations = call.request.include_authorized_operations
        operations = call.access.operations(ResourceType.GROUP, name) if with_operations else None
        return {"authorized_operations": operations} | await self._found_group(name, call)

    async def _found_group(self, name: str, call: Call) -> dict[str, Any]:
        error: int = self._coordinator.refuse(name, call.listener, nameless=True)
        if error:
            return {"error_code": error, "group_state": ""}
        group = self._membership.get(name)
        if group is not None:
            return _described(group)
        if self._coordinator.consumers.get(name) is not None:  # to clients that do not know ConsumerGroupDescribe
            members = tuple(self._coordinator.registration(name))
            return _described_by_assignments(RegisteredGroup(name, native=False, members=members))
        try:
            registered = await self._store.group(name)
        except ApplianceError as fault:
            return {"error_code": retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS), "group_state": ""}
        emptied = self._coordinator.emptied()
        if registered is None and name not in emptied:
            return {"group_state": GroupState.DEAD.value} | (_NOT_FOUND if call.version >= NOT_FOUND_FROM else {})
        if registered is not None and registered.native and registered.members:
            return _described_by_assignments(registered)
        protocol_type = registered.protocol_type if registered is not None else ""
        if name in emptied:
            protocol_type = protocol_type or emptied[name].protocol_type
        return {"group_state": GroupState.EMPTY.value, "protocol_type": protocol_type}

    async def _list(self, call: Call) -> Answer:
        brokers = self._store.brokers(call.listener)
        rows = {
            name: (group.protocol_type, group.state.value)
            for name, group in self._coordinator.groups().items()
            if self._coordinator.coordinates(name, brokers)
        }
        consumers = set(self._coordinator.consumers.names())
        for name in consumers:
            if self._coordinator.coordinates(name, brokers):
                rows[name] = consumer_protocol.TYPE, self._coordinator.state(name)
        emptied = self._coordinator.emptied()
        resting = {name: (group.protocol_type, GroupState.EMPTY.value) for name, group in emptied.items()}
        error: int = Code.NONE
        try:
            for registered in await self._store.groups(
                lambda name: name not in rows and self._coordinator.coordinates(name, brokers)
            ):
                name = registered.name
                if registered.native and registered.members:
                    resting[name] = consumer_protocol.TYPE, GroupState.STABLE.value
                elif registered.protocol_type or name not in resting:
                    resting[name] = registered.protocol_type, GroupState.EMPTY.value
        except ApplianceError as fault:
            error = retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        rows = {name: row for name, row in resting.items() if self._coordinator.coordinates(name, brokers)} | rows
        states = {state.lower() for state in call.request.states_filter or ()}
        types = {kind.lower() for kind in call.request.types_filter or ()}
        every = call.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        kinds = {name: CONSUMER if name in consumers else CLASSIC for name in rows}
        groups = [
            {"group_id": name, "protocol_type": protocol_type, "group_state": state, "group_type": kinds[name]}
            for name, (protocol_type, state) in sorted(rows.items())
            if (not states or state.lower() in states)
            and (not types or kinds[name] in types)
            and (every or call.may(Operation.DESCRIBE, ResourceType.GROUP, name))
        ]
        return {"error_code": error, "groups": groups}

    async def _delete(self, call: Call) -> Answer:
        results = []
        for name in dict.fromkeys(call.request.groups_names):
            results.append({"group_id": name, "error_code": await self._delete_one(name, call)})
        return {"results": results}

    async def _delete_one(self, name: str, call: Call) -> int:
        if not call.may(Operation.DELETE, ResourceType.GROUP, name):
            return Code.GROUP_AUTHORIZATION_FAILED
        error: int = self._coordinator.refuse(name, call.listener, nameless=True)
        error = error or await self._coordinator.load(name, unavailable=Code.COORDINATOR_LOAD_IN_PROGRESS)
        if error:
            return error
        try:
            registered = await self._store.group(name)
            if registered is not None and registered.native and registered.members:
                return Code.NON_EMPTY_GROUP
            outcome = self._coordinator.delete(name)
            if outcome is Code.NON_EMPTY_GROUP or registered is None:
                return outcome
            await self._store.forget(name)
        except UnknownGroup:  # its last offset was deleted meanwhile
            return outcome
        except ApplianceError as fault:
            return retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        return Code.NONE


def _described(group: Group) -> dict[str, Any]:
    stable = group.state is GroupState.STABLE
    members = [
        {
            "member_id": member.id,
            "group_instance_id": member.instance,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.metadata(group.protocol) if stable else b"",
            "member_assignment": member.assignment if stable else b"",
        }
        for member in group.members.values()
    ]
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if stable else "",
        "members": members,
    }


def _described_by_assignments(group: RegisteredGroup) -> dict[str, Any]:
    """Describe a group in classic terms that are not its own, so that tools show its members, partitions and lag."""
    members = [
        {
            "member_id": member.id,
            "client_id": member.client_id,
            "client_host": member.host,
            "member_metadata": consumer_protocol.encode_subscription(member.topics),
            "member_assignment": consumer_protocol.encode_assignment(member.partitions),
        }
        for member in group.members
    ]
    return {
        "group_state": GroupState.STABLE.value,
        "protocol_type": consumer_protocol.TYPE,
        "protocol_data": "range",
        "members": members,
    }

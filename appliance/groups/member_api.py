"""Answers JoinGroup, SyncGroup, Heartbeat and LeaveGroup; the rules are in :mod:`.group_state`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import ApplianceError
from ..wire.kafka.call import Answer, Call, Handler
from ..wire.kafka.codes import Code
from .consumer_group import TopicsView
from .group_coordinator import GroupCoordinator
from .messages import Join, Joined, Metadata, Sync, Synced
from .store import GroupStore

ID_WANTED_FROM = 4
"""JoinGroup version from which a client can take its member id first and join with it."""


class MemberApi:
    """Answers the requests of groups' members."""

    def __init__(self, coordinator: GroupCoordinator, store: GroupStore) -> None:
        self._coordinator, self._store = coordinator, store
        self._membership, self._consumers = coordinator.membership, coordinator.consumers

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
        }

    async def _join(self, call: Call) -> Answer:
        request = call.request
        name = request.group_id
        error = (
            self._coordinator.refuse(name, call.listener)
            or await self._used_natively(name)
            or await self._coordinator.load(name, make=True)
        )
        if not error and self._coordinator.is_native(name):
            error = Code.INCONSISTENT_GROUP_PROTOCOL
        if error:
            return _joined(Joined(Code(error), request.member_id), call.version)
        join = Join(
            member_id=request.member_id,
            instance=request.group_instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(Metadata(offer.name, bytes(offer.metadata)) for offer in request.protocols),
            id_wanted=call.version >= ID_WANTED_FROM,
        )
        if self._consumers.get(name) is not None:
            return _joined(await self._join_consumers(name, join), call.version)
        refusal = Joined(Code.COORDINATOR_LOAD_IN_PROGRESS, request.member_id)
        reply = await self._coordinator.wait_for(
            refusal, lambda token, now_ms: self._membership.join(token, name, join, now_ms)
        )
        assert isinstance(reply, Joined)
        return _joined(reply, call.version)

    async def _join_consumers(self, name: str, join: Join) -> Joined:
        """Join a group of the consumer protocol."""
        view = TopicsView(self._store.revision, self._store.topics())
        now_ms = self._coordinator.now_ms()
        joined = self._consumers.join(name, join, self._coordinator.new_id, view, now_ms)
        self._coordinator.carry_out()
        code = await self._coordinator.settle(name)
        return Joined(code, join.member_id) if code else joined

    async def _sync(self, call: Call) -> Answer:
        request = call.request
        error = await self._refusal(call)
        if error:
            return _synced(Synced(error))
        sync = Sync(
            member_id=request.member_id,
            instance=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments=tuple(
                (assignment.member_id, bytes(assignment.assignment)) for assignment in request.assignments
            ),
        )
        if self._consumers.get(request.group_id) is not None:
            synced = self._consumers.sync(request.group_id, sync, self._coordinator.now_ms())
            code = await self._coordinator.settle(request.group_id)
            return _synced(Synced(code) if code else synced)
        refusal = Synced(Code.COORDINATOR_LOAD_IN_PROGRESS)
        reply = await self._coordinator.wait_for(
            refusal, lambda token, now_ms: self._membership.sync(token, request.group_id, sync, now_ms)
        )
        assert isinstance(reply, Synced)
        return _synced(reply)

    async def _heartbeat(self, call: Call) -> Answer:
        request = call.request
        error = await self._refusal(call)
        if not error:
            keeper = self._membership if self._consumers.get(request.group_id) is None else self._consumers
            member = request.member_id, request.group_instance_id, request.generation_id
            error = keeper.heartbeat(request.group_id, *member, self._coordinator.now_ms())
        return {"error_code": error}

    async def _leave(self, call: Call) -> Answer:
        request = call.request
        several = call.version >= 3
        leaving = [(request.member_id, None)]
        if several:
            leaving = [(member.member_id, member.group_instance_id) for member in request.members]
        error = await self._refusal(call)
        if error:
            return {"error_code": error, "members": []}
        keeper = self._membership if self._consumers.get(request.group_id) is None else self._consumers
        codes = keeper.leave(request.group_id, leaving, self._coordinator.now_ms())
        self._coordinator.carry_out()
        if not several:
            return {"error_code": codes[0]}
        members = [
            {"member_id": member_id, "group_instance_id": instance, "error_code": code}
            for (member_id, instance), code in zip(leaving, codes, strict=True)
        ]
        return {"error_code": Code.NONE, "members": members}

    async def _refusal(self, call: Call) -> Code:
        """Why a request of a member is not answered now.  What follows without another await finds the group."""
        name = call.request.group_id
        return self._coordinator.refuse(name, call.listener) or await self._coordinator.load(name)

    async def _used_natively(self, name: str) -> Code:
        """Refuse a group whose members use the native listener: both protocols would assign its partitions.

        Only a group that is new here is looked up; without ZooKeeper it is accepted.
        """
        if self._membership.get(name) is None:
            with suppress(ApplianceError):
                if await self._coordinator.has_native_members(name):
                    return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.NONE


def _joined(reply: Joined, version: int) -> dict[str, Any]:
    # Before version 7 the protocol's name may not be null, and clients of version 7 want null on errors.
    nothing = None if version >= 7 else ""
    return {
        "error_code": reply.error,
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type or None,
        "protocol_name": reply.protocol or nothing,
        "leader": reply.leader,
        "member_id": reply.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance, "metadata": data}
            for member_id, instance, data in reply.members
        ],
    }


def _synced(reply: Synced) -> dict[str, Any]:
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type or None,
        "protocol_name": reply.protocol or None,
        "assignment": reply.assignment,
    }

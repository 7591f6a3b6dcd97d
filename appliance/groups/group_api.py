"""Group membership and positions, as Kafka's APIs put it; the rules are in :mod:`.state`, the positions in
ZooKeeper.

JoinGroup and SyncGroup wait: the token that :class:`Membership` keeps for them is an asyncio future, and
:meth:`GroupApi._settle` resolves it, tells the registry who has changed, and sets the alarm for the next
deadline.

With several appliances in a cluster each group is coordinated by one of them, chosen by rendezvous hashing
over the live brokers, so all agree without talking and few groups move when one comes or goes.  A request
for a group of another one is answered NOT_COORDINATOR, which sends the client to FindCoordinator; what we
still held of the group is dissolved.  Who joins a group waits until nobody else can coordinate it
(:meth:`Cluster.claim`); while the lease of our ZooKeeper session is over, nothing is coordinated and no member's
time runs.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from appliance.errors import ApplianceError, NotCoordinator

from ..names import GROUP_CHARACTERS_MAX, NOTE_BYTES_MAX, TopicPartition
from . import consumer_protocol
from .call import Answer, Call, Handler, retriable
from .cluster import Broker, Cluster, Commit, RegisteredGroup, RegisteredMember
from .codes import Code
from .membership import Membership
from .metadata import GROUP_OPERATIONS
from .state import Group, Join, Joined, Limits, Metadata, Reply, State, Synced

GROUP_TYPE = "classic"
"""What Kafka calls a group whose members agree among themselves, unlike those of the "consumer" protocol."""
ID_WANTED_FROM = 4
"""JoinGroup version from which a client can take its member id first and join with it."""

CONSUMER = "consumer"

WITHOUT_LEASE_S = 0.1
"""How often members' deadlines are looked at while we may not act on them."""


def coordinator_of(group: str, brokers: Sequence[Broker]) -> Broker:
    """The live broker that coordinates a group: the one whose hash with the group's name is highest."""

    def weight(broker: Broker) -> bytes:
        return hashlib.blake2b(f"{broker.id} {group}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(brokers, key=weight)


class GroupApi:
    """``new_id``: gives a text that is unique for ever.  Lives in one event loop and takes its clock."""

    def __init__(self, cluster: Cluster, limits: Limits, new_id: Callable[[], str]) -> None:
        self._cluster = cluster
        self._membership = Membership(limits, new_id)
        self._waits_max = limits.waits_max
        self._waiting = 0
        self._led = True
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete_offsets,
            "DescribeGroups": self._describe,
            "ListGroups": self._list,
            "DeleteGroups": self._delete,
        }

    def groups(self) -> Mapping[str, Group]:
        """The groups that have members here; to look at."""
        return {name: group for name in self._membership.names() if (group := self._membership.get(name))}

    def has_members(self, name: str) -> bool:
        return self._membership.get(name) is not None

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    # -- members --------------------------------------------------------------------------------------

    async def _join(self, call: Call) -> Answer:
        request = call.request
        name = request.group_id
        error = self._refuse(name, call.listener) or await self._used_natively(name) or await self._claim(name)
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
        refusal = Joined(Code.COORDINATOR_LOAD_IN_PROGRESS, request.member_id)
        reply = await self._wait_for(refusal, lambda token, now_ms: self._membership.join(token, name, join, now_ms))
        assert isinstance(reply, Joined)
        return _joined(reply, call.version)

    async def _sync(self, call: Call) -> Answer:
        request = call.request
        error = self._refuse(request.group_id, call.listener)
        if error:
            return _synced(Synced(error))
        assignments = [(each.member_id, bytes(each.assignment)) for each in request.assignments]
        reply = await self._wait_for(
            Synced(Code.COORDINATOR_LOAD_IN_PROGRESS),
            lambda token, now_ms: self._membership.sync(
                token,
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                request.protocol_type,
                request.protocol_name,
                assignments,
                now_ms,
            ),
        )
        assert isinstance(reply, Synced)
        return _synced(reply)

    async def _heartbeat(self, call: Call) -> Answer:
        request = call.request
        error = self._refuse(request.group_id, call.listener) or self._membership.heartbeat(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            self._now_ms(),
        )
        return {"error_code": error}

    async def _leave(self, call: Call) -> Answer:
        request = call.request
        several = call.version >= 3
        leaving = [(request.member_id, None)]
        if several:
            leaving = [(member.member_id, member.group_instance_id) for member in request.members]
        error = self._refuse(request.group_id, call.listener)
        if error:
            return {"error_code": error, "members": []}
        codes = self._membership.leave(request.group_id, leaving, self._now_ms())
        self._settle()
        if not several:
            return {"error_code": codes[0]}
        members = [
            {"member_id": member_id, "group_instance_id": instance, "error_code": code}
            for (member_id, instance), code in zip(leaving, codes, strict=True)
        ]
        return {"error_code": Code.NONE, "members": members}

    def _refuse(
        self,
        group: str,
        listener: str,
        *,
        nameless: bool = False,
        without_lease: Code = Code.COORDINATOR_NOT_AVAILABLE,
    ) -> Code:
        """Why this appliance does not serve a group by that name, if so.

        Args:
            nameless: "" will do, as in Kafka for OffsetCommit, OffsetFetch, DescribeGroups and DeleteGroups.
            without_lease: the answer while others may have taken our groups.
        """
        if not (group or nameless) or len(group) > GROUP_CHARACTERS_MAX:
            return Code.INVALID_GROUP_ID
        if not self._coordinates(group, self._cluster.brokers(listener)):
            self.lose(group)
            return Code.NOT_COORDINATOR
        return Code.NONE if self._look_at_lease() else without_lease

    def _look_at_lease(self) -> bool:
        """Do we lead?  Members that we could not answer meanwhile have their whole session before them again."""
        leads = self._cluster.leads
        if leads and not self._led:
            self._membership.prolong(self._now_ms())
        self._led = leads
        return leads

    def lose(self, group: str) -> None:
        """The group is not ours any more."""
        self._membership.dissolve(group, Code.NOT_COORDINATOR)
        self._settle()

    def _coordinates(self, group: str, brokers: Sequence[Broker]) -> bool:
        return len(brokers) == 1 or coordinator_of(group, brokers).id == self._cluster.broker_id

    async def _claim(self, name: str) -> int:
        """Nobody else may coordinate the group from now on; nothing may be awaited between this and the join."""
        try:
            await self._cluster.claim(name)
        except ApplianceError as error:
            return (
                error.code if error.code == Code.NOT_COORDINATOR else retriable(error, Code.COORDINATOR_NOT_AVAILABLE)
            )
        return Code.NONE

    async def _used_natively(self, name: str) -> Code:
        """A group whose members use the native door cannot take members from this one: two masters would
        assign.

        Only a group that is new here is looked up; without ZooKeeper nothing speaks against it.
        """
        if self._membership.get(name) is None:
            try:
                registered = await self._cluster.group(name)
            except ApplianceError:
                return Code.NONE
            if registered is not None and registered.native and registered.members:
                return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.NONE

    # -- waiting --------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _wait_for(self, refusal: Reply, ask: Callable[[asyncio.Future[Reply], int], None]) -> Reply:
        """The reply to a request that may have to wait for other members.

        ``refusal`` is the reply while ``waits_max`` others wait: they take room from the requests of everybody.
        """
        if self._waiting >= self._waits_max:
            return refusal
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        try:
            ask(answer, self._now_ms())
            self._settle()
            return await answer
        finally:
            self._waiting -= 1

    def _settle(self) -> None:
        for token, reply in self._membership.take_replies():
            if not token.done():  # it is when its request was cancelled: the process is stopping
                token.set_result(reply)
        for name in self._membership.take_changed():
            self._cluster.register(name, functools.partial(self._registration, name))
        deadline_ms = self._membership.next_deadline_ms()
        loop = asyncio.get_running_loop()
        if self._alarm is not None and (deadline_ms is None or self._alarm.when() * 1000 > deadline_ms + 1):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and deadline_ms is not None:
            self._alarm = loop.call_at((deadline_ms + 1) / 1000, self._tick)  # our clock is in whole ms

    def _tick(self) -> None:
        self._alarm = None
        if not self._look_at_lease():
            self._alarm = asyncio.get_running_loop().call_later(WITHOUT_LEASE_S, self._tick)
            return
        try:
            self._membership.tick(self._now_ms())
        finally:
            self._settle()

    def _registration(self, name: str) -> list[RegisteredMember]:
        """A group's members as the registries show them."""
        group = self._membership.get(name)
        if group is None:
            return []
        consumers = group.protocol_type == CONSUMER  # what others write only they can read
        return [
            RegisteredMember(
                member.id,
                member.client_id,
                member.client_host,
                consumer_protocol.subscribed_topics(member.metadata(group.protocol)) if consumers else (),
                consumer_protocol.assigned_partitions(member.assignment) if consumers else (),
            )
            for member in group.members.values()
        ]

    # -- positions ------------------------------------------------------------------------------------

    async def _commit(self, call: Call) -> Answer:
        """Without a lease a commit waits: told to try again, librdkafka would send it behind newer ones."""
        request = call.request
        name = request.group_id
        error = self._refuse(
            name, call.listener, nameless=True, without_lease=Code.NONE
        ) or self._membership.may_commit(
            name,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            self._now_ms(),
        )
        changes: dict[TopicPartition, Commit | None] = {}
        codes: dict[TopicPartition, int] = {}
        topics = self._cluster.topics()
        for topic in request.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.name, each.partition_index)
                note = each.committed_metadata or ""
                known = topics.get(topic.name)
                codes[key] = error
                if error:
                    continue
                if known is None or each.partition_index not in known.partitions:
                    codes[key] = Code.UNKNOWN_TOPIC_OR_PARTITION
                elif len(note.encode()) > NOTE_BYTES_MAX:
                    codes[key] = Code.OFFSET_METADATA_TOO_LARGE
                elif each.committed_offset < 0:  # "no position": what -1 means when it is read back
                    changes[key] = None
                else:
                    changes[key] = Commit(each.committed_offset, note, max(-1, each.committed_leader_epoch))
        if changes:
            codes |= await self._store(name, changes)
        return {"topics": _by_topic(codes, "name", lambda code: {"error_code": code})}

    async def _store(self, name: str, changes: Mapping[TopicPartition, Commit | None]) -> dict[TopicPartition, int]:
        """The codes of the positions that could not be stored.

        Of what clients take for temporary, only NOT_COORDINATOR is answered: librdkafka sends such commits again,
        behind newer ones of the same partition, which would be undone.  REBALANCE_IN_PROGRESS is not sent again; after
        so long without ZooKeeper the group is dissolved, and has to be joined again anyway.
        """
        group = self._membership.get(name)
        member_of = group.protocol_type if group is not None and group.members else ""
        try:
            refused = await self._cluster.commit(name, changes, member_of)
        except ApplianceError as error:
            refused = dict.fromkeys(changes, error)
        return {
            key: Code.NOT_COORDINATOR
            if isinstance(error, NotCoordinator)
            else retriable(error, Code.REBALANCE_IN_PROGRESS)
            for key, error in refused.items()
        }

    async def _fetch(self, call: Call) -> Answer:
        if call.version >= 8:
            groups = [
                {"group_id": group.group_id, **await self._fetch_one(group.group_id, group.topics, call)}
                for group in call.request.groups
            ]
            return {"groups": groups}
        return await self._fetch_one(call.request.group_id, call.request.topics, call)

    async def _fetch_one(self, name: str, topics: Any, call: Call) -> dict[str, Any]:
        wanted = None
        if topics is not None:
            wanted = [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]
        unready = Code.COORDINATOR_LOAD_IN_PROGRESS  # Java's consumer takes COORDINATOR_NOT_AVAILABLE for fatal here
        error: int = self._refuse(name, call.listener, nameless=True, without_lease=unready)
        found: Mapping[TopicPartition, Commit] = {}
        if not error:
            try:
                found = await self._cluster.committed(name, None if wanted is None else self._existing(wanted))
            except ApplianceError as fault:
                error = retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        if error and call.version >= 2:
            return {"error_code": error, "topics": []}
        positions = {key: found.get(key) for key in (found if wanted is None else wanted)}

        def row(position: Commit | None) -> dict[str, Any]:
            offset, note, epoch = position or Commit(-1)
            return {
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "metadata": note,
                "error_code": error,
            }

        fields: dict[str, Any] = {"topics": _by_topic(positions, "name", row)}
        return fields | {"error_code": error} if call.version >= 2 else fields

    def _existing(self, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions that exist, once each: nothing is looked up, or remembered, of what a client invents."""
        topics = self._cluster.topics()
        return [key for key in dict.fromkeys(keys) if key[0] in topics and key[1] in topics[key[0]].partitions]

    async def _delete_offsets(self, call: Call) -> Answer:
        name = call.request.group_id
        keys = [
            TopicPartition(topic.name, each.partition_index)
            for topic in call.request.topics
            for each in topic.partitions
        ]
        error: int = self._refuse(name, call.listener)
        subscribed: set[str] = set()
        group = self._membership.get(name)
        if error:
            return {"error_code": error}
        if group is not None and group.members:
            if group.protocol_type != CONSUMER:
                return {"error_code": Code.NON_EMPTY_GROUP}
            for member in group.members.values():
                for offer in member.protocols:
                    subscribed.update(consumer_protocol.subscribed_topics(offer.data))
        try:
            registered = await self._cluster.group(name)
            if registered is None and group is None:
                return {"error_code": Code.GROUP_ID_NOT_FOUND}
            if registered is not None and registered.native:
                subscribed.update(topic for member in registered.members for topic in member.topics)
            free = [key for key in self._existing(keys) if key[0] not in subscribed]
            if free:
                for fault in (await self._cluster.commit(name, dict.fromkeys(free))).values():
                    raise fault
        except ApplianceError as fault:
            return {"error_code": retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)}
        codes = dict.fromkeys(keys, Code.UNKNOWN_TOPIC_OR_PARTITION) | dict.fromkeys(free, Code.NONE)
        codes |= {key: Code.GROUP_SUBSCRIBED_TO_TOPIC for key in keys if key[0] in subscribed}
        rows = _by_topic(codes, "name", lambda code: {"error_code": code})
        return {"error_code": Code.NONE, "topics": rows}

    # -- views ----------------------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Answer:
        operations = GROUP_OPERATIONS if call.request.include_authorized_operations else None
        return {
            "groups": [
                {"authorized_operations": operations, "group_id": name} | await self._describe_one(name, call)
                for name in call.request.groups
            ]
        }

    async def _describe_one(self, name: str, call: Call) -> dict[str, Any]:
        error: int = self._refuse(name, call.listener, nameless=True)
        if error:
            return {"error_code": error, "group_state": ""}
        group = self._membership.get(name)
        if group is not None:
            return _described(group)
        try:
            registered = await self._cluster.group(name)
        except ApplianceError as fault:
            return {"error_code": retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS), "group_state": ""}
        if registered is None:
            return {"group_state": State.DEAD.value}
        return _described_registered(registered)

    async def _list(self, call: Call) -> Answer:
        brokers = self._cluster.brokers(call.listener)
        rows = {
            name: (group.protocol_type, group.state.value)
            for name, group in self.groups().items()
            if self._coordinates(name, brokers)
        }
        error: int = Code.NONE
        try:
            for registered in await self._cluster.groups():
                name = registered.name
                if name not in rows and self._coordinates(name, brokers):
                    live = registered.native and registered.members
                    resting = registered.protocol_type, State.EMPTY.value
                    rows[name] = (CONSUMER, State.STABLE.value) if live else resting
        except ApplianceError as fault:
            error = retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower() for state in call.request.states_filter or ()}
        types = {kind.lower() for kind in call.request.types_filter or ()}
        groups = [
            {"group_id": name, "protocol_type": protocol_type, "group_state": state, "group_type": GROUP_TYPE}
            for name, (protocol_type, state) in sorted(rows.items())
            if (not states or state.lower() in states) and (not types or GROUP_TYPE in types)
        ]
        return {"error_code": error, "groups": groups}

    async def _delete(self, call: Call) -> Answer:
        results = []
        for name in dict.fromkeys(call.request.groups_names):
            results.append({"group_id": name, "error_code": await self._delete_one(name, call.listener)})
        return {"results": results}

    async def _delete_one(self, name: str, listener: str) -> int:
        error: int = self._refuse(name, listener, nameless=True)
        if not error and self._membership.may_delete(name) is Code.NON_EMPTY_GROUP:
            error = Code.NON_EMPTY_GROUP
        if error:
            return error
        try:
            registered = await self._cluster.group(name)
            if registered is None:
                return Code.GROUP_ID_NOT_FOUND
            if registered.native and registered.members:
                return Code.NON_EMPTY_GROUP
            await self._cluster.forget(name)
        except ApplianceError as fault:
            return retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        return Code.NONE


def _group_code(error: ApplianceError, while_unavailable: Code) -> int:
    return Code.NOT_COORDINATOR if isinstance(error, NotCoordinator) else retriable(error, while_unavailable)


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


def _described(group: Group) -> dict[str, Any]:
    stable = group.state is State.STABLE
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


def _described_registered(group: RegisteredGroup) -> dict[str, Any]:
    """A native group in Kafka's terms, so that Kafka's tools show its members, partitions and lag."""
    if not (group.native and group.members):
        return {"group_state": State.EMPTY.value, "protocol_type": group.protocol_type}
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
        "group_state": State.STABLE.value,
        "protocol_type": CONSUMER,
        "protocol_data": "range",
        "members": members,
    }


def _by_topic(
    rows: Mapping[TopicPartition, Any], key: str, fields: Callable[[Any], dict[str, Any]]
) -> list[dict[str, Any]]:
    """[{<key>: topic, partitions: [{partition_index, …fields(row)}]}], in the order of ``rows``."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), row in rows.items():
        topics.setdefault(topic, []).append({"partition_index": number} | fields(row))
    return [{key: topic, "partitions": partitions} for topic, partitions in topics.items()]

"""Answers what other appliances of the ensemble ask about transactions; :mod:`.peer_transactions` asks, and says why.

It also passes verbs of a transactional id that another appliance coordinates on to that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec

from ...errors import ApplianceError, InvalidRequest, NotCoordinator, NotLeader, RequestTimedOut
from ...groups.group_coordinator import GroupCoordinator
from ...names import TopicPartition
from ...security.acls import Access, Operation, ResourceType
from ...security.principals import BROKER_PREFIX
from ...transactions.offsets_api import refuse_consumer
from ...transactions.store import Committer, Lead
from ...transactions.transaction import PendingOffset, ProducerIdentity, TransactionPart
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...wire.kafka.codes import Code
from ...wire.native_admin import (
    AnnouncePending,
    ManyGroups,
    MayCommit,
    Nothing,
    OpenAt,
    PassOffsets,
    PassVerb,
    TakeOffsets,
    TransactionSteps,
    decode_arguments,
)
from .peer_transactions import PeerTransactions
from .stored_transactions import StoredTransactions
from .transaction_writers import TransactionWriters

STEPS_MS_MAX: Final = 8_000
"""How long steps are waited for that another appliance asks for; those that are done by then are answered as done."""
VerbHandler = Callable[[Any, Access], Awaitable[Any]]


class PassedRequests:
    """Refuses requests of other brokers that these have given up; see :mod:`.peer_transactions`."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[str, int]] = {}
        """By the principal of a broker: the session, and the lowest number that it waits for."""

    def begin(self, principal: str) -> str:
        session = uuid4().hex
        self._sessions[principal] = session, 0
        return session

    def check(self, principal: str, passed: tuple[str, int, int]) -> None:
        """
        Raises:
            NotCoordinator: it was given up, or is of another session.
        """
        session, number, lowest = passed
        present, floor = self._sessions.get(principal, ("", 0))
        if session != present or number < floor:
            raise NotCoordinator("this request was given up, or its session is over: begin another one")
        self._sessions[principal] = session, max(floor, lowest)


class PeerTransactionsApi:
    """``passable``: the verbs of transactional ids, which the coordinator of the id carries out."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        store: StoredTransactions,
        writers: TransactionWriters,
        groups: GroupCoordinator,
        peers: PeerTransactions,
        coordinates: Callable[[str], bool],
        passable: Mapping[str, VerbHandler],
    ) -> None:
        self._coordinator, self._store, self._writers, self._groups = coordinator, store, writers, groups
        self._peers, self._coordinates, self._passable = peers, coordinates, passable
        self._passed = PassedRequests()
        asked_by_brokers: dict[str, VerbHandler] = {
            "begin_passing": self._begin,
            "transaction_steps": self._step,
            "open_at": self._open_at,
            "pending_offsets": self._pending,
            "announce_pending": self._announce,
            "pass_offsets": self._add_offsets,
            "may_commit": self._may_commit,
            "take_offsets": self._take_offsets,
            "pass_verb": self._carry_out,
        }
        self.verbs: dict[str, VerbHandler] = {name: _for_brokers(verb) for name, verb in asked_by_brokers.items()}
        self.verbs |= {name: self._routed(name, verb) for name, verb in passable.items() if name != "transactions"}
        self.verbs["transactions"] = self._list

    # ---- verbs of transactional ids, of whoever asks

    def _routed(self, name: str, verb: VerbHandler) -> VerbHandler:
        async def answer(request: Any, access: Access) -> Any:
            if self._coordinator.unknown(request.id) is not Code.NOT_COORDINATOR:
                return await verb(request, access)
            row = await self._peers.pass_verb(self._store.owner_of(request.id), name, msgspec.to_builtins(request))
            return _visible(row, access) if name == "transaction" else row

        return answer

    async def _list(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        """The transactional ids of all appliances."""
        rows = await self._passable["transactions"](request, access)
        if self._store.serves:
            names = {row["id"] for row in rows}
            rows += [
                row
                for row in await self._peers.transactions()
                if row["id"] not in names and access.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, row["id"])
            ]
        return sorted(rows, key=lambda row: str(row["id"]))

    # ---- what brokers ask

    async def _begin(self, request: Nothing, access: Access) -> str:
        return self._passed.begin(access.principal)

    async def _carry_out(self, request: PassVerb, access: Access) -> Any:
        self._passed.check(access.principal, request.passed)
        verb = self._passable.get(request.verb)
        if verb is None:
            raise InvalidRequest(f"verb {request.verb!r:.100} is not passed on")
        arguments: Any = decode_arguments(request.verb, request.arguments)
        if hasattr(arguments, "id") and self._coordinator.unknown(arguments.id) is Code.NOT_COORDINATOR:
            raise NotCoordinator("another broker coordinates the transaction: try again")
        return await verb(arguments, access)

    async def _step(self, request: TransactionSteps, access: Access) -> list[str]:
        self._passed.check(access.principal, request.passed)
        lead = Lead(*request.lead)
        if lead.slot in self._store.slots:
            raise NotCoordinator("this broker coordinates the transaction now")
        steps = [asyncio.ensure_future(self._one_step(request, lead, TransactionPart(*row))) for row in request.parts]
        if steps:
            await asyncio.wait(steps, timeout=STEPS_MS_MAX / 1000)
        names = [step.result() if step.done() else RequestTimedOut.__name__ for step in steps]
        for step in steps:
            step.cancel()
        return names

    async def _one_step(self, request: TransactionSteps, lead: Lead, part: TransactionPart) -> str:
        """The name of the error, "": it is done."""
        producer = ProducerIdentity(*request.producer)
        try:
            topic = self._store.topics().get(part.topic)
            if topic is None or topic.id != part.topic_id or part.partition not in topic.partitions:
                raise NotLeader(f"{part.topic}-{part.partition} is not known here, by now")
            if request.marker is None:
                await self._writers.open(part, producer, lead)
            else:
                await self._writers.mark(part, producer, lead, *request.marker)
        except ApplianceError as error:
            return type(error).__name__
        return ""

    async def _open_at(self, request: OpenAt, access: Access) -> dict[str, Any]:
        rows = self._coordinator.at([TopicPartition(*key) for key in request.partitions])
        producers = [[*row.partition, list(row.producer), row.is_ongoing] for row in rows]
        return {"slots": sorted(self._store.slots), "producers": producers}

    async def _pending(self, request: ManyGroups, access: Access) -> dict[str, Any]:
        groups = [[list(key) for key in self._coordinator.pending(group)] for group in request.groups]
        return {"slots": sorted(self._store.slots), "groups": groups}

    async def _announce(self, request: AnnouncePending, access: Access) -> None:
        if not self._coordinates(request.group):
            raise NotCoordinator(f"another broker coordinates group {request.group!r}")
        self._store.note_pending(request.group, request.id)

    async def _add_offsets(self, request: PassOffsets, access: Access) -> int:
        self._passed.check(access.principal, request.passed)
        consumer = Committer(*request.consumer)
        offsets = [
            PendingOffset(consumer.group, TransactionPart(*part), offset, note, epoch)
            for part, offset, note, epoch in request.offsets
        ]

        async def may_commit() -> Code:
            """The group's coordinator is asked again, now that the offsets are pending: see ``add_offsets``."""
            if consumer.is_anonymous:
                return Code.NONE
            if self._coordinates(consumer.group):
                return await self._refusal(consumer)
            return await self._peers.may_commit(consumer)

        producer = ProducerIdentity(*request.producer)
        return await self._coordinator.add_offsets(request.id, producer, consumer.group, offsets, check=may_commit)

    async def _may_commit(self, request: MayCommit, access: Access) -> int:
        return await self._refusal(Committer(*request.consumer))

    async def _refusal(self, consumer: Committer) -> Code:
        if not self._coordinates(consumer.group):
            return Code.NOT_COORDINATOR
        return await self._groups.load(consumer.group) or refuse_consumer(self._groups, consumer)

    async def _take_offsets(self, request: TakeOffsets, access: Access) -> int:
        return await self._store.take_offsets(request.id, request.group, request.gone)


def _for_brokers(verb: VerbHandler) -> VerbHandler:
    async def answer(request: Any, access: Access) -> Any:
        if not access.principal.startswith(BROKER_PREFIX):
            raise InvalidRequest("only brokers of the cluster ask this of each other")
        return await verb(request, access)

    return answer


def _visible(row: dict[str, Any], access: Access) -> dict[str, Any]:
    """The row of a transaction, without topics that may not be seen."""
    parts = [key for key in row["parts"] if access.describable[key[0]]]
    offsets = [offset for offset in row["offsets"] if access.describable[offset[1]]]
    return row | {"parts": parts, "offsets": offsets}

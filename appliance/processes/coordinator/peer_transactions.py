"""Asks the other appliances of the ensemble about transactions, and tells them steps of ours.

An appliance coordinates some transactional ids, leads some partitions, and coordinates some groups, and a transaction
may have to do with all three of different ones.  Their coordinators ask each other (verbs in ``wire/native_admin.py``
that only brokers may use; :mod:`.peer_transactions_api` answers them)::

    verb                asked by, of whom                         what it does there
    transaction_steps   the id's coordinator, a partition's       steps of its writers: open, marker
    open_at             a partition's leader, all others          who is in transactions there
    pending_offsets     a group's coordinator, some or all        the offsets that may change
    announce_pending    a native id's coordinator, a group's      it is given offsets of the group
    pass_offsets        a group's coordinator, the id's           TxnOffsetCommit, which came to the group's
    may_commit          the id's coordinator, the group's         whether who commits is a member, once that is pending
    take_offsets        the id's coordinator, the group's         enter them: PrepareCommit, then Complete
    pass_verb           any, the id's coordinator                 a verb of a native producer, or of an administrator

What the states of a transaction (``transactions/transaction.py``) have to do with who dies:

==============  =================================================  =====================================================
state           its coordinator dies                               the leader of a partition, or a group's coordinator
==============  =================================================  =====================================================
Ongoing         another takes the slot when the session is over,   its writer, once it is back, is told who is open by
                and loads it; it has all of its time again         all coordinators (``open_at``), before it refuses a
                                                                   batch as of no transaction; steps wait meanwhile
Prepare         who takes the slot sends all markers again; they   the marker is sent again until it is answered: the
                are idempotent by producer, epoch and decision     transaction stays Prepare, and nothing is lost
PrepareCommit,  as above; what was taken is not in the state any   ``take_offsets`` is asked again of whoever
offsets         more, and is not taken twice                       coordinates the group then; until then they pend
Complete        nothing is to be done                              nothing is to be done
==============  =================================================  =====================================================

So PREPARE is durable before the first marker, and COMPLETE is stored after the last answer of all appliances.

A request that was given up may still lie in a process that stands still, and be carried out late: a marker then would
end the producer's next transaction.  So those that change something are *passed* with a number, and the lowest number
that is still waited for: what is below that, the other side refuses from then on.  Numbers count in a session, whose
name the other side makes and forgets when it dies.  An id's slot may move to a third appliance meanwhile: the other
side also refuses steps by a :class:`Lead` with a lower epoch than it has seen.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ...errors import ApplianceError, BrokerAway, NotCoordinator, named
from ...names import TopicPartition
from ...transactions.store import Committer, Lead, OpenProducer
from ...transactions.transaction import PendingOffset, ProducerIdentity, TransactionPart
from ...wire.kafka.codes import Code
from ...zookeeper.transaction_nodes import slot_path
from .live_brokers import LiveBrokers
from .peers import ADMIN_MS_MAX, PEER_MS_MAX

PASSED_MAX: Final = 16
"""Requests that one peer is asked at once; more wait."""
PARTS_MAX: Final = 500
"""Partitions, or offsets, in one request."""
GROUPS_MAX: Final = 100
"""Groups that one request asks for."""

ANSWERS: Final = (KeyError, TypeError, ValueError)
"""Errors of reading an answer of another version."""
T = TypeVar("T")


def _misunderstood(broker_id: int, error: Exception) -> BrokerAway:
    return BrokerAway(f"broker {broker_id} answers what is not understood here: {error!r:.200}")


def _read_producers(answer: Any) -> tuple[set[int], list[OpenProducer]]:
    rows = [
        OpenProducer(TopicPartition(topic, number), ProducerIdentity(*producer), ongoing)
        for topic, number, producer, ongoing in answer["producers"]
    ]
    return set(answer["slots"]), rows


def _answered(answers: Iterable[T | ApplianceError]) -> list[T]:
    return [answer for answer in answers if not isinstance(answer, ApplianceError)]


class PendingAt(NamedTuple):
    """The slots that an appliance coordinates, and the partitions of a group whose offsets may change with these."""

    slots: set[int]
    partitions: set[TopicPartition]


class _PendingQuestions:
    """What one peer is asked about groups: one request at a time, for all groups that wait."""

    def __init__(
        self,
        ask: Callable[[Sequence[str]], Awaitable[Sequence[PendingAt] | ApplianceError]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._ask, self._spawn = ask, spawn
        self._waiting: dict[str, list[asyncio.Future[PendingAt | ApplianceError]]] = defaultdict(list)
        self._asking = False

    async def ask(self, group: str) -> PendingAt | ApplianceError:
        answer: asyncio.Future[PendingAt | ApplianceError] = asyncio.get_running_loop().create_future()
        self._waiting[group].append(answer)
        if not self._asking:
            self._asking = True
            self._spawn(self._ask_all())
        try:
            async with asyncio.timeout(2 * PEER_MS_MAX / 1000):  # the request before may take as long
                return await answer
        except TimeoutError:
            return BrokerAway(f"a broker has not answered for {2 * PEER_MS_MAX} ms")

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                waiting = {group: self._waiting.pop(group) for group in list(self._waiting)[:GROUPS_MAX]}
                groups = [group for group, answers in waiting.items() if not all(answer.done() for answer in answers)]
                if groups:
                    rows = await self._ask(groups)
                    answered: Sequence[PendingAt | ApplianceError] = (
                        [rows] * len(groups) if isinstance(rows, ApplianceError) else rows
                    )
                    for group, row in zip(groups, answered, strict=True):
                        for answer in waiting[group]:
                            if not answer.done():  # who asked has given up
                                answer.set_result(row)
        finally:
            self._asking = False


class _Passing:
    """What is passed on to one peer: the session, and the numbers of requests that are waited for."""

    def __init__(self) -> None:
        self.session = ""
        self.opening = asyncio.Lock()
        self.places = asyncio.Semaphore(PASSED_MAX)
        self._numbers = itertools.count(1)
        self._waiting: set[int] = set()

    @contextmanager
    def numbered(self) -> Iterator[tuple[int, int]]:
        """The number of a request, and the lowest one that is waited for; while the request is."""
        number = next(self._numbers)
        self._waiting.add(number)
        try:
            yield number, min(self._waiting)
        finally:
            self._waiting.discard(number)


class PeerTransactions:
    """See the module's docstring."""

    def __init__(self, brokers: LiveBrokers, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._brokers, self._spawn = brokers, spawn
        self._passing: dict[int, _Passing] = {}
        self._questions: dict[int, _PendingQuestions] = {}

    async def _ask(self, broker_id: int, verb: str, arguments: Mapping[str, Any]) -> Any:
        """
        Raises:
            BrokerAway: it does not answer.
            ApplianceError: its answer.
        """
        address = self._brokers.native_address(broker_id)
        if not address:
            raise BrokerAway(f"broker {broker_id} cannot be reached from here")
        return await self._brokers.connections.ask_admin(address, verb, arguments)

    async def pass_on(self, broker_id: int, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Ask for something that must not be done any more once we have given it up.  Raises as :meth:`_ask`."""
        passing = self._passing.setdefault(broker_id, _Passing())
        try:
            async with asyncio.timeout(ADMIN_MS_MAX / 1000):  # of all that wait for it, one after the other
                async with passing.opening:
                    if not passing.session:
                        passing.session = str(await self._ask(broker_id, "begin_passing", {}))
                await passing.places.acquire()
        except TimeoutError:
            raise BrokerAway(f"broker {broker_id} has not answered for {ADMIN_MS_MAX} ms") from None
        session = passing.session
        try:
            with passing.numbered() as (number, lowest):
                return await self._ask(broker_id, verb, {**arguments, "passed": [session, number, lowest]})
        except NotCoordinator:  # perhaps it does not know the session any more
            if passing.session == session:
                passing.session = ""
            raise
        finally:
            passing.places.release()

    async def _ask_soon(
        self, broker_id: int, verb: str, arguments: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T | ApplianceError:
        """The answer, as ``read`` reads it, if it comes soon."""
        try:
            async with asyncio.timeout(PEER_MS_MAX / 1000):
                return read(await self._ask(broker_id, verb, arguments))
        except ANSWERS as error:
            return _misunderstood(broker_id, error)
        except TimeoutError:
            return BrokerAway(f"broker {broker_id} has not answered for {PEER_MS_MAX} ms")
        except ApplianceError as error:
            return error

    # ---- what others know

    async def open_at(self, partitions: Collection[TopicPartition]) -> tuple[set[int], list[OpenProducer]]:
        """The slots of the others that answer, and who is in transactions of these in some partitions."""
        slots: set[int] = set()
        rows: list[OpenProducer] = []
        listed = sorted(partitions)
        for start in range(0, len(listed), PARTS_MAX):
            asked = {"partitions": listed[start : start + PARTS_MAX]}
            answers = _answered(
                await asyncio.gather(
                    *(self._ask_soon(peer, "open_at", asked, _read_producers) for peer in self._brokers.peers())
                )
            )
            some = {slot for theirs, _ in answers for slot in theirs}
            rows += [row for _, opened in answers for row in opened]
            slots = some if not start else slots & some
        return slots, rows

    async def pending(self, group: str, slots: Collection[int] | None) -> list[PendingAt]:
        """What those of the others that answer say of a group.

        Args:
            slots: whose coordinators are asked; None: all.

        Groups that are asked for while a peer has not answered yet are asked for together then.
        """
        peers = set(self._brokers.peers())
        if slots is not None:
            peers &= {self._brokers.coordinator(slot_path(slot)) for slot in slots}
        for peer in peers - self._questions.keys():
            self._questions[peer] = _PendingQuestions(partial(self._ask_pending, peer), self._spawn)
        return _answered(await asyncio.gather(*(self._questions[peer].ask(group) for peer in sorted(peers))))

    async def _ask_pending(self, broker_id: int, groups: Sequence[str]) -> Sequence[PendingAt] | ApplianceError:
        def read(answer: Any) -> list[PendingAt]:
            slots = set(answer["slots"])
            rows = [PendingAt(slots, {TopicPartition(*key) for key in row}) for row in answer["groups"]]
            if len(rows) != len(groups):
                raise ValueError(f"{len(rows)} rows about {len(groups)} groups")
            return rows

        return await self._ask_soon(broker_id, "pending_offsets", {"groups": groups}, read)

    async def announce_pending(self, group: str, transactional_id: str) -> None:
        """Tell a group's coordinator that this one of an id is given offsets of the group."""
        await self._ask(self._brokers.coordinator(group), "announce_pending", {"group": group, "id": transactional_id})

    async def may_commit(self, consumer: Committer) -> Code:
        """Whether its group's coordinator, another appliance, has this consumer as a member."""
        broker_id = self._brokers.coordinator(consumer.group)
        return Code(await self._ask(broker_id, "may_commit", {"consumer": list(consumer)}))

    # ---- what others are to do

    async def step(
        self,
        broker_id: int,
        parts: Sequence[TransactionPart],
        producer: ProducerIdentity,
        lead: Lead,
        marker: tuple[bool, int, bool] | None,
    ) -> list[ApplianceError | None]:
        """Have the writers of partitions there take a step, of one transaction; for each part None, or its error.

        ``marker``: whether it is committed, when that was decided, whether that was inherited; None: open it.
        """
        arguments = {"producer": list(producer), "lead": list(lead), "marker": marker}
        errors: list[ApplianceError | None] = []
        for start in range(0, len(parts), PARTS_MAX):
            some = [list(part) for part in parts[start : start + PARTS_MAX]]
            names = await self.pass_on(broker_id, "transaction_steps", {**arguments, "parts": some})
            text = f"broker {broker_id} takes no part in a transaction now"
            try:
                errors += [named(name, text) if name else None for _, name in zip(some, names, strict=True)]
            except ANSWERS as error:
                raise _misunderstood(broker_id, error) from None
        return errors

    async def add_offsets(
        self,
        slot: str,
        transactional_id: str,
        producer: ProducerIdentity,
        consumer: Committer,
        offsets: Sequence[PendingOffset],
    ) -> Code:
        """Give offsets to the coordinator of the slot ``slot``."""
        arguments = {
            "id": transactional_id,
            "producer": list(producer),
            "consumer": list(consumer),
            "offsets": [[list(row.part), row.offset, row.metadata, row.leader_epoch] for row in offsets],
        }
        return Code(await self.pass_on(self._brokers.coordinator(slot), "pass_offsets", arguments))

    async def pass_verb(self, slot: str, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Have the coordinator of the slot ``slot`` carry out a verb, whose rights have been checked here."""
        asked = {"verb": verb, "arguments": arguments}
        return await self.pass_on(self._brokers.coordinator(slot), "pass_verb", asked)

    async def transactions(self) -> list[dict[str, Any]]:
        """The rows of all transactional ids that others coordinate.

        Raises:
            BrokerAway: one of them does not answer.
        """
        rows: list[dict[str, Any]] = []
        for broker_id in self._brokers.peers():
            asked = {"verb": "transactions", "arguments": {}}
            rows += await self.pass_on(broker_id, "pass_verb", asked)
        return rows

    async def take_offsets(self, transactional_id: str, group: str, gone: Collection[str]) -> int:
        """See :meth:`.StoredTransactions.take_offsets`, of the group's coordinator."""
        broker_id = self._brokers.coordinator(group)
        return int(
            await self._ask(broker_id, "take_offsets", {"id": transactional_id, "group": group, "gone": sorted(gone)})
        )

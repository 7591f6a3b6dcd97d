"""Coordinates the transactions of this appliance: decides by :class:`Transaction`, stores, and has markers written.

One request of an id is carried out at a time (:attr:`KnownTransaction.lock`), and a state counts once it is stored.
After a Prepare state a task of its own writes the markers, for as long as it takes: a partition that is offline holds
up its transactions, as in Kafka, until it is back or deleted.  Then the transaction is complete.  That is stored at
once if offsets become valid with it, else a little later: a producer that goes on stores its next transaction over the
Prepare state, and has saved a write.  Whoever finds the Prepare state instead writes markers again that are there.

What is stored is known here when :meth:`TransactionCoordinator.load` has been called; until then, and after
:meth:`TransactionCoordinator.unload`, every request is answered that it should come again.  Whoever loads states of an
earlier coordinator writes the markers of their Prepare states again, and gives Ongoing transactions all of their time,
since no clock outlives a process.  A backup has the states of a moment before its logs: in these the producer of a
Prepare state may be in its next transaction, which is not to be committed by that marker.

Bounds: ``ids_max`` ids, an open transaction each, of which each has at most PARTITIONS_MAX partitions; their states
BYTES_MAX bytes (:mod:`.transaction`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from ..errors import ApplianceError, NotCoordinator, StaleProducerEpoch, Unavailable, UnknownPartition
from ..groups.alarms import Alarms
from ..names import TopicPartition
from ..wire.kafka.codes import Code
from .store import MarkerWriters, OpenProducer, TransactionStore
from .transaction import (
    ENDING,
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionOutcome,
    TransactionPart,
    TransactionState,
)

END_WAIT_MS: Final = 200
"""How long a request waits for the end of a transaction, which saves the client a pause and another request."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
COMPLETE_LATER_S: Final = 1.0
"""For how long the Complete state of a transaction without offsets waits for a next one that is stored in its place."""
LATE_S: Final = 1.0
"""Pause before a transaction is looked at again whose time is up while nothing can be stored."""
FULL_IDLE_MS: Final = 3_600_000
"""When there is no room for another id, those go that have had no transaction for so long: programs that take a new id
for each transaction, as Flink's sink does, would stop all others."""
EXPIRED_MAX: Final = 400
"""Ids that expire in one round."""

log = logging.getLogger(__name__)


class KnownTransaction:
    """What is known of an id.

    ``opened``: partitions whose writers know the Ongoing transaction.  ``deadline_ms``: when an Ongoing one is aborted,
    by the loop's clock.  ``ended``: set unless markers are being written.  ``inherited``: the Ongoing transaction began
    under an earlier coordinator, whose producer may have been told of groups that are not stored.  ``loaded``: what an
    earlier coordinator has stored.
    """

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.lock = asyncio.Lock()
        self.opened: set[TransactionPart] = set()
        self.deadline_ms = 0
        self.inherited = False
        self.loaded: Transaction | None = None
        self.ended = asyncio.Event()
        self.ended.set()


class TransactionCoordinator:
    """See the module's docstring.

    Args:
        new_id: a producer id that nobody ever had.
        clock_ms: ms since 1970, by which ids expire.
        spawn: runs a coroutine in the background.
    """

    def __init__(
        self,
        store: TransactionStore,
        writers: MarkerWriters,
        *,
        ids_max: int,
        new_id: Callable[[], int],
        clock_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.ids_max = ids_max
        self.loaded = False
        self.store, self.writers = store, writers
        self.new_id, self.clock_ms, self._spawn = new_id, clock_ms, spawn
        self._entries: dict[str, KnownTransaction] = {}
        self._pending: dict[str, Counter[TopicPartition]] = defaultdict(Counter)
        self._alarms = Alarms()
        self._alarm: asyncio.TimerHandle | None = None

    # -- what is stored -------------------------------------------------------------------------------

    def load(self, stored: Mapping[str, Transaction]) -> None:
        """Take the states of all ids that this appliance coordinates, and go on where their coordinator ended."""
        self.unload()
        self.loaded = True
        for transactional_id, transaction in stored.items():
            self._entries[transactional_id] = KnownTransaction(Transaction(transaction.producer_id))
            self._take(transactional_id, self._entries[transactional_id], transaction)
            self._entries[transactional_id].inherited = True
            self._entries[transactional_id].loaded = transaction
        log.info("transactions: %d ids, %d of them open", len(stored), len(self.open()))

    def unload(self) -> None:
        """Forget everything: another coordinator may have it now.  What is under way is given up."""
        self.loaded = False
        for entry in self._entries.values():
            entry.ended.set()
        self._entries.clear()
        self._pending = defaultdict(Counter)
        self._alarms = Alarms()
        self.close()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # -- reading --------------------------------------------------------------------------------------

    def get(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None or not entry.transaction.has_epoch else entry.transaction

    def all(self) -> dict[str, Transaction]:
        """The ids whose producer has been given its epoch."""
        return {name: entry.transaction for name, entry in self._entries.items() if entry.transaction.has_epoch}

    def open(self) -> dict[str, Transaction]:
        """The transactions that are Ongoing or end at the moment."""
        return {name: transaction for name, transaction in self.all().items() if transaction.is_open}

    def pending(self, group: str) -> Collection[TopicPartition]:
        """The partitions of which an open transaction of this appliance may change the committed offset."""
        return self._pending.get(group, ())

    async def all_pending(self, group: str) -> Collection[TopicPartition] | None:
        """Those of all appliances; None: not known now."""
        if not self.store.serves:
            return ()
        try:
            elsewhere = await self.store.pending_elsewhere(group)
        except Unavailable as error:
            log.info("it is not known which offsets of group %r may change: %s", group, error)
            return None
        return {*elsewhere, *self.pending(group)}

    def at(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        """Who is in a transaction of this appliance: not in a partition of a topic that was made again since."""
        asked = set(partitions)
        return [
            OpenProducer(part.key, transaction.producer, transaction.state is TransactionState.ONGOING)
            for transaction in self.open().values()
            for part in transaction.parts
            if part.key in asked and self._exists(part)
        ]

    async def all_at(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        """Who is in a transaction there, of any appliance: all who were when this was called, and still are.

        Raises:
            Unavailable: that is not known now.
        """
        if not self.store.serves:
            return []
        elsewhere = await self.store.open_elsewhere(partitions)
        return [*elsewhere, *self.at(partitions)]

    def unknown(self, transactional_id: str | None = None) -> Code:
        """Why it cannot be said which ids there are, or what one is; NONE also where there can be none."""
        return self.refuse(transactional_id) if self.store.serves else Code.NONE

    def refuse(self, transactional_id: str | None = None) -> Code:
        """Why nothing can be said about any id, or this one, now, else NONE."""
        if not self.store.leads:
            return Code.COORDINATOR_NOT_AVAILABLE
        if transactional_id is not None and not self.store.coordinates(transactional_id):
            return Code.NOT_COORDINATOR
        if self.loaded:
            return Code.NONE
        return Code.COORDINATOR_LOAD_IN_PROGRESS if self.store.serves else Code.COORDINATOR_NOT_AVAILABLE

    # -- requests -------------------------------------------------------------------------------------

    async def initialise(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> Transaction | Code:
        """InitProducerId; an Ongoing transaction is aborted first."""

        def decide(transaction: Transaction) -> TransactionOutcome:
            return transaction.initialise(timeout_ms, claimed, self.new_id(), self.clock_ms())

        code = self.refuse(transactional_id)
        if code:
            return code
        if transactional_id not in self._entries:
            if len(self._entries) >= self.ids_max:
                await self.expire(FULL_IDLE_MS)
            if len(self._entries) >= self.ids_max:
                return Code.POLICY_VIOLATION
            self._entries[transactional_id] = KnownTransaction(Transaction(self.new_id()))
        outcome = await self._ask(transactional_id, decide)
        # The one that was open is aborted.
        if isinstance(outcome, Transaction) and outcome.state is not TransactionState.EMPTY:
            await self._wait_for_end(transactional_id)
            outcome = await self._ask(transactional_id, decide)
        if isinstance(outcome, Transaction) and outcome.state is not TransactionState.EMPTY:
            return Code.CONCURRENT_TRANSACTIONS
        return outcome

    async def add_partitions(
        self, transactional_id: str, producer: ProducerIdentity, parts: Sequence[TransactionPart]
    ) -> Code:
        """AddPartitionsToTxn: when it is answered NONE, batches may be sent."""
        return _code(
            await self._ask(
                transactional_id,
                lambda transaction: transaction.add_partitions(producer, parts, self.clock_ms()),
                opening=True,
            )
        )

    async def add_group(self, transactional_id: str, producer: ProducerIdentity, group: str) -> Code:
        """AddOffsetsToTxn.  That a group is in an Ongoing transaction is stored with its offsets, which are to come."""

        def decide(transaction: Transaction) -> TransactionOutcome:
            return transaction.add_group(producer, group, self.clock_ms())

        return _code(await self._ask(transactional_id, decide, deferring=True))

    async def add_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        group: str,
        offsets: Sequence[PendingOffset],
        check: Callable[[], Awaitable[Code]] | None = None,
    ) -> Code:
        """TxnOffsetCommit.  ``check``: looks, once they are pending, whether they may be committed.

        The offsets are pending before they are stored: whoever takes over the partitions meanwhile, and asks for stable
        offsets, must not be given the old ones (KIP-447).
        """

        def decide(transaction: Transaction) -> TransactionOutcome:
            if transaction.state is TransactionState.ONGOING and self._entries[transactional_id].inherited:
                joined = transaction.add_group(producer, group, self.clock_ms())
                if isinstance(joined, Code):
                    return joined
                transaction = joined
            return transaction.add_offsets(producer, group, offsets, self.clock_ms())

        keys, pending = [offset.part.key for offset in offsets], self._pending
        pending[group].update(keys)
        try:
            refusal = Code.NONE if check is None else await check()
            if refusal:
                return refusal
            return _code(await self._ask(transactional_id, decide))
        finally:
            if pending is self._pending:  # else it was unloaded meanwhile
                self._release(group, keys)

    def _release(self, group: str, keys: Iterable[TopicPartition]) -> None:
        """Take back that these offsets are pending, once each."""
        self._pending[group].subtract(keys)
        self._pending[group] = +self._pending[group]
        if not self._pending[group]:
            del self._pending[group]

    async def end(self, transactional_id: str, producer: ProducerIdentity, committed: bool) -> Code:
        """EndTxn: answered once the decision is durable; the next request waits a little for the end itself."""
        return _code(
            await self._ask(transactional_id, lambda transaction: transaction.end(producer, committed, self.clock_ms()))
        )

    async def abort(self, transactional_id: str) -> Code:
        """Abort an Ongoing transaction, and fence its producer."""

        def decide(transaction: Transaction) -> TransactionOutcome:
            return (
                transaction.fence(self.clock_ms())
                if transaction.state is TransactionState.ONGOING
                else Code.INVALID_TXN_STATE
            )

        return _code(await self._change(transactional_id, decide))

    async def abort_hanging(self, partition: TopicPartition) -> None:
        """End the transactions that are open in a partition's log, and that nobody will end.

        They are there when a topic comes back that was in the trash, or in a backup, when their transactions ended; and
        when what ZooKeeper had is lost.

        Raises:
            Unavailable: try again.
            UnknownPartition: there is no such partition here.
        """
        await self.writers.abort_hanging(partition)

    async def known_at(self, partition: TopicPartition) -> set[int]:
        """The producers whose transactions in a partition somebody will end.

        Raises:
            Unavailable: that is not known now.
        """
        return {row.producer.id for row in await self.all_at([partition])}

    async def expire(self, expiration_ms: int) -> None:
        """Forget ids that have had no transaction for so long; called from time to time."""
        now_ms = self.clock_ms()
        old = [name for name, transaction in self.all().items() if transaction.idle(now_ms) > expiration_ms]
        await asyncio.gather(*(self._forget(name, expiration_ms) for name in old[:EXPIRED_MAX]))

    async def _forget(self, transactional_id: str, expiration_ms: int) -> None:
        entry = self._entries.get(transactional_id)
        if entry is None:
            return
        async with entry.lock:
            idle = entry.transaction.idle(self.clock_ms()) > expiration_ms
            if idle and self._entries.get(transactional_id) is entry:
                await self.store.put(transactional_id, None)
                if self._entries.get(transactional_id) is entry:
                    del self._entries[transactional_id]

    # -- changes --------------------------------------------------------------------------------------

    async def _ask(
        self,
        transactional_id: str,
        decide: Callable[[Transaction], TransactionOutcome],
        *,
        opening: bool = False,
        deferring: bool = False,
    ) -> TransactionOutcome:
        """:meth:`_change`; wait a little for a transaction that ends at the moment."""
        outcome = await self._change(transactional_id, decide, opening=opening, deferring=deferring)
        if outcome is Code.CONCURRENT_TRANSACTIONS:
            await self._wait_for_end(transactional_id)
            outcome = await self._change(transactional_id, decide, opening=opening, deferring=deferring)
        return outcome

    async def _change(
        self,
        transactional_id: str,
        decide: Callable[[Transaction], TransactionOutcome],
        *,
        opening: bool = False,
        deferring: bool = False,
    ) -> TransactionOutcome:
        """Decide, store what is decided, and act on it; the stored state, or the error.

        ``opening``: also let all its partitions know.  ``deferring``: of an Ongoing transaction it is stored with the
        next change.
        """
        code = self.refuse(transactional_id)
        entry = self._entries.get(transactional_id)
        if code or entry is None:
            return code or Code.INVALID_PRODUCER_ID_MAPPING
        async with entry.lock:
            if self._entries.get(transactional_id) is not entry:
                return Code.COORDINATOR_LOAD_IN_PROGRESS
            outcome = decide(entry.transaction)
            if isinstance(outcome, Code):
                self._drop_if_new(transactional_id, entry)
                return outcome
            try:
                if outcome is not entry.transaction:
                    if not (deferring and entry.transaction.state is TransactionState.ONGOING):
                        await self.store.put(transactional_id, outcome)
                    if self._entries.get(transactional_id) is not entry:
                        raise NotCoordinator(f"transactions of {transactional_id!r} are coordinated anew: try again")
                    self._take(transactional_id, entry, outcome)
                if opening:
                    await self._open(transactional_id, entry)
            except ApplianceError as error:
                self._drop_if_new(transactional_id, entry)
                return _answer(error)
            return outcome

    def _drop_if_new(self, transactional_id: str, entry: KnownTransaction) -> None:
        if not entry.transaction.has_epoch and self._entries.get(transactional_id) is entry:
            del self._entries[transactional_id]

    async def _open(self, transactional_id: str, entry: KnownTransaction) -> None:
        parts = [part for part in entry.transaction.parts if part not in entry.opened and self._exists(part)]
        producer, lead = entry.transaction.producer, self.store.lead(transactional_id)
        for error in await asyncio.gather(
            *(self.writers.open(part, producer, lead) for part in parts), return_exceptions=True
        ):
            if error is not None and not isinstance(error, UnknownPartition):
                raise error
        entry.opened.update(parts)

    def _take(self, transactional_id: str, entry: KnownTransaction, transaction: Transaction) -> None:
        """The state is stored: act on it."""
        before, entry.transaction = entry.transaction, transaction
        for new in transaction.offsets:
            self._pending[new.group][new.part.key] += 1
        for gone in before.offsets:
            self._release(gone.group, [gone.part.key])
        if transaction.state is TransactionState.ONGOING and before.state is not TransactionState.ONGOING:
            entry.opened.clear()
            entry.inherited = False
            entry.deadline_ms = self.now_ms() + transaction.timeout_ms
            self._alarms.set(transactional_id, entry.deadline_ms)
            self._set_alarm()
        elif transaction.state in ENDING and entry.ended.is_set():
            entry.ended.clear()
            self._spawn(self._finish(transactional_id, entry))

    # -- the end of a transaction ---------------------------------------------------------------------

    async def _wait_for_end(self, transactional_id: str) -> None:
        entry = self._entries.get(transactional_id)
        if entry is not None and not entry.ended.is_set():
            try:
                async with asyncio.timeout(END_WAIT_MS / 1000):
                    await entry.ended.wait()
            except TimeoutError:
                pass

    async def _finish(self, transactional_id: str, entry: KnownTransaction) -> None:
        """Write the markers, and have it complete; for as long as the id is ours."""
        ending = entry.transaction
        try:
            await asyncio.gather(*(self._mark(transactional_id, entry, part) for part in ending.parts))
            complete = ending.complete(self.clock_ms())  # once: who stores it again knows it by its value
            if ending.offsets:
                await self._store_end(transactional_id, entry, ending, complete)
            elif self._entries.get(transactional_id) is entry:
                self._take(transactional_id, entry, complete)
                self._spawn(self._store_later(transactional_id, entry, ending, complete))
        finally:
            entry.ended.set()

    async def _store_later(
        self, transactional_id: str, entry: KnownTransaction, ending: Transaction, complete: Transaction
    ) -> None:
        await asyncio.sleep(COMPLETE_LATER_S)
        await self._store_end(transactional_id, entry, ending, complete)

    async def _store_end(
        self, transactional_id: str, entry: KnownTransaction, ending: Transaction, complete: Transaction
    ) -> None:
        """Store that it is complete, unless something is stored by now that has come after it."""
        pause_s = RETRY_S
        while self._entries.get(transactional_id) is entry:
            try:
                async with entry.lock:
                    if entry.transaction is not ending and entry.transaction is not complete:
                        return
                    for group in self.store.groups_elsewhere(ending):
                        await self.store.hand_over(transactional_id, ending, group)
                        ending = self._without(transactional_id, entry, ending, group)
                    if self._entries.get(transactional_id) is not entry:  # loaded anew: that may be in its next one
                        return
                    await self.store.complete(transactional_id, ending, complete)
                    if self._entries.get(transactional_id) is entry and entry.transaction is ending:
                        self._take(transactional_id, entry, complete)
                return
            except ApplianceError as error:
                log.warning("the end of transaction %r is not stored yet: %s", transactional_id, error)
            pause_s = await _pause(pause_s)

    def _without(self, transactional_id: str, entry: KnownTransaction, ending: Transaction, group: str) -> Transaction:
        """The offsets of a group are stored, and not in the transaction any more."""
        rest = ending.without(group)
        if self._entries.get(transactional_id) is entry and entry.transaction is ending:
            self._take(transactional_id, entry, rest)
        return rest

    async def _mark(self, transactional_id: str, entry: KnownTransaction, part: TransactionPart) -> None:
        pause_s = RETRY_S
        transaction = entry.transaction
        inherited = transaction is entry.loaded
        while self._entries.get(transactional_id) is entry and self._exists(part):
            try:
                lead = self.store.lead(transactional_id)
                decision = transaction.committed, transaction.changed_ms, inherited
                await self.writers.mark(part, transaction.producer, lead, *decision)
                return
            except ApplianceError as error:  # also of one that is made, or brought back, at the moment
                log.warning("%s-%d: no marker yet for %r: %s", *part.key, transactional_id, error)
            pause_s = await _pause(pause_s)

    def _exists(self, part: TransactionPart) -> bool:
        topic = self.store.topics().get(part.topic)
        return topic is not None and topic.id == part.topic_id

    # -- time -----------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        next_ms = self._alarms.next_ms()
        loop = asyncio.get_running_loop()
        if next_ms is not None and (self._alarm is None or self._alarm.when() * 1000 > next_ms + 1):
            self.close()
            self._alarm = loop.call_at((next_ms + 1) / 1000, self._tick)  # our clock is in whole ms

    def _tick(self) -> None:
        """Abort the transactions whose time is up."""
        self._alarm = None
        now_ms = self.now_ms()
        for transactional_id in list(self._alarms.due(now_ms)):
            entry = self._entries.get(transactional_id)
            if entry is None or entry.transaction.state is not TransactionState.ONGOING:
                continue
            if entry.deadline_ms > now_ms:
                self._alarms.set(transactional_id, entry.deadline_ms)
            else:
                self._spawn(self._time_out(transactional_id, entry))
        self._set_alarm()

    async def _time_out(self, transactional_id: str, entry: KnownTransaction) -> None:
        def decide(transaction: Transaction) -> TransactionOutcome:
            late = transaction.state is TransactionState.ONGOING and entry.deadline_ms <= self.now_ms()
            return transaction.fence(self.clock_ms()) if late else Code.INVALID_TXN_STATE

        outcome = await self._change(transactional_id, decide)
        if isinstance(outcome, Transaction):
            log.info("transaction %r is aborted: it took longer than %d ms", transactional_id, outcome.timeout_ms)
        elif self._entries.get(transactional_id) is entry and entry.transaction.state is TransactionState.ONGOING:
            self._alarms.set(transactional_id, self.now_ms() + int(LATE_S * 1000))
            self._set_alarm()


async def _pause(pause_s: float) -> float:
    """Wait; how long to wait the next time."""
    await asyncio.sleep(pause_s)
    return min(2 * pause_s, RETRY_S_MAX)


def _answer(error: ApplianceError) -> Code:
    """Everything may be asked for again, but by a producer that another one has replaced."""
    if isinstance(error, StaleProducerEpoch):
        return Code.PRODUCER_FENCED
    if not isinstance(error, Unavailable):
        log.warning("transactions: %s", error)
    return Code.COORDINATOR_LOAD_IN_PROGRESS


def _code(outcome: TransactionOutcome) -> Code:
    return outcome if isinstance(outcome, Code) else Code.NONE

"""Stores the states of transactional ids in ZooKeeper (:mod:`appliance.zookeeper.transaction_nodes`).

:class:`StoredTransactions` is the coordinator's ``transactions.store.TransactionStore``.  States that are to be stored
at the same time go together: while one round trip is under way the next ones collect.  An end with offsets is a request
by itself, since it needs the claims of groups.

The slots of this appliance are claimed when the states are loaded: those that it is to coordinate by the appliances
that live.  A claim lasts as long as the session of ZooKeeper.  After that, and when others live, all is loaded again,
and claims on slots of others are given back.  What others know is asked of them (:mod:`.peer_transactions`).  By the
claims it is seen whether they know all that is not known here, and not only those that have answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ...catalog import Topic
from ...errors import ApplianceError, NotCoordinator, RequestTimedOut, ZooKeeperAway
from ...names import TopicPartition
from ...transactions.store import Committer, Lead, OpenProducer
from ...transactions.transaction import PendingOffset, ProducerIdentity, Transaction, TransactionState, decode, encode
from ...wire.kafka.codes import Code
from ...zookeeper import claims
from ...zookeeper import transaction_nodes as nodes
from ...zookeeper.claims import Claimant, Claimed
from ...zookeeper.paths import CommittedOffset
from ...zookeeper.transaction_nodes import ABSENT, NodeChange
from .committed_offsets import CommittedOffsets
from .peer_transactions import PeerTransactions
from .registry_session import RegistrySession

STORE_MS_MAX: Final = 10_000
"""How long a state waits to be stored."""
GROUPS_MAX: Final = 10_000
"""Groups of each kind whose slots are remembered.  Of one that is forgotten all are asked again."""

ALL_SLOTS: Final = frozenset(range(nodes.SLOTS))
log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    transactional_id: str
    value: bytes | None
    done: asyncio.Future[None]


class SlotsOfGroups:
    """Remembers which slots of other appliances may have offsets of a group in an open transaction.

    Nearly no group has any, and a consumer asks for stable offsets at each start.  So the coordinator of a group asks
    all other appliances once.  Then it asks only those that coordinate a slot which had offsets of the group at that
    time, or has got some since: clients send them to the group's coordinator, which passes them on, and the coordinator
    of a native producer says that it has some (``announce_pending``).

    Both need that all appliances agree who coordinates the group.  So what was asked holds for one session and for the
    brokers as they are, and nothing is remembered while these have changed just now.  What was noted is kept beyond
    that: a request that was passed on may be carried out late.

    Args:
        as_of: what changes when others may coordinate; None: it has changed just now.
    """

    def __init__(self, as_of: Callable[[], Hashable | None]) -> None:
        self._current = as_of
        self._as_of: Hashable | None = None
        self._asked: dict[str, frozenset[int]] = {}
        """The slots that had offsets of a group when all were asked."""
        self._noted: dict[str, set[int]] = {}
        """Those that have got some; the group that was noted last is the last."""
        self._evicted = 0
        """How many notes had to go: who asked before then may not have heard of what was noted."""

    @property
    def as_of(self) -> Hashable | None:
        """For :meth:`learn`, as it is before others are asked."""
        current = self._current()
        if current != self._as_of:
            self._as_of = current
            self._asked.clear()
        return None if current is None else (current, self._evicted)

    def get(self, group: str) -> Collection[int] | None:
        """The slots that may have offsets of a group; None: each may."""
        if self.as_of is None or group not in self._asked:
            return None
        return self._asked[group] | self._noted.get(group, set())

    def learn(self, group: str, as_of: Hashable | None, slots: Collection[int]) -> None:
        """All were asked after ``as_of``, and these slots had offsets of the group."""
        if as_of is not None and as_of == self.as_of:
            self._asked[group] = frozenset(slots)
            if len(self._asked) > GROUPS_MAX:
                del self._asked[next(iter(self._asked))]

    def note(self, group: str, slot: int) -> None:
        """A slot gets offsets of a group; called before it has them."""
        slots = self._noted.pop(group, set())
        self._noted[group] = slots | {slot}
        if len(self._noted) > GROUPS_MAX:
            evicted = next(iter(self._noted))
            del self._noted[evicted]
            self._asked.pop(evicted, None)
            self._evicted += 1

    def ask_all_again(self, group: str) -> None:
        """Somebody did not answer.  What was noted stays: it may be on its way to one who has answered already."""
        self._asked.pop(group, None)


class StoredTransactions:
    """See the module's docstring.

    Args:
        topics: those that exist.
        new_epoch: a text that is never used again.
        coordinates: whether this appliance is to coordinate what has this name, by the appliances that live.
    """

    def __init__(
        self,
        registry: RegistrySession,
        claimant: Claimant,
        offsets: CommittedOffsets,
        topics: Callable[[], Mapping[str, Topic]],
        peers: PeerTransactions,
        *,
        new_epoch: Callable[[], str],
        coordinates: Callable[[str], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.topics = topics
        self._registry, self._claimant, self._offsets = registry, claimant, offsets
        self._new_epoch, self._coordinates, self._spawn, self._on_lost = new_epoch, coordinates, spawn, on_lost
        self._peers = peers
        self._slots_of_groups = SlotsOfGroups(
            lambda: (registry.session_id, registry.revision) if registry.settled else None
        )
        self._session_id = 0
        self._claims: dict[int, Claimed] = {}
        self._versions: dict[str, int] = {}
        self._queue: list[_Waiting] = []
        self._writing = False

    @property
    def serves(self) -> bool:
        return self._registry.enabled

    @property
    def leads(self) -> bool:
        return self._registry.leased

    @property
    def stale(self) -> bool:
        """Whether the claims are those of an earlier session, or of other slots than ours, or there are none yet."""
        return self._session_id != self._registry.session_id or self._claims.keys() != self._own()

    @property
    def slots(self) -> Collection[int]:
        """The slots that are loaded, and certainly claimed."""
        return () if self.stale or not self.leads else self._claims.keys()

    def _own(self) -> set[int]:
        return {slot for slot in range(nodes.SLOTS) if self._coordinates(nodes.slot_path(slot))}

    def owner_of(self, transactional_id: str) -> str:
        return nodes.slot_path(nodes.slot_of(transactional_id))

    def coordinates(self, transactional_id: str) -> bool:
        return self._coordinates(self.owner_of(transactional_id))

    def lead(self, transactional_id: str) -> Lead:
        slot = nodes.slot_of(transactional_id)
        return Lead(slot, self._claimed(slot).version)

    def _claimed(self, slot: int) -> Claimed:
        claim = self._claims.get(slot)
        if claim is None:
            raise NotCoordinator("this broker does not coordinate the transaction any more; try again")
        return claim

    async def load(self) -> dict[str, Transaction]:
        """Claim our slots, and read them; give the others back.

        Raises:
            ZooKeeperAway: it cannot be reached, another coordinator has one, or our slots have changed meanwhile.
        """
        session_id = self._registry.session_id
        self._claims, self._versions, self._session_id = {}, {}, 0
        own = self._own()
        for slot in ALL_SLOTS - own:
            withdrawing = claims.withdraw(nodes.slot_path(slot), self._claimant)
            await self._registry.ask(withdrawing, session_id=session_id)
        loaded: dict[str, Transaction] = {}
        for slot in sorted(own):
            taking = nodes.claim_slot(slot, self._claimant, self._new_epoch())
            self._claims[slot] = await self._registry.ask(taking, session_id=session_id)
            for name, node in (await self._registry.ask(nodes.read(slot), session_id=session_id)).items():
                self._versions[name] = node.version
                try:
                    loaded[name] = decode(node.value)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    log.error("ZooKeeper node %s cannot be read and is left out: %s", nodes.id_path(name), error)
        self._session_id = session_id
        if self.stale:
            raise ZooKeeperAway("the brokers have changed: try again")
        return loaded

    # ---- storing

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        value = None if transaction is None else encode(transaction)
        waiting = _Waiting(transactional_id, value, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())
        try:
            async with asyncio.timeout(STORE_MS_MAX / 1000):
                await waiting.done
        except TimeoutError:
            raise RequestTimedOut(f"ZooKeeper did not store a transaction within {STORE_MS_MAX} ms") from None

    async def _write_all(self) -> None:
        try:
            while self._queue:
                taken, self._queue = self._queue, []
                slots: dict[int, list[_Waiting]] = defaultdict(list)
                for write in taken:
                    if not write.done.done():  # done: it was given up
                        slots[nodes.slot_of(write.transactional_id)].append(write)
                await asyncio.gather(*(self._write(slot, waiting) for slot, waiting in slots.items()))
        finally:
            self._writing = False

    async def _write(self, slot: int, waiting: list[_Waiting]) -> None:
        claim = None
        try:
            claim = self._claimed(slot)
            changes = [
                NodeChange(nodes.id_path(name), value, self._versions.get(name, ABSENT)) for name, value, _ in waiting
            ]
            versions = await self._registry.ask(nodes.write(claim, changes), session_id=self._session_id)
        except ApplianceError as error:
            self._note_loss(slot, claim, error)
            for write in waiting:
                if not write.done.done():
                    write.done.set_exception(error)
            return
        for write, version in zip(waiting, versions, strict=True):
            self._note(write.transactional_id, version)
            if not write.done.done():
                write.done.set_result(None)

    def _note(self, transactional_id: str, version: int) -> None:
        if version == ABSENT:
            self._versions.pop(transactional_id, None)
        else:
            self._versions[transactional_id] = version

    def _note_loss(self, slot: int, claim: Claimed | None, error: ApplianceError) -> None:
        """Whoever lost a slot without losing the session, or giving it back, has to load again."""
        if isinstance(error, nodes.SlotLost) and claim is not None and self._claims.get(slot) is claim:
            log.warning("%s", error)
            self._session_id = 0
            self._on_lost()

    async def complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        try:
            await self._complete(transactional_id, before, after)
        except (
            nodes.TransactionChanged
        ):  # a group of ours was another's, who has taken its offsets; the answer was lost
            await self._complete(transactional_id, await self._read_ending(transactional_id, before), after)

    async def _read_ending(self, transactional_id: str, before: Transaction) -> Transaction:
        """The state that is stored: that of ``before``, perhaps without offsets which others have taken.

        Raises:
            ZooKeeperAway: it is another one, or cannot be read.
        """
        node = await self._registry.ask(nodes.read_one(transactional_id), session_id=self._session_id)
        try:
            ending = decode(b"" if node is None else node.value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ZooKeeperAway(f"transaction {transactional_id!r} cannot be read") from None
        if node is None or msgspec.structs.replace(before, offsets=ending.offsets) != ending:
            raise ZooKeeperAway(f"transaction {transactional_id!r} is in another state: try again")
        self._note(transactional_id, node.version)
        return ending

    async def _complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        groups: dict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
        for group, key, committed in self._committed_by(before):
            groups[group][key] = committed
        if not groups:
            await self.put(transactional_id, after)
            return
        slot = nodes.slot_of(transactional_id)
        claim = self._claimed(slot)
        end = NodeChange(nodes.id_path(transactional_id), encode(after), self._versions[transactional_id])
        try:
            version = await self._offsets.commit_with(groups, lambda offsets: nodes.commit(claim, end, offsets))
        except ApplianceError as error:
            self._note_loss(slot, claim, error)
            raise
        self._note(transactional_id, version)

    def _committed_by(self, transaction: Transaction) -> Iterator[tuple[str, TopicPartition, CommittedOffset]]:
        """The offsets of a transaction, without those of topics that are gone: group, partition, value."""
        topics = self.topics()
        for pending in transaction.offsets:
            topic = topics.get(pending.part.topic)
            if topic is not None and topic.id == pending.part.topic_id:
                committed = CommittedOffset(
                    pending.offset, pending.metadata, pending.part.topic_id, pending.leader_epoch
                )
                yield pending.group, pending.part.key, committed

    # ---- with other appliances

    def groups_elsewhere(self, transaction: Transaction) -> list[str]:
        groups = dict.fromkeys(offset.group for offset in transaction.offsets)
        return [group for group in groups if not self._coordinates(group)]

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        there = {topic.id for topic in self.topics().values()}
        gone = {offset.part.topic_id for offset in transaction.offsets} - there
        self._note(transactional_id, await self._peers.take_offsets(transactional_id, group, gone))

    async def take_offsets(self, transactional_id: str, group: str, gone: Collection[str]) -> int:
        """Commit the offsets of a group of ours in a transaction of another appliance, if that is still to be done.

        It is done by the state that is stored.  So it does not matter who asks, when, or how often.

        Args:
            gone: the ids of its topics that are not there any more, as far as who asks knows.

        Returns:
            The version of the transaction's node.

        Raises:
            NotCoordinator: the group is not ours.
            Unavailable: it may or may not be done; the same call again finds that out.  Or a topic is neither known
                here nor gone: one of both appliances does not know yet what has become of it.
        """
        if not self._coordinates(group):
            raise NotCoordinator(f"another broker coordinates group {group!r}")
        node = await self._registry.ask(nodes.read_one(transactional_id))
        if node is None:
            return ABSENT
        try:
            before = decode(node.value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ZooKeeperAway(f"transaction {transactional_id!r} cannot be read") from None
        if before.state is not TransactionState.PREPARE_COMMIT or group not in {row.group for row in before.offsets}:
            return node.version
        end = NodeChange(nodes.id_path(transactional_id), encode(before.without(group)), node.version)
        offsets = {key: committed for of, key, committed in self._committed_by(before) if of == group}
        unknown = {row.part.topic for row in before.offsets if row.group == group and row.part.key not in offsets}
        if unknown - {row.part.topic for row in before.offsets if row.part.topic_id in gone}:
            raise ZooKeeperAway(f"not all topics of transaction {transactional_id!r} are known here: try again")
        return await self._offsets.commit_with({group: offsets}, lambda held: nodes.hand_over(end, held[0]))

    async def add_offsets_elsewhere(
        self, transactional_id: str, producer: ProducerIdentity, consumer: Committer, offsets: Sequence[PendingOffset]
    ) -> Code:
        owner = self.owner_of(transactional_id)
        self.note_pending(consumer.group, transactional_id)
        return await self._peers.add_offsets(owner, transactional_id, producer, consumer, offsets)

    async def open_elsewhere(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        slots, rows = await self._peers.open_at(partitions)
        await self._check_all_known(slots)
        return rows

    async def announce_pending(self, group: str, transactional_id: str) -> None:
        if not self._coordinates(group):
            await self._peers.announce_pending(group, transactional_id)

    def note_pending(self, group: str, transactional_id: str) -> None:
        """An id that another appliance coordinates gets offsets of a group of ours."""
        self._slots_of_groups.note(group, nodes.slot_of(transactional_id))

    async def pending_elsewhere(self, group: str) -> Collection[TopicPartition]:
        if not group:  # it has committed offsets as any other, but is in no transaction: others refuse its name
            return ()
        as_of, slots = self._slots_of_groups.as_of, self._slots_of_groups.get(group)
        answers = await self._peers.pending(group, None if slots is None else set(slots) - set(self.slots))
        try:
            answered = {slot for theirs, _ in answers for slot in theirs}
            await self._check_all_known(answered, ALL_SLOTS if slots is None else {*slots, *self._own()})
        except ApplianceError:
            self._slots_of_groups.ask_all_again(group)
            raise
        if slots is None and all(theirs for theirs, rows in answers if rows):  # else whose they are is not known now
            self._slots_of_groups.learn(group, as_of, {slot for theirs, rows in answers if rows for slot in theirs})
        return {partition for _, rows in answers for partition in rows}

    async def _check_all_known(self, slots: Collection[int], among: Collection[int] = ALL_SLOTS) -> None:
        """Check that what ``slots`` of others and our own have is all that slots ``among`` all have.

        A slot without ids, as those whose coordinator is away may be where there were no transactions, has nothing.

        Raises:
            Unavailable: it is not.
        """
        own = set(self.slots)
        missing = set(among) - set(slots) - own
        have_ids = bool(missing) and await self._registry.ask(nodes.have_ids(missing))
        if have_ids or set(self.slots) != own:
            raise ZooKeeperAway("it is not known now which transactions are open: try again")

"""The state of one transactional id, as it is stored, and the rules by which it changes: values, without I/O.

A :class:`Transaction` never changes.  Each method answers a request with the next value, which holds as soon as it is
stored; with the same value, when there is nothing to store; or with the error of Kafka's transaction coordinator
(KIP-98, KIP-360, protocol TV1).  So a write that has failed leaves nothing behind: no epoch grows that no producer was
given.

========================  =====================================================  ===================================
state                     event                                                  next state
========================  =====================================================  ===================================
Empty, CompleteCommit,    InitProducerId                                         Empty; epoch + 1, or a new id
CompleteAbort             AddPartitionsToTxn, AddOffsetsToTxn                    Ongoing
                          unused for ``transactional.id.expiration.ms``          Dead: it is deleted
Ongoing                   AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit   Ongoing
                          EndTxn                                                 PrepareCommit or PrepareAbort
                          its time is up; InitProducerId of another producer     PrepareAbort; epoch + 1
PrepareCommit             another appliance has committed offsets of its groups  PrepareCommit, without these
                          every partition has its marker, offsets are committed  CompleteCommit
PrepareAbort              every partition has its marker                         CompleteAbort
========================  =====================================================  ===================================

A Prepare state is stored before the first marker is sent, a Complete one after the last was answered: whoever reads a
Prepare state, after a crash, sends the markers again.  Meanwhile a producer meets CONCURRENT_TRANSACTIONS, and asks
again.

Epochs: a producer is given at most EPOCH_GIVEN_MAX; the one above it fences the last producer of an id, and whoever
comes next gets another id.  ``last_id`` and ``last_epoch`` are who the producer was before, so that one whose answer
was lost may ask again (KIP-360).  Kafka keeps no such memory when that producer's own transaction had to be aborted
first, and fences it.

Times are in ms since 1970; only people see :attr:`Transaction.started_ms`, and a transaction's time-out goes by another
clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ..names import TopicPartition
from ..wire.kafka.codes import Code

NO_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_GIVEN_MAX: Final = 32_766
PARTITIONS_MAX: Final = 1_000
"""Most partitions of a transaction."""
OFFSETS_MAX: Final = 400
"""Most committed offsets of a transaction, of all its groups: they are stored in one step."""
BYTES_MAX: Final = 300_000
"""Most bytes of a stored transaction."""


class TransactionState(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


ENDING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
OPEN: Final = ENDING | {TransactionState.ONGOING}
"""States with partitions or offsets whose fate is not settled yet."""


class ProducerIdentity(NamedTuple):
    """Who a producer says it is."""

    id: int
    epoch: int


NOBODY: Final = ProducerIdentity(NO_ID, NO_EPOCH)


class TransactionPart(NamedTuple):
    """A partition in a transaction.  One of a topic that was made again under its name is another one."""

    topic: str
    topic_id: str
    partition: int

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PendingOffset(NamedTuple):
    """A committed offset that becomes valid when its transaction is committed."""

    group: str
    part: TransactionPart
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Transaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """See the module's docstring.

    Args:
        last_id: with ``last_epoch``, who the present producer was, if it said so when it was given its epoch.
        started_ms: when it became Ongoing; 0 in states that are not open.
        changed_ms: when this value was made; above that of the value before.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    last_id: int = NO_ID
    last_epoch: int = NO_EPOCH
    parts: tuple[TransactionPart, ...] = ()
    groups: tuple[str, ...] = ()
    offsets: tuple[PendingOffset, ...] = ()
    started_ms: int = 0
    changed_ms: int = 0

    # -- a producer begins ----------------------------------------------------------------------------

    def initialise(
        self, timeout_ms: int, claimed: ProducerIdentity | None, new_id: int, now_ms: int
    ) -> TransactionOutcome:
        """InitProducerId.  An Ongoing transaction is aborted: ask again when that is done.

        Args:
            claimed: who the producer was until now, if it goes on after an error (KIP-360).
            new_id: its producer id, should it need another one.
        """
        own = claimed is None or self.epoch == NO_EPOCH or claimed == (self.producer_id, self.epoch)
        again = claimed is not None and claimed == (self.last_id, self.last_epoch)
        if not own and (not again or self.state is TransactionState.ONGOING):
            return Code.PRODUCER_FENCED
        if self.state in ENDING:
            return Code.CONCURRENT_TRANSACTIONS
        if self.state is TransactionState.ONGOING:
            return self.fence(now_ms, claimed)
        last = claimed or NOBODY
        fresh = Transaction(self.producer_id, self.epoch, timeout_ms, TransactionState.EMPTY, *last)
        fresh = _replace(fresh, changed_ms=self._later_ms(now_ms))
        if not own and self.epoch <= EPOCH_GIVEN_MAX:  # the answer was lost: it is given again
            return fresh
        if self.epoch >= EPOCH_GIVEN_MAX:
            return _replace(fresh, producer_id=new_id, epoch=0)
        return _replace(fresh, epoch=self.epoch + 1)

    def fence(self, now_ms: int, claimed: ProducerIdentity | None = None) -> Transaction:
        """Abort an Ongoing transaction; its producer can do nothing any more.  ``claimed``: the one that goes on."""
        assert self.state is TransactionState.ONGOING and self.epoch <= EPOCH_GIVEN_MAX
        last_id, last_epoch = claimed or NOBODY
        return _replace(
            self,
            state=TransactionState.PREPARE_ABORT,
            epoch=self.epoch + 1,
            last_id=last_id,
            last_epoch=last_epoch,
            offsets=(),
            changed_ms=self._later_ms(now_ms),
        )

    # -- a transaction --------------------------------------------------------------------------------

    def add_partitions(
        self, producer: ProducerIdentity, parts: Iterable[TransactionPart], now_ms: int
    ) -> TransactionOutcome:
        """AddPartitionsToTxn; the transaction begins with its first partition."""
        refusal = self._refuse(producer)
        if refusal:
            return refusal
        ongoing = self._begin(now_ms)
        added = {*ongoing.parts, *parts}
        if len(added) > PARTITIONS_MAX:
            return Code.POLICY_VIOLATION
        if ongoing is self and len(added) == len(self.parts):  # they are in it already
            return self
        return _bounded(_replace(ongoing, parts=tuple(sorted(added)), changed_ms=self._later_ms(now_ms)))

    def add_group(self, producer: ProducerIdentity, group: str, now_ms: int) -> TransactionOutcome:
        """AddOffsetsToTxn: offsets of this group will be committed with the transaction."""
        refusal = self._refuse(producer)
        if refusal:
            return refusal
        ongoing = self._begin(now_ms)
        if group in ongoing.groups:
            return self
        if len(ongoing.groups) >= OFFSETS_MAX:
            return Code.POLICY_VIOLATION
        return _bounded(_replace(ongoing, groups=(*ongoing.groups, group), changed_ms=self._later_ms(now_ms)))

    def add_offsets(
        self, producer: ProducerIdentity, group: str, offsets: Iterable[PendingOffset], now_ms: int
    ) -> TransactionOutcome:
        """TxnOffsetCommit; later offsets of a partition replace earlier ones."""
        refusal = self._refuse(producer)
        if refusal:
            return refusal
        if self.state is not TransactionState.ONGOING or group not in self.groups:
            return Code.INVALID_TXN_STATE
        merged = {(offset.group, offset.part.key): offset for offset in (*self.offsets, *offsets)}
        if len(merged) > OFFSETS_MAX:
            return Code.INVALID_COMMIT_OFFSET_SIZE
        return _bounded(_replace(self, offsets=tuple(merged.values()), changed_ms=self._later_ms(now_ms)))

    def _fenced(self, producer: ProducerIdentity) -> Code:
        if producer.id != self.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        fenced = producer.epoch != self.epoch or producer.epoch > EPOCH_GIVEN_MAX
        return Code.PRODUCER_FENCED if fenced else Code.NONE

    def _refuse(self, producer: ProducerIdentity) -> Code:
        concurrent = Code.CONCURRENT_TRANSACTIONS if self.state in ENDING else Code.NONE
        return self._fenced(producer) or concurrent

    def _later_ms(self, now_ms: int) -> int:
        """A time above that of this value, whatever the clock does: by it logs know a decision from later ones."""
        return max(now_ms, self.changed_ms + 1)

    def _begin(self, now_ms: int) -> Transaction:
        if self.state is TransactionState.ONGOING:
            return self
        return _replace(self, state=TransactionState.ONGOING, started_ms=now_ms)

    # -- its end --------------------------------------------------------------------------------------

    def end(self, producer: ProducerIdentity, committed: bool, now_ms: int) -> TransactionOutcome:
        """EndTxn; asked again it answers the same."""
        refusal = self._fenced(producer)
        if refusal:
            return refusal
        prepared, complete = _ENDS[committed]
        if self.state is TransactionState.ONGOING:
            offsets = self.offsets if committed else ()
            return _replace(self, state=prepared, offsets=offsets, changed_ms=self._later_ms(now_ms))
        if self.state is prepared:
            return Code.CONCURRENT_TRANSACTIONS
        return self if self.state is complete else Code.INVALID_TXN_STATE

    def without(self, group: str) -> Transaction:
        """The offsets of this group are committed."""
        assert self.state is TransactionState.PREPARE_COMMIT
        return _replace(self, offsets=tuple(offset for offset in self.offsets if offset.group != group))

    def complete(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
        assert self.state in ENDING
        _, state = _ENDS[self.committed]
        changed_ms = self._later_ms(now_ms)
        return _replace(self, state=state, parts=(), groups=(), offsets=(), started_ms=0, changed_ms=changed_ms)

    @property
    def producer(self) -> ProducerIdentity:
        """The only one that may act; nobody, while the epoch is above EPOCH_GIVEN_MAX or fences the last one."""
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def has_epoch(self) -> bool:
        """Whether a producer has been given an epoch."""
        return self.epoch != NO_EPOCH

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def committed(self) -> bool:
        """How a transaction ends that is in a Prepare state."""
        return self.state is TransactionState.PREPARE_COMMIT

    def idle(self, now_ms: int) -> int:
        """For how many ms no transaction has been open; 0 while one is."""
        return 0 if self.is_open else max(0, now_ms - self.changed_ms)


TransactionOutcome: TypeAlias = Transaction | Code
_ENDS: Final = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}
_replace = msgspec.structs.replace


def _bounded(transaction: Transaction) -> TransactionOutcome:
    return transaction if len(encode(transaction)) <= BYTES_MAX else Code.POLICY_VIOLATION


def encode(transaction: Transaction) -> bytes:
    """The value of its node: JSON."""
    return msgspec.json.encode(transaction)


def decode(value: bytes) -> Transaction:
    """
    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: it is none.
    """
    return msgspec.json.decode(value, type=Transaction)

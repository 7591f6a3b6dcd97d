"""The transactions of a producer with a ``transactional_id`` (KIP-98): what it sends counts as a whole, or not at all.

Example::

    with Producer("127.0.0.1:9091", transactional_id="billing-1") as producer:
        with producer.transaction():  # committed at the end, aborted by an exception
            producer.send("orders", b"one")
            producer.send("bills", b"two")

Readers with ``isolation="read_committed"`` get all of it or nothing.  With a group consumer, what it has handed out is
committed in the same step, so that what is read is written exactly once::

    with producer.transaction(consumer):
        for message in itertools.islice(stream.messages(timeout=1), 1000):
            producer.send("bills", bill(message.value))

The consumer is made with ``auto_commit=False`` and ``isolation="read_committed"``, and is read in the transaction only.
After an abort it hands out again what it has handed out since the last commit.

======================  ================================================  ==========================================
state                   event                                             next state
======================  ================================================  ==========================================
UNREADY                 ``transaction()``; the appliance gives an epoch   OPEN
READY                   ``transaction()``                                 OPEN
OPEN                    the end of the block                              ENDING
ENDING                  all is delivered, and EndTxn answered             READY
ENDING                  something is not delivered: it is aborted         UNREADY: TransactionAborted is raised
ENDING                  EndTxn is not answered in time                    UNREADY: RequestTimedOut; nobody knows
OPEN                    an exception in the block, and nothing was sent   READY
OPEN                    an exception in the block                         UNREADY: it is aborted
each                    the appliance says that it is fenced              FENCED: ProducerFenced, at each later call
======================  ================================================  ==========================================

An epoch is given to one producer of an id at a time: whoever begins with the same id fences the one before, and aborts
its transaction (a *zombie's*).  A transaction that is longer than ``transaction_timeout_ms`` is aborted by the
appliance, which fences its producer.  UNREADY asks for the next epoch, which aborts whatever is open, and shows that
nobody else has asked meanwhile (KIP-360).

A partition takes batches of a transaction once the appliance has added it (AddPartitionsToTxn).  Until then its queue
waits (``Numbering.WANTED``): the background thread asks, or who waits for the end of the transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from enum import Enum
from types import TracebackType
from typing import Any, Final, Protocol

from ..errors import ApplianceError, InvalidRequest, ProducerFenced, RequestTimedOut, TransactionAborted
from .cluster_client import Cluster
from .group import GroupConsumer
from .producer_options import ProducerOptions
from .threads import fresh

logger = logging.getLogger(__name__)

PAUSE_S_MIN: Final = 0.005
PAUSE_S_MAX: Final = 0.5
ABORT_S_MAX: Final = 5.0
"""How long an abort is tried; after that the appliance aborts the transaction when its time is up."""


class ProducerStep(Enum):
    UNREADY = 0
    READY = 1
    OPEN = 2
    ENDING = 3
    FENCED = 4


class Sending(Protocol):
    """The producer, as far as its transactions need it."""

    def check_may_wait(self) -> None:
        """
        Raises:
            InvalidRequest: in a delivery callback, where waiting returns at once, whatever is still on its way.
        """
        ...

    def begin_transaction(self) -> None:
        """Nothing is on its way.  From now on each partition waits until it is added."""
        ...

    def deliver(self) -> ApplianceError | None:
        """Send everything, and wait.  The error of a message that was not delivered."""
        ...

    def drop(self, deadline_s: float | None = None) -> bool:
        """Drop what is not sent yet, and wait for the rest; nothing is added to the transaction any more.

        False if the deadline is over first, and in a delivery callback, which must not wait.
        """
        ...


class ProducerTransactions:
    """See the module's docstring.  One thread at a time begins and ends them; any may send meanwhile."""

    def __init__(self, cluster: Cluster, options: ProducerOptions, clock: Callable[[], float]) -> None:
        assert options.transactional_id is not None
        self.state = ProducerStep.UNREADY
        self._cluster = cluster
        self._id, self._timeout_ms = options.transactional_id, options.transaction_timeout_ms
        self._ready_s_max, self._end_s_max = options.block_s_max, options.delivery_timeout_s
        self._clock = clock
        self._producer_id, self._epoch = -1, -1
        self._begun = False
        """Whether the appliance has been asked to add something to the transaction."""
        self._fenced: ProducerFenced | None = None

    def check_open(self) -> None:
        """
        Raises:
            InvalidRequest: nothing may be sent now, since no transaction is open.
            ProducerFenced: nor at any later time.
        """
        self.check_fenced()
        if self.state is not ProducerStep.OPEN:
            raise InvalidRequest("this producer sends in transactions: `with producer.transaction():`")

    def check_fenced(self) -> None:
        if self._fenced is not None:
            raise fresh(self._fenced)

    def add_partitions(self, parts: Collection[tuple[str, int]]) -> tuple[int, int]:
        """Add partitions to the transaction.  The producer id and epoch for their batches."""
        self._begun = True
        self._ask("add_partitions", partitions=[list(part) for part in parts])
        return self._producer_id, self._epoch

    # ---- from the producer's thread

    def begin(self, sending: Sending) -> None:
        """
        Raises:
            ProducerFenced: somebody else has the transactional id.
            ApplianceError: no epoch was given in time; try again.
        """
        self.check_fenced()
        if self.state is ProducerStep.UNREADY:
            # An interrupt of the end before may have left batches, which would be added under their old epoch: fenced.
            sending.drop()
            self._make_ready(self._ready_s_max)
        if self.state is not ProducerStep.READY:
            raise InvalidRequest("a transaction of this producer is open: end it first")
        sending.begin_transaction()
        self._begun = False
        self.state = ProducerStep.OPEN

    def commit(self, sending: Sending, consumed: GroupConsumer | None) -> None:
        """
        Raises:
            TransactionAborted: something could not be delivered, or the consumer has lost a partition.
            ProducerFenced: it is aborted: somebody else has the transactional id, or it took too long.
            RequestTimedOut: nobody knows whether it is committed.
        """
        if self.state is ProducerStep.FENCED:
            sending.drop()
            self.check_fenced()
        if self.state is not ProducerStep.OPEN:
            raise InvalidRequest("the transaction has ended: its producer was closed")
        self.state = ProducerStep.ENDING
        ended = False
        try:
            error = sending.deliver()
            offsets: dict[tuple[str, int], int] = {}
            if error is None and consumed is not None:
                try:
                    offsets = self._send_offsets(consumed)
                except ApplianceError as refused:
                    error = refused
            if error is not None:
                self._abort(sending)
                self.check_fenced()
                raise TransactionAborted(f"the transaction {self._id!r} is aborted: {error}") from error
            if self._begun:
                self._persist(self._end_s_max, "end_transaction", committed=True)
            if consumed is not None:
                consumed.on_committed(offsets)
            ended = True
        finally:
            if self.state is ProducerStep.ENDING:
                self.state = ProducerStep.READY if ended else ProducerStep.UNREADY

    def abort(self, sending: Sending, deadline_s: float | None = None) -> None:
        """Never raises because of the appliance: what it does not hear of now, it aborts when its time is up."""
        if self.state is ProducerStep.FENCED:
            sending.drop()
        if self.state is not ProducerStep.OPEN:
            return
        self.state = ProducerStep.ENDING
        try:
            self._abort(sending, deadline_s)
        finally:
            if self.state is ProducerStep.ENDING:
                self.state = ProducerStep.UNREADY

    def _abort(self, sending: Sending, deadline_s: float | None = None) -> None:
        self.state = ProducerStep.UNREADY
        if not sending.drop(deadline_s):
            self._leave_open("what is on its way is not waited for any longer")
            return
        if not self._begun:
            self.state = ProducerStep.READY
            return
        try:
            if deadline_s is None:
                self._make_ready(ABORT_S_MAX)
            else:
                self._make_ready(min(ABORT_S_MAX, max(0.0, deadline_s - self._clock())), bounded=True)
        except ProducerFenced:
            pass  # whoever has fenced it has aborted it
        except ApplianceError as error:
            self._leave_open(error)

    def _leave_open(self, why: object) -> None:
        text = "transaction %r is aborted when its time is up; if none was begun by then, its producer is fenced: %s"
        logger.warning(text, self._id, why)

    def _send_offsets(self, consumed: GroupConsumer) -> dict[tuple[str, int], int]:
        offsets = consumed.handed_out()
        if offsets:
            self._begun = True
            rows = [[*part, offset] for part, offset in offsets.items()]
            self._persist(self._end_s_max, "add_offsets", **consumed.proof(), offsets=rows)
            consumed.handed_out()  # a partition that was lost and gained meanwhile has been another member's
        return offsets

    # ---- the appliance

    def _make_ready(self, s_max: float, *, bounded: bool = False) -> None:
        """Get the next epoch, which aborts what is open."""
        identity = self._persist(s_max, "init_transactions", bounded, timeout_ms=self._timeout_ms)
        self._producer_id, self._epoch = int(identity["producer_id"]), int(identity["epoch"])
        self.state = ProducerStep.READY

    def _persist(self, s_max: float, verb: str, bounded: bool = False, **arguments: Any) -> Any:
        """Ask until it is answered otherwise than that it should be asked again.

        ``bounded``: the last answer is not waited for longer than that, either.
        """
        deadline_s, pause_s = self._clock() + s_max, PAUSE_S_MIN
        while True:
            try:
                answer_s = max(0.001, deadline_s - self._clock()) if bounded else None
                return self._ask(verb, answer_s, **arguments)
            except ApplianceError as error:
                if not error.retriable:
                    raise
                if self._clock() + pause_s > deadline_s:
                    raise RequestTimedOut(f"{verb} of {self._id!r}: not within {s_max:g} s: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _ask(self, verb: str, answer_s: float | None = None, **arguments: Any) -> Any:
        who: dict[str, Any] = {"id": self._id, "producer_id": self._producer_id, "epoch": self._epoch}
        try:
            timeout_ms = None if answer_s is None else max(1, int(answer_s * 1000))
            return self._cluster.admin(verb, who | arguments, timeout_ms=timeout_ms)
        except ProducerFenced as error:
            self._fenced, self.state = error, ProducerStep.FENCED
            raise


class Transaction:
    """The context of ``producer.transaction()``.  In a delivery callback it neither begins nor ends: InvalidRequest."""

    def __init__(self, transactions: ProducerTransactions, sending: Sending, consumed: GroupConsumer | None) -> None:
        self._transactions, self._sending, self._consumed = transactions, sending, consumed

    def __enter__(self) -> Transaction:
        self._sending.check_may_wait()
        self._transactions.begin(self._sending)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sending.check_may_wait()  # first: what is refused stays open, and its consumer where it is
        committed = False
        try:
            if kind is None:
                self._transactions.commit(self._sending, self._consumed)
                committed = True
            else:
                self._transactions.abort(self._sending)
        finally:
            if not committed and self._consumed is not None:
                self._consumed.rewind()

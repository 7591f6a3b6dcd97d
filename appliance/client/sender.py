"""Decides which thread sends a producer's batches, and when.

Any thread of the application does the work.  A thread that fills a batch encodes and sends it.  A thread that waits
(``flush``, ``result``, a full buffer) works at the sockets until it has what it waits for.  A background thread does
both when no other thread does, and always makes the slow requests (metadata, producer ids).  ``dispatcher.py`` does the
work itself.

Compared with one thread for all sending, measured with client and broker on the same two busy cores: the CPU is the
same.  With 1000 messages a batch the one thread was a fifth faster.  With 50 a batch it was a tenth to a third slower,
because after each system call two threads compete for the interpreter lock.  And it adds a wake-up to each synchronous
send.

Locking: one lock, ``lock``, guards all state of the sender and of the producer.  It is never held while waiting for a
socket, a broker or a callback.  Callbacks run one after another, without the lock, in the thread that finishes their
batches: see ``callbacks.py``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from ..errors import ApplianceError, ClientBroken, ClientFault, RequestTimedOut
from .background_requests import BackgroundRequests
from .cluster_client import Cluster
from .delivery import ProducerBatch
from .dispatcher import CHECK_S, Dispatcher
from .outstanding import Outstanding
from .producer_options import ProducerOptions
from .threads import Threads, fresh
from .transactions import ProducerTransactions
from .troubles import Troubles

logger = logging.getLogger(__name__)

TICK_S_MAX: Final = 0.005
TICK_S_MIN: Final = 0.001
AWAKE_TICKS: Final = 10
"""How often the background thread ticks after the last batch: to wake it costs about as much as some ticks.

A sender of two messages a second would keep it awake all the time if it ticked for half a second.
"""
POLL_S_MAX: Final = 0.05
JOIN_S_MAX: Final = 5.0
"""How long ``stop`` waits for the thread to end; its requests are aborted."""
QUIET_PUMPS: Final = 2
"""After this many pumps by other threads in a tick the background thread leaves the sockets to them: it would only
compete for the interpreter lock."""


class Sender:
    """Sends sealed batches and completes them.

    ``seal_due(now)`` seals open batches that have lingered and returns when the next one will have, or None.
    ``seal_all()`` seals all of them; it is called, with the lock held, when this sender breaks.

    An unexpected exception, or an interrupt, may end a step in its middle.  ``torn`` is set during every step that
    changes batches, so a later call that finds it set knows that a step did not end.  Such a sender is *broken*, as is
    one whose thread has ended: every batch that is not done fails with the same :class:`ClientBroken`, nothing is sent
    any more, and every call of the producer raises that error.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        seal_due: Callable[[float], float | None],
        seal_all: Callable[[], None],
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self.lock = threading.Lock()
        self.outstanding = Outstanding(self.lock)
        self.callbacks = self.outstanding.callbacks
        self.troubles = Troubles(clock)
        self.broken: ClientBroken | None = None
        self.torn = False
        self._cluster = cluster
        self.transactions = None if options.transactional_id is None else ProducerTransactions(cluster, options, clock)
        """Outside of them no batch may be opened."""
        self._needs_id = options.idempotent and self.transactions is None
        self._seal_due = seal_due
        self._seal_all = seal_all
        self._clock = clock
        self._background = BackgroundRequests(
            *(cluster, self.lock, self.troubles),
            backoff_s=options.backoff_s,
            backoff_s_max=options.backoff_s_max,
            jitter=jitter,
            now_s=clock(),
        )
        self._adding = threading.Lock()
        """Held while partitions are added to a transaction: it neither begins nor is aborted meanwhile."""
        self._dispatcher = Dispatcher(
            cluster, options, self.outstanding, self._background, self.troubles, jitter=jitter
        )
        self._driver = 0  # the thread that waits for the sockets
        self._pumps = 0
        self._threads = Threads("producer", self._thread_ended)
        self._wake = threading.Event()
        self._asleep = False
        self._stopping = False
        self._tick_s = min(max(options.linger_s, TICK_S_MIN), TICK_S_MAX)

    # ---- from the producer, with the lock held

    def enqueue(self, batch: ProducerBatch) -> None:
        """Send a sealed batch as soon as the order of its partition allows."""
        if self.broken is not None:
            self.outstanding.fail(batch, self.broken)
        else:
            self._dispatcher.enqueue(batch)
            self.awaken()

    def awaken(self) -> None:
        """Make the background thread run: an open batch lingers, or one is to be sent."""
        if not self._threads.started:
            self._threads.start("sending", self._run)
        elif self._asleep:
            self._asleep = False
            self._wake.set()

    def pump(self, now_s: float, hurry: bool, *, stays: bool = True) -> None:
        """Take replies and send batches.  ``hurry``: write all bytes now, instead of sharing a system call later.

        ``stays``: the calling thread will be here again for the replies, unless the background thread is alone.
        """
        if not self.is_whole():
            return
        self.torn = True
        self._pumps += stays
        self._dispatcher.work(now_s, hurry)
        self.torn = False

    def is_whole(self) -> bool:
        """Whether this sender works.  Breaks it if a step was interrupted."""
        if self.torn and self.broken is None:
            self._break(ClientBroken("a call of this producer was interrupted in its middle: close it, make another"))
        return self.broken is None

    # ---- waiting, without the lock

    def drive(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Work until ``done()``.  False if time is up first; returns at once in a callback, which must not wait."""
        if self.callbacks.is_here:
            return done()
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        here = threading.get_ident()
        try:
            while True:
                with self.lock:
                    if not done():
                        self.pump(self._clock(), True)
                        if self.broken is not None:  # breaking may have been interrupted, too
                            self.outstanding.fail_all(self.broken)
                    finished = done()
                self.callbacks.run()
                if finished or done():
                    return True
                pause_s = CHECK_S if self._dispatcher.has_stalled else POLL_S_MAX
                if deadline_s is not None:
                    left_s = deadline_s - self._clock()
                    if left_s <= 0:
                        return False
                    pause_s = min(pause_s, left_s)
                with self.lock:
                    if not self._driver:
                        self._driver = here
                    elif not done():
                        self.outstanding.wait(pause_s)
                if self._driver == here:
                    self._dispatcher.wait(pause_s)
                    self._driver = 0
        finally:
            if self._driver == here:
                self._driver = 0

    def raise_error(self) -> None:
        """Raise what broke this sender, or what a callback raised.

        Raises:
            ClientBroken, CallbackFailed: the cause is attached.
        """
        if self.broken is not None:
            raise fresh(self.broken)
        self.callbacks.raise_error()

    def prepare(self) -> None:
        """Get a producer id if one is needed; blocks."""
        if self._needs_id:
            self._background.ensure_id()

    # ---- transactions

    def begin_transaction(self) -> None:
        """Let each partition wait until it is added to the transaction that begins."""
        with self._adding, self.lock:
            self.outstanding.failure = None
            self._dispatcher.suspend()

    def add_partitions(self) -> None:
        """Add what waits for that to the transaction, in the calling thread; else its own thread tries it again."""
        if self.transactions is not None:
            with contextlib.suppress(ApplianceError):
                self._add_partitions(self.transactions)

    def _add_partitions(self, transactions: ProducerTransactions) -> None:
        """
        Raises:
            Unavailable: it is due again.
        """
        with self._adding:
            with self.lock:
                self._background.wants_id = False
                parts = self._dispatcher.unidentified()
            if not parts:
                return
            try:
                producer_id, epoch = transactions.add_partitions(parts)
            except ClientFault as error:
                with self.lock:
                    self._dispatcher.refuse(parts, error)
            except ApplianceError:
                with self.lock:
                    self._background.wants_id = True
                raise
            else:
                with self.lock:
                    self._dispatcher.join(parts, producer_id, epoch)

    def _identify(self) -> None:
        """Ask for what batches wait for: a producer id, or that their partitions are in the transaction.

        Raises:
            Unavailable: it is due again.
        """
        if self.transactions is not None:
            self._add_partitions(self.transactions)
            return
        producer_id, epoch = self._background.ask_id()
        with self.lock:
            self._background.wants_id = False
            self._background.producer_id = producer_id
            self._dispatcher.identify(producer_id, epoch)

    def drop(self, error: ApplianceError, deadline_s: float | None) -> bool:
        """Fail what is not sent yet, and wait until the rest is answered.

        False if ``deadline_s`` is over first, and in a callback, which must not wait.
        """
        batches = self.outstanding.batches
        while True:  # what is in flight may come back, to be sent again
            with self.lock:
                for batch in self._dispatcher.drop_waiting():
                    self.outstanding.fail(batch, error)
            if self.drive(lambda: not batches, CHECK_S):
                break
            if self.callbacks.is_here:  # its own batch is among them until it returns
                return False
            if deadline_s is not None and self._clock() >= deadline_s:
                return False
        # A request under way would come behind the end of the transaction.
        left_s = -1.0 if deadline_s is None else max(0.0, deadline_s - self._clock())
        if not self._adding.acquire(timeout=left_s):
            return False
        self._adding.release()
        return True

    # ---- the end

    def stop(self) -> None:
        """Fail the batches that are left (their callbacks get the error), end the thread, close the connections."""
        with self.lock:
            self._stopping = True
            if self.outstanding.batches and self.is_whole():
                self._give_up()
            self._dispatcher.disconnect()
            self._wake.set()
        self._cluster.abort()
        self.callbacks.run()
        if self._threads.join(JOIN_S_MAX):
            logger.warning("a delivery callback does not return: its thread is left behind")
        else:
            self._dispatcher.close()

    def _give_up(self) -> None:
        """Fail the batches that are not done: the producer is closed."""
        undelivered = [batch for batch in self.outstanding.batches if not batch.done]
        if undelivered:
            messages = sum(batch.count for batch in undelivered)
            logger.warning("this producer was closed before %d messages could be delivered", messages)
        error = RequestTimedOut("the producer was closed before this could be delivered")
        for batch in undelivered:
            self.outstanding.fail(batch, error)

    def _thread_ended(self, error: ClientBroken) -> None:
        with self.lock:
            if self.broken is None:
                self._break(error)
            elif self.broken.__cause__ is None:  # another thread has found the interrupted step first
                self.broken.__cause__ = error.__cause__
        self.callbacks.run()

    def _break(self, error: ClientBroken) -> None:
        """Fail everything and send nothing any more.  Works with state that an interrupted step left inconsistent."""
        self.broken = error
        self._stopping = True
        self._dispatcher.disconnect()
        self.outstanding.fail_all(error)
        self._seal_all()
        self._wake.set()

    # ---- the background thread

    def _run(self) -> None:
        self.callbacks.own_thread = threading.get_ident()
        awake_until_s = 0.0
        pumps = 0
        while True:
            with self.lock:
                if self._stopping:
                    return
                now_s = self._clock()
                quiet = self._pumps < pumps + QUIET_PUMPS and not self._driver
                due_s = self._seal_due(now_s)
                self.pump(now_s, quiet)
                pumps = self._pumps
                if self._dispatcher.in_use:
                    awake_until_s = now_s + AWAKE_TICKS * self._tick_s
                stale_topics = self._background.take_due(now_s, self._dispatcher.queues)
                rest_s = self._rest_s(now_s, due_s)
                tick_s = CHECK_S if self._dispatcher.stands_still(now_s) else self._tick_s
                self._asleep = now_s >= awake_until_s and stale_topics is None and rest_s > self._tick_s
                self._wake.clear()
            self.callbacks.run()
            if stale_topics is not None:
                self._background.make(stale_topics, self._identify)
            elif self._asleep:
                self._wake.wait(rest_s if rest_s < math.inf else None)
            else:
                pause_s = tick_s if due_s is None else min(max(due_s - now_s, 0.0), tick_s)
                if quiet:
                    self._dispatcher.wait(pause_s)
                else:
                    self._wake.wait(pause_s)

    def _rest_s(self, now_s: float, due_s: float | None) -> float:
        """How long nothing is to be done, unless somebody wakes the thread; ``due_s``: when an open batch is sealed.

        What waits for an appliance that is away waits for the end of a back-off.
        """
        wake_s = math.inf if due_s is None else due_s
        if self.outstanding.batches:
            wake_s = min(wake_s, self._dispatcher.due_s, self._background.due_s)
        return wake_s - now_s

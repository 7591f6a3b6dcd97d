"""Decides when written batches are flushed, published to readers, and acknowledged.

A message is readable (below the high watermark) once flushed, unless the topic leaves flushing to the operating system
(``flush.messages=0``).  Answers to acks=all wait for the flush, others do not.

Threads: the writer's loop collects and decides.  The flusher's thread, or the loop when little is to be flushed, calls
:meth:`Unflushed._flushed`, which publishes.  The thread calls :meth:`Unflushed._failed`.

:class:`Flusher` flushes, in a thread or in the writer's loop.  While the thread flushes, the loop goes on taking,
checking and writing.  After the flush the thread itself publishes the high watermark, rings doorbells and answers
acks=all (one wake-up less).  The next flush covers everything written meanwhile: the slower the disk, the larger the
groups.  fdatasync releases the GIL.

A flush of little takes less time than two threads need to pass work and the GIL to and fro, so the loop may do it
(:meth:`Flusher.flush_here`).  A disk can still stop for seconds.  Meanwhile the thread beats instead of the loop, as in
:meth:`appliance.shared.heartbeats.Heart.working`, and without a wake-up for each flush: it is a guard for a while after
each flush, and only then may the loop flush.

========  =====================  =====================================================================================
thread    the loop may           leaves this state
========  =====================  =====================================================================================
asleep    hand over              *flushing*, when the loop hands over
flushing  hand over, for later   *guarding*, when nothing is left to flush
guarding  hand over, flush here  *flushing*, when the loop hands over; *asleep*, after a beat's time in which the loop
                                 flushed nothing; it beats and stays when the loop waits for the disk at that time
ended     nothing                after *flushing* that has failed, and from any state at :meth:`Flusher.stop`, when
                                 nothing is left to flush
========  =====================  =====================================================================================

``lock`` guards the data of both threads: the job and the channels to the workers.  The loop holds it while it
flushes, so a guard only tries to take it.  A failed flush is never retried, since the kernel may have dropped the
pages: ``failed`` is called, once, and nothing after it is acknowledged.  Any other exception is a bug, and ends the
process in the same way: no one waits for a thread that is gone.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from ...clock import now_ms, now_ns
from ...log import FlushTicket, Log
from ...shared.doorbell import MarkedDoorbell, fence
from ...shared.heartbeats import Heart
from ...shared.table import SegmentTable
from .producers import Producers
from .worker_link import ReadyAnswer, send_answers

FLUSH_DELAY_MS: Final = 20
"""Maximum delay of a flush that no one waits for.  Waiting lets one flush cover more batches."""
HERE_BYTES_MAX: Final = 64 << 10
HERE_NS_MAX: Final = 1_000_000
"""The loop flushes at most so many bytes itself, and only after a flush that took at most so long.

With more to do the thread flushes while the loop writes.  So an answer to acks=1 waits for no slow flush, but for the
one in which the disk becomes slow.
"""
READER_MS: Final = 3
"""A reader that has waited so recently is about to wait again: little is flushed for it before it asks."""


class FlushJob(Protocol):
    """What the flusher carries out in its thread."""

    def sync(self) -> None: ...


class Flusher:
    """Flushes jobs.  ``flushed(job, waiting)`` runs after each flush, in the thread that flushed, with ``lock``.

    ``flushed`` may return a function for work that no one waits for; the thread calls it without the lock.
    """

    def __init__(
        self,
        flushed: Callable[[Any, list[Any]], Callable[[], None] | None],
        failed: Callable[[Exception], None],
        heart: Heart,
    ) -> None:
        self.lock = threading.Lock()
        self._flushed, self._failed, self._heart = flushed, failed, heart
        self._job: FlushJob | None = None
        self._waiting: list[Any] = []
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = True
        self._guarding = self._waiting_here = self._flushed_here = False
        self._resting = threading.Condition(self.lock)
        self._stopping, self._ended = False, True

    def start(self) -> None:
        """Start the thread, a bare one: see :meth:`appliance.shared.heartbeats.Heart.working`."""
        self._ended = False
        _thread.start_new_thread(self._run, ())

    def hand_over(self, job: FlushJob, waiting: list[Any]) -> None:
        """Flush a job, then answer ``waiting``.  Call with ``lock`` held."""
        self._job = job
        self._waiting += waiting
        if self._idle:
            self._idle = False
            self._gate.release()

    @property
    def may_flush_here(self) -> bool:
        """Whether the thread has nothing to do but to guard.  Ask with ``lock`` held."""
        return self._guarding and self._idle

    def flush_here(self, job: FlushJob, waiting: list[Any]) -> None:
        """Flush a job in the loop's thread, then answer ``waiting``.

        Call with ``lock`` held, where :attr:`may_flush_here` and the answer of ``flushed`` is sure to be None.  Raises
        what the flush raises, and does not call ``failed``.
        """
        self._flushed_here = True
        self.wait_here(job.sync)
        afterwards = self._flushed(job, waiting)
        assert afterwards is None

    def wait_here(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something that may wait for the disk in the loop's thread, as part of a flush that the loop makes.

        Call with ``lock`` held, where :attr:`may_flush_here`.
        """
        self._waiting_here = True
        try:
            work(*arguments)
        finally:
            self._waiting_here = False

    def drain(self) -> None:
        """Wait until all jobs are flushed, or one has failed.  The loop hands over none meanwhile."""
        with self.lock:
            self._resting.wait_for(lambda: self._idle or self._ended)

    def stop(self) -> None:
        """Flush the last job, then end the thread."""
        with self.lock:
            self._stopping = True
            if self._idle:
                self._idle = False
                self._gate.release()
            self._resting.wait_for(lambda: self._ended)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._failed(error)
        finally:
            with self.lock:
                self._ended = True
                self._resting.notify_all()

    def _serve(self) -> None:
        while True:
            self._wait()
            while True:
                with self.lock:
                    job, waiting = self._job, self._waiting
                    if job is None:
                        if self._stopping:
                            return
                        self._idle = self._guarding = True
                        self._resting.notify_all()
                        break
                    self._job, self._waiting = None, []
                job.sync()
                with self.lock:
                    afterwards = self._flushed(job, waiting)
                if afterwards is not None:
                    afterwards()

    def _wait(self) -> None:
        """Wait for a job; guard the loop meanwhile, and fall asleep when it has flushed nothing for long."""
        while not self._gate.acquire(timeout=self._heart.beat_ms / 1000 if self._guarding else -1):
            if self._waiting_here:
                self._heart.beat()
            elif self.lock.acquire(blocking=False):
                self._guarding, self._flushed_here = self._flushed_here, False
                self.lock.release()


class _LogFlush:
    """A job of the flusher: a ticket of the log, and how many records the log has up to the ticket's end."""

    __slots__ = ("elapsed_ns", "records", "ticket")

    def __init__(self, ticket: FlushTicket, records: int) -> None:
        self.ticket, self.records = ticket, records
        self.elapsed_ns = 0

    def sync(self) -> None:
        """Raises StorageFault: the flush has failed, and is never retried."""
        started_ns = now_ns()
        self.ticket.sync()
        self.elapsed_ns = now_ns() - started_ns


class Unflushed:
    """Decides when written batches are flushed, readable and acknowledged.

    ``fault``: the error of a failed flush; after it nothing more is acknowledged.
    """

    def __init__(
        self,
        table: SegmentTable,
        log: Log,
        producers: Producers,
        doorbells: Sequence[MarkedDoorbell],
        slot: int,
        heart: Heart,
        wake: Callable[[], None],
    ) -> None:
        """``slot``: the partition's, of the workers' doorbells.  ``wake`` is called by the flusher's thread once
        ``fault`` is set.
        """
        self._table, self._log, self._producers = table, log, producers
        self._doorbells, self._slot, self._wake = doorbells, slot, wake
        self._flusher = Flusher(self._flushed, self._failed, heart)
        self.lock = self._flusher.lock
        """Guards the data of both threads: links to workers, the high watermark, the jobs of the flusher."""
        self.fault: Exception | None = None
        self.since_ms = 0
        """When the first unflushed batch or waiting answer came; 0 when there is none."""
        self._records = self._bytes = 0
        self._answers: list[ReadyAnswer] = []
        self._asked = self._asked_now = False
        self._for_reader = False  # whether a reader waits for what is to be flushed, or is about to
        self._waited_for_ms = -READER_MS  # when a reader was last seen to wait for a flush
        self._last_ns = HERE_NS_MAX + 1  # how long the last flush took
        self._looks_again = False  # whether a flush in the loop waits for what has arrived meanwhile

    def start(self) -> None:
        """Publish the log, which has just been opened and is all flushed, and start the flusher."""
        self._publish(self._log.end_offset, self._log.records)
        self._flusher.start()

    def close(self) -> None:
        """Flush and answer all, and end the flusher.  Raises the error of a failed flush."""
        if self.since_ms or self._log.end_offset > self._log.flushed:
            with self.lock:
                self._begin()
        self._flusher.stop()
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raises the error of a failed flush."""
        if self.fault is not None:
            raise self.fault

    # ---- written batches

    def on_appended(self, size: int, records: int) -> None:
        log = self._log
        if log.settings.flush_messages:
            self._records += records
            self._bytes += size
            self.since_ms = self.since_ms or now_ms()
            if self._records >= log.settings.flush_messages or self._asked_now:
                self._begin_write_back()
        else:
            with self.lock:
                self._publish(log.end_offset, log.records)
        if self._producers.due:
            with self.lock:
                self._producers.freeze()
                if not log.settings.flush_messages:  # no one waits for this flush, but the snapshot needs it
                    self._begin()

    def answer(self, ready: list[ReadyAnswer]) -> None:
        """Send the answers that need no flush, keep the others until it is done."""
        if self._log.settings.flush_messages:
            waiting = [answer for answer in ready if answer.acks == -1]
            if waiting:
                self._answers += waiting
                self.since_ms = self.since_ms or now_ms()
                ready = [answer for answer in ready if answer.acks != -1]
        if ready:
            with self.lock:
                send_answers(ready)

    def answer_flushed(self, ready: ReadyAnswer) -> None:
        """Send an answer when all that is written is flushed and published, whatever the policy; flush at once."""
        self._answers.append(ready)
        self.since_ms = self.since_ms or now_ms()
        self._asked_now = True

    def refuse(self, refusals: list[ReadyAnswer]) -> None:
        """Send the refusals of batches that could not be appended, at once."""
        with self.lock:
            send_answers(refusals)

    def ask(self, now: bool) -> None:
        """Do not delay the next flush, since a client waits for it; ``now``: flush at once, whatever the policy."""
        if now:
            self._asked_now = True
        else:
            self._asked = True

    # ---- flushing

    def due_in_ms(self, now_ms: int) -> int:
        """How long a flush can wait; call it while :attr:`since_ms` is set."""
        if self._looks_again:
            return 0
        settings = self._log.settings
        delay_ms = settings.flush_ms
        if self._records >= settings.flush_messages:
            delay_ms = min(delay_ms, FLUSH_DELAY_MS)
        return max(0, self.since_ms + delay_ms - now_ms)

    def flush_if_due(self, now_ms: int, arrived: bool) -> None:
        """Begin a flush, or make it here, if something waits for it; ``arrived``: this turn has written something.

        Raises:
            StorageFault: the flush has failed.
        """
        if not self.since_ms:
            self._asked_now = False
            return
        settings = self._log.settings
        waited_ms = now_ms - self.since_ms
        due = (
            self._records >= settings.flush_messages
            or (not self._records and self._answers)  # answers to repeats: no new batch brings the flush on
            or waited_ms >= settings.flush_ms
            or self._asked_now
        )
        # Nobody waits for an answer, so a delay lets one flush cover more batches, unless a reader waits for them.
        if due and waited_ms < min(FLUSH_DELAY_MS, settings.flush_ms) and not (self._answers or self._asked_now):
            due = self._for_reader or self._has_reader(now_ms)
        # More than flush_bytes is flushed in any case: what is lost with the machine has a bound.
        if due or self._looks_again or (settings.flush_bytes and self._bytes >= settings.flush_bytes):
            with self.lock:
                if not self._flushes_here:
                    self._begin()
                elif arrived and not self._looks_again:  # what has come meanwhile would have to wait for this flush
                    self._looks_again = True
                else:
                    self._flusher.flush_here(*self._taken())

    def _has_reader(self, now_ms: int) -> bool:
        """Whether a reader waits for what is to be flushed, or is about to where that is little."""
        fence()  # the log end offset before the wait cells: a worker that waits meanwhile sees it and asks
        if self._asked or self._table.anybody_waits(len(self._doorbells)):
            self._waited_for_ms = now_ms
            return True
        with self.lock:
            return now_ms - self._waited_for_ms < READER_MS and self._flushes_here

    @property
    def _flushes_here(self) -> bool:
        """Whether the loop makes the next flush; ask with the lock held."""
        little = self._bytes <= HERE_BYTES_MAX and self._last_ns <= HERE_NS_MAX and not self._producers.frozen
        return little and self._flusher.may_flush_here

    def _begin_write_back(self) -> None:
        """Let the disk begin with what the loop is about to flush for a reader: meanwhile it answers acks=1."""
        self._for_reader = self._for_reader or self._has_reader(now_ms())
        if self._for_reader:
            with self.lock:
                if self._flushes_here:
                    self._flusher.wait_here(self._log.begin_write_back, self._bytes)

    def flush_and_wait(self) -> None:
        """Wait until everything written is flushed and published, and the flusher is idle.

        Raises the error of a failed flush.
        """
        with self.lock:
            self._begin()
        self._flusher.drain()
        self.raise_fault()

    def _begin(self) -> None:
        """Hand everything to the flusher.  Call with the lock held."""
        self._flusher.hand_over(*self._taken())

    def _taken(self) -> tuple[_LogFlush, list[ReadyAnswer]]:
        """Take everything that is to be flushed, and the answers that wait for it."""
        job, answers = _LogFlush(self._log.flush_begin(), self._log.records), self._answers
        self._answers = []
        self._records = self._bytes = self.since_ms = 0
        self._asked = self._asked_now = self._for_reader = self._looks_again = False
        return job, answers

    def _flushed(self, job: _LogFlush, waiting: list[ReadyAnswer]) -> Callable[[], None] | None:
        """Publish and acknowledge everything below the ticket's end.  The thread that has flushed it calls this."""
        self._log.flush_done(job.ticket)
        self._table.count_flush(job.elapsed_ns)
        self._last_ns = job.elapsed_ns
        if job.ticket.end > self._log.high_watermark:
            self._publish(job.ticket.end, job.records)
        send_answers(waiting)
        snapshot = self._producers.take_snapshot()
        return None if snapshot is None else partial(self._producers.store, snapshot)

    def _failed(self, error: Exception) -> None:
        """In the flusher's thread: let the loop end this process; waiting answers are never sent."""
        self.fault = error
        self._wake()

    def _publish(self, end: int, records: int) -> None:
        """Raise the high watermark to ``end``, and ring the workers that wait for it."""
        self._log.raise_high_watermark(end)
        self._table.publish_high_watermark(end, records, self._log.transactions.stable(end))
        fence()
        for worker in self._table.waiting(len(self._doorbells), end):
            self._doorbells[worker].ring_for(self._slot)

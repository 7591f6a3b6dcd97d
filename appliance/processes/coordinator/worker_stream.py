"""The stream between the coordinator and one network worker.

:mod:`~appliance.processes.messages` has what goes over it.  The coordinator does not read from a worker that does not
take its answers, or has REQUESTS_MAX unanswered requests.  Between the answers it sends the worker's snapshot
(``processes.snapshot``).  What is sent in one turn of the loop goes with one call of the kernel, which wakes the worker
once: a transaction of ZooKeeper answers a hundred commits together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, assert_never

from ...catalog import Topic
from ...security.principals import Origin
from ...security.security_state import SecurityState
from ..message_stream import OVERHEAD_BYTES, REPLY_BYTES_MAX, MessageReader, packed
from ..messages import TO_COORDINATOR_STREAM, Facts, ForwardRequest, LimitsTaken, LimitsUsed, RequestAnswered, UsageRow
from ..snapshot import Publisher

REQUESTS_MAX: Final = 8192
"""Unanswered requests of one worker."""

AnswerRequest = Callable[[Origin, bytes], Coroutine[Any, Any, bytes | None]]
"""(origin, frame) → reply frame, or None to close the connection."""

log = logging.getLogger(__name__)


class WorkerStream(asyncio.Protocol):
    """The stream of one network worker: requests in, answers out, bounded both ways."""

    def __init__(
        self,
        answer: AnswerRequest,
        publish: Callable[[WorkerStream], None],
        on_usage: Callable[[WorkerStream, Sequence[UsageRow]], None],
        frame_bytes_max: int,
    ) -> None:
        """Connect the parts of the coordinator that serve a worker.

        Args:
            answer: answers one request.
            publish: called before each answer, so that the worker's snapshot has the changes of that request.
            on_usage: takes what the clients of this worker have taken from their limits.
            frame_bytes_max: of a request.
        """
        self.published: tuple[Any, ...] = ()  # the state of the broker that the worker's snapshot shows
        self.congested = False
        self._answer = answer
        self._publish = publish
        self._on_usage = on_usage
        self._publisher = Publisher()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader = MessageReader(TO_COORDINATOR_STREAM, frame_bytes_max + OVERHEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytearray] = []
        """Of this turn of the loop."""
        self._unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def close(self) -> None:
        """Close the stream: requests in progress are completed, and their answers dropped."""
        if self._transport is not None:
            self._send_unsent()
            self._transport.abort()

    def _send(self, message: bytearray) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_unsent)
        self._unsent.append(message)

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(b"".join(unsent))

    def publish(
        self, state: tuple[Any, ...], facts: Facts, topics: Mapping[str, Topic], security: SecurityState
    ) -> None:
        """Send the worker the changes since the last call, at once: the supervisor is told of it behind them."""
        self.published = state
        if self._transport is not None:
            for change in self._publisher.changes(facts, topics, security):
                self._send(packed(change))
            self._send_unsent()

    def send_usage(self, rows: Sequence[UsageRow]) -> None:
        """Send the worker what clients of others have taken from their limits; one that does not read gets none."""
        if self._transport is not None and not self.congested:
            self._send(packed(LimitsUsed(list(rows))))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._take()

    def pause_writing(self) -> None:
        self.congested = True
        self._throttle()

    def resume_writing(self) -> None:
        self.congested = False
        self._publish(self)
        self._take()

    def _take(self) -> None:
        """Start the requests that have arrived, until the worker has REQUESTS_MAX unanswered."""
        while not self._full:
            match self._reader.take_message():
                case None:
                    break
                case ForwardRequest(token, origin, frame):
                    self._unanswered += 1
                    self._serve(token, origin, frame)
                case LimitsTaken(rows):
                    self._on_usage(self, rows)
                case other:
                    assert_never(other)
        self._throttle()

    @property
    def _full(self) -> bool:
        return self.congested or self._unanswered >= REQUESTS_MAX

    def _throttle(self) -> None:
        if self._transport is None:
            return
        if self._full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _serve(self, token: int, origin: Origin, frame: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._answer_one(token, origin, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_one(self, token: int, origin: Origin, frame: bytes) -> None:
        """Answer a request, and send the reply.

        A bug in answering closes only that connection: a client that sends the frame again must not be able to end the
        process that all others need.
        """
        reply = None
        try:
            reply = await self._answer(origin, frame)
        except Exception:
            log.exception("%s listener: a request of %s cannot be answered", origin.listener.protocol, origin.peer)
        finally:  # also when it is cancelled
            self._answered(token, origin, reply)

    def _answered(self, token: int, origin: Origin, reply: bytes | None) -> None:
        if reply is not None and len(reply) > REPLY_BYTES_MAX:
            log.error("%s listener: the reply to %s has %d bytes", origin.listener.protocol, origin.peer, len(reply))
            reply = None
        self._publish(self)
        if self._transport is not None:
            self._send(packed(RequestAnswered(token, reply)))
        was_full = self._full
        self._unanswered -= 1
        if was_full and not self._full:
            self._take()

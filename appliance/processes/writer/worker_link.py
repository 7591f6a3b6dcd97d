"""A writer's link to a network worker: a channel, and the arena that the worker receives into.

Messages on the channel, msgpack arrays::

    worker → writer   [[token, acks, [start, stop, ...]] ...]      positions of requests' record batches in the arena
                      []                                           somebody waits for what is written: flush soon
                      ["flush"]                                    flush now: somebody has asked for the log's end
    writer → worker   [[token, [error, base, end, ...], {index: text}, append ms] ...]   three numbers per request;
                      text -1: for all; append ms: what LogAppendTime has given to all, else -1

Each row of the first message is an append request.  It is answered once; with acks=-1 when it is flushed.  The append
requests of one worker are answered in any order, all parts of one at once.  A closed channel means that the worker is
gone and nobody wants the answers.  The messages about connections that are handed over:
:mod:`appliance.processes.handoff`.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..answers import Answer
from ..control import Channel

NUMBERS_PER_MESSAGE: Final = 2_048
"""A message to a worker is closed once it holds so many numbers of up to 9 bytes; the last append request may
bring as many as three for each of ``writer_link.APPEND_PARTS_MAX``, and texts, and it still fits."""
APPEND_NUMBERS: Final = 8

AppendRequest = tuple[Any, int, Sequence[int]]
"""Token, acks, and where requests' record batches lie in the arena: start, stop, start, stop, ..."""


class Source(Protocol):
    """Where append requests come from: a network worker, or a connection that one has handed over."""

    arena: memoryview

    def answer(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        """Answer append requests, by their tokens.  Call with the flusher's lock held."""


class ReadyAnswer(NamedTuple):
    """The answer to one append request."""

    source: Source
    acks: int
    token: Any
    answer: Answer


def send_answers(ready: Sequence[ReadyAnswer]) -> None:
    """Send all answers to one source at once.  Call with the flusher's lock held."""
    by_source: dict[Source, list[tuple[Any, Answer]]] = {}
    for source, _, token, answer in ready:
        by_source.setdefault(source, []).append((token, answer))
    for source, answers in by_source.items():
        source.answer(answers)


class Link:
    """Implements :class:`Source`."""

    def __init__(self, channel: Channel, arena: memoryview, epoll: select.epoll) -> None:
        self.channel, self.arena = channel, arena
        self._epoll = epoll
        epoll.register(channel.fileno(), select.EPOLLIN)

    def answer(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        """Send the answers, several in a message."""
        message: list[Any] = []
        size = 0
        for token, answer in answers:
            message.append((token, *answer))
            size += APPEND_NUMBERS + len(answer.numbers)
            if size >= NUMBERS_PER_MESSAGE:
                self.send(message)
                message, size = [], 0
        if message:
            self.send(message)

    def send(self, message: Sequence[Any], fds: Sequence[int] = ()) -> None:
        """Call with the flusher's lock held.

        Raises:
            OSError: the kernel refuses a descriptor for the message; nothing was sent.
        """
        channel = self.channel
        channel.send(message, fds)
        if channel.pending and not channel.closed:
            self._epoll.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send what the kernel did not take before.  Call with the flusher's lock held."""
        self.channel.flush()
        if not self.channel.pending:
            self._epoll.modify(self.channel.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Call with the flusher's lock held."""
        self._epoll.unregister(self.channel.fileno())
        self.channel.close()

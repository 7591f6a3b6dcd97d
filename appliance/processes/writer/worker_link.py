"""A writer's link to a network worker: a channel, and the arena that the worker receives into.

An append request is answered once; with acks=-1 when it is flushed.  The append requests of one worker are answered in
any order, all parts of one at once.  A closed channel means that the worker is gone, and its answers are dropped.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..answers import AppendAnswer
from ..control import Channel
from ..messages import AnswerRow, Appended, FromWriter

NUMBERS_PER_MESSAGE: Final = 2_048
"""A message to a worker is closed once it holds this many numbers of up to 9 bytes.  It still fits a packet if its last
append request adds three numbers for each of ``writer_link.APPEND_PARTS_MAX`` parts, and ``writer.TEXTS_MAX`` texts."""
APPEND_NUMBERS: Final = 8
CHARACTERS_PER_NUMBER: Final = 2
"""Characters of a text that take the room of a number: up to four bytes each."""


class AnswerTaker(Protocol):
    """Who is answered once something is flushed."""

    def answer(self, answers: Sequence[tuple[Any, AppendAnswer]]) -> None:
        """Answer, by tokens that only this one understands.  Call with the flusher's lock held."""


class AppendSource(AnswerTaker, Protocol):
    """A sender of append requests: a network worker, or a handed-over connection."""

    arena: memoryview


class ReadyAnswer(NamedTuple):
    """The answer to one append request, or to a step of a transaction."""

    source: AnswerTaker
    acks: int
    token: Any
    answer: AppendAnswer


def send_answers(ready: Sequence[ReadyAnswer]) -> None:
    """Send all answers to one source at once.  Call with the flusher's lock held."""
    if len(ready) == 1:  # as usual
        ((source, _, token, answer),) = ready
        source.answer(((token, answer),))
        return
    by_source: dict[AnswerTaker, list[tuple[Any, AppendAnswer]]] = {}
    for source, _, token, answer in ready:
        by_source.setdefault(source, []).append((token, answer))
    for source, answers in by_source.items():
        source.answer(answers)


class WorkerLink:
    """The link to one network worker; a :class:`AppendSource`."""

    def __init__(self, channel: Channel, arena: memoryview, epoll: select.epoll) -> None:
        self.channel, self.arena = channel, arena
        self._epoll = epoll
        epoll.register(channel.fileno(), select.EPOLLIN)

    def answer(self, answers: Sequence[tuple[Any, AppendAnswer]]) -> None:
        """Send the answers, several in a message."""
        rows: list[AnswerRow] = []
        size = 0
        for token, answer in answers:
            rows.append((token, *answer))
            size += APPEND_NUMBERS + len(answer.numbers)
            size += sum(map(len, answer.texts.values())) // CHARACTERS_PER_NUMBER
            if size >= NUMBERS_PER_MESSAGE:
                self.send(Appended(rows))
                rows, size = [], 0
        if rows:
            self.send(Appended(rows))

    def send(self, message: FromWriter, fds: Sequence[int] = ()) -> None:
        """Call with the flusher's lock held.

        Raises:
            OSError: the kernel refuses a descriptor for the message; nothing was sent.
        """
        channel = self.channel
        channel.send(message, fds)
        if channel.pending and not channel.closed:
            self._epoll.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send queued messages.  Call with the flusher's lock held."""
        self.channel.flush()
        if not self.channel.pending:
            self._epoll.modify(self.channel.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Call with the flusher's lock held."""
        self._epoll.unregister(self.channel.fileno())
        self.channel.close()

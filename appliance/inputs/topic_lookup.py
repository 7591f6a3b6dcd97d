"""Asks for topics beside the reading of files, so that one whose answer stays away keeps nothing else waiting.

While an appliance is away, or a topic is being made, an answer may take longer than a file has until it is rotated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from .ledger import Ledger
from .outlet import Outlet

PATIENCE_S: Final = 0.1
"""How long who asks first waits for an answer: most are there by then."""
ANSWER_MS: Final = 2_000
"""How long an answer, or a fault, is one for all files of the topic: its settings may change."""


class Destination(NamedTuple):
    """Where a source goes.  ``block_bytes_max``: the largest block that the topic takes."""

    partition: int
    block_bytes_max: int


class _Question:
    """``answered_ms``: None: there is no answer yet."""

    def __init__(self, answer: asyncio.Task[int]) -> None:
        self.answer = answer
        self.answered_ms: float | None = None


class TopicLookup:
    """Says where sources go, once that is known.  It keeps a question for each topic and partition that they have."""

    def __init__(self, outlet: Outlet, ledger: Ledger, clock_ms: Callable[[], float]) -> None:
        self._outlet, self._ledger, self._clock_ms = outlet, ledger, clock_ms
        self._questions: dict[tuple[str, int | None], _Question] = {}

    async def place_of(self, topic: str, key: bytes, until_ms: float) -> Destination | None:
        """Where the messages of a key go; None: it is not known yet, ask again.

        ``until_ms``: it returns by then.

        Raises:
            ApplianceError: the topic cannot be used now, or never.
        """
        block_bytes_max = await self._answer_of((topic, None), lambda: self._outlet.learn(topic), until_ms)
        if block_bytes_max is None:
            return None
        partition = self._outlet.partition_of(topic, key)
        begun = await self._answer_of((topic, partition), lambda: self._begin(topic, partition), until_ms)
        return None if begun is None else Destination(begun, block_bytes_max)

    async def _begin(self, topic: str, partition: int) -> int:
        await self._ledger.begin_partition(topic, partition)
        return partition

    async def _answer_of(
        self, about: tuple[str, int | None], ask: Callable[[], Coroutine[Any, Any, int]], until_ms: float
    ) -> int | None:
        """The answer, if there is one by now.  Raises ApplianceError."""
        now = self._clock_ms()
        question = self._questions.get(about)
        if question is None or (question.answered_ms is not None and now - question.answered_ms >= ANSWER_MS):
            question = self._questions[about] = _Question(asyncio.create_task(ask()))
            question.answer.add_done_callback(lambda _: self._note_answer(question))
            await asyncio.wait([question.answer], timeout=max(0.0, min(PATIENCE_S, (until_ms - now) / 1000)))
        return question.answer.result() if question.answer.done() else None

    def _note_answer(self, question: _Question) -> None:
        question.answered_ms = self._clock_ms()
        with contextlib.suppress(asyncio.CancelledError):
            question.answer.exception()  # those who ask for it have it, too

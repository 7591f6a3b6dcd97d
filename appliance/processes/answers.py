"""The answer of a writer to one append request; codecs encode their replies from it."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..wire.requests import ProduceResult

FOR_ALL: Final = -1
"""Index of a text that holds for every part."""

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class AppendAnswer(NamedTuple):
    """``numbers``: error, base and end of each part; ``texts`` by index; ``append_ms``: LogAppendTime, else -1."""

    numbers: list[int]
    texts: dict[int, str]
    append_ms: int

    def results(self, log_start: int) -> list[ProduceResult]:
        """The result of each part, in order."""
        numbers, texts, append_ms = self
        in_turn = iter(numbers)
        rows = zip(in_turn, in_turn, in_turn, strict=True)
        if not texts:
            return [_new(ProduceResult, (error, base, end, log_start, "", append_ms)) for error, base, end in rows]
        for_all = texts.get(FOR_ALL, "")
        return [
            _new(ProduceResult, (error, base, end, log_start, texts.get(index, for_all), append_ms))
            for index, (error, base, end) in enumerate(rows)
        ]


def acks_0_failure(message: str) -> str:
    """Why a connection is closed when a produce request with acks=0 has failed: no reply can say so."""
    return f"produce with acks=0 failed: {message}"

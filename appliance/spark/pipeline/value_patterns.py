"""Applies patterns to values of messages: to their text where they are UTF-8, to their bytes where they are not.

RE2 takes bytes for Latin-1, in which a letter of UTF-8 is several characters: a class would take half of a letter, and
``\\p{L}`` none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def replaced(values: pa.Array, pattern: str, replacement: str) -> pa.Array:
    """The values with each match replaced; ``replacement`` may refer to groups, as ``\\1``."""
    return _applied(
        values, lambda texts: pc.replace_substring_regex(texts, pattern, replacement).cast(pa.binary()), pa.binary()
    )


def matching(values: pa.Array, pattern: str) -> pa.Array:
    """Whether the pattern matches somewhere in each value; null for null."""
    return _applied(values, lambda texts: pc.match_substring_regex(texts, pattern), pa.bool_())


def _applied(values: pa.Array, work: Callable[[pa.Array], pa.Array], kind: pa.DataType) -> Any:
    try:
        return work(values.cast(pa.string()))
    except pa.ArrowInvalid:
        pass
    is_text = pa.array([value is None or _is_text(value) for value in values.to_pylist()])
    texts = pc.if_else(is_text, values, pa.scalar(None, pa.binary())).cast(pa.string())
    rest = pc.if_else(is_text, pa.scalar(None, pa.binary()), values)
    return pc.if_else(is_text, work(texts), work(rest)).cast(kind)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True

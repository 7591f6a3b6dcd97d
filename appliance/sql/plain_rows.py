"""Makes rows of plain values of the batches of a result: what JSON has, for whatever shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa


def different(names: list[str]) -> list[str]:
    """Names of columns, those that are there twice with their number: a join has the same ones of both sides."""
    return [name if names.count(name) == 1 else f"{name} {index}" for index, name in enumerate(names)]


def plain_rows(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    """The rows, of values that JSON has.

    Raises:
        InvalidRequest: Python has no such value, as an infinite time.
    """
    try:
        columns = [list(map(_convert(column.type), column.to_pylist())) for column in batch.columns]
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(f"a value cannot be shown ({error}): ask for its column as a text, `c::varchar`") from None
    return map(list, zip(*columns, strict=True)) if columns else iter(())


def _convert(kind: pa.DataType) -> Callable[[Any], Any]:
    import pyarrow as pa  # not above: the command line imports this module for each command

    plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    if plain:
        return lambda value: value
    if pa.types.is_map(kind):
        inner = _convert(kind.item_type)
        return lambda value: None if value is None else {str(name): inner(item) for name, item in value}
    return plain_value


def plain_value(value: Any) -> Any:
    """A value as JSON has it: times as ISO 8601, bytes as text, whole decimals as whole numbers; no NaN."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes():
            return value.decode(errors="backslashreplace")
        case dict():
            return {str(name): plain_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain_value(inner) for inner in value]
    return str(value)

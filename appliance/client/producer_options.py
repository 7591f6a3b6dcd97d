"""The checked options of a producer, in the units in which they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import BadValue
from ..records.batch import CODECS

ACKS: Final[dict[int | str, int]] = {0: 0, 1: 1, -1: -1, "all": -1, "0": 0, "1": 1, "-1": -1}
BATCH_BYTES_MIN: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """``acks``: 0, 1 or -1 for all.

    Raises:
        BadValue: an option is out of bounds.
    """

    acks: int
    codec: str
    linger_s: float
    batch_bytes_max: int
    batch_messages_max: int
    buffer_bytes_max: int
    block_s_max: float
    delivery_timeout_s: float
    request_timeout_ms: int
    backoff_s: float
    backoff_s_max: float
    in_flight_max: int
    idempotent: bool

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise BadValue(f"codec={self.codec!r}: give one of {', '.join(CODECS)}")
        if self.idempotent and self.acks == 0:
            raise BadValue("idempotent=True needs acks=1 or 'all'")
        _at_least(0, linger_ms=self.linger_s * 1000, block_ms_max=self.block_s_max * 1000)
        _at_least(1, batch_messages_max=self.batch_messages_max, in_flight_max=self.in_flight_max)
        _at_least(BATCH_BYTES_MIN, batch_bytes_max=self.batch_bytes_max)
        _at_least(self.batch_bytes_max, buffer_bytes_max=self.buffer_bytes_max)


def acks_number(acks: int | str) -> int:
    """0, 1 or -1, as a request carries it.

    Raises:
        BadValue: it is none of them.
    """
    number = ACKS.get(acks)
    if number is None:
        raise BadValue(f"acks={acks!r}: give 0, 1 or 'all'")
    return number


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise BadValue(f"{name}={value!r}: must be at least {least}")

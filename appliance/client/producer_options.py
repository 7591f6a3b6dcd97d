"""The checked options of a producer, in the units in which they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import BadValue
from ..records.batch import CODECS
from .arguments import check_least, check_one_of, check_transactional_id, check_truth, check_whole, shown

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
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        check_one_of(CODECS, codec=self.codec)
        check_truth(idempotent=self.idempotent)
        if self.idempotent and self.acks == 0:
            raise BadValue("idempotent=True needs acks=1 or 'all'")
        if self.transactional_id is not None:
            check_transactional_id(self.transactional_id)
            if self.acks != -1 or not self.idempotent:
                raise BadValue("a transactional_id needs acks='all', and an idempotent producer")
        check_whole(1, transaction_timeout_ms=self.transaction_timeout_ms)
        check_whole(1, batch_messages_max=self.batch_messages_max, in_flight_max=self.in_flight_max)
        check_whole(1, request_timeout_ms=self.request_timeout_ms)
        check_whole(BATCH_BYTES_MIN, batch_bytes_max=self.batch_bytes_max)
        check_least(self.batch_bytes_max, buffer_bytes_max=self.buffer_bytes_max)


def acks_number(acks: int | str) -> int:
    """0, 1 or -1, as a request carries it.

    Raises:
        BadValue: it is none of them.
    """
    number = ACKS.get(acks) if isinstance(acks, int | str) else None
    if number is None:
        raise BadValue(f"acks={shown(acks)}: give 0, 1 or 'all'")
    return number

"""Corrects a batch in which one bit is flipped, from what the batch says twice.

A batch is redundant: its position gives its base offset, the start of the next batch gives its length, and its checksum
covers the rest.  So a single flipped bit anywhere in it is found and corrected (CRC32C distinguishes all errors of one
and of two bits).  No guess is needed.  Without it, one bit that memory or a disk has flipped costs all messages of its
batch: a hole would take their place.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from ..errors import ClientFault
from ..records.batch import (
    ATTRIBUTES_AT,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    check_stored,
    place,
    read_header,
)
from .segment import SIZE_MAX

MEND_BYTES_MAX: Final = 4 << 20
"""Largest batch in which a flipped bit is searched: the search takes a second per MiB."""
POLYNOMIAL: Final = 0x82F63B78
"""The reflected polynomial of CRC32C."""


def mended(batch: memoryview, offset: int) -> bool:
    """Correct ``batch``, of this length and at ``offset`` of its log, if at most one bit is flipped.

    Errors in base offset, length and magic are corrected in any case: these follow from the place of the batch.

    Returns:
        Whether ``batch`` is valid now.
    """
    size = len(batch)
    batch[LENGTH_AT:LENGTH_END] = (size - LENGTH_END).to_bytes(4, "big")
    batch[MAGIC_AT] = MAGIC
    actual = crc32c(batch[ATTRIBUTES_AT:])
    difference = actual ^ int.from_bytes(batch[CRC_AT:ATTRIBUTES_AT], "big")
    if difference.bit_count() == 1:  # in the checksum itself
        batch[CRC_AT:ATTRIBUTES_AT] = actual.to_bytes(4, "big")
    elif difference:
        flipped = flipped_bit(difference, size - ATTRIBUTES_AT) if size <= MEND_BYTES_MAX else None
        if flipped is None:
            return False
        batch[ATTRIBUTES_AT + flipped[0]] ^= 1 << flipped[1]
    count = int.from_bytes(batch[COUNT_AT:HEADER_BYTES], "big")
    if not 1 <= count <= size:
        return False
    place(batch, 0, offset, size, read_header(batch, 0).span)
    try:
        check_stored(batch, 0, size, SIZE_MAX)
    except ClientFault:
        return False
    return True


def flipped_bit(difference: int, size: int) -> tuple[int, int] | None:
    """Find the bit whose flip changes the CRC32C of ``size`` bytes by ``difference``.

    The checksum is linear.  So the flip of a bit changes it by the value of a register that starts at 1 and takes one
    step for each bit that follows.

    Returns:
        The index of the byte and of the bit in it; None when there is no such bit.
    """
    register = 1
    for steps in range(1, 8 * size + 1):
        register = register >> 1 ^ POLYNOMIAL if register & 1 else register >> 1
        if register == difference:
            byte = size - (steps + 7) // 8
            return byte, 8 * (size - byte) - steps
    return None

"""Reads and writes unsigned varints: seven bits a byte, lowest first; the high bit is set in all bytes but the last."""

from __future__ import annotations

from ..errors import ApplianceError


def read_unsigned(
    data: bytes | memoryview, position: int, bytes_max: int, fault: type[ApplianceError]
) -> tuple[int, int]:
    """The number at ``position``, and the position after it.  Raises IndexError beyond ``data``.

    Raises:
        ApplianceError: ``fault``: the number has more than ``bytes_max`` bytes.
    """
    number = 0
    for shift in range(0, 7 * bytes_max, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise fault(f"varint longer than {bytes_max} bytes")


def unsigned(number: int) -> bytes:
    """A number >= 0 as a varint."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)

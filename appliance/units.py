"""Writes amounts for people: bytes, time spans, and how many of something."""

from __future__ import annotations


def size(count: int) -> str:
    """Bytes with a binary unit: ``1.5 GiB``."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """A time span with one unit: ``90 s``, ``5 min``, ``3 h``, ``2 d``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(number: int, one: str, many: str = "") -> str:
    """``1 message``, ``1,234 messages``.

    Args:
        one: what stands behind 1: a noun, which may have its verb behind it, ``batch was``.
        many: what stands behind other numbers, ``batches were``; if not given, ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"

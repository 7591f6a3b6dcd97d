"""The quantities that are measured: their names in results, the headings of their columns, and their units."""

from __future__ import annotations

from typing import NamedTuple


class Quantity(NamedTuple):
    """One quantity.  ``unit``: "1/s", "s", "ms", "B", "%" (of 1, so that 0.5 is shown as 50%) or "".

    ``compared``: its name where two sides are compared; None where a ratio says nothing.  ``drawn``: charts show it.
    """

    heading: str
    unit: str
    compared: str | None = None
    drawn: bool = False

    def text(self, value: float) -> str:
        """A value with its unit, as a person reads it."""
        match self.unit:
            case "1/s":
                return f"{number(value)}/s"
            case "B":
                return f"{number(value)}{'' if abs(value) >= 1000 else ' '}B"
            case "%":
                return f"{value * 100:.3g}%"
            case "s" | "ms":
                return f"{value:.3g} {self.unit}"
            case _:
                return number(value)


QUANTITIES = {
    "rate": Quantity("rate", "1/s", "", drawn=True),
    "lone_rate": Quantity("rate to one of them", "1/s", "to one", drawn=True),
    "relative": Quantity("of the rate to a lone one", "%", drawn=True),
    "cpu": Quantity("broker CPU", "", "CPU"),
    "client": Quantity("client CPU", "%"),
    "both": Quantity("CPU of both", "", "both"),
    "bytes": Quantity("bytes on the disk", "", drawn=True),
    "p50_ms": Quantity("p50", "ms", "p50", drawn=True),
    "p99_ms": Quantity("p99", "ms", "p99", drawn=True),
    "p999_ms": Quantity("p99.9", "ms", "p99.9"),
    "max_ms": Quantity("max", "ms"),
    "start_s": Quantity("start", "s", "start", drawn=True),
    "ready_s": Quantity("ready", "s"),
    "first_s": Quantity("first message", "s", "first message", drawn=True),
    "formed_s": Quantity("all join", "s", "all join"),
    "join_s": Quantity("one joins", "s", "one joins", drawn=True),
    "leave_s": Quantity("one leaves", "s", "one leaves", drawn=True),
    "idle": Quantity("idle CPU", "%", "idle CPU", drawn=True),
    "memory_bytes": Quantity("memory", "B", "memory", drawn=True),
    "loaded_bytes": Quantity("memory after load", "B", "after load", drawn=True),
    "each_bytes": Quantity("memory of each", "B"),
}
"""In the order of their columns."""


def number(value: float) -> str:
    """Three digits and a unit: ``1.23 M``."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"

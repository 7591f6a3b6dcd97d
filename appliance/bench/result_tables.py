"""Results as tables: rows of workloads, in words and numbers that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .brokers import APPLIANCE, KAFKA
from .measures import Limit, Measure, Result, median_ratio, ratios

COLUMNS = ("workload", "side", "rate", "spread", "share of limit", "broker CPU", "client CPU", "ratio")
DELAY_COLUMNS = ("workload", "side", "p50", "p99", "p99.9", "max")
LIMIT_COLUMNS = ("limit", "value")
DELAYS = ("p50_ms", "p99_ms", "p999_ms", "max_ms")

Row = dict[str, str]


def columns(result: Result) -> Sequence[str]:
    if not result.measures:
        return LIMIT_COLUMNS
    return DELAY_COLUMNS if result.measures[0].what in DELAYS else COLUMNS


def rows(result: Result) -> list[Row]:
    """One row per workload and side; limits if nothing else was measured."""
    if not result.measures:
        return [{"limit": limit.name, "value": limit_text(limit)} for limit in result.limits]
    make = _delay_row if result.measures[0].what in DELAYS else _rate_row
    pairs = dict.fromkeys((measure.workload, measure.side) for measure in result.measures)
    return [make(result, workload, side) for workload, side in pairs]


def _rate_row(result: Result, workload: str, side: str) -> Row:
    row = dict.fromkeys(COLUMNS, "") | {"workload": workload, "side": side}
    rate = result.of(workload, side, "rate")
    if rate is None:
        stored = next(each for each in result.measures if (each.workload, each.side) == (workload, side))
        return row | {"rate": number(stored.median), "spread": spread(stored)}
    row |= {"rate": f"{number(rate.median)}/s", "spread": spread(rate)}
    if rate.limit:
        row["share of limit"] = f"{rate.share:.0%} of {rate.limit}"
    if (cpu := result.of(workload, side, "cpu")) is not None:
        row["broker CPU"] = f"{cpu.median:.3g}"
    if (client := result.of(workload, side, "client")) is not None:
        row["client CPU"] = f"{client.median:.0%}"
    return row | {"ratio": _ratio(result, workload, side)}


def _ratio(result: Result, workload: str, side: str) -> str:
    """The rate and the CPU of an appliance divided by Kafka's, with the range of rounds."""
    if not side.startswith(APPLIANCE):
        return ""
    other = side.replace(APPLIANCE, KAFKA, 1)
    found = []
    for what in ("rate", "cpu"):
        ours, theirs = result.of(workload, side, what), result.of(workload, other, what)
        if ours is None or theirs is None or (ratio := median_ratio(ours, theirs)) is None:
            return ""
        each = ratios(ours, theirs)
        found.append(f"{ratio:.2f} ({min(each):.2f}-{max(each):.2f})" if what == "rate" else f"CPU {ratio:.2f}")
    return ", ".join(found)


def _delay_row(result: Result, workload: str, side: str) -> Row:
    row = {"workload": workload, "side": side}
    for column, what in zip(DELAY_COLUMNS[2:], DELAYS, strict=True):
        measure = result.of(workload, side, what)
        row[column] = "" if measure is None else f"{measure.median:.3g} ms"
    return row


def spread(measure: Measure) -> str:
    return f"{number(min(measure.values))}-{number(max(measure.values))}"


def number(value: float) -> str:
    """Three digits and a unit: ``1.23 M``."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def limit_text(limit: Limit) -> str:
    if limit.unit == "B/s":
        return f"{number(limit.value)}B/s"
    return f"{number(limit.value)}/s" if limit.unit == "1/s" else f"{limit.value:.3g} ms"


def facts(result: Result) -> Iterator[str]:
    """What figures depend on, a line each."""
    of = result.machine
    yield (f"{of.processors} x {of.processor}, {of.memory_bytes / 2**30:.0f} GiB, Linux {of.kernel}, {of.python}, "
           f"{of.file_system}, load {of.load} before")  # fmt: skip
    flushes = [limit_text(limit) for limit in result.limits if limit.name.startswith("fdatasync 4 KiB")]
    if flushes:
        yield f"fdatasync of 4 KiB: p50 {flushes[0]}, p99 {flushes[1]}"
    yield ", ".join(f"{name} {version}" for name, version in result.versions.items())
    yield f"{result.date}, {result.rounds} rounds, " + ", ".join(f"{key}: {v}" for key, v in result.parameters.items())

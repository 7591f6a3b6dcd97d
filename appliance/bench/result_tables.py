"""Results as tables: rows of workloads, in words and numbers that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .brokers import APPLIANCE, KAFKA_VERSIONS
from .measures import BenchMeasure, BenchResult, MachineLimit, median_ratio, ratios
from .quantities import QUANTITIES, number

LIMIT_COLUMNS = ("limit", "value")
AFTER_RATE = ("spread", "share of limit")

ResultRow = dict[str, str]


def columns(result: BenchResult) -> Sequence[str]:
    """The columns in which at least one row has something."""
    if not result.measures:
        return LIMIT_COLUMNS
    measured_rows = rows(result)
    return ("workload", "side", *(column for column in _all_columns() if any(row[column] for row in measured_rows)))


def rows(result: BenchResult) -> list[ResultRow]:
    """One row per workload and side; limits if nothing else was measured."""
    if not result.measures:
        return [{"limit": limit.name, "value": limit_text(limit)} for limit in result.limits]
    sides: dict[str, dict[str, None]] = {}
    for measure in result.measures:
        sides.setdefault(measure.workload, {})[measure.side] = None
    return [_row(result, workload, side) for workload in sides for side in sides[workload]]


def _all_columns() -> Iterator[str]:
    for what, quantity in QUANTITIES.items():
        yield quantity.heading
        if what == "rate":
            yield from AFTER_RATE
    yield "ratio"


def _row(result: BenchResult, workload: str, side: str) -> ResultRow:
    row = {"workload": workload, "side": side} | dict.fromkeys(_all_columns(), "")
    for what, quantity in QUANTITIES.items():
        if (measure := result.find_measure(workload, side, what)) is not None:
            row[quantity.heading] = quantity.text(measure.median)
    if (rate := result.find_measure(workload, side, "rate")) is not None:
        row["spread"] = spread(rate)
        row["share of limit"] = f"{rate.share:.0%} of {rate.limit}" if rate.limit else ""
    return row | {"ratio": _ratio(result, workload, side)}


def _ratio(result: BenchResult, workload: str, side: str) -> str:
    """What was measured of an appliance divided by Kafka's; the first one with the range of rounds."""
    if not side.startswith(APPLIANCE):
        return ""
    others = [measure.side for measure in result.measures if measure.workload == workload]
    kafka_sides = [name for kafka in KAFKA_VERSIONS for name in (side.replace(APPLIANCE, kafka, 1), kafka)]
    other = next((name for name in kafka_sides if name in others), "")
    compared: list[str] = []
    for what, quantity in QUANTITIES.items():
        ours, theirs = result.find_measure(workload, side, what), result.find_measure(workload, other, what)
        if quantity.compared is None or ours is None or theirs is None:
            continue
        if (ratio := median_ratio(ours, theirs)) is not None:
            ratios_by_round = ratios(ours, theirs)
            within = "" if compared else f" ({min(ratios_by_round):.2f}-{max(ratios_by_round):.2f})"
            compared.append(f"{quantity.compared} {ratio:.2f}{within}".strip())
    return ", ".join(compared)


def spread(measure: BenchMeasure) -> str:
    return f"{number(min(measure.values))}-{number(max(measure.values))}"


def limit_text(limit: MachineLimit) -> str:
    if limit.unit == "B/s":
        return f"{number(limit.value)}B/s"
    return f"{number(limit.value)}/s" if limit.unit == "1/s" else f"{limit.value:.3g} ms"


def facts(result: BenchResult) -> Iterator[str]:
    """What figures depend on, a line each."""
    of = result.machine
    yield (f"{of.processors} x {of.processor}, {of.memory_bytes / 2**30:.0f} GiB, Linux {of.kernel}, {of.python}, "
           f"{of.file_system}, TCP {of.congestion_control or 'unknown'}, load {of.load} before")  # fmt: skip
    flushes = [limit_text(limit) for limit in result.limits if limit.name.startswith("fdatasync 4 KiB")]
    if flushes:
        yield f"fdatasync of 4 KiB: p50 {flushes[0]}, p99 {flushes[1]}"
    yield ", ".join(f"{name} {version}" for name, version in result.versions.items())
    yield f"{result.date}, {result.rounds} rounds, " + ", ".join(f"{key}: {v}" for key, v in result.parameters.items())

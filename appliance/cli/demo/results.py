"""Prints the results of the demo: a row per partition, a row per consumer, and whether every line is accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ... import units
from .. import output
from .ledger import DemoPartition, PartitionAccount
from .log_sources import ShippingPlan
from .pipeline_step import DemoTables


class Move(NamedTuple):
    """Durations.

    ``seconds``: from the first line shipped to the last one consumed.  ``takeover_s``: from killing the first consumer
    to the first line that its successor has read.
    """

    seconds: float
    shipping_s: float
    takeover_s: float


@dataclass(slots=True)
class Results:
    """All results.

    ``shares``: lines that each consumer has read, repeats included.  ``leftovers``: processes that had to be killed and
    shared memory that had to be removed at the end.
    """

    plan: ShippingPlan
    topics: list[str]
    accounts: dict[DemoPartition, PartitionAccount]
    shares: dict[str, int]
    lag: int
    move: Move
    exit_status: int
    tables: DemoTables | None = None
    leftovers: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        rows = self.accounts.items()
        faults = [f"{self.topics[topic]}-{number}: {row.fault}" for (topic, number), row in rows if row.fault]
        if not self.lines:
            faults.append("not one line went through")
        if self.lag:
            faults.append(f"the group lags {self.lag} messages behind")
        if self.exit_status:
            faults.append(f"the appliance ended with status {self.exit_status}")
        if self.tables is not None:
            faults += self.tables.faults(self.lines)
        return faults + [f"left behind: {what}" for what in self.leftovers]

    @property
    def good(self) -> bool:
        return not self.faults

    @property
    def lines(self) -> int:
        return sum(account.lines for account in self.accounts.values())

    @property
    def size(self) -> int:
        return sum(account.bytes for account in self.accounts.values())

    def partitions(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": self.topics[topic],
                "partition": number,
                "messages": account.lines,
                "bytes": account.bytes,
                "repeats": account.repeats,
                "checksum_in": account.checksum_in,
                "checksum_out": account.checksum_out,
                "fault": account.fault,
            }
            for (topic, number), account in self.accounts.items()
        ]

    def consumers(self) -> list[dict[str, Any]]:
        total = max(1, sum(self.shares.values()))
        rows = self.shares.items()
        return [{"consumer": name, "messages": count, "share": count / total} for name, count in rows]

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "bytes": self.size,
            "seconds": round(self.move.seconds, 3),
            "messages_per_second": round(self.lines / self.move.seconds),
            "shipped_per_second": round(self.lines / self.move.shipping_s),
            "takeover_seconds": round(self.move.takeover_s, 3),
            "lag": self.lag,
            "files": sorted({str(source.path) for source in self.plan.sources}),
            "remark": self.plan.remark,
            "partitions": self.partitions(),
            "consumers": self.consumers(),
            "pipeline": None if self.tables is None else self.tables.as_json(),
            "faults": self.faults,
        }


def show(results: Results, as_json: bool) -> None:
    if as_json:
        output.print_json(results.as_json())
        return
    files = {source.path for source in results.plan.sources}
    columns = ["topic", "partition", "messages", "bytes", "repeats", "checksum_in", "checksum_out"]
    output.print_rows(results.partitions(), columns, title="Every line, per partition")
    shares = [{**row, "share": f"{row['share']:.0%}"} for row in results.consumers()]
    output.print_rows(shares, ["consumer", "messages", "share"], title="Read by, repeats included")
    output.say(f"{len(files)} files, {results.lines:,} lines, {units.size(results.size)}" + _aside(results.plan.remark))
    move = results.move
    output.say(
        f"{move.seconds:.1f} s in and out, a death and its discovery included: "
        f"{results.lines / move.seconds:,.0f} messages/s, shipped at {results.lines / move.shipping_s:,.0f} messages/s"
    )
    output.say(f"first consumer killed: its successor read its first line {move.takeover_s:.1f} s later")
    output.say(f"lag of the group: {results.lag}")
    if results.tables is not None:
        show_tables(results.tables)
    for fault in results.faults:
        output.remark(f"FAULT: {fault}")
    rest = "" if results.tables is None else " but these tables"
    good = f"every line accounted for, nothing left behind{rest}"
    output.say(good if results.good else "NOT every line is accounted for")


def show_tables(tables: DemoTables) -> None:
    dead = sum(tables.dead.values())
    output.say(f"pipeline: {tables.parsed:,} lines parsed, {dead:,} dead letters, in {tables.seconds:.1f} s")
    for reason, count in tables.dead.items():
        output.say(f"  dead letters: {count:,}: {reason}")
    output.say(f"audit: {tables.lost:,} lost, {tables.doubled:,} doubled")
    rows = [{"talker": name, "messages": count} for name, count in tables.talkers]
    output.print_rows(rows, ["talker", "messages"], title="Top talkers")
    output.say(f"tables: {tables.events}")
    output.say(f"report: {tables.page}")


def _aside(remark: str) -> str:
    return f" ({remark})" if remark else ""

"""What the page shows of inputs: the state of each, and what its sources gave by the ledger.

States are those of ``status``: whoever may describe the cluster sees them.  The ledger is a topic: whoever may read it
sees its rows, with the places of topics that he may describe.

Bounds: HOURS_MAX back; ROWS_MAX rows, BYTES_MAX, PARTS_MAX and READ_MS_MAX of a ledger, the oldest of that time first:
then ``is_cut``.  Whoever may write to the ledger's topic decides what is in it: what is no row is counted.
SOURCES_MAX sources, those with gaps, then those with refusals, then those with the most lines, and GAPS_MAX gaps, the
last ones.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from ..client import Consumer
from ..clock import now_ms, wall_s
from ..errors import UnknownPartition
from ..security.acls import Operation, ResourceType
from ..security.audit_log import Audit
from ..status import read_state
from .visitors import Visitor

if TYPE_CHECKING:
    from ..inputs.ledger import LedgerReading, LedgerRow

HOURS_MAX: Final = 24 * 7
ROWS_MAX: Final = 50_000
BYTES_MAX: Final = 32 << 20
PARTS_MAX: Final = 200_000
"""Spans, gaps and reasons of refusals, some 500 bytes each while they are counted."""
READ_MS_MAX: Final = 3_000
SOURCES_MAX: Final = 200
GAPS_MAX: Final = 200
SHOWN: Final = (
    "type", "topic", "state", "listen", "addresses", "sources", "lines", "bytes", "messages", "refused", "gaps",
    "trouble", "todo", "refusing",
)  # fmt: skip


class LedgerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    input: Annotated[str, Meta(min_length=1, max_length=100)]
    hours: Annotated[int, Meta(ge=1, le=HOURS_MAX)] = 1


def states(data_dir: Path, visitor: Visitor, audit: Audit) -> list[dict[str, Any]]:
    """The inputs, with what their processes have counted since they began.

    Raises:
        NotPermitted.
    """
    visitor.check_right(Operation.DESCRIBE, ResourceType.CLUSTER, audit=audit, what="inputs of")
    inputs: dict[str, dict[str, Any]] = (read_state(data_dir) or {}).get("inputs", {})
    return [{"name": name, **{key: row[key] for key in SHOWN}} for name, row in inputs.items()]


def account(topic: str, query: LedgerQuery, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
    """The sources of an input: what each gave, where that is, what was refused, and what was lost.

    Args:
        topic: that of the ledger.

    Raises:
        NotPermitted.
    """
    visitor.check_right(Operation.READ, ResourceType.TOPIC, topic, audit=audit, what="read")
    audit.read(visitor.access.principal, visitor.peer, "console", topic=topic)
    reading = _bounds()
    by_source: dict[str, dict[str, Any]] = {}
    gaps: deque[dict[str, Any]] = deque(maxlen=GAPS_MAX)
    with contextlib.suppress(UnknownPartition):  # nothing was published yet
        rows = (row for row in _read(address, topic, query.hours, reading) if row.input == query.input)
        by_source = _sources(rows, visitor.access.describable.__getitem__, gaps)
    sources = sorted(
        by_source.values(), key=lambda source: (-source["gaps"], -source["refused"], -source["lines"], source["source"])
    )
    return {
        "sources": sources[:SOURCES_MAX],
        "sources_total": len(sources),
        "gaps": list(gaps),
        "gaps_total": sum(source["gaps"] for source in sources),
        "is_cut": reading.is_cut,
        "unreadable": reading.unreadable,
    }


def _bounds() -> LedgerReading:
    from ..inputs.ledger import LedgerReading  # with the first page of an input: it takes memory

    return LedgerReading(ROWS_MAX, BYTES_MAX, PARTS_MAX, now_ms() + READ_MS_MAX)


def _read(address: str, topic: str, hours: int, reading: LedgerReading) -> Iterable[LedgerRow]:
    from ..inputs.ledger import read_rows

    bounds: dict[str, Any] = {"unpacked_bytes_max": BYTES_MAX, "on_corrupt": "skip"}
    with Consumer(address, client_name="appliance-console", **bounds) as consumer:
        yield from read_rows(consumer, topic, int(1000 * (wall_s() - 3600 * hours)), reading)
        reading.unreadable += consumer.large_batches + consumer.corrupt_batches


def _sources(
    rows: Iterable[LedgerRow], may_see: Callable[[str], bool], gaps: deque[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What each source gave, by its name; ``gaps`` gets what was lost."""
    by_source: dict[str, dict[str, Any]] = {}
    places: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
    for row in rows:
        entry = by_source.setdefault(
            row.source,
            {"source": row.source, "lines": 0, "bytes": 0, "messages": 0, "refused": 0, "gaps": 0, "last_minute": 0},
        )
        for name in ("lines", "bytes", "messages"):
            entry[name] += getattr(row, name)
        entry["refused"] += sum(row.refused.values())
        entry["gaps"] += len(row.gaps)
        gaps.extend(
            {"source": row.source, "start": gap.start, "stop": gap.stop, "unit": gap.unit, "reason": gap.reason,
             "minute": row.minute}
            for gap in row.gaps
        )  # fmt: skip
        entry["last_minute"] = max(entry["last_minute"], row.minute)
        of_source = places.setdefault(row.source, {})
        for topic, partition, offset, messages, *_ in row.spans:
            if may_see(topic):
                first, last = of_source.get((topic, partition), (offset, offset))
                of_source[topic, partition] = min(first, offset), max(last, offset + messages - 1)
    for source, entry in by_source.items():
        entry["places"] = [
            {"topic": topic, "partition": partition, "first": first, "last": last}
            for (topic, partition), (first, last) in places[source].items()
        ]
    return by_source

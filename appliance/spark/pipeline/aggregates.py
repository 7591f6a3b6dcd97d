"""Makes the totals that a pipeline's settings ask for."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from .sessions import Sessions
from .settings import Aggregate, Settings
from .space_saving import Heaviest
from .totals import COUNTED, Sums, Total, own_totals
from .watermarks import NEWEST, Newest, Watermarked


def build(settings: Settings, schema: pa.Schema) -> dict[str, Total]:
    """All totals of a pipeline whose events have this schema: its aggregates, ledger and audit."""
    wanted = {each.name: {name: schema.field(name).type for name in each.by} for each in settings.aggregate}
    aggregates = {each.name: total(each, wanted[each.name]) for each in settings.aggregate}
    marked = tuple(each.name for each in settings.aggregate if each.watermark_ms)
    newest: dict[str, Total] = {NEWEST: Newest(marked)} if marked else {}
    return {**aggregates, **newest, **own_totals(settings.audit.window_ms)}


def total(settings: Aggregate, by: Mapping[str, pa.DataType]) -> Total:
    """The total of one aggregate; ``by``: the types of its columns."""
    made = _plain(settings, by)
    return Watermarked(made, settings.watermark_ms * 1000) if settings.watermark_ms else made


def _plain(settings: Aggregate, by: Mapping[str, pa.DataType]) -> Total:
    name, topic, window_us = settings.name, settings.topic, settings.window_ms * 1000
    match settings.kind:
        case "count":
            return Sums(name, window_us, by, ("count",), topic=topic)
        case "errors":
            return Sums(name, window_us, by, COUNTED, rated=True, topic=topic)
        case "top":
            return Heaviest(name, window_us, by, settings.keep, settings.k, topic)
        case "sessions":
            return Sessions(name, by, settings.gap_ms * 1000, settings.session_ms * 1000, topic)
    from .sketches import DistinctSketch, PercentileSketch, Sketched  # only they need the library

    sketch = DistinctSketch() if settings.kind == "distinct" else PercentileSketch(settings.percentiles)
    return Sketched(name, window_us, by, settings.of, sketch, topic)

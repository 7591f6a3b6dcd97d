"""Sends the rows of a view to a topic, as JSON: those that each refresh has computed (``commit_follower``).

All versions of a row have the same key, its window and the view's keys, so the newest one is valid, also in a compacted
topic.  A row that a refresh has removed is not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from .commit_follower import CommitFollower
from .settings import Settings
from .view_definitions import View
from .view_table import BASIS_KEY, VIEWS, Basis

SENT: Final = "_sent.json"
"""In the directory of the view's table."""


class ViewMessages(CommitFollower):
    def __init__(self, settings: Settings, view: View) -> None:
        table = f"{VIEWS}/{view.name}"
        super().__init__(settings, table, view.topic, f"{table}/{SENT}")
        self._view = view

    def messages(self, told: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        if BASIS_KEY not in told:
            return  # small files were put together
        ranges = msgspec.json.decode(told[BASIS_KEY], type=Basis).ranges
        for entry in entries:
            rows = self.rows(entry["add"]) if "add" in entry else None
            if rows is None:
                continue
            if ranges is not None:  # files of other windows are written again with them
                starts = rows.column("start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
                within = [any(first <= start < end for first, end in ranges) for start in starts]
                rows = rows.filter(pa.array(within, pa.bool_()))
            yield from self._encoded(rows)

    def _encoded(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        keys, values = [], []
        for row in rows.drop_columns(["date"]).to_pylist():
            plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
            keys.append(json.dumps({name: plain[name] for name in ("start", *self._view.keys)}, default=str).encode())
            values.append(json.dumps({"view": self._view.name} | plain, ensure_ascii=False, default=str).encode())
        if keys:
            yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})

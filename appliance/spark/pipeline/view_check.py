"""Compares the tables of views with their own logs, file by file: what a refresh or a reader would stumble over.

A view is brought up to date from its own files and those of its parts, so what is damaged there stays in its rows until
it is computed again from the events, which is what a rebuild does.  Each file is read whole, and has as many rows, with
times of the windows of its day, as its log says.  Whether the rows are those that the query gives only the query can
tell: a rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import ApplianceError
from .event_versions import EventVersions
from .settings import Settings
from .view_definitions import View
from .view_states import state_of_table, views_of
from .view_table import PARTS, ViewTable

BATCH_ROWS = 65_536


class CheckedView(NamedTuple):
    """The table of a view, or that of its parts.

    ``state``: as ``view_states`` has them, or ``damaged``; ``version``: of the events that its rows come from;
    ``fault``: what is wrong with its files, and what to do; "" if nothing is.
    """

    table: str
    state: str
    version: int | None
    files: int
    rows: int
    fault: str


def check_views(settings: Settings) -> Iterator[CheckedView]:
    """Read all files of the tables of views.

    Raises:
        BadValue: there are no events yet, or a definition is wrong.
        StorageFault: the log of the events is damaged.
    """
    definitions = views_of(settings)
    if not definitions:
        return
    events = EventVersions(settings.output)
    for view in definitions:
        rows = _checked(settings, view, view.name, events)
        yield rows
        if view.parts is not None:
            parts = _checked(settings, view, f"{view.name}/{PARTS}", events)
            if parts.state == "new" and rows.state != "new":
                parts = _damaged(view, parts, "it is gone")
            yield parts


def _checked(settings: Settings, view: View, name: str, events: EventVersions) -> CheckedView:
    checked = CheckedView(name, "damaged", None, 0, 0, "")
    try:
        table = ViewTable(settings.output, name)
        state = state_of_table(table, view, events)
        version = None if state.basis is None else state.basis.version
        checked = checked._replace(state=state.state, version=version)
        for path, day, count in table.listed():
            _check_file(path, day, count)
            checked = checked._replace(files=checked.files + 1, rows=checked.rows + count)
    except ApplianceError as error:
        return _damaged(view, checked, str(error))
    except (OSError, pa.ArrowException, ValueError) as error:
        return _damaged(view, checked, " ".join(str(error).split()))
    return checked


def _damaged(view: View, checked: CheckedView, reason: str) -> CheckedView:
    remedy = f"`appliance pipeline rebuild CONFIG.toml {view.name}` makes it anew"
    return checked._replace(state="damaged", fault=f"{reason}: {remedy}")


def _check_file(path: str, day: str | None, count: int) -> None:
    """Raises OSError, ArrowException or ValueError, with the path, if a file is not what its log says."""
    found, others = 0, 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                found += len(batch)
                others += _of_other_days(batch, day)
    except FileNotFoundError:
        raise ValueError(f"{path} is gone") from None
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if found != count:
        raise ValueError(f"{path} has {found} rows, and its log says {count}")
    if others:
        raise ValueError(f"{path} has {others} rows that are not of {day}")


def _of_other_days(batch: pa.RecordBatch, day: str | None) -> int:
    days: Any = pc.strftime(batch.column("start"), "%Y-%m-%d")
    return int(pc.sum(pc.not_equal(days, day or "")).as_py() or 0)

"""Tells how far the tables of views are: what a view's own query gives over the table ``events``.

A view's table is ``<output>/views/<name>``, a Delta table with the columns of the query and ``date``, the day of
``start``.  Each of its commits has the version of ``events`` that its rows come from, as a transaction of Delta and
with more about it in ``commitInfo`` (:class:`Basis`).  So a refresh that is killed anywhere is repeated whole or not at
all, and a view may lag behind, or be deleted, without harm::

    state       found                                              refresh does
    ==========  =================================================  ===============================================
    current     its basis is the latest version of events          nothing
    behind      its basis is an earlier version                    replaces the windows that have changed since
    new         there is no table                                  computes all windows
    changed     its definition is another one than that of the     computes all windows
                basis
    unknown     the basis is not in the log of events (any more),  computes all windows
                or somebody else has written the view's table

Windows have changed if rows of them came or went: a line that came late, a line that was deleted, a line that was
parsed again.  Their rows are computed from *all* lines of the window, with one transaction for all of them, so nothing
is added up twice.

A view with ``parts`` (see ``view_definitions``) has a table of these in the directory of its own, with a basis in each
commit, too.  It is brought to the version first: parts of the files that commits have added are merged with those of
the same windows, so a window has as many as its query gives, however many commits it came with; where rows have gone,
or where its basis is not known, the parts of these windows, or all, are computed from the lines.  The view's rows are
then computed from *all* parts of a window as others' from all lines.  So a refresh that is killed between the two
commits goes on from the parts that are there.

The windows are compressed to at most :data:`~.view_refresh.RANGES_MAX` ranges of time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from ...errors import BadValue
from .event_versions import EventVersions
from .output_files import LOG
from .settings import Settings, is_url
from .state_directory import PidLock
from .view_definitions import View, load_views
from .view_table import VIEWS, Basis, ViewTable

VIEWS_LOCK: Final = "_views_lock"


class ViewState(NamedTuple):
    """``behind``: versions of events since its basis."""

    view: View
    state: Literal["current", "behind", "new", "changed", "unknown"]
    basis: Basis | None
    behind: int


def views_of(settings: Settings) -> list[View]:
    """The views of a pipeline; none without ``views.path``.

    Raises:
        BadValue, UnknownKey: a definition is wrong.
    """
    return load_views(Path(settings.views.path)) if settings.views.path else []


def orphans(settings: Settings) -> list[str]:
    """The names of tables of views that have no definition any more: nobody refreshes them."""
    if is_url(settings.output.path):
        return []
    there = sorted(log.parent.name for log in (Path(settings.output.path) / VIEWS).glob(f"*/{LOG}"))
    defined = {view.name for view in views_of(settings)}
    return [name for name in there if name not in defined]


def view_of(settings: Settings, name: str) -> View:
    """Raises BadValue if there is no view of that name."""
    views = {view.name: view for view in views_of(settings)}
    if name not in views:
        there = f"there are {', '.join(views)}" if views else "views.path names no directory of views"
        raise BadValue(f"there is no view {name!r}: {there}")
    return views[name]


def views_lock(settings: Settings) -> PidLock:
    """Held by whoever refreshes views; where it is: as :func:`~.startup.output_lock`."""
    place = settings.state_dir if is_url(settings.output.path) else Path(settings.output.path)
    return PidLock(place / VIEWS_LOCK, "refreshes the views of")


def state_of(settings: Settings, view: View, events: EventVersions) -> ViewState:
    """Compare what the table of a view comes from with its definition, and with the versions of events."""
    return state_of_table(ViewTable(settings.output, view.name), view, events)


def state_of_table(table: ViewTable, view: View, events: EventVersions) -> ViewState:
    """As :func:`state_of`, of a view's own table or that of its parts."""
    basis, latest = table.basis(), events.latest
    if not table.exists:
        return ViewState(view, "new", None, latest + 1)
    if basis is None or basis.version > latest or events.entry(basis.version) != basis.entry:
        return ViewState(view, "unknown", basis, latest + 1)
    behind = latest - basis.version
    if basis.meaning != view.meaning:
        return ViewState(view, "changed", basis, behind)
    return ViewState(view, "behind" if behind else "current", basis, behind)

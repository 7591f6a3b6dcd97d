"""The daily digest: what was wrong since the last one, what is wrong still, and how much went through.

It is an event as those of :mod:`.alerts`, told once to each receiver, after the time of day of ``alerts.digest`` in the
zone of the host.  If nothing ran at that time, it comes with the next look, and is about all since the last one.
The first one is about the time since digests were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from ..units import counted, duration, size
from .alerts import DIGEST, AlertState, Event, Figures, add_event

LEVEL: Final = "info"


def last_due_s(time_of_day: str, now_s: float) -> float:
    """The last moment of that time of day (HH:MM in the zone of the host) until now, since 1970."""
    hour, minute = map(int, time_of_day.split(":"))
    now = datetime.fromtimestamp(now_s)
    due = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (due if due <= now else due - timedelta(days=1)).timestamp()


def take_digest(state: AlertState, time_of_day: str, figures: Figures, now_s: float, to: Sequence[str]) -> bool:
    """Add a digest to ``state.waiting`` if one is due; returns whether the state has changed.

    Args:
        time_of_day: as ``alerts.digest``; "": no digest is wanted.
        to: who is told.
    """
    if not time_of_day:
        changed = state.digest_at > 0
        state.digest_at, state.figures = 0.0, Figures()
        return changed
    if state.digest_at > now_s:  # the clock was wrong then, and digests must not stop until it says so again
        state.digest_at = now_s
        return True
    if state.digest_at >= last_due_s(time_of_day, now_s):
        return False
    if state.digest_at:
        rows = [{"what": what, "why": why, "todo": todo} for what, why, todo in _rows(state, figures, now_s)]
        add_event(state, Event(0, DIGEST, "", LEVEL, now_s, state.digest_at, rows, []), to)
    state.digest_at, state.figures = now_s, figures
    state.over.clear()
    state.over_dropped = 0
    return True


def _rows(state: AlertState, figures: Figures, now_s: float) -> Iterator[tuple[str, str, str]]:
    """What, why, and what to do: the first is all in a line."""
    lasting = [standing for standing in state.standing.values() if standing.told]
    over = len(state.over) + state.over_dropped
    wrong = f"{len(lasting)} wrong still, {over} over" if lasting or over else "nothing was wrong"
    yield f"{wrong}; {_traffic(state.figures, figures)}", "", ""
    for standing in lasting:
        row = standing.findings[0]
        yield f"lasts for {duration(now_s - standing.since)}: {row['what']}", row["why"], row["todo"]
    for ended in reversed(state.over):
        began = datetime.fromtimestamp(ended.since).astimezone().isoformat(timespec="minutes")
        yield f"over: {ended.what}", f"it began at {began} and lasted for {duration(ended.at - ended.since)}", ""
    if state.over_dropped:
        yield f"over: {state.over_dropped} earlier ones", "", ""
    if figures.room_bytes:
        yield f"the disk has {size(figures.free_bytes)} of {size(figures.room_bytes)} free", "", ""


def _traffic(before: Figures, now: Figures) -> str:
    """How much came in and was fetched; counts begin with each start of the appliance."""
    if now.started != before.started:
        before = Figures()
    received, fetched = (
        max(0, getattr(now, name) - getattr(before, name)) for name in ("received_bytes", "fetched_bytes")
    )
    messages = max(0, now.messages - before.messages)
    text = f"{counted(messages, 'message')} ({size(received)}) came in, {size(fetched)} were fetched"
    return text if now.started == before.started else f"{text} since the appliance was started"

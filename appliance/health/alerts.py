"""Decides what is told of conditions: that one begins, and that it ends, once each.

A condition begins when it is found in ``BEGIN_LOOKS`` looks in sequence, and ends when it is missing in ``END_LOOKS``:
one that comes and goes within seconds is not told, and one that flickers is told once.  What is told is about the
condition: when another partition joins, ``doctor`` says so.  The state is one value, which survives a restart: what was
told before is not told again, and what was not delivered is.

Bounds: a condition is one row, and there are as many as :data:`.conditions.CONDITIONS`; ``WAITING_MAX`` events wait to
be delivered, of more the oldest are dropped; ``NAMED_MAX`` findings are in an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from .conditions import CONDITIONS, CRITICAL
from .findings import Finding

ALERTS_FILE: Final = "alerts.json"
"""The state, in the data directory.  A backup leaves it out: its alerts were those of another time."""
BEGIN_LOOKS: Final = 2
END_LOOKS: Final = 3
WAITING_MAX: Final = 200
NAMED_MAX: Final = 10
BEGINS, ENDS = "begins", "ends"


class Event(Struct):
    """What is told.  ``number`` is another one for each; ``to``: who has not got it yet; times since 1970."""

    number: int
    event: str
    condition: str
    level: str
    at: float
    since: float
    findings: list[dict[str, str]]
    to: list[str]


class Standing(Struct):
    """A condition that was found lately."""

    since: float
    findings: list[dict[str, str]]
    seen: int = 1
    missing: int = 0
    told: bool = False


class State(Struct):
    """All that has to survive a restart."""

    version: int = 1
    number: int = 0
    standing: dict[str, Standing] = field(default_factory=dict)
    waiting: list[Event] = field(default_factory=list)


_LEVELS: Final = {condition.name: condition.level for condition in CONDITIONS}


def take(state: State, found: Sequence[Finding], now_s: float, to: Sequence[str], level: str) -> int:
    """Take the findings of a look; add what is to be told to ``state.waiting``.

    Args:
        to: who is told.
        level: "critical": only what has it.

    Returns:
        How many events were dropped, because too many wait.
    """
    rows: dict[str, list[dict[str, str]]] = {}
    for one in found:
        if level != CRITICAL or one.condition.level == CRITICAL:
            rows.setdefault(one.condition.name, []).append(one.as_json())
    for name, findings in rows.items():
        known = state.standing.get(name)
        if known is None:
            known = state.standing[name] = Standing(now_s, findings[:NAMED_MAX])
        else:
            known.seen, known.missing, known.findings = known.seen + 1, 0, findings[:NAMED_MAX]
        if known.seen >= BEGIN_LOOKS and not known.told:
            known.told = True
            _tell(state, BEGINS, name, known, now_s, to)
    lasting = {one.condition.name for one in found}
    for name in [name for name in state.standing if name not in rows]:
        if name in lasting:  # it goes on; only nobody wants to be told of its level any more
            del state.standing[name]
            continue
        known = state.standing[name]
        known.missing += 1
        if not known.told:
            del state.standing[name]
        elif known.missing >= END_LOOKS:
            del state.standing[name]
            _tell(state, ENDS, name, known, now_s, to)
    dropped = max(0, len(state.waiting) - WAITING_MAX)
    del state.waiting[:dropped]
    return dropped


def _tell(state: State, event: str, name: str, known: Standing, now_s: float, to: Sequence[str]) -> None:
    state.number += 1
    level = _LEVELS.get(name, "")  # "": of a release that had other conditions
    if to:
        state.waiting.append(Event(state.number, event, name, level, now_s, known.since, known.findings, list(to)))


def delivered(state: State, number: int, to: str) -> None:
    """Somebody has got an event, or it is given up for them."""
    for event in state.waiting:
        if event.number == number and to in event.to:
            event.to.remove(to)
    state.waiting = [event for event in state.waiting if event.to]


def text_of(event: Event) -> str:
    """An event as one line for people."""
    first = event.findings[0] if event.findings else {"what": event.condition, "why": ""}
    more = f" (and {len(event.findings) - 1} more)" if len(event.findings) > 1 else ""
    if event.event == ENDS:
        return f"over: {first['what']}{more}"
    return f"{event.level}: {first['what']}{': ' if first['why'] else ''}{first['why']}{more}"

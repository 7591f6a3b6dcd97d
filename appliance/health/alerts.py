"""Decides what is told of conditions: that one begins, and that it ends, once each.

A condition begins when it is found in ``BEGIN_LOOKS`` looks in sequence, and ends when it is missing in ``END_LOOKS``:
one that comes and goes within seconds is not told, and one that flickers is told once.  What is told is about the
condition: when another partition joins, ``doctor`` says so.  The state is one value, which survives a restart: what was
told before is not told again, and what was not delivered is.

Bounds: a condition is one row, and there are as many as :data:`.conditions.CONDITIONS`; ``WAITING_MAX`` events wait to
be delivered, of more the oldest are dropped; ``NAMED_MAX`` findings are in an event; ``OVER_MAX`` that have ended are
kept for the digest (:mod:`.digest`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct, field

from .conditions import CONDITIONS, CRITICAL
from .findings import Finding
from .undelivered import Undelivered

BEGIN_LOOKS: Final = 2
END_LOOKS: Final = 3
WAITING_MAX: Final = 200
NAMED_MAX: Final = 10
OVER_MAX: Final = 50
BEGINS, ENDS, DIGEST = "begins", "ends", "digest"


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


class StandingCondition(Struct):
    """A condition that was found lately."""

    since: float
    findings: list[dict[str, str]]
    seen: int = 1
    missing: int = 0
    told: bool = False


class Over(Struct):
    """A condition that has ended, with the first of its findings."""

    what: str
    since: float
    at: float


class Figures(Struct):
    """What went through the appliance since its start, and the room on the disk now."""

    started: float = 0.0
    messages: int = 0
    received_bytes: int = 0
    fetched_bytes: int = 0
    free_bytes: int = 0
    room_bytes: int = 0


class AlertState(Struct):
    """All that has to survive a restart."""

    version: int = 1
    number: int = 0
    standing: dict[str, StandingCondition] = field(default_factory=dict)
    waiting: list[Event] = field(default_factory=list)
    failing: dict[str, Undelivered] = field(default_factory=dict)
    """By receiver."""
    over: list[Over] = field(default_factory=list)
    """What has ended since the last digest; of more than OVER_MAX the oldest are counted in ``over_dropped``."""
    over_dropped: int = 0
    digest_at: float = 0.0
    """When the last digest was made, or digests were asked for; 0: they are not."""
    figures: Figures = field(default_factory=Figures)
    """Of that time."""


_LEVELS: Final = {condition.name: condition.level for condition in CONDITIONS}


def take_findings(
    state: AlertState, all_findings: Sequence[Finding], now_s: float, to: Sequence[str], level: str
) -> int:
    """Take the findings of a look; add what is to be told to ``state.waiting``.

    Args:
        to: who is told.
        level: "critical": only what has it.

    Returns:
        How many events were dropped, because too many wait.
    """
    rows: dict[str, list[dict[str, str]]] = {}
    for finding in all_findings:
        if level != CRITICAL or finding.condition.level == CRITICAL:
            rows.setdefault(finding.condition.name, []).append(finding.as_json())
    for name, findings in rows.items():
        standing = state.standing.get(name)
        if standing is None:
            standing = state.standing[name] = StandingCondition(now_s, findings[:NAMED_MAX])
        else:
            standing.seen, standing.missing, standing.findings = standing.seen + 1, 0, findings[:NAMED_MAX]
        if standing.seen >= BEGIN_LOOKS and not standing.told:
            standing.told = True
            _tell(state, BEGINS, name, standing, now_s, to)
    lasting = {finding.condition.name for finding in all_findings}
    for name in [name for name in state.standing if name not in rows]:
        if name in lasting:  # it goes on; only nobody wants to be told of its level any more
            del state.standing[name]
            continue
        standing = state.standing[name]
        standing.missing += 1
        if not standing.told:
            del state.standing[name]
        elif standing.missing >= END_LOOKS:
            del state.standing[name]
            _tell(state, ENDS, name, standing, now_s, to)
            _note_end(state, standing, now_s)
    dropped = max(0, len(state.waiting) - WAITING_MAX)
    del state.waiting[:dropped]
    return dropped


def _tell(
    state: AlertState, event: str, name: str, standing: StandingCondition, now_s: float, to: Sequence[str]
) -> None:
    level = _LEVELS.get(name, "")  # "": of a release that had other conditions
    add_event(state, Event(0, event, name, level, now_s, standing.since, standing.findings, []), to)


def add_event(state: AlertState, event: Event, to: Sequence[str]) -> None:
    """Let an event wait for its receivers, with the next number."""
    state.number += 1
    event.number, event.to = state.number, list(to)
    if to:
        state.waiting.append(event)


def _note_end(state: AlertState, standing: StandingCondition, now_s: float) -> None:
    what = standing.findings[0]["what"]
    state.over.append(Over(what, standing.since, now_s))
    dropped = max(0, len(state.over) - OVER_MAX)
    state.over_dropped += dropped
    del state.over[:dropped]


def delivered(state: AlertState, number: int, to: str) -> None:
    """Note that a receiver has got an event, or that it is given up for that receiver."""
    for event in state.waiting:
        if event.number == number and to in event.to:
            event.to.remove(to)
    state.waiting = [event for event in state.waiting if event.to]


def reached(state: AlertState, to: str) -> None:
    """A receiver has got what it was sent."""
    state.failing.pop(to, None)


def failed(state: AlertState, to: str, why: str, now_s: float) -> bool:
    """A receiver cannot be told; returns whether that is news."""
    undelivered = state.failing.get(to)
    state.failing[to] = Undelivered(undelivered.since if undelivered is not None else now_s, why)
    return undelivered is None or undelivered.why != why


def forget_others(state: AlertState, receivers: Collection[str]) -> bool:
    """Drop receivers other than these, and what waits for them; returns whether there was one."""
    others = {*state.failing, *(to for event in state.waiting for to in event.to)} - {*receivers}
    for other in others:
        state.failing.pop(other, None)
        for event in state.waiting:
            event.to = [to for to in event.to if to != other]
    state.waiting = [event for event in state.waiting if event.to]
    return bool(others)


def text_of(event: Event) -> str:
    """An event as one line for people."""
    if event.event == DIGEST:
        return f"digest: {event.findings[0]['what']}"
    first = event.findings[0] if event.findings else {"what": event.condition, "why": ""}
    more = f" (and {len(event.findings) - 1} more)" if len(event.findings) > 1 else ""
    if event.event == ENDS:
        return f"over: {first['what']}{more}"
    return f"{event.level}: {first['what']}{': ' if first['why'] else ''}{first['why']}{more}"

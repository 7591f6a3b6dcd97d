"""appliance.health.digest: one a day, about all since the last one, over restarts and clocks that were wrong."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.health.alerts import (
    BEGIN_LOOKS,
    DIGEST,
    END_LOOKS,
    OVER_MAX,
    AlertState,
    Event,
    Figures,
    take_findings,
    text_of,
)
from appliance.health.digest import last_due_s, take_digest

from .test_alerts import finding

DAY_S = 86_400.0
NOON_S = datetime(2026, 3, 10, 12).timestamp()
TIMES = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")


@given(TIMES, st.floats(1e9, 2e9))
def test_the_last_due_moment_is_of_this_day_or_the_one_before(time_of_day: str, now_s: float) -> None:
    due_s = last_due_s(time_of_day, now_s)
    assert datetime.fromtimestamp(due_s).strftime("%H:%M:%S") == f"{time_of_day}:00" or _changes(due_s)
    assert 0 <= now_s - due_s <= DAY_S + 3_600 + 60, "a day in which clocks are changed is an hour longer"


def _changes(at_s: float) -> bool:
    """Whether the clock of the zone is changed within an hour of a moment: then a time of day may be missing."""
    offsets = {datetime.fromtimestamp(at_s + hours * 3_600).astimezone().utcoffset() for hours in (-1, 0, 1)}
    return len(offsets) > 1


@given(st.lists(st.floats(1.0, 3 * DAY_S), max_size=30), TIMES)
def test_there_is_one_for_each_due_moment_that_was_seen(steps_s: list[float], time_of_day: str) -> None:
    """Looks come whenever they come: each digest covers exactly the time since the one before."""
    state, now_s, told = AlertState(), NOON_S, list[Event]()
    for step_s in [0.0, *steps_s]:
        now_s += step_s
        state = msgspec.json.decode(msgspec.json.encode(state), type=AlertState)
        take_digest(state, time_of_day, Figures(), now_s, ["mail"])
        told += state.waiting
        state.waiting.clear()
    assert all(event.since < last_due_s(time_of_day, event.at) <= event.at for event in told)
    moments = [NOON_S, *(event.at for event in told)]
    assert [event.since for event in told] == moments[: len(told)]
    assert last_due_s(time_of_day, now_s) <= moments[-1], "none is missing"


def test_it_says_what_lasts_what_is_over_and_what_came_in() -> None:
    state = AlertState()
    take_digest(state, "07:00", Figures(5.0, 1_000, 10_000, 20), NOON_S, ["mail"])
    assert not state.waiting, "the first is about a day that has just begun"
    for at in range(BEGIN_LOOKS):
        take_findings(state, [finding(0, "the disk is full"), finding(1, "a writer dies")], NOON_S + at, [], "warning")
    for at in range(END_LOOKS):
        take_findings(state, [finding(1, "a writer dies")], NOON_S + 600 + at, [], "warning")
    figures = Figures(5.0, 3_500, 10_000 + (1 << 20), 20 + (1 << 11), 1 << 30, 4 << 30)
    assert not take_digest(state, "07:00", figures, NOON_S + 3_600, ["mail"])
    assert take_digest(state, "07:00", figures, NOON_S + DAY_S, ["mail"])
    (event,) = state.waiting
    assert (event.event, event.level, event.since, event.at) == (DIGEST, "info", NOON_S, NOON_S + DAY_S)
    first, lasts, over, room = event.findings
    assert first["what"] == "1 wrong still, 1 over; 2,500 messages (1.0 MiB) came in, 2.0 KiB were fetched"
    assert text_of(event) == f"digest: {first['what']}"
    assert lasts["what"] == "lasts for 24 h: a writer dies" and lasts["todo"] == "do this"
    assert over["what"] == "over: the disk is full" and over["why"].endswith("and lasted for 10 min")
    assert room["what"] == "the disk has 1.0 GiB of 4.0 GiB free"
    assert take_digest(state, "07:00", figures, NOON_S + 2 * DAY_S, ["mail"])
    assert "1 wrong still, 0 over; 0 messages" in state.waiting[-1].findings[0]["what"], "what is over is told once"


def test_after_a_restart_of_the_appliance_it_counts_from_there() -> None:
    state = AlertState()
    take_digest(state, "07:00", Figures(5.0, 1_000, 10, 10), NOON_S, ["mail"])
    take_digest(state, "07:00", Figures(9.0, 3, 4, 5), NOON_S + DAY_S, ["mail"])
    says = "3 messages (4 B) came in, 5 B were fetched since the appliance was started"
    assert state.waiting[0].findings[0]["what"] == f"nothing was wrong; {says}"


@pytest.mark.parametrize("jump_s", [-400 * DAY_S, 400 * DAY_S])
def test_a_clock_that_was_wrong_stops_no_digest(jump_s: float) -> None:
    state = AlertState()
    for now_s in (NOON_S, NOON_S + jump_s, NOON_S + DAY_S, NOON_S + 2 * DAY_S, NOON_S + 3 * DAY_S):
        before = state.number
        take_digest(state, "07:00", Figures(), now_s, ["mail"])
    assert state.number == before + 1, "the last day has one"


def test_it_is_turned_off_and_on() -> None:
    state = AlertState()
    take_digest(state, "07:00", Figures(), NOON_S, ["mail"])
    assert take_digest(state, "", Figures(), NOON_S + DAY_S, ["mail"]) and not state.waiting
    assert not take_digest(state, "", Figures(), NOON_S + DAY_S, ["mail"])
    assert take_digest(state, "07:00", Figures(), NOON_S + 9 * DAY_S, ["mail"]) and not state.waiting


def test_what_is_over_is_bounded() -> None:
    state, looks = AlertState(), OVER_MAX + 7
    now_s = NOON_S
    for _ in range(looks):
        for found in [[finding(0)]] * BEGIN_LOOKS + [[]] * END_LOOKS:  # type: ignore[list-item]
            now_s += 1
            take_findings(state, found, now_s, [], "warning")
    assert len(state.over) == OVER_MAX and state.over_dropped == 7
    state.digest_at = NOON_S
    take_digest(state, "07:00", Figures(), NOON_S + DAY_S, ["mail"])
    assert f"0 wrong still, {looks} over" in state.waiting[0].findings[0]["what"]
    assert state.waiting[0].findings[-1]["what"] == "over: 7 earlier ones"

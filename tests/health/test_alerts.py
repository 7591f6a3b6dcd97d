"""appliance.health.alerts: each condition begins once and ends once, whatever looks find, also over a restart."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from appliance.health.alerts import BEGIN_LOOKS, END_LOOKS, WAITING_MAX, AlertState, delivered, take_findings, text_of
from appliance.health.conditions import CONDITIONS, CRITICAL
from appliance.health.findings import Finding

SOME = CONDITIONS[:3]
WARNING = next(condition for condition in CONDITIONS if condition.level != CRITICAL)


def finding(number: int, what: str = "it is wrong") -> Finding:
    return Finding(SOME[number], what, "for a reason", "do this", "page")


LOOKS = st.lists(st.sets(st.integers(0, len(SOME) - 1)), max_size=40)


@given(LOOKS, st.sets(st.integers(0, 40)))
def test_begins_and_ends_take_turns(looks: list[set[int]], restarts: set[int]) -> None:
    state, told = AlertState(), list[tuple[str, str]]()
    for at, present in enumerate(looks):
        if at in restarts:
            state = msgspec.json.decode(msgspec.json.encode(state), type=AlertState)
        take_findings(state, [finding(number) for number in present], float(at), ["webhook"], "warning")
        for event in list(state.waiting):
            told.append((event.condition, event.event))
            assert event.since <= event.at == at
            delivered(state, event.number, "webhook")
        assert not state.waiting
    for number, condition in enumerate(SOME):
        events = [event for name, event in told if name == condition.name]
        assert events == ["begins", "ends"] * (len(events) // 2) + ["begins"] * (len(events) % 2)
        held = "".join("x" if number in looked_at else "." for looked_at in looks)
        assert bool(events) == ("x" * BEGIN_LOOKS in held)
        if held.endswith("x" * BEGIN_LOOKS):
            assert len(events) % 2 == 1, "it is told of as long as it lasts"
        if held.endswith("." * END_LOOKS):
            assert len(events) % 2 == 0


def test_what_flickers_is_told_once() -> None:
    state = AlertState()
    for at in range(20):
        take_findings(state, [finding(0)] if at % 3 else [], float(at), ["webhook"], "warning")
    assert [event.event for event in state.waiting] == ["begins"]


def test_each_receiver_gets_an_event_by_itself() -> None:
    state = AlertState()
    for at in range(BEGIN_LOOKS):
        take_findings(state, [finding(0), finding(0, "another")], float(at), ["webhook", "mail"], "warning")
    (event,) = state.waiting
    assert [row["what"] for row in event.findings] == ["it is wrong", "another"]
    assert text_of(event) == f"{SOME[0].level}: it is wrong: for a reason (and 1 more)"
    delivered(state, event.number, "mail")
    assert state.waiting[0].to == ["webhook"]
    delivered(state, event.number, "webhook")
    assert not state.waiting


def test_only_what_is_wanted_is_told() -> None:
    state = AlertState()
    warning = Finding(WARNING, "a warning", "", "", "")
    for at in range(BEGIN_LOOKS):
        take_findings(state, [warning], float(at), ["webhook"], CRITICAL)
        take_findings(state, [], float(at), [], "warning")
    assert not state.standing and not state.waiting


def test_no_more_wait_than_may() -> None:
    state, dropped = AlertState(), 0
    for at in range(2 * WAITING_MAX * (BEGIN_LOOKS + END_LOOKS)):
        findings = [finding(0)] if at % (BEGIN_LOOKS + END_LOOKS) < BEGIN_LOOKS else []
        dropped += take_findings(state, findings, float(at), ["webhook"], "warning")
    assert len(state.waiting) == WAITING_MAX and dropped == state.number - WAITING_MAX > 0
    assert state.waiting[-1].number == state.number, "the newest are kept"


def test_what_nobody_wants_to_be_told_of_any_more_is_not_said_to_be_over() -> None:
    state, warning = AlertState(), Finding(WARNING, "it is wrong", "for a reason", "do this", "page")
    for at in range(BEGIN_LOOKS):
        take_findings(state, [warning], float(at), ["webhook"], "warning")
    for at in range(END_LOOKS + 1):
        take_findings(state, [warning], float(at), ["webhook"], CRITICAL)
    assert [event.event for event in state.waiting] == ["begins"] and not state.standing

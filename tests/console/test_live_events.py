"""What a page is sent: only what its visitor may see, then only what has changed; looks stop when nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from appliance.console.history import Recorder
from appliance.console.live_events import ROWS_OF_EVENT_MAX, changes, parts, visible
from appliance.console.observer import ConsoleSnapshot, Observer, Poller
from appliance.console.topic_rows import PartitionsNow, PlacedPartition, PlacedTopic, TopicRow
from appliance.console.visitors import Visitor
from appliance.metrics.looks import Look
from appliance.metrics.readings import Readings, of_status
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType, Rights
from appliance.status import NOTHING

ROWS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))
SECTIONS = st.fixed_dictionaries({"topics": ROWS, "groups": ROWS})


@given(st.lists(SECTIONS, min_size=2, max_size=5))
def test_a_page_that_takes_the_changes_has_the_last_state(states: list[dict[str, dict[str, int]]]) -> None:
    kept: dict[str, dict[str, int]] = {"topics": {}, "groups": {}}
    before: dict[str, dict[str, int]] = {}
    for state in states:
        event = changes(before, state)  # type: ignore[arg-type]
        for section, rows in event["set"].items():
            kept[section] |= rows
        for section, keys in event["gone"].items():
            for key in keys:
                del kept[section][key]
        assert kept == state
        assert not (before == state and (event["set"] or event["gone"])), "nothing has changed"
        before = state


def test_many_rows_come_in_several_events() -> None:
    topics = {f"topic-{number}": number for number in range(2 * ROWS_OF_EVENT_MAX + 1)}
    whole = changes({"groups": {"gone": 1}}, {"topics": topics, "groups": {"a": 1}, "alerts": {"": []}})
    sent = list(parts(whole))
    assert [len(part["set"].get("topics", ())) for part in sent] == [ROWS_OF_EVENT_MAX, ROWS_OF_EVENT_MAX, 1]
    assert [part["more"] for part in sent] == [True, True, False]
    assert sent[0]["gone"] == {"groups": ["gone"]} and not sent[2]["gone"]
    assert {name: row for part in sent for name, row in part["set"].get("topics", {}).items()} == topics
    assert sent[2]["set"]["groups"] == {"a": 1} and sent[2]["set"]["alerts"] == {"": []}


def rule(resource: ResourceType, name: str) -> Acl:
    return Acl(resource, name, PatternType.LITERAL, "User:a", "*", Operation.DESCRIBE, Permission.ALLOW)


def test_only_what_may_be_seen() -> None:
    lag = {"lag_messages": 3, "lag_bytes": None, "lag_seconds": 1.5, "lost_bytes": 0}
    rows = [{"topic": "mine", **lag}, {"topic": "other", **lag}, {"topic": "mine", **lag, "lag_messages": None}]
    members = [
        {"client": "c", "host": "10.0.0.7", "partitions": [["mine", 0]]},
        {"client": "", "host": "", "partitions": [["other", 0]]},
    ]
    detail = {"partitions": rows, "members": members}
    snapshot = ConsoleSnapshot(
        number=1,
        at_ms=0,
        appliance={"state": "serving"},
        alerts=[],
        rated=True,
        topics={name: TopicRow(1, 0, 0, "online", {}) for name in ("mine", "other")},
        partitions=PartitionsNow(
            {name: PlacedTopic((PlacedPartition(0, 1, False),), {}) for name in ("mine", "other")}
        ),
        groups={name: {"state": "stable", "lag_asked_ms": 7} for name in "gh"},
        details={"g": detail, "h": detail},
    )
    rules = [rule(ResourceType.TOPIC, "mine"), rule(ResourceType.GROUP, "g")]
    visitor = Visitor(Rights(rules).access("User:a", "*"), "10.0.0.1:5")
    seen = visible(snapshot, visitor, "other", "h")
    assert seen["topics"].keys() == {"mine"} and seen["groups"].keys() == {"g"}
    assert not any(seen[section] for section in ("partitions", "readers", "group", "appliance", "alerts"))
    seen = visible(snapshot, visitor, "mine", "g")
    assert list(seen["partitions"]) == ["0"] and seen["group"][""]["partitions"] == [rows[0], rows[2]]
    assert seen["readers"] == {
        "g": {"state": "stable", "members": 1, "clients": ["c at 10.0.0.7"], "lag_messages": 3, "lag_bytes": None}
        | {"lag_seconds": 1.5, "lost_bytes": 0, "lag_asked_ms": 7}
    }


class FakePoller(Poller):
    """Counts its looks."""

    def __init__(self) -> None:
        self.focus: list[Collection[str]] = []
        self.closed = self.reads = 0

    def read(self) -> Readings:
        self.reads += 1
        return of_status(NOTHING | {"pid": None, "partitions": []}, 0)

    def look(self) -> Look:
        return Look(of_status(NOTHING | {"pid": None, "partitions": []}, 0))

    def take(self, look: Look, focus: Collection[str]) -> ConsoleSnapshot:
        self.focus.append(focus)
        return ConsoleSnapshot(len(self.focus), 0, {}, [], False, {}, PartitionsNow(), {}, {})

    def close(self) -> None:
        self.closed += 1


def test_nothing_is_done_while_nobody_watches() -> None:
    async def play() -> None:
        look = FakePoller()
        recorder = Recorder(60, lambda: 0.0, lambda: 0.0, lambda: None)
        observer = Observer(look, recorder, lambda: 0.0)
        running = asyncio.create_task(observer.run())
        await asyncio.sleep(0)
        assert look.focus == []
        with observer.watching("g"):
            assert (await observer.snapshot_after(0)).number == 1
        assert look.focus == [["g"]] and observer.watchers == 0
        running.cancel()

    asyncio.run(play())

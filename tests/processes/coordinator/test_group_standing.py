"""appliance.processes.coordinator.group_standing: from what is stored to rows with words, by the wall clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from appliance.groups.standstill import MemberHeard
from appliance.groups.store import Commit, RegisteredGroup, RegisteredMember
from appliance.names import TopicPartition
from appliance.processes.coordinator.group_standing import GroupStanding
from appliance.processes.coordinator.measurements import GroupLag, Measured

HOUR_MS = 3_600_000
WEB = [TopicPartition("web", number) for number in range(3)]
MEASURED = {part: Measured(0, 5_000, 100, GroupLag(40, 4_000, 9.0)) for part in WEB}
RATES = {("app", "10.0.0.7"): 5_120.0}


def rows() -> tuple[list[dict[str, Any]], GroupStanding]:
    now_ms = int(time.time() * 1000)
    member = RegisteredMember("app-1", "app", "/10.0.0.7", ("web",), tuple(WEB[:2]))
    standing = GroupStanding(
        RegisteredGroup("g", False, (member,), owned_ms=dict.fromkeys(WEB[:2], now_ms - 5 * HOUR_MS)),
        "stable",
        {WEB[0]: Commit(1_000, "a note"), WEB[2]: Commit(1_000)},
        {WEB[0]: now_ms - 3 * HOUR_MS, WEB[2]: now_ms - 3 * HOUR_MS},
        {"app-1": MemberHeard(2.04, 45.0)},
        ["web"],
    )
    return asyncio.run(standing.rows(standing.parts, MEASURED, lambda: RATES)), standing


def test_times_are_told_as_ages_and_rates_are_those_of_the_client() -> None:
    (first, second, third), standing = rows()
    has = "app at 10.0.0.7 has it"
    why = "but fetches 5.0 KiB/s: its program reads and does not commit; see its log"
    assert first["why"] == f"{has} and has not committed for 3 h {why}"
    assert second["why"] == f"{has} and has never committed {why}"
    assert third["why"] == "nobody reads: members subscribe to the topic, but none was given this partition"
    assert (first["note"], first["owner"], third["owner"]) == ("a note", "app-1", "")
    assert (second["committed_ms"], third["owned_ms"]) == (None, None)
    assert first["owned_ms"] < first["committed_ms"] == third["committed_ms"]
    assert [row["silent_s"] for row in standing.members()] == [2.0]


def test_what_nobody_waits_for_reads_no_file() -> None:
    """The rates of clients are in a file, which the console would have read for every group at every look."""
    group = RegisteredGroup("g", False, ())
    standing = GroupStanding(group, "empty", {WEB[0]: Commit(1_000)}, {}, {}, ["web"])

    def rates() -> dict[tuple[str, str], float]:
        raise AssertionError("it was read")

    (row,) = asyncio.run(standing.rows(standing.parts, MEASURED, rates))
    assert row["why"] == "nobody reads: the group has no members, start its consumers"

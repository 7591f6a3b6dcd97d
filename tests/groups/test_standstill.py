"""appliance.groups.standstill: each line of its table, in the words that people read."""

from __future__ import annotations

import pytest

from appliance.groups.standstill import GroupReader, MemberHeard, PartitionStanding, explain

READER = GroupReader("app", "10.0.0.7", owned_s=7_200.0, heard=MemberHeard(2.0, 45.0))
LATE = PartitionStanding(
    topic_exists=True,
    offset=1_000,
    start=0,
    end=5_000,
    lag=40,
    committed_s=10_800.0,
    reader=READER,
    state="stable",
    members=2,
    subscribed=2,
)
HAS_NOT = "app at 10.0.0.7 has it and has not committed for 3 h"


def reader(**changes: object) -> PartitionStanding:
    return LATE._replace(reader=READER._replace(**changes))


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (LATE._replace(topic_exists=False), "there is no such topic any more"),
        (LATE._replace(start=None, end=None, lag=None), "nobody can read it now: the partition is offline"),
        (LATE._replace(start=3_048), "2.0 KiB were removed before they were read (retention); it goes on behind them"),
        (
            LATE._replace(start=3_048, reader=None, members=0),
            "2.0 KiB were removed before they were read (retention); nobody reads: the group has no members",
        ),
        (LATE._replace(offset=9_000, lag=0), "its offset is behind the end of the log"),
        (LATE._replace(lag=0), "all is read"),
        (
            LATE._replace(reader=None, members=0),
            "nobody reads: the group has no members, and has last committed 3 h ago; start its consumers",
        ),
        (
            LATE._replace(reader=None, members=0, committed_s=None),
            "nobody reads: the group has no members, start its consumers",
        ),
        (
            LATE._replace(reader=None, members=0, committed_s=5.0),
            "a program that is no member of the group has committed 5 s ago: it is behind, and goes on",
        ),
        (LATE._replace(reader=None, state="rebalancing"), "nobody reads yet: the group rebalances"),
        (LATE._replace(reader=None, subscribed=0), "nobody reads: the 2 members of the group read other topics"),
        (
            LATE._replace(reader=None, subscribed=0, members=1),
            "nobody reads: the 1 member of the group reads other topics",
        ),
        (LATE._replace(reader=None), "nobody reads: members subscribe to the topic, but none was given this partition"),
        (
            reader(heard=MemberHeard(40.0, 45.0)),
            "app at 10.0.0.7 has it and was not heard for 40 s: it is likely to be gone, another member gets this in",
        ),
        (LATE._replace(committed_s=59.0), "app at 10.0.0.7 reads it and commits: it is behind, and goes on"),
        (
            LATE._replace(committed_s=None, reader=READER._replace(owned_s=59.0)),
            "app at 10.0.0.7 has it for 59 s and has not committed yet",
        ),
        (
            LATE._replace(state="rebalancing", awaited=("a at h", "b at h")),
            "the group rebalances, and waits for a at h and b at h to join: a program that does not poll",
        ),
        (
            LATE._replace(state="rebalancing", awaited=("a", "b", "c", "d")),
            "the group rebalances, and waits for a and b and c and others to join",
        ),
        (LATE, f"{HAS_NOT}; its heartbeats come: its program is paused, busy with one message, or does not commit"),
        (reader(heard=None), f"{HAS_NOT}; it is a member: its program is paused"),
        (
            reader(fetched_s=231.5),
            f"{HAS_NOT} and fetches next to nothing; its heartbeats come: its program is paused, ",
        ),
        (reader(fetched_s=2_048.0), f"{HAS_NOT} but fetches 2.0 KiB/s: its program reads and does not commit"),
        (LATE._replace(committed_s=None), "app at 10.0.0.7 has it and has never committed; its heartbeats come"),
    ],
)
def test_each_line_of_the_table(seen: PartitionStanding, says: str) -> None:
    assert explain(seen).startswith(says)


def test_only_a_partition_that_waits_for_its_reader_stalls() -> None:
    assert LATE.stalls
    for seen in (LATE._replace(lag=0), LATE._replace(reader=None), LATE._replace(committed_s=1.0)):
        assert not seen.stalls


def test_a_session_says_when_a_member_was_heard() -> None:
    assert MemberHeard.by_session(40_000, 45_000) == MemberHeard(5.0, 45.0)
    assert MemberHeard.by_session(50_000, 45_000) == MemberHeard(0.0, 45.0), "prolonged"

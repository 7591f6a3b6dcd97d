"""Says in words how a group stands in a partition: why it has not read all of it, as far as a coordinator can know.

The first line of this table that fits is said::

    the partition                                            said
    is of a topic that there is not any more                 gone
    cannot be measured                                       offline, or its broker does not answer
    has an offset below the log start                        removed unread
    has an offset behind the log end                         the log is shorter than it was
    is read up to its end                                    all is read
    waits for a rebalance that waits for a member            for which
    has no reader: no members, a rebalance, no subscription  which of these it is, and the last commit
    has a reader that the coordinator does not hear          when its session ends
    has a reader that has committed in RECENT_S              it goes on
    has a reader that has not                                whether that fetches, so what to look at
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..units import counted, duration, size

RECENT_S: Final = 60.0
"""Clients commit every five seconds if they do it by themselves."""
NAMED_MAX: Final = 3
"""Members that are named in one line."""
LATE: Final = 0.5
"""A member that was not heard for this share of its session is likely to be gone: they send three in one."""
FETCHES_BYTES_S: Final = 1_024.0
"""Heartbeats and empty answers take less: 230 bytes with librdkafka and two partitions."""


class MemberHeard(NamedTuple):
    """When the coordinator has heard a member last, and how long its session is.

    ``awaited``: a rebalance waits for its request.
    """

    silent_s: float
    session_s: float
    awaited: bool = False

    @classmethod
    def by_session(cls, left_ms: int, session_ms: int, *, awaited: bool = False) -> MemberHeard:
        """Of a member whose session is over in ``left_ms``, if nothing more is heard."""
        return cls(max(0, session_ms - left_ms) / 1000, session_ms / 1000, awaited)


class GroupReader(NamedTuple):
    """The member that has a partition.  ``owned_s``: for how long; ``heard``: None at another broker.

    ``fetched_s``: bytes per second that go to its client now; None: not known.
    """

    name: str
    host: str
    owned_s: float | None
    heard: MemberHeard | None
    fetched_s: float | None = None

    @property
    def text(self) -> str:
        return f"{self.name} at {self.host}" if self.host else self.name


class PartitionStanding(NamedTuple):
    """What is known of a group in one partition; ``start``, ``end`` and ``lag``: None where it cannot be measured.

    ``committed_s``: for how long the offset is committed; ``members``: of the group; ``subscribed``: how many of them
    read the topic; ``awaited``: those that a rebalance waits for.
    """

    topic_exists: bool
    offset: int | None
    start: int | None
    end: int | None
    lag: int | None
    committed_s: float | None
    reader: GroupReader | None
    state: str
    members: int
    subscribed: int
    awaited: tuple[str, ...] = ()

    @property
    def stalls(self) -> bool:
        """Whether there is something to read and a reader, who has not committed lately."""
        return self.reader is not None and bool(self.lag) and not self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether something was committed lately, or there is a new reader that has nothing to commit yet."""
        since_s = self.committed_s
        if since_s is None:
            since_s = self.reader.owned_s if self.reader is not None else None
        return since_s is not None and since_s < RECENT_S


def explain(seen: PartitionStanding) -> str:
    if not seen.topic_exists:
        return "there is no such topic any more"
    if seen.start is None or seen.end is None:
        return "nobody can read it now: the partition is offline, or its broker does not answer (`appliance doctor`)"
    if seen.offset is not None and seen.offset < seen.start:
        lost = size(seen.start - seen.offset)
        return f"{lost} were removed before they were read (retention); {_reader(seen) or 'it goes on behind them'}"
    if seen.offset is not None and seen.offset > seen.end:
        return "its offset is behind the end of the log: the topic was emptied or made anew; reset the group"
    if not seen.lag:
        return "all is read"
    return _reader(seen) or _stalled(seen)


def _reader(seen: PartitionStanding) -> str:
    """Why nobody reads; "" if somebody does."""
    if seen.awaited and not seen.goes_on:
        names = " and ".join(seen.awaited[:NAMED_MAX]) + " and others" * (len(seen.awaited) > NAMED_MAX)
        return f"the group rebalances, and waits for {names} to join: a program that does not poll keeps the others"
    if seen.reader is None:
        if not seen.members:
            return _without_members(seen)
        if seen.state == "rebalancing":
            return "nobody reads yet: the group rebalances, which ends when all its members have joined"
        if not seen.subscribed:
            count = counted(seen.members, "member of the group reads", "members of the group read")
            return f"nobody reads: the {count} other topics"
        return "nobody reads: members subscribe to the topic, but none was given this partition"
    heard = seen.reader.heard
    if heard is not None and heard.silent_s > LATE * heard.session_s:
        left = duration(max(0.0, heard.session_s - heard.silent_s))
        return (
            f"{seen.reader.text} has it and was not heard for {duration(heard.silent_s)}: it is likely to be gone, "
            f"another member gets this in {left}, when its session ends"
        )
    return ""


def _without_members(seen: PartitionStanding) -> str:
    if seen.committed_s is None:
        return "nobody reads: the group has no members, start its consumers"
    since = duration(seen.committed_s)
    if seen.committed_s < RECENT_S:
        return f"a program that is no member of the group has committed {since} ago: it is behind, and goes on"
    return f"nobody reads: the group has no members, and has last committed {since} ago; start its consumers"


def _stalled(seen: PartitionStanding) -> str:
    reader = seen.reader
    assert reader is not None
    if not seen.stalls and seen.committed_s is None:
        return f"{reader.text} has it for {duration(reader.owned_s or 0)} and has not committed yet"
    if not seen.stalls:
        return f"{reader.text} reads it and commits: it is behind, and goes on"
    if seen.committed_s is not None:
        what = f"{reader.text} has it and has not committed for {duration(seen.committed_s)}"
    else:
        what = f"{reader.text} has it and has never committed"
    alive = "its heartbeats come" if reader.heard is not None else "it is a member"
    if reader.fetched_s is None:
        return f"{what}; {alive}: its program is paused, busy with one message, or does not commit"
    if reader.fetched_s < FETCHES_BYTES_S:
        return (
            f"{what} and fetches next to nothing; {alive}: its program is paused, or busy with what it has; see its log"
        )
    return f"{what} but fetches {size(round(reader.fetched_s))}/s: its program reads and does not commit; see its log"

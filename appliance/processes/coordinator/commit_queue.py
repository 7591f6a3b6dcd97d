"""Queues the commits of one group, and keeps the state of this broker's claim on it; without I/O.

:class:`GroupQueue` keeps the newest change of each partition in order of arrival, and the commits that wait for it.
Changes that could not be written go back to the front.  Changes of a commit that was given up are removed, so a refused
change is never written afterwards.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence

from ...errors import ApplianceError
from ...names import TopicPartition
from ...zookeeper.claims import GroupInfo, Held
from ...zookeeper.paths import CommittedOffset

Changes = Mapping[TopicPartition, CommittedOffset | None]
"""None: the offset is deleted."""
Refusals = dict[TopicPartition, ApplianceError]


class State(enum.Enum):
    UNCLAIMED = "unclaimed"
    CLAIMING = "claiming"
    HELD = "held"


class Commit:
    """One request.  ``done``: the errors of the partitions that were refused."""

    def __init__(self, changes: Changes, info: GroupInfo | None, done: asyncio.Future[Refusals]) -> None:
        self.changes, self.info, self.done = changes, info, done

    def complete(self, errors: Mapping[TopicPartition, ApplianceError]) -> None:
        if not self.done.done():
            self.done.set_result({part: errors[part] for part in self.changes if part in errors})

    def fail(self, error: ApplianceError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class GroupQueue:
    """``lock`` is held during requests to ZooKeeper about the group; ``users`` counts those that hold it or wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.UNCLAIMED
        self.held: Held | None = None
        self.session_id = 0
        self.lock = asyncio.Lock()
        self.users = 0
        self.queue: dict[TopicPartition, tuple[Commit, CommittedOffset | None]] = {}
        self.commits: dict[Commit, None] = {}
        self.pumping = False
        self.used = 0.0

    def add(self, commit: Commit) -> None:
        self.commits[commit] = None
        for part, to in commit.changes.items():
            self.queue[part] = (commit, to)

    def withdraw(self, commit: Commit) -> None:
        if self.commits.pop(commit, self) is not self:
            for part in commit.changes:
                if part in self.queue and self.queue[part][0] is commit:
                    del self.queue[part]

    def fail(self, error: ApplianceError, members_only: bool = False) -> None:
        """Fail all commits that wait, or only those of members."""
        for commit in list(self.commits):
            if commit.info is not None or not members_only:
                self.withdraw(commit)
                commit.fail(error)

    def take(self) -> tuple[dict[TopicPartition, tuple[Commit, CommittedOffset | None]], list[Commit]]:
        taken = self.queue, list(self.commits)
        self.queue, self.commits = {}, {}
        return taken

    def put_back(
        self, queue: Mapping[TopicPartition, tuple[Commit, CommittedOffset | None]], commits: Sequence[Commit]
    ) -> None:
        """Put changes that could not be written back to the front, except those of commits that were given up."""
        again = {part: (commit, to) for part, (commit, to) in queue.items() if not commit.done.done()}
        self.queue = again | self.queue
        self.commits = dict.fromkeys(commit for commit in commits if not commit.done.done()) | self.commits

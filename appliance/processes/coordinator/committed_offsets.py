"""The committed offsets of groups: stored in ZooKeeper under the group's claim (:class:`GroupClaims`).

The commits of a group wait in a queue.  One write is in progress at a time; the next write takes all commits that have
come meanwhile.  The writes of all groups that have become ready in one turn of the loop begin together, and share a
transaction (:mod:`.shared_writes`).  Of several commits of one
partition the newest in order of arrival is stored, and the others succeed with it.  A commit waits at most
COMMIT_MS_MAX for ZooKeeper.  Then it fails and leaves the queue: a refused commit is never stored over a newer one.
(A write that has left the queue already may still be stored, before all later ones.)

The values of a group that is claimed are in memory (``Held.values``), as they were when the claim was made and with all
that was written since; readers are answered from there.  Without the claim only the end of a topic changes offsets, or
its return from the trash (``zookeeper/deletion.py``).  So when topics have changed since, one look at ZooKeeper says
whether the offsets are still those.  If not, or after a write that was not answered, they are read anew.  What a person
changes there by hand is seen after the next of these, or when the claim was given back.

What members of a group were told is stored under the claim, too (:meth:`CommittedOffsets.save`), and read with it.

Bounds: SNAPSHOTS_BYTES_MAX for that.  ``offsets_max`` offsets, in memory at most UNIT_BYTES each besides its key, as
counted by the last check of all groups and corrected with every write; a new offset beyond it is refused with
:class:`OffsetsFull` (:class:`OffsetCount`).  The number of waiting commits is bounded by the workers' unanswered
requests.

:class:`GroupQueue`, which does no I/O, keeps the state of this broker's claim on a group, and the newest change of each
partition in order of arrival, and the commits that wait for it.  Changes that could not be written go back to the
front.  Changes of a commit that was given up are removed, so a refused change is never written afterwards.

The claim of this broker on a group that it coordinates (:mod:`appliance.zookeeper.claims`) goes through these states::

    state       event                                              next
    UNCLAIMED   a member joins or a commit comes, with a lease     CLAIMING
    CLAIMING    ZooKeeper has stored the claim                     HELD
    CLAIMING    another has it; ZooKeeper is away; session over    UNCLAIMED   an error, or a retry within the deadline
    HELD        write, join                                        HELD
    HELD        a new session; a write refused for its claim       UNCLAIMED   its members are dissolved (``lose``)
    HELD        another broker is to coordinate the group          UNCLAIMED   so, too; the claim is given back
    HELD        no members, and no request for CLAIM_IDLE_S        UNCLAIMED   the claim is given back
    HELD        no members, and no offsets                         UNCLAIMED   the group is removed

A claim that is UNCLAIMED here may still be stored in ZooKeeper, if the request that made it or gave it back was not
answered.  No other broker can take the group then.  So ``_withdraw`` goes on until it is certain that no claim is left.

After the session's lease has ended, held claims are kept but not used: if the same session comes back, no other broker
can have had the group.

Bounds: CLAIMS_MAX claims; idle ones are given back first.  At most CLAIMS_MAX withdrawals at once; a claim beyond them
remains until its broker takes it again, or its session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ...errors import (
    ApplianceError,
    InvalidRequest,
    NotCoordinator,
    OffsetsFull,
    OutOfResources,
    RequestTimedOut,
    Unavailable,
    ZooKeeperAway,
)
from ...names import TopicPartition
from ...zookeeper import claims as claim_requests
from ...zookeeper import paths
from ...zookeeper.claims import Claimant, GroupInfo, GroupWrite, Held, Stamp
from ...zookeeper.operations import Node, Operation
from ...zookeeper.paths import CommittedOffset
from ...zookeeper.transaction_nodes import StoredGroupOffsets
from .registry_session import RegistrySession
from .shared_writes import SharedWrites

COMMIT_MS_MAX: Final = 10_000
OffsetChanges = Mapping[TopicPartition, CommittedOffset | None]
"""None: the offset is deleted."""
OffsetValues = Mapping[TopicPartition, bytes | None]
"""The same as it is stored."""
CommitRefusals = dict[TopicPartition, ApplianceError]
UNIT_BYTES: Final = 512
"""An offset counts once, and once more for each UNIT_BYTES of path and value: ZooKeeper keeps both in memory."""
PATH_REST_BYTES: Final = 16
"""Bytes of an offset's path besides the group's path and the topic."""
RETRY_S: Final = 0.1
CLAIM_IDLE_S: Final = 600
CLAIMS_MAX: Final = 20_000
SNAPSHOTS_BYTES_MAX: Final = 8 << 20
"""Of all groups of this broker together; members of groups beyond it do not survive the coordinator."""
RELEASES_MAX: Final = 100
"""Idle claims given back in one turn of maintenance."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class LocalMembers(Protocol):
    """What claims have to know of the members here, of either listener, and what these have to know of claims."""

    def has_members(self, group: str) -> bool: ...

    def lose(self, group: str) -> None:
        """The claim on a group is over: dissolve it, in the same step."""


class GroupClaims:
    """Takes and gives back claims: all steps of the table above are here, so that no claim is left behind.

    ``coordinates``: whether this broker coordinates a group, by the brokers that live; ``new_epoch``: a text never used
    again.
    """

    def __init__(
        self,
        registry: RegistrySession,
        claimant: Claimant,
        count: OffsetCount,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        coordinates: Callable[[str], bool],
        new_epoch: Callable[[], str],
        members: LocalMembers,
    ) -> None:
        self._members = members
        self._registry, self._claimant, self._count = registry, claimant, count
        self._coordinates, self._new_epoch, self._spawn = coordinates, new_epoch, spawn
        self._groups: dict[str, GroupQueue] = {}
        self._held_count = 0
        self.snapshot_bytes = 0
        """What the snapshots of all groups that are claimed here take in ZooKeeper."""
        self._withdrawing: set[str] = set()

    @property
    def leads(self) -> bool:
        """Whether this broker may coordinate groups now; always without ZooKeeper, where claims are refused."""
        return self._registry.leased or not self._registry.enabled

    def state(self, group: str) -> ClaimState:
        entry = self._groups.get(group)
        return ClaimState.UNCLAIMED if entry is None else entry.state

    def get(self, group: str) -> GroupQueue | None:
        """A group that has a claim, or commits that wait."""
        return self._groups.get(group)

    def held(self) -> list[tuple[str, Held]]:
        return [(name, entry.held) for name, entry in self._groups.items() if entry.held is not None]

    def had_members(self, group: str) -> bool:
        """Whether a group that is claimed here had members then, which may not be known here yet."""
        entry = self._groups.get(group)
        return entry is not None and entry.had_members

    # ---- events

    def new_session(self) -> None:
        """A new session has begun: the claims of the old one are over, and their groups are dissolved."""
        for entry in list(self._groups.values()):
            if entry.held is not None and entry.session_id != self._registry.session_id:
                self.lose(entry)

    async def review(self) -> None:
        """The live brokers have changed: give back the groups that another broker coordinates now."""
        for entry in list(self._groups.values()):
            if not self._coordinates(entry.name):
                try:
                    await self._give_up(entry)
                except Unavailable as error:  # it is withdrawn in the background: go on with the others
                    log.warning("the claim on group %r is not given back yet: %s", entry.name, error)

    async def tidy(self) -> None:
        """Give back idle claims; called from time to time."""
        idle = [entry for entry in self._groups.values() if self._idle(entry, CLAIM_IDLE_S)]
        for entry in idle[:RELEASES_MAX]:
            await self._release_idle(entry)

    # ---- claims

    @contextlib.asynccontextmanager
    async def locked(self, group: str) -> AsyncIterator[GroupQueue]:
        """Lock a group.  It is forgotten afterwards if it has neither a claim nor commits."""
        entry = self.entry(group)
        await self.lock(entry)
        try:
            yield entry
        finally:
            self.unlock(entry)

    async def lock(self, entry: GroupQueue) -> None:
        """Lock a group until :meth:`unlock`; at once if nobody uses it."""
        entry.users += 1
        try:
            await entry.lock.acquire()
        except BaseException:  # cancelled
            entry.users -= 1
            self.drop_if_idle(entry)
            raise

    def unlock(self, entry: GroupQueue) -> None:
        entry.lock.release()
        entry.users -= 1
        self.drop_if_idle(entry)

    async def carry_out(self, entry: GroupQueue, operation: Operation[T]) -> T:
        """Carry out an operation that needs the claim, in the claim's session."""
        with self.judged(entry):
            return await self._registry.ask(operation, session_id=entry.session_id)

    @contextlib.contextmanager
    def judged(self, entry: GroupQueue) -> Iterator[None]:
        """Draw the conclusions from an error of a request that needs the claim."""
        try:
            yield
        except NotCoordinator:  # deposed
            self.lose(entry)
            raise
        except Unavailable:  # what was written may be stored, or not
            entry.stamp = None
            raise

    def drop_if_idle(self, entry: GroupQueue) -> None:
        """Forget it, not another one that has been made since under its name."""
        idle = entry.held is None and not entry.users and not entry.commits
        if idle and self._groups.get(entry.name) is entry:
            del self._groups[entry.name]

    async def vacate(self, entry: GroupQueue, held: Held) -> None:
        await self._give_back(entry, claim_requests.vacate(entry.name, held))
        self._count.drop_group(entry.name)

    def entry(self, group: str) -> GroupQueue:
        entry = self._groups.get(group)
        if entry is None:
            entry = self._groups[group] = GroupQueue(group)
        return entry

    def is_held(self, entry: GroupQueue) -> bool:
        return entry.held is not None and entry.session_id == self._registry.session_id and self._registry.leased

    async def hold(self, entry: GroupQueue, make: bool = True) -> Held | None:
        """The claim, taken if need be; None if the group does not exist and ``make`` is false.  Needs the lock."""
        if not self._coordinates(entry.name):
            raise NotCoordinator(f"another broker coordinates group {entry.name!r}")
        if entry.held is not None and entry.session_id != self._registry.session_id:
            self.lose(entry)
        if self._registry.enabled and not self._registry.leased:
            raise ZooKeeperAway("the lease of the ZooKeeper session is over: try again")
        if entry.held is not None:
            return entry.held
        await self._make_room()
        session_id = self._registry.session_id
        entry.state = ClaimState.CLAIMING
        try:
            taking = claim_requests.claim_group(entry.name, self._claimant, self._new_epoch(), make=make)
            taken = await self._registry.ask(taking, session_id=session_id)
        except Unavailable:
            self._start_withdrawing(entry.name, session_id)
            raise
        finally:
            entry.state = ClaimState.UNCLAIMED
        if session_id != self._registry.session_id:
            raise ZooKeeperAway("the ZooKeeper session was lost: try again")
        if taken is not None:
            entry.held, entry.session_id, entry.state = taken.held, session_id, ClaimState.HELD
            self._held_count += 1
            entry.snapshot, entry.has_snapshot = taken.snapshot, bool(taken.snapshot)
            entry.stamp, entry.had_members = taken.stamp, taken.has_members
            self.note_snapshot(entry, len(taken.snapshot))
            entry.used = asyncio.get_running_loop().time()
            self._count.set(entry.name, taken.held)
        return entry.held

    def unclaim(self, entry: GroupQueue) -> None:
        self._held_count -= entry.held is not None
        entry.held, entry.snapshot, entry.state = None, b"", ClaimState.UNCLAIMED
        self.note_snapshot(entry, 0)

    def note_snapshot(self, entry: GroupQueue, size: int) -> None:
        """The group's snapshot has this size now, as far as it counts here."""
        self.snapshot_bytes += size - entry.snapshot_bytes
        entry.snapshot_bytes = size

    def lose(self, entry: GroupQueue) -> None:
        """The claim is over: dissolve the group in the same step.

        Members' commits that are not stored yet fail; the members commit again after they have joined again.
        """
        log.warning("the claim on group %r is over", entry.name)
        self.unclaim(entry)
        self._members.lose(entry.name)
        entry.fail(dissolution(entry.name), members_only=True)

    async def _give_up(self, entry: GroupQueue) -> None:
        """Give the claim back, because another broker coordinates the group; that broker has to wait for it."""
        refusal = NotCoordinator(f"another broker coordinates group {entry.name!r}")
        self._members.lose(entry.name)
        entry.fail(refusal)
        async with self.locked(entry.name) as entry:
            if entry.held is not None and not self._coordinates(entry.name):
                if self._members.has_members(entry.name):  # they joined while we waited
                    self._members.lose(entry.name)
                entry.fail(refusal)  # commits have come, or were put back, while we waited
                await self._release(entry, entry.held)

    async def _release_idle(self, entry: GroupQueue) -> None:
        async with self.locked(entry.name) as entry:
            if entry.held is not None and not entry.commits and not self._members.has_members(entry.name):
                await self._release(entry, entry.held)

    async def _release(self, entry: GroupQueue, held: Held) -> None:
        if held.values or entry.has_snapshot:  # its members go on with another coordinator
            await self._give_back(entry, claim_requests.release(held))
        else:
            await self.vacate(entry, held)

    async def _give_back(self, entry: GroupQueue, giving: Operation[None]) -> None:
        self.unclaim(entry)
        try:
            await self._registry.ask(giving, session_id=entry.session_id)
        except Unavailable:
            self._start_withdrawing(entry.name, entry.session_id)
            raise

    def _start_withdrawing(self, group: str, session_id: int) -> None:
        if group not in self._withdrawing and len(self._withdrawing) < CLAIMS_MAX:
            self._withdrawing.add(group)
            self._spawn(self._withdraw(group, session_id))

    async def _withdraw(self, group: str, session_id: int) -> None:
        """Remove our claim, retrying until it is certainly gone, or held again, or the session ends."""
        try:
            while self._registry.session_id == session_id:
                async with self.locked(group) as entry:
                    if entry.held is not None:
                        return
                    with contextlib.suppress(Unavailable):
                        withdrawing = claim_requests.withdraw(paths.group(group), self._claimant)
                        await self._registry.ask(withdrawing, session_id=session_id)
                        return
                await asyncio.sleep(RETRY_S)
        finally:
            self._withdrawing.discard(group)

    async def _make_room(self) -> None:
        if self._held_count < CLAIMS_MAX:
            return
        oldest = [entry for entry in self._groups.values() if self._idle(entry, 0)]
        if not oldest:
            raise ZooKeeperAway(f"this broker coordinates {CLAIMS_MAX} groups already: try again")
        for entry in sorted(oldest, key=lambda entry: entry.used)[:RELEASES_MAX]:
            await self._release_idle(entry)

    def _idle(self, entry: GroupQueue, idle_s: float) -> bool:
        unused = entry.held is not None and not entry.users and not self._members.has_members(entry.name)
        return unused and asyncio.get_running_loop().time() - entry.used >= idle_s


def dissolution(group: str) -> NotCoordinator:
    return NotCoordinator(f"group {group!r} was dissolved: join it again")


class OffsetCount:
    """The count of the last check of all groups, corrected with every write of this broker since.

    Writes of other brokers count at the next check.
    """

    def __init__(self, offsets_max: int) -> None:
        self.offsets_max = offsets_max
        self.total = 0
        self._by_group: dict[str, int] = {}
        self._told_max = 0
        """The ``offsets_max`` for which the journal says that there is no room; 0: there was some since."""

    def __contains__(self, group: str) -> bool:
        """Whether the group has offsets."""
        return self._by_group.get(group, 0) > 0

    def replace(self, sizes: Mapping[str, Mapping[TopicPartition, int]], held: Iterable[tuple[str, Held]]) -> None:
        """Take the result of a check of all groups; for those in ``held`` our own claim is more recent."""
        self._by_group = {
            group: sum(_units(paths.group(group), part, size) for part, size in offsets.items())
            for group, offsets in sizes.items()
        }
        self._by_group |= {group: units(claim, claim.values) for group, claim in held}
        self._change_total(sum(self._by_group.values()) - self.total)

    def set(self, group: str, held: Held) -> None:
        self.add_offsets(group, units(held, held.values) - self._by_group.get(group, 0))

    def add_offsets(self, group: str, more: int) -> None:
        self._by_group[group] = self._by_group.get(group, 0) + more
        self._change_total(more)

    def drop_group(self, group: str) -> None:
        """Forget a group that was removed."""
        self._change_total(-self._by_group.pop(group, 0))

    def _change_total(self, more: int) -> None:
        self.total += more
        if more < 0:
            self._told_max = 0

    def refuse(self, held: Held, values: OffsetValues) -> CommitRefusals:
        """The changes for which there is no room.  A change that needs no more units is never refused."""
        errors: CommitRefusals = {}
        room, group_path, stored = self.offsets_max - self.total, held.group_path, held.values
        for part, value in values.items():
            more = 0 if value is None else _units(group_path, part, len(value))
            if part in stored:
                more -= _units(group_path, part, len(stored[part]))
            if more > 0 and more > room:
                errors[part] = OffsetsFull(
                    f"there is room for {self.offsets_max} committed offsets of all groups: delete unused groups,"
                    " or raise offsets.committed_max"
                )
            else:
                room -= more
        if errors and self._told_max != self.offsets_max:
            self._told_max = self.offsets_max
            log.warning("%s: new offsets are refused: %s", held.group_path, next(iter(errors.values())))
        return errors


def units(held: Held, parts: Iterable[TopicPartition]) -> int:
    """The units of those of these offsets that the group has."""
    group_path, stored = held.group_path, held.values
    return sum([_units(group_path, part, len(stored[part])) for part in parts if part in stored])


def _units(group_path: str, part: TopicPartition, size: int) -> int:
    return 1 + (len(group_path) + len(part.topic) + PATH_REST_BYTES + size) // UNIT_BYTES


class ClaimState(enum.Enum):
    UNCLAIMED = "unclaimed"
    CLAIMING = "claiming"
    HELD = "held"


class QueuedCommit:
    """One request.  ``done``: the errors of the partitions that were refused."""

    def __init__(self, changes: OffsetChanges, info: GroupInfo | None, done: asyncio.Future[CommitRefusals]) -> None:
        self.changes, self.info, self.done = changes, info, done

    def complete(self, errors: Mapping[TopicPartition, ApplianceError]) -> None:
        if not self.done.done():
            self.done.set_result({part: errors[part] for part in self.changes if part in errors} if errors else {})

    def fail(self, error: ApplianceError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class GroupQueue:
    """``lock`` is held during requests to ZooKeeper about the group; ``users`` counts those that hold it or wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ClaimState.UNCLAIMED
        self.held: Held | None = None
        self.snapshot = b""
        """Stored by the coordinator before, until somebody asks for it."""
        self.has_snapshot = False
        """Whether one is stored, as far as is known."""
        self.snapshot_bytes = 0
        self.stamp: Stamp | None = None
        """Of the values in memory: see ``claims.Stored``.  None: they are not certain."""
        self.topics_revision = 0
        """That of the topics when this was so, at least."""
        self.had_members = False
        """Whether members were registered when it was claimed: some may be that nobody here has been asked for yet."""
        self.session_id = 0
        self.lock = asyncio.Lock()
        self.users = 0
        self.queue: dict[TopicPartition, tuple[QueuedCommit, CommittedOffset | None]] = {}
        self.commits: dict[QueuedCommit, None] = {}
        self.writing: list[QueuedCommit] = []
        """Those that have left the queue, and are not stored yet."""
        self.pumping = False
        self.used = 0.0

    def add_commit(self, commit: QueuedCommit) -> None:
        self.commits[commit] = None
        for part, to in commit.changes.items():
            self.queue[part] = (commit, to)

    def withdraw(self, commit: QueuedCommit) -> None:
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

    def take_commits(
        self,
    ) -> tuple[dict[TopicPartition, tuple[QueuedCommit, CommittedOffset | None]], list[QueuedCommit]]:
        taken = self.queue, list(self.commits)
        self.queue, self.commits, self.writing = {}, {}, taken[1]
        return taken

    def put_back(
        self,
        queue: Mapping[TopicPartition, tuple[QueuedCommit, CommittedOffset | None]],
        commits: Sequence[QueuedCommit],
        *,
        dissolved: bool,
    ) -> None:
        """Put changes that could not be written back to the front, except those of commits that were given up.

        ``dissolved``: the group was, meanwhile: its members' commits fail, others wait for the next claim.
        """
        if dissolved:
            for commit in commits:
                if commit.info is not None:
                    commit.fail(dissolution(self.name))
        again = {part: (commit, to) for part, (commit, to) in queue.items() if not commit.done.done()}
        self.queue = again | self.queue
        self.commits = dict.fromkeys(commit for commit in commits if not commit.done.done()) | self.commits


class _Taken(NamedTuple):
    """Commits that a write has taken.  ``errors``: those that it leaves out; ``units_before``: of its offsets."""

    write: GroupWrite
    queue: dict[TopicPartition, tuple[QueuedCommit, CommittedOffset | None]]
    commits: list[QueuedCommit]
    errors: CommitRefusals
    units_before: int


def _time_out(entry: GroupQueue, commit: QueuedCommit) -> None:
    entry.withdraw(commit)
    commit.fail(RequestTimedOut(f"ZooKeeper did not store offsets within {COMMIT_MS_MAX} ms: try again"))


def _fail(commits: Iterable[QueuedCommit], error: ApplianceError) -> None:
    for commit in commits:
        commit.fail(error)


def _without(values: OffsetValues, errors: CommitRefusals) -> OffsetValues:
    return {part: value for part, value in values.items() if part not in errors} if errors else values


class CommittedOffsets:
    """Reads, stores and deletes committed offsets.  ``claims``: on the groups that this broker coordinates."""

    def __init__(
        self,
        registry: RegistrySession,
        claimant: Claimant,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        offsets_max: int,
        coordinates: Callable[[str], bool],
        new_epoch: Callable[[], str],
        clock_ms: Callable[[], int],
        members: LocalMembers,
    ) -> None:
        self.count = OffsetCount(offsets_max)
        self.claims = GroupClaims(registry, claimant, self.count, spawn, coordinates, new_epoch, members)
        self._members = members
        self._registry, self._spawn, self._clock_ms = registry, spawn, clock_ms
        self._writes = SharedWrites(registry, spawn)
        self._ready: list[GroupQueue] = []
        """Groups whose commits wait for the end of this turn."""
        self._topics: dict[str, set[str]] = {}
        """By group, the topics of its offsets at the last check of all groups, and those that it got since."""

    # ---- requests of both listeners

    async def claim(self, group: str, *, make: bool = True) -> bytes:
        """Claim the group, for a member of it; one that does not exist only with ``make``.

        Returns:
            What was stored of its members, to the first call under each claim; else b"".

        Raises:
            NotCoordinator, ZooKeeperAway: it cannot be claimed now.
            InvalidRequest: this appliance runs without ZooKeeper.
        """
        entry = self.claims.get(group)
        if entry is None or not self.claims.is_held(entry):
            async with self.claims.locked(group) as entry:
                if await self.claims.hold(entry, make) is None:
                    return b""
        entry.used = asyncio.get_running_loop().time()
        snapshot, entry.snapshot = entry.snapshot, b""
        return snapshot

    async def save(self, group: str, snapshot: bytes | None) -> None:
        """Store what the members of a group were told, or (None) that there are none.

        Raises:
            Unavailable: it may or may not be stored; try again.
            NotCoordinator: another broker has the group.
            InvalidRequest, OutOfResources: it, or all of them together, are too large; what was stored before is
                deleted.
        """
        async with self.claims.locked(group) as entry:
            held = await self.claims.hold(entry, make=snapshot is not None)
            if held is None:
                return  # it was removed when its last member left
            size = len(snapshot or b"")
            others = self.claims.snapshot_bytes - entry.snapshot_bytes
            fits = size <= claim_requests.SNAPSHOT_BYTES_MAX and others + size <= SNAPSHOTS_BYTES_MAX
            self.claims.note_snapshot(entry, max(size if fits else 0, entry.snapshot_bytes))  # until it is certain
            await self._save(entry, held, snapshot if fits else None)
            self.claims.note_snapshot(entry, size if fits else 0)
        if size > claim_requests.SNAPSHOT_BYTES_MAX:
            raise InvalidRequest(f"group {group!r} has more members than ZooKeeper takes: they survive no restart")
        if not fits:
            raise OutOfResources(f"members of all groups take {SNAPSHOTS_BYTES_MAX >> 20} MiB in ZooKeeper already")

    async def _save(self, entry: GroupQueue, held: Held, snapshot: bytes | None) -> None:
        for _ in range(2):
            saving = claim_requests.save(entry.name, held, snapshot, is_there=entry.has_snapshot)
            if await self.claims.carry_out(entry, saving):
                entry.has_snapshot = snapshot is not None
                return
            entry.has_snapshot = not entry.has_snapshot  # a request that was given up has been carried out
        raise ZooKeeperAway(f"what is stored of group {entry.name!r} keeps changing; try again")

    async def commit(self, group: str, changes: OffsetChanges, protocol_type: str = "") -> CommitRefusals:
        """Store offsets, or (None) delete them; the result names those that were refused.

        ``protocol_type``: of the group that the commit's member belongs to; "" for others.

        Raises:
            RequestTimedOut: ZooKeeper did not take them within COMMIT_MS_MAX.
            NotCoordinator: another broker has the group.
        """
        entry = self.claims.entry(group)
        info = GroupInfo(protocol_type, self._clock_ms()) if protocol_type else None
        loop = asyncio.get_running_loop()
        commit = QueuedCommit(changes, info, loop.create_future())
        entry.add_commit(commit)
        self._wake(entry)
        deadline = loop.call_later(COMMIT_MS_MAX / 1000, _time_out, entry, commit)
        try:
            return await commit.done
        finally:
            deadline.cancel()
            entry.withdraw(commit)

    async def commit_with(
        self,
        changes: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
        store: Callable[[Sequence[StoredGroupOffsets]], Operation[int | StoredGroupOffsets]],
    ) -> int:
        """Store offsets of several groups in one step with something else; see :func:`.transaction_nodes.commit`.

        Args:
            store: the operation that stores the offsets that it is given.

        Raises:
            Unavailable: it may or may not be stored; try again.
        """
        async with contextlib.AsyncExitStack() as stack:
            offsets, entries = [], {}
            for group in sorted(changes):  # always in one order, so that two do not wait for each other
                entry = entries[group] = await stack.enter_async_context(self.claims.locked(group))
                held = await self.claims.hold(entry)
                assert held is not None
                values = {part: paths.encode_offset(to) for part, to in sorted(changes[group].items())}
                offsets.append(StoredGroupOffsets(group, held, values))
            for group_offsets in offsets:  # once all claims are held
                stack.enter_context(self._counted(group_offsets.group, group_offsets.held, group_offsets.values))
            try:
                result = await self._registry.ask(store(offsets), session_id=self._registry.session_id)
            except BaseException:  # what was written may be stored, or not
                for entry in entries.values():
                    entry.stamp = None
                raise
            if isinstance(result, StoredGroupOffsets):
                self.claims.lose(entries[result.group])
                raise ZooKeeperAway(f"the claim on group {result.group!r} was lost: try again")
            for entry in entries.values():
                entry.used = asyncio.get_running_loop().time()
            return result

    async def read(
        self, group: str, parts: Sequence[TopicPartition] | None, topics_revision: int = 0, *, anew: bool = False
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Stored offsets, including those of commits that came before this call; from memory, if the group is claimed.

        Args:
            topics_revision: grows with each change of a topic.
            anew: look at ZooKeeper in any case.

        Raises:
            ZooKeeperAway: it cannot be reached, or our lease is over.
        """
        entry = self.claims.get(group)
        earlier = [] if entry is None else [commit.done for commit in (*entry.writing, *entry.commits)]
        if earlier:
            await asyncio.wait(earlier, timeout=COMMIT_MS_MAX / 1000)
        values = await self._values(group, topics_revision, anew)
        if values is None:
            return await self._registry.ask(claim_requests.read(group, parts))
        if parts is None:
            return claim_requests.decoded(group, values)
        return claim_requests.decoded(group, {part: values[part] for part in parts if part in values})

    async def _values(self, group: str, topics_revision: int, anew: bool) -> Mapping[TopicPartition, bytes] | None:
        """The offsets of a group that is claimed, of which nobody else can have written newer ones; None: it is not."""
        entry = self.claims.get(group)
        if entry is None or entry.held is None or not self.claims.is_held(entry):
            return None
        held, entry.used = entry.held, asyncio.get_running_loop().time()
        same_topics = entry.stamp is not None and entry.topics_revision == topics_revision
        certain = same_topics and not anew
        if not certain and await self._registry.ask(claim_requests.stamp_of(group)) == entry.stamp:
            certain, entry.topics_revision = True, topics_revision
        if certain:
            return held.values if self.claims.is_held(entry) else None
        return await self._values_anew(group, topics_revision)

    async def _values_anew(self, group: str, topics_revision: int) -> Mapping[TopicPartition, bytes] | None:
        async with self.claims.locked(group) as entry:
            held = entry.held
            if held is None or not self.claims.is_held(entry):
                return None
            stored = await self.claims.carry_out(entry, claim_requests.stored_offsets(group))
            if entry.held is not held:
                return None
            with self._counted(group, held, {*held.values, *stored.values}):
                held.values.clear()
                held.values.update(stored.values)
            entry.stamp, entry.topics_revision = stored.stamp, topics_revision
            return dict(stored.values)

    async def remove(self, group: str) -> bool:
        """Delete a group with all its offsets; False when there is none.

        Raises:
            InvalidRequest: the group has live members.
        """
        async with self.claims.locked(group) as entry:
            held = await self.claims.hold(entry, make=False)
            if held is None:
                return False
            if entry.snapshot:
                raise InvalidRequest(
                    f"group {group!r} may have live members; stop them, or wait for their sessions' end"
                )
            await self.claims.carry_out(entry, claim_requests.remove(group, held))
            self.claims.unclaim(entry)
            if self._members.has_members(group):  # they have come meanwhile: they join again
                self._members.lose(group)
            self.count.drop_group(group)
            return True

    # ---- events

    async def note_emptied(self, group: str) -> None:
        """The last member has left the group: note the time, or, if it has no offsets, remove the group."""
        async with self.claims.locked(group) as entry:
            if self._members.has_members(group) or entry.commits or entry.snapshot:
                return
            if entry.held is None or not self.claims.is_held(entry):
                await self._registry.ask(self._registry.groups.prune(group))
            elif entry.held.values:
                await self._note_active(entry, entry.held)
            else:
                await self.claims.vacate(entry, entry.held)

    async def note_active(self, group: str) -> None:
        """Note that the group has members now, of either listener."""
        async with self.claims.locked(group) as entry:
            held = await self.claims.hold(entry, make=False)
            if held is not None:
                await self._note_active(entry, held)

    async def expire(self, group: str, old: Mapping[TopicPartition, Node]) -> int:
        """Delete offsets that have not changed since they were read; return how many.  Remove a group left empty."""
        async with self.claims.locked(group) as entry:
            held = await self.claims.hold(entry, make=False)
            if held is None or self._members.has_members(group) or entry.snapshot:
                return 0
            gone = await self.claims.carry_out(entry, claim_requests.expire(group, held, old))
            self.count.set(group, held)
            self._topics[group] = {part.topic for part in held.values}
            if not held.values and not entry.commits:
                await self.claims.vacate(entry, held)
            return gone

    def counted(self, sizes: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Take the result of a check of all groups: the sizes of their offsets."""
        self._topics = {group: {part.topic for part in offsets} for group, offsets in sizes.items() if offsets}
        self.count.replace(sizes, self.claims.held())

    def infos(self) -> dict[str, GroupInfo]:
        """What outlives the members of groups that are claimed here.  It is what is stored: nobody else may write."""
        if not self.claims.leads:
            return {}
        return {name: held.info for name, held in self.claims.held()}

    def topics(self) -> dict[str, set[str]]:
        """The groups that have committed offsets, with their topics, as far as this broker knows."""
        held = {group: {part.topic for part in claim.values} for group, claim in self.claims.held()}
        checked = {group: topics for group, topics in self._topics.items() if group in self.count}
        return {group: topics for group, topics in (checked | held).items() if topics}

    # ---- writing

    def _wake(self, entry: GroupQueue) -> None:
        """Have the commits of a group written that wait, if that is not on its way."""
        if entry.commits and not entry.pumping:
            entry.pumping = True
            self._ready.append(entry)
            if len(self._ready) == 1:
                self._spawn(self._begin_ready())

    async def _begin_ready(self) -> None:
        """Begin the writes of all groups that have become ready in this turn of the loop."""
        ready, self._ready = self._ready, []
        for entry in ready:
            if not entry.users and self.claims.is_held(entry):
                await self._begin(entry)  # it does not wait
            else:
                self._spawn(self._begin_alone(entry))
        self._writes.start()

    async def _begin_alone(self, entry: GroupQueue) -> None:
        await self._begin(entry)
        self._writes.start()

    async def _begin(self, entry: GroupQueue) -> None:
        """Begin to write the commits that wait, once the group is locked and claimed; :meth:`_end` unlocks it."""
        await self.claims.lock(entry)
        try:
            held = await self.claims.hold(entry) if entry.commits else None
        except ApplianceError as error:
            self._end(entry, error)
        except BaseException:
            self.claims.unlock(entry)
            raise
        else:
            if held is None:  # all have been given up meanwhile
                self._end(entry, None)
            else:
                self._write(entry, held)

    def _end(self, entry: GroupQueue, error: ApplianceError | None) -> None:
        """The write is over: go on with the commits that wait, after a moment if ZooKeeper is away."""
        entry.writing = []
        self.claims.unlock(entry)
        pauses = isinstance(error, Unavailable) and not isinstance(error, NotCoordinator)
        if error is not None and not pauses:
            entry.fail(error)
        if pauses and entry.commits:
            asyncio.get_running_loop().call_later(RETRY_S, self._go_on, entry)
        else:
            self._go_on(entry)

    def _go_on(self, entry: GroupQueue) -> None:
        entry.pumping = False
        self._wake(entry)
        self.claims.drop_if_idle(entry)

    @contextlib.contextmanager
    def _counted(self, group: str, held: Held, parts: Collection[TopicPartition]) -> Iterator[None]:
        """Count what becomes of these offsets, however it ends."""
        before = units(held, parts)
        try:
            yield
        finally:
            self._count(group, held, parts, before)

    def _count(self, group: str, held: Held, parts: Iterable[TopicPartition], before: int) -> None:
        """Count what these offsets have become; before they were so many units."""
        self.count.add_offsets(group, units(held, parts) - before)
        self._topics.setdefault(group, set()).update([part.topic for part in parts if part in held.values])

    def _write(self, entry: GroupQueue, held: Held) -> None:
        """Write the commits that wait at this moment."""
        queue, commits = entry.take_commits()
        info = next((commit.info for commit in reversed(commits) if commit.info is not None), None)
        if info is not None and info.protocol_type == held.info.protocol_type:
            info = None
        try:
            values = claim_requests.encoded({part: to for part, (_, to) in queue.items()})
            errors = self.count.refuse(held, values)
            write = GroupWrite(entry.name, held, _without(values, errors), info)
            taken = _Taken(write, queue, commits, errors, units(held, write.values))
            self._writes.store(write, entry.session_id, functools.partial(self._written, entry, taken))
        except ApplianceError as error:
            _fail(commits, error)
            self._end(entry, None)

    def _written(self, entry: GroupQueue, taken: _Taken, error: ApplianceError | None) -> None:
        """A write is stored, or is not for this error."""
        held, info = taken.write.held, taken.write.info
        try:
            with self.claims.judged(entry):
                if error is not None:
                    raise error
        except NotCoordinator:
            entry.put_back(taken.queue, taken.commits, dissolved=True)
            error = None  # those that are no members' wait for the next claim
        except Unavailable:
            entry.put_back(taken.queue, taken.commits, dissolved=entry.held is not held)
        except ApplianceError as fault:
            _fail(taken.commits, fault)
            error = None
        else:
            if info is not None and entry.held is held:
                entry.held = held._replace(info=info)
            entry.used = asyncio.get_running_loop().time()
            for commit in taken.commits:
                commit.complete(taken.errors)
        self._count(entry.name, held, taken.write.values, taken.units_before)
        self._end(entry, error)

    async def _note_active(self, entry: GroupQueue, held: Held) -> None:
        info = GroupInfo(held.info.protocol_type, self._clock_ms())
        await self.claims.carry_out(entry, claim_requests.write(entry.name, held, {}, info))
        entry.held = held._replace(info=info)

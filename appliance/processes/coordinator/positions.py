"""The positions of groups, and this broker's claims on the groups that it coordinates.

A group's claim (see :mod:`appliance.zookeeper.claims`) goes through these states::

    state       event                                              next
    UNCLAIMED   a member joins or a commit comes, with a lease     CLAIMING
    CLAIMING    ZooKeeper has stored the claim                     HELD
    CLAIMING    another has it; ZooKeeper is away; session over    UNCLAIMED   who waits is told, or tries again in time
    HELD        write, join                                        HELD
    HELD        a new session; a write refused for its claim       UNCLAIMED   ``on_lost``: the group is dissolved
    HELD        another broker is to coordinate the group          UNCLAIMED   ``on_lost``; the claim is given back
    HELD        nobody in it, and nothing asked for CLAIM_IDLE_S   UNCLAIMED   the claim is given back
    HELD        nobody in it, and no positions                     UNCLAIMED   and nothing of the group stays

A claim that is UNCLAIMED here may still stand in ZooKeeper: its request, or the one that gives it back, was not
answered.  No other broker can take the group then.  So ``_withdraw`` goes on until it is certain that no claim is left.

While the session's lease is over, held claims are kept but nothing is done with them: if the same session comes back,
nobody else can have had the group.

Commits of a group queue here.  One write is under way at a time; when it is done all that has come since becomes the
next.  Of several commits of one partition the newest in order of arrival is stored and the others succeed with it,
so there may be any number.  A commit waits COMMIT_MS_MAX for ZooKeeper.  Then it fails, and is taken out of the queue:
what was refused is never stored over something newer.  (A write that was sent already may still land, before all later
ones.)

Bounds: ``positions_max`` positions, as counted by the last look at all groups and corrected with every write; a new
one beyond it is :class:`PositionsFull`.  See :mod:`.position_count`.
CLAIMS_MAX claims: idle ones are given back first.  As many withdrawals at once; a claim beyond them stands until its
broker takes it again, or its session ends.  Commits waiting: as many as requests of workers may be unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from ...errors import ApplianceError, NotCoordinator, RequestTimedOut, Unavailable, ZooKeeperAway
from ...names import TopicPartition
from ...zookeeper import claims
from ...zookeeper.claims import Claimant, GroupInfo, Held
from ...zookeeper.operations import Node, Operation
from ...zookeeper.registry import GroupRegistry, StoredOffset
from .commit_queue import Changes, Commit, GroupQueue, Refusals, State
from .position_count import PositionCount, units

COMMIT_MS_MAX: Final = 10_000
RETRY_S: Final = 0.1
CLAIM_IDLE_S: Final = 600
CLAIMS_MAX: Final = 20_000
RELEASES_MAX: Final = 100
"""Idle claims given back in one turn of maintenance."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Asker(Protocol):
    """The part of the registry that is needed here."""

    enabled: bool
    groups: GroupRegistry

    @property
    def session_id(self) -> int: ...

    @property
    def leased(self) -> bool: ...

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T: ...


class Positions:
    """See the module's docstring.

    ``coordinates``: is the group this broker's, by the brokers that live?  ``has_members``: are there any at our Kafka
    listener?  ``on_lost`` is told a group whose claim is over: it must dissolve it before anything else happens.
    ``new_epoch``: a text that is never used again.
    """

    def __init__(
        self,
        registry: Asker,
        claimant: Claimant,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        positions_max: int,
        coordinates: Callable[[str], bool],
        new_epoch: Callable[[], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self.count = PositionCount(positions_max)
        self.has_members: Callable[[str], bool] = lambda _: False
        self.on_lost: Callable[[str], None] = lambda _: None
        self._registry, self._claimant, self._spawn = registry, claimant, spawn
        self._coordinates, self._new_epoch, self._clock_ms = coordinates, new_epoch, clock_ms
        self._groups: dict[str, GroupQueue] = {}
        self._withdrawing: set[str] = set()

    # ---- what the listeners ask

    @property
    def leads(self) -> bool:
        """May this broker coordinate anything now?  Without ZooKeeper by configuration there is nothing to lead."""
        return self._registry.leased or not self._registry.enabled

    def state(self, group: str) -> State:
        entry = self._groups.get(group)
        return State.UNCLAIMED if entry is None else entry.state

    async def claim(self, group: str) -> None:
        """Have the group's claim, for somebody who joins it.

        Raises:
            NotCoordinator, ZooKeeperAway: not now.
            InvalidRequest: this appliance runs without ZooKeeper.
        """
        entry = self._groups.get(group)
        if entry is None or not self._is_held(entry):
            async with self._locked(group) as entry:
                await self._hold(entry)
        entry.used = asyncio.get_running_loop().time()

    async def commit(self, group: str, changes: Changes, protocol_type: str = "") -> Refusals:
        """Store positions, or (None) delete them; the result names those that were refused.

        ``protocol_type``: of the group that the commit's member belongs to; "" for others.

        Raises:
            RequestTimedOut: ZooKeeper did not take them within COMMIT_MS_MAX.
            NotCoordinator: another broker has the group.
        """
        entry = self._entry(group)
        info = GroupInfo(protocol_type, self._clock_ms()) if protocol_type else None
        commit = Commit(changes, info, asyncio.get_running_loop().create_future())
        entry.add(commit)
        if not entry.pumping:
            entry.pumping = True
            self._spawn(self._pump(entry))
        try:
            async with asyncio.timeout(COMMIT_MS_MAX / 1000):
                return await commit.done
        except TimeoutError:
            raise RequestTimedOut(f"ZooKeeper did not store positions within {COMMIT_MS_MAX} ms: try again") from None
        finally:
            entry.withdraw(commit)

    async def read(self, group: str, parts: Sequence[TopicPartition] | None) -> Mapping[TopicPartition, StoredOffset]:
        """Stored positions; commits that came before count."""
        entry = self._groups.get(group)
        if entry is not None and entry.commits:
            await asyncio.wait([commit.done for commit in entry.commits], timeout=COMMIT_MS_MAX / 1000)
        return await self._registry.ask(claims.read(group, parts))

    async def remove(self, group: str) -> bool:
        """Forget a group with all its positions; False when there is none.

        Raises:
            InvalidRequest: it has live members.
        """
        async with self._locked(group) as entry:
            held = await self._hold(entry, make=False)
            if held is None:
                return False
            await self._carry_out(entry, claims.remove(group, held))
            self._unclaim(entry)
            self.count.drop(group)
            return True

    # ---- what happens around them

    async def left(self, group: str) -> None:
        """Nobody is in the group any more: note when, or, if it has no positions, remove what is there of it."""
        async with self._locked(group) as entry:
            if self.has_members(group) or entry.commits:
                return
            if entry.held is None or not self._is_held(entry):
                await self._registry.ask(self._registry.groups.prune(group))
            elif entry.held.positions:
                await self._note_active(entry, entry.held)
            else:
                await self._vacate(entry, entry.held)

    async def note_active(self, group: str) -> None:
        """The group has members at this moment, of whichever listener."""
        async with self._locked(group) as entry:
            held = await self._hold(entry, make=False)
            if held is not None:
                await self._note_active(entry, held)

    async def expire(self, group: str, old: Mapping[TopicPartition, Node]) -> int:
        """Delete positions that nobody has changed since they were seen; how many.  Of an empty group nothing stays."""
        async with self._locked(group) as entry:
            held = await self._hold(entry, make=False)
            if held is None or self.has_members(group):
                return 0
            gone = await self._carry_out(entry, claims.expire(group, held, old))
            self.count.set(group, held)
            if not held.positions and not entry.commits:
                await self._vacate(entry, held)
            return gone

    def counted(self, sizes: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """All groups were looked at: so large are their positions."""
        held = [(name, entry.held) for name, entry in self._groups.items() if entry.held is not None]
        self.count.replace(sizes, held)

    def new_session(self) -> None:
        """The session is a new one: claims of the old one are over, and with them their groups."""
        for entry in list(self._groups.values()):
            if entry.held is not None and entry.session_id != self._registry.session_id:
                self._lose(entry)

    async def review(self) -> None:
        """The brokers that live have changed: give back the groups that another is to coordinate now."""
        for entry in list(self._groups.values()):
            if not self._coordinates(entry.name):
                try:
                    await self._give_up(entry)
                except Unavailable as error:  # it is withdrawn in the background: go on with the others
                    log.warning("the claim on group %r is not given back yet: %s", entry.name, error)

    async def tidy(self) -> None:
        """From time to time: give claims back that nobody uses."""
        idle = [entry for entry in self._groups.values() if self._idle(entry, CLAIM_IDLE_S)]
        for entry in idle[:RELEASES_MAX]:
            await self._release_idle(entry)

    # ---- claims

    @contextlib.asynccontextmanager
    async def _locked(self, group: str) -> AsyncIterator[GroupQueue]:
        """A group, for one at a time; nothing is remembered of one that was only asked for."""
        entry = self._entry(group)
        entry.users += 1
        try:
            async with entry.lock:
                yield entry
        finally:
            entry.users -= 1
            self._drop_if_idle(entry)

    async def _carry_out(self, entry: GroupQueue, operation: Operation[T]) -> T:
        """An operation that needs the claim, in its session."""
        try:
            return await self._registry.ask(operation, session_id=entry.session_id)
        except NotCoordinator:  # deposed
            self._lose(entry)
            raise

    def _drop_if_idle(self, entry: GroupQueue) -> None:
        if entry.held is None and not entry.users and not entry.commits:
            self._groups.pop(entry.name, None)

    async def _vacate(self, entry: GroupQueue, held: Held) -> None:
        await self._give_back(entry, claims.vacate(entry.name, held))
        self.count.drop(entry.name)

    def _entry(self, group: str) -> GroupQueue:
        entry = self._groups.get(group)
        if entry is None:
            entry = self._groups[group] = GroupQueue(group)
        return entry

    def _is_held(self, entry: GroupQueue) -> bool:
        return entry.held is not None and entry.session_id == self._registry.session_id and self._registry.leased

    async def _hold(self, entry: GroupQueue, make: bool = True) -> Held | None:
        """The claim, taken if need be; None only for a group that is not there and not to be made.  Under the lock."""
        if not self._coordinates(entry.name):
            raise NotCoordinator(f"another broker coordinates group {entry.name!r}")
        if entry.held is not None and entry.session_id != self._registry.session_id:
            self._lose(entry)
        if self._registry.enabled and not self._registry.leased:
            raise ZooKeeperAway("the lease of the ZooKeeper session is over: try again")
        if entry.held is not None:
            return entry.held
        await self._make_room()
        session_id = self._registry.session_id
        entry.state = State.CLAIMING
        try:
            taking = claims.take(entry.name, self._claimant, self._new_epoch(), make=make)
            held = await self._registry.ask(taking, session_id=session_id)
        except Unavailable:
            self._start_withdrawing(entry.name, session_id)
            raise
        finally:
            entry.state = State.UNCLAIMED
        if session_id != self._registry.session_id:
            raise ZooKeeperAway("the ZooKeeper session was lost: try again")
        if held is not None:
            entry.held, entry.session_id, entry.state = held, session_id, State.HELD
            entry.used = asyncio.get_running_loop().time()
            self.count.set(entry.name, held)
        return held

    def _unclaim(self, entry: GroupQueue) -> None:
        entry.held, entry.state = None, State.UNCLAIMED

    def _lose(self, entry: GroupQueue) -> None:
        """The claim is over: the group is dissolved in the same step.  What its members have committed, but nobody has
        stored, is theirs to commit again when they have joined again.
        """
        log.warning("the claim on group %r is over", entry.name)
        self._unclaim(entry)
        self.on_lost(entry.name)
        self._fail(entry, _dissolved(entry.name), members_only=True)

    def _fail(self, entry: GroupQueue, error: ApplianceError, members_only: bool = False) -> None:
        for commit in list(entry.commits):
            if commit.info is not None or not members_only:
                entry.withdraw(commit)
                commit.fail(error)

    async def _give_up(self, entry: GroupQueue) -> None:
        """Another broker is to coordinate the group, which it cannot before our claim is gone."""
        refusal = NotCoordinator(f"another broker coordinates group {entry.name!r}")
        self.on_lost(entry.name)
        self._fail(entry, refusal)
        async with self._locked(entry.name) as entry:
            if entry.held is not None and not self._coordinates(entry.name):
                if self.has_members(entry.name):  # they have come while we waited
                    self.on_lost(entry.name)
                self._fail(entry, refusal)  # as commits have, or what could not be written has been put back
                await self._release(entry, entry.held)

    async def _release_idle(self, entry: GroupQueue) -> None:
        async with self._locked(entry.name) as entry:
            if entry.held is not None and not entry.commits and not self.has_members(entry.name):
                await self._release(entry, entry.held)

    async def _release(self, entry: GroupQueue, held: Held) -> None:
        if held.positions:
            await self._give_back(entry, claims.release(held))
        else:
            await self._vacate(entry, held)

    async def _give_back(self, entry: GroupQueue, giving: Operation[None]) -> None:
        self._unclaim(entry)
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
        """Remove what claim of ours may stand, until it is certain, or we have the group again, or the session ends."""
        try:
            while self._registry.session_id == session_id:
                async with self._locked(group) as entry:
                    if entry.held is not None:
                        return
                    with contextlib.suppress(Unavailable):
                        await self._registry.ask(claims.withdraw(group, self._claimant), session_id=session_id)
                        return
                await asyncio.sleep(RETRY_S)
        finally:
            self._withdrawing.discard(group)

    async def _make_room(self) -> None:
        if sum(entry.held is not None for entry in self._groups.values()) < CLAIMS_MAX:
            return
        oldest = [entry for entry in self._groups.values() if self._idle(entry, 0)]
        if not oldest:
            raise ZooKeeperAway(f"this broker coordinates {CLAIMS_MAX} groups already: try again")
        for entry in sorted(oldest, key=lambda entry: entry.used)[:RELEASES_MAX]:
            await self._release_idle(entry)

    def _idle(self, entry: GroupQueue, idle_s: float) -> bool:
        rests = entry.held is not None and not entry.users and not self.has_members(entry.name)
        return rests and asyncio.get_running_loop().time() - entry.used >= idle_s

    # ---- writing

    async def _pump(self, entry: GroupQueue) -> None:
        """Write what waits until nothing does."""
        try:
            while entry.commits:
                try:
                    async with self._locked(entry.name):
                        await self._write(entry)
                except NotCoordinator as error:
                    self._fail(entry, error)
                except Unavailable:
                    await asyncio.sleep(RETRY_S)
                except ApplianceError as error:
                    self._fail(entry, error)
        finally:
            entry.pumping = False
            self._drop_if_idle(entry)

    async def _write(self, entry: GroupQueue) -> None:
        """Write all that waits at this moment."""
        held = await self._hold(entry)
        assert held is not None
        queue, commits = entry.take()
        errors = self.count.refuse(held, {part: to for part, (_, to) in queue.items()})
        changes = {part: to for part, (_, to) in queue.items() if part not in errors}
        info = next((commit.info for commit in reversed(commits) if commit.info is not None), None)
        if info is not None and info.protocol_type == held.info.protocol_type:
            info = None
        before = units(held, changes)
        try:
            await self._carry_out(entry, claims.write(entry.name, held, changes, info))
        except NotCoordinator:  # the members are out; what others have committed goes with the next claim
            entry.put_back(queue, [commit for commit in commits if commit.info is None])
            for commit in commits:
                if commit.info is not None:
                    commit.fail(_dissolved(entry.name))
            return
        except Unavailable:
            entry.put_back(queue, commits)
            raise
        except ApplianceError as error:
            for commit in commits:
                commit.fail(error)
            return
        finally:
            self.count.add(entry.name, units(held, changes) - before)
        if info is not None and entry.held is held:
            entry.held = held._replace(info=info)
        entry.used = asyncio.get_running_loop().time()
        for commit in commits:
            commit.settle(errors)

    async def _note_active(self, entry: GroupQueue, held: Held) -> None:
        info = GroupInfo(held.info.protocol_type, self._clock_ms())
        await self._carry_out(entry, claims.write(entry.name, held, {}, info))
        entry.held = held._replace(info=info)


def _dissolved(group: str) -> NotCoordinator:
    return NotCoordinator(f"group {group!r} was dissolved: join it again")

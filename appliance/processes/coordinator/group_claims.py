"""This broker's claims on the groups that it coordinates.

A group's claim (see :mod:`appliance.zookeeper.claims`) goes through these states::

    state       event                                              next
    UNCLAIMED   a member joins or a commit comes, with a lease     CLAIMING
    CLAIMING    ZooKeeper has stored the claim                     HELD
    CLAIMING    another has it; ZooKeeper is away; session over    UNCLAIMED   an error, or a retry within the deadline
    HELD        write, join                                        HELD
    HELD        a new session; a write refused for its claim       UNCLAIMED   ``on_lost``: the group is dissolved
    HELD        another broker is to coordinate the group          UNCLAIMED   ``on_lost``; the claim is given back
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
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from ...errors import NotCoordinator, Unavailable, ZooKeeperAway
from ...zookeeper import claims
from ...zookeeper.claims import Claimant, Held
from ...zookeeper.group_registry import GroupRegistry
from ...zookeeper.operations import Operation
from .commit_queue import GroupQueue, State
from .offset_count import OffsetCount

RETRY_S: Final = 0.1
CLAIM_IDLE_S: Final = 600
CLAIMS_MAX: Final = 20_000
RELEASES_MAX: Final = 100
"""Idle claims given back in one turn of maintenance."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Asker(Protocol):
    """The part of the registry that claims need."""

    enabled: bool
    groups: GroupRegistry

    @property
    def session_id(self) -> int: ...

    @property
    def leased(self) -> bool: ...

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T: ...


class GroupClaims:
    """Takes and gives back claims: all steps of the table above are here, so that no claim is left behind.

    ``coordinates``: whether this broker coordinates a group, by the brokers that live; ``new_epoch``: a text never used
    again; ``has_members``: whether a group has members at our Kafka listener.  ``on_lost`` is called with a group whose
    claim is over, and dissolves it in the same step.

    It has more than 20 methods, because each is one of these steps, or asks for the state.
    """

    def __init__(
        self,
        registry: Asker,
        claimant: Claimant,
        count: OffsetCount,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        coordinates: Callable[[str], bool],
        new_epoch: Callable[[], str],
    ) -> None:
        self.has_members: Callable[[str], bool] = lambda _: False
        self.on_lost: Callable[[str], None] = lambda _: None
        self._registry, self._claimant, self._count = registry, claimant, count
        self._coordinates, self._new_epoch, self._spawn = coordinates, new_epoch, spawn
        self._groups: dict[str, GroupQueue] = {}
        self._withdrawing: set[str] = set()

    @property
    def leads(self) -> bool:
        """Whether this broker may coordinate groups now; always without ZooKeeper, where claims are refused."""
        return self._registry.leased or not self._registry.enabled

    def state(self, group: str) -> State:
        entry = self._groups.get(group)
        return State.UNCLAIMED if entry is None else entry.state

    def get(self, group: str) -> GroupQueue | None:
        """A group that has a claim, or commits that wait."""
        return self._groups.get(group)

    def held(self) -> list[tuple[str, Held]]:
        return [(name, entry.held) for name, entry in self._groups.items() if entry.held is not None]

    # ---- events

    def new_session(self) -> None:
        """A new session has begun: the claims of the old one are over, and their groups are dissolved."""
        for entry in list(self._groups.values()):
            if entry.held is not None and entry.session_id != self._registry.session_id:
                self._lose(entry)

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
        entry.users += 1
        try:
            async with entry.lock:
                yield entry
        finally:
            entry.users -= 1
            self.drop_if_idle(entry)

    async def carry_out(self, entry: GroupQueue, operation: Operation[T]) -> T:
        """Carry out an operation that needs the claim, in the claim's session."""
        try:
            return await self._registry.ask(operation, session_id=entry.session_id)
        except NotCoordinator:  # deposed
            self._lose(entry)
            raise

    def drop_if_idle(self, entry: GroupQueue) -> None:
        if entry.held is None and not entry.users and not entry.commits:
            self._groups.pop(entry.name, None)

    async def vacate(self, entry: GroupQueue, held: Held) -> None:
        await self._give_back(entry, claims.vacate(entry.name, held))
        self._count.drop(entry.name)

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
            self._count.set(entry.name, held)
        return held

    def unclaim(self, entry: GroupQueue) -> None:
        entry.held, entry.state = None, State.UNCLAIMED

    def _lose(self, entry: GroupQueue) -> None:
        """The claim is over: dissolve the group in the same step.

        Members' commits that are not stored yet fail; the members commit again after they have joined again.
        """
        log.warning("the claim on group %r is over", entry.name)
        self.unclaim(entry)
        self.on_lost(entry.name)
        entry.fail(dissolved(entry.name), members_only=True)

    async def _give_up(self, entry: GroupQueue) -> None:
        """Give the claim back, because another broker coordinates the group; that broker has to wait for it."""
        refusal = NotCoordinator(f"another broker coordinates group {entry.name!r}")
        self.on_lost(entry.name)
        entry.fail(refusal)
        async with self.locked(entry.name) as entry:
            if entry.held is not None and not self._coordinates(entry.name):
                if self.has_members(entry.name):  # they joined while we waited
                    self.on_lost(entry.name)
                entry.fail(refusal)  # commits have come, or were put back, while we waited
                await self._release(entry, entry.held)

    async def _release_idle(self, entry: GroupQueue) -> None:
        async with self.locked(entry.name) as entry:
            if entry.held is not None and not entry.commits and not self.has_members(entry.name):
                await self._release(entry, entry.held)

    async def _release(self, entry: GroupQueue, held: Held) -> None:
        if held.sizes:
            await self._give_back(entry, claims.release(held))
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
        unused = entry.held is not None and not entry.users and not self.has_members(entry.name)
        return unused and asyncio.get_running_loop().time() - entry.used >= idle_s


def dissolved(group: str) -> NotCoordinator:
    return NotCoordinator(f"group {group!r} was dissolved: join it again")

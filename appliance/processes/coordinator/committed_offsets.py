"""The committed offsets of groups: stored in ZooKeeper under the group's claim (:mod:`.group_claims`).

The commits of a group wait in a queue.  One write is in progress at a time; the next write takes all commits that have
come meanwhile.  Of several commits of one partition the newest in order of arrival is stored, and the others succeed
with it.  A commit waits at most COMMIT_MS_MAX for ZooKeeper.  Then it fails and leaves the queue: a refused commit is
never stored over a newer one.  (A write that was sent already may still be stored, before all later ones.)

Bounds: ``offsets_max`` offsets, as counted by the last check of all groups and corrected with every write; a new offset
beyond it is refused with :class:`OffsetsFull` (see :mod:`.offset_count`).  The number of waiting commits is bounded
by the workers' unanswered requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from ...errors import ApplianceError, NotCoordinator, RequestTimedOut, Unavailable
from ...names import TopicPartition
from ...zookeeper import claims as zookeeper_claims
from ...zookeeper.claims import Claimant, GroupInfo, Held
from ...zookeeper.offset_registry import StoredOffset
from ...zookeeper.operations import Node
from .commit_queue import Changes, Commit, GroupQueue, Refusals
from .group_claims import RETRY_S, Asker, GroupClaims, dissolved
from .offset_count import OffsetCount, units

COMMIT_MS_MAX: Final = 10_000


class CommittedOffsets:
    """Reads, stores and deletes committed offsets.  ``claims``: on the groups that this broker coordinates."""

    def __init__(
        self,
        registry: Asker,
        claimant: Claimant,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        offsets_max: int,
        coordinates: Callable[[str], bool],
        new_epoch: Callable[[], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self.count = OffsetCount(offsets_max)
        self.claims = GroupClaims(registry, claimant, self.count, spawn, coordinates, new_epoch)
        self._registry, self._spawn, self._clock_ms = registry, spawn, clock_ms
        self._topics: dict[str, set[str]] = {}
        """By group, the topics of its offsets at the last check of all groups."""

    # ---- requests of both listeners

    async def claim(self, group: str) -> None:
        """Claim the group, for a member that joins it.

        Raises:
            NotCoordinator, ZooKeeperAway: it cannot be claimed now.
            InvalidRequest: this appliance runs without ZooKeeper.
        """
        entry = self.claims.get(group)
        if entry is None or not self.claims.is_held(entry):
            async with self.claims.locked(group) as entry:
                await self.claims.hold(entry)
        entry.used = asyncio.get_running_loop().time()

    async def commit(self, group: str, changes: Changes, protocol_type: str = "") -> Refusals:
        """Store offsets, or (None) delete them; the result names those that were refused.

        ``protocol_type``: of the group that the commit's member belongs to; "" for others.

        Raises:
            RequestTimedOut: ZooKeeper did not take them within COMMIT_MS_MAX.
            NotCoordinator: another broker has the group.
        """
        entry = self.claims.entry(group)
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
            raise RequestTimedOut(f"ZooKeeper did not store offsets within {COMMIT_MS_MAX} ms: try again") from None
        finally:
            entry.withdraw(commit)

    async def read(self, group: str, parts: Sequence[TopicPartition] | None) -> Mapping[TopicPartition, StoredOffset]:
        """Stored offsets, including those of commits that came before this call."""
        entry = self.claims.get(group)
        if entry is not None and entry.commits:
            await asyncio.wait([commit.done for commit in entry.commits], timeout=COMMIT_MS_MAX / 1000)
        return await self._registry.ask(zookeeper_claims.read(group, parts))

    async def remove(self, group: str) -> bool:
        """Delete a group with all its offsets; False when there is none.

        Raises:
            InvalidRequest: the group has live members.
        """
        async with self.claims.locked(group) as entry:
            held = await self.claims.hold(entry, make=False)
            if held is None:
                return False
            await self.claims.carry_out(entry, zookeeper_claims.remove(group, held))
            self.claims.unclaim(entry)
            self.count.drop(group)
            return True

    # ---- events

    async def left(self, group: str) -> None:
        """The last member has left the group: note the time, or, if it has no offsets, remove the group."""
        async with self.claims.locked(group) as entry:
            if self.claims.has_members(group) or entry.commits:
                return
            if entry.held is None or not self.claims.is_held(entry):
                await self._registry.ask(self._registry.groups.prune(group))
            elif entry.held.sizes:
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
            if held is None or self.claims.has_members(group):
                return 0
            gone = await self.claims.carry_out(entry, zookeeper_claims.expire(group, held, old))
            self.count.set(group, held)
            if not held.sizes and not entry.commits:
                await self.claims.vacate(entry, held)
            return gone

    def counted(self, sizes: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Take the result of a check of all groups: the sizes of their offsets."""
        self._topics = {group: {part.topic for part in offsets} for group, offsets in sizes.items() if offsets}
        self.count.replace(sizes, self.claims.held())

    def topics(self) -> dict[str, set[str]]:
        """The groups that have committed offsets, with their topics, as far as this broker knows."""
        held = {group: {part.topic for part in claim.sizes} for group, claim in self.claims.held()}
        known = {group: topics for group, topics in self._topics.items() if group in self.count}
        return {group: topics for group, topics in (known | held).items() if topics}

    # ---- writing

    async def _pump(self, entry: GroupQueue) -> None:
        """Write waiting commits until none is left."""
        try:
            while entry.commits:
                try:
                    async with self.claims.locked(entry.name):
                        await self._write(entry)
                except NotCoordinator as error:
                    entry.fail(error)
                except Unavailable:
                    await asyncio.sleep(RETRY_S)
                except ApplianceError as error:
                    entry.fail(error)
        finally:
            entry.pumping = False
            self.claims.drop_if_idle(entry)

    async def _write(self, entry: GroupQueue) -> None:
        """Write the commits that wait at this moment."""
        held = await self.claims.hold(entry)
        assert held is not None
        queue, commits = entry.take()
        errors = self.count.refuse(held, {part: to for part, (_, to) in queue.items()})
        changes = {part: to for part, (_, to) in queue.items() if part not in errors}
        info = next((commit.info for commit in reversed(commits) if commit.info is not None), None)
        if info is not None and info.protocol_type == held.info.protocol_type:
            info = None
        before = units(held, changes)
        try:
            await self.claims.carry_out(entry, zookeeper_claims.write(entry.name, held, changes, info))
        except NotCoordinator:  # the group was dissolved: commits of its members fail, others wait for the next claim
            entry.put_back(queue, [commit for commit in commits if commit.info is None])
            for commit in commits:
                if commit.info is not None:
                    commit.fail(dissolved(entry.name))
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
            commit.complete(errors)

    async def _note_active(self, entry: GroupQueue, held: Held) -> None:
        info = GroupInfo(held.info.protocol_type, self._clock_ms())
        await self.claims.carry_out(entry, zookeeper_claims.write(entry.name, held, {}, info))
        entry.held = held._replace(info=info)

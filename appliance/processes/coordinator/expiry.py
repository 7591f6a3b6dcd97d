"""Deletes the committed offsets of groups that have been empty for ``offsets.retention.ms``.

Every CHECK_MS it reads all groups in ZooKeeper, some at a time, and counts their offsets (see
``offsets.committed_max``).  For the groups that this broker coordinates:

* A group with members, of either listener, is noted as active at that time.  The note is renewed when it is older than
  an eighth of the retention, so a group whose last member vanished unseen loses at most an eighth.
* An offset of a group without members is deleted when the group was last active, and the offset last committed, longer
  ago than the retention.  So the time of a group counts from when it became empty, and that of a consumer that commits
  without joining from each commit, as in Kafka.  An offset that is committed meanwhile stays.
* A group without members and offsets (left by a crash, or made by hand) is removed.

ZooKeeper stamps nodes with the wall clock of its machine; the clock here does not follow its jumps at once
(:mod:`.trusted_clock`), so a jump deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import ApplianceError, Unavailable
from ...names import TopicPartition
from ...zookeeper import claims
from ...zookeeper.claims import GroupNodes
from .committed_offsets import CommittedOffsets
from .registry_session import RegistrySession
from .trusted_clock import TrustedClock

CHECK_MS: Final = 600_000
NOTES_PER_RETENTION: Final = 8
PAGE_GROUPS: Final = 20
"""Groups that are read at once: with 1,000 offsets each, some 0.3 s of the coordinator."""

log = logging.getLogger(__name__)


class Expiry:
    """Checks all groups every CHECK_MS.

    ``coordinates``: whether this broker coordinates a group; ``has_members``: whether it has some here; ``load`` reads
    what is stored of a group's members.
    """

    def __init__(
        self,
        registry: RegistrySession,
        offsets: CommittedOffsets,
        coordinates: Callable[[str], bool],
        clock: TrustedClock,
        has_members: Callable[[str], bool],
        load: Callable[[str], Awaitable[object]],
    ) -> None:
        self._has_members, self._load = has_members, load
        self._registry, self._offsets = registry, offsets
        self._coordinates, self._clock = coordinates, clock
        self._due_ms = 0

    async def run(self, retention_ms: int, now_ms: int) -> None:
        """Check all groups, if that is due at ``now_ms`` of a clock that never goes back.

        Raises:
            ZooKeeperAway: the rest is checked next time.
        """
        if now_ms < self._due_ms or not self._registry.leased:
            return
        self._due_ms = now_ms + CHECK_MS
        try:
            await self.expire_groups(retention_ms)
        except ApplianceError:
            self._due_ms = now_ms
            raise

    async def expire_groups(self, retention_ms: int) -> None:
        """Check all groups once.  A group that fails is named in the log, and the others are checked."""
        sizes: dict[str, dict[TopicPartition, int]] = {}
        names = await self._registry.ask(self._registry.groups.groups())
        for start in range(0, len(names), PAGE_GROUPS):
            page = await self._registry.ask(claims.read_groups(names[start : start + PAGE_GROUPS]))
            for group, seen in page.items():
                sizes[group] = {part: node.size for part, node in seen.nodes.items()}
                if self._coordinates(group):
                    await self._check_one(group, seen, retention_ms)
        self._offsets.counted(sizes)

    async def _check_one(self, group: str, seen: GroupNodes, retention_ms: int) -> None:
        try:
            await self._check(group, seen, retention_ms)
        except Unavailable:
            raise
        except ApplianceError as error:
            log.error("group %r: %s", group, error)

    async def _check(self, group: str, seen: GroupNodes, retention_ms: int) -> None:
        now_ms = self._clock.judging_ms()
        if seen.members or self._has_members(group):
            if seen.nodes and now_ms - seen.info.active_ms > retention_ms // NOTES_PER_RETENTION:
                await self._offsets.note_active(group)
            return
        if seen.has_snapshot:  # of a coordinator before: whoever does not come back goes when its session ends
            await self._load(group)
            return
        if not seen.nodes:
            await self._offsets.note_emptied(group)
            return
        since_ms = {
            part: max(seen.info.active_ms, self._clock.written_ms(node.modified_ms))
            for part, node in seen.nodes.items()
        }
        old = {part: seen.nodes[part] for part, ms in since_ms.items() if now_ms - ms >= retention_ms}
        if old:
            gone = await self._offsets.expire(group, old)
            log.info("group %r: %d offsets were deleted: unused for %d ms", group, gone, retention_ms)

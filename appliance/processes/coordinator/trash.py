"""Keeps deleted topics for ``topics.trash_ms``, brings them back, and empties the trash: of what is old, or for room.

The catalog says which topics are in the trash (``catalog.TrashedTopic``); the names of directories only say whose files
they are.  Each step is decided by one store of the catalog, and may be repeated::

    step                                    after a crash
    deletion: the catalog has the topic in  the next coordinator finishes the removal (``supervisor.removal``)
      the trash, and notes its removal
    undelete 1 the groups' offsets are put  without a registration they mean nothing; repeated by the next undelete
               back in ZooKeeper
             2 the topic is registered      every broker that has it in the trash adopts it (``topic_sync``)
             3 the catalog has the topic    an opener finds the directory in the trash and gives it its name
               again
    emptying 1 the topic leaves the trash   the next coordinator takes the directories for those of a topic that
               of the catalog               nobody knows: it is in the trash under its id, from then on
             2 directories are renamed      as above, the others are deleted by a cleaner

Ages are measured by the trusted time.  A jump of the clock that was believed does not count as time in the trash.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ...catalog import CatalogChange, Topic, TrashedTopic
from ...config import Config
from ...errors import (
    ApplianceError,
    BrokerAway,
    InvalidRequest,
    RequestTimedOut,
    TopicExists,
    Unavailable,
    UnknownPartition,
    disk_fault,
)
from ...log import partition_directory
from ...units import duration
from ...zookeeper import deletion
from ...zookeeper.session import SessionState
from .live_brokers import LiveBrokers
from .partitions import Partitions
from .registry_session import RegistrySession
from .topic_steps import TopicSteps, info_of
from .topics import Topics
from .trusted_clock import JUMP_MS, TrustedClock

TOPICS_MAX: Final = 1_000
"""Most topics in the trash; the oldest ones go first."""
WATCH_S: Final = 1.0
"""How often the room on the disk is looked at while something is in the trash."""
ROOM_BYTES: Final = 64 << 20
"""The trash is emptied when less than this is free, whatever ``disk.free_bytes_*`` say ..."""
ROOM_SHARE: Final = 16
"""... or, on a small disk, less than this part of it."""
SERVED, REMOVED, TRASHED, GONE = "topic", "removal", "trash", ""
"""What a broker has of a deleted topic: it has not heard of that yet, it is at it, all is in the trash, nothing."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class Trash:
    """The trash of this broker.

    ``steady_ms``: a clock that nobody sets.  ``on_change`` gets the number of topics and bytes, for ``status``;
    ``on_back`` each topic that has come back.
    """

    def __init__(
        self,
        data_dir: Path,
        topics: Topics,
        steps: TopicSteps,
        partitions: Partitions,
        registry: RegistrySession,
        brokers: LiveBrokers,
        clock: TrustedClock,
        steady_ms: Callable[[], int],
        on_change: Callable[[dict[str, int]], None],
        on_back: Callable[[Topic], None],
    ) -> None:
        self._data_dir = data_dir
        self._topics, self._steps, self._partitions = topics, steps, partitions
        self._registry, self._brokers = registry, brokers
        self._clock, self._steady_ms = clock, steady_ms
        self._on_back = on_back
        self._on_change, self._reported = on_change, dict.fromkeys(("topics", "bytes"), 0)
        self._looked: tuple[int, int] | None = None
        """The trusted and the steady time of the last look."""

    # ---- what is in it

    def topics(self) -> list[TrashedTopic]:
        """Those deleted first come first."""
        return sorted(self._steps.catalog.trash, key=lambda topic: topic.deleted_ms or self._clock.now_ms())

    async def rows(self) -> list[dict[str, Any]]:
        """As ``wire/native_admin.py`` describes them."""
        trashed = self.topics()
        sizes = await self.disk_bytes()
        pending = {removal.id for removal in self._steps.catalog.removals}
        return [
            {
                "name": topic.name,
                "id": topic.id,
                "partitions": len(topic.partitions),
                "bytes": sizes.get(topic.id, 0),
                "deleted_ms": topic.deleted_ms or self._clock.now_ms(),
                "until_ms": (topic.deleted_ms or self._clock.now_ms()) + self._steps.trash_ms,
                "pending": topic.id in pending,
            }
            for topic in trashed
        ]

    async def disk_bytes(self) -> dict[str, int]:
        """The room that the topics in the trash take on this disk, by id."""
        if not self._steps.catalog.trash:
            return {}
        return await self._looking(partition_directory.trash_bytes)

    async def _looking(self, look: Callable[[Path], T]) -> T:
        """
        Raises:
            StorageFault: the data directory cannot be read.
        """
        try:
            return await asyncio.to_thread(look, self._data_dir)
        except OSError as error:
            raise disk_fault(error, self._data_dir) from error

    def find_deleted(self, topic_id: str) -> str:
        """What this broker has of a topic that another one deletes: SERVED, REMOVED, TRASHED or GONE."""
        catalog = self._steps.catalog
        if any(topic.id == topic_id for topic in catalog.topics.values()):
            return SERVED
        if any(removal.id == topic_id for removal in catalog.removals):
            return REMOVED
        return GONE if self._steps.trashed(topic_id) is None else TRASHED

    # ---- bringing back

    async def undelete(self, name: str, new_name: str = "") -> dict[str, Any]:
        """Bring a topic back: the one of that name that was deleted last, or the one with that id.

        Returns:
            name, partitions, and by group how many committed offsets have come back.

        Raises:
            UnknownPartition: it is not in the trash.
            TopicExists, InvalidTopic, InvalidPartitions: there can be no topic of that name now.
            InvalidRequest: its files are not there, or something is in their place; nothing is changed.
            Unavailable: try again, or see the message.
        """
        named = [topic for topic in self.topics() if name in (topic.name, topic.id)]
        if not named:
            raise UnknownPartition(f"no topic {name!r} is in the trash: see `appliance topics trash`")
        trashed = named[-1]
        target = new_name or trashed.name
        async with AsyncExitStack() as locks:
            for locked in sorted({trashed.name, target}):
                await locks.enter_async_context(self._steps.changing(locked))
            return await self._undelete(trashed.id, target)

    async def _undelete(self, topic_id: str, target: str) -> dict[str, Any]:
        trashed = self._steps.trashed(topic_id)
        if trashed is None:  # by somebody who was faster
            raise UnknownPartition("it is not in the trash any more: see `appliance topics trash`")
        await self._steps.finish_trashing(topic_id)
        self._check_name(trashed, target)
        topic = Topic(target, trashed.partitions, trashed.settings, trashed.id)
        await self._check_peers(trashed)
        await asyncio.to_thread(self._check_files, topic)
        offsets: dict[str, int] = {}
        if self._registry.enabled:
            offsets = await self._registry.ask(deletion.put_offsets_back(topic.id, target))
            await self._registry.ask(self._registry.topics.create_topic(target, info_of(topic)))
        try:
            await self._steps.adopt(topic)
            if self._registry.enabled:
                again = target == trashed.name
                await self._registry.ask(deletion.forget_deletion(topic.id, mark=again))
        except ApplianceError as error:
            if not self._registry.enabled and target not in self._steps.catalog.topics:
                raise  # nothing is changed
            self._on_back(topic)
            log.warning("topic %s is back, but not wholly: %s", target, error)
            raise RequestTimedOut(f"topic {target!r} is back, what is missing is done by itself: {error}") from error
        self._on_back(topic)
        log.info("topic %s is back from the trash%s", trashed.name, f" as {target}" if target != trashed.name else "")
        return {"name": target, "partitions": len(topic.partitions), "offsets": offsets}

    async def restore(
        self, name: str, topic_id: str, partitions: int, settings: Mapping[str, str | int]
    ) -> dict[str, Any]:
        """Take a topic that somebody has put into the trash, out of a backup, and bring it back under this name.

        Returns:
            As :meth:`undelete`.

        Raises:
            InvalidRequest: the id is that of a topic of ours.
            ApplianceError: as :meth:`undelete`.
        """
        async with self._steps.changing(name):
            catalog = self._steps.catalog
            taken_ids = {topic.id for topic in catalog.topics.values()}
            taken_ids |= {topic.id for topic in catalog.trash} | {removal.id for removal in catalog.removals}
            if topic_id in taken_ids:
                raise InvalidRequest(f"there is a topic with the id {topic_id}: choose a new one")
            own = self._topics.check_settings(settings)
            here = {number: [self._brokers.broker_id] for number in range(partitions)}
            trashed = TrashedTopic(name, topic_id, here, own, self._clock.judging_ms())
            self._check_name(trashed, name)
            await asyncio.to_thread(self._check_files, Topic(name, here, own, topic_id))
            await self._steps.commit(CatalogChange(trash=trashed))
            return await self._undelete(topic_id, name)

    def _check_name(self, trashed: TrashedTopic, target: str) -> None:
        try:
            self._topics.check_name(target)
        except TopicExists:
            raise TopicExists(f"there is a topic {target!r}: bring the deleted one back under another name") from None
        self._topics.check_room(sum(self._brokers.broker_id in brokers for brokers in trashed.partitions.values()))

    async def _check_peers(self, trashed: TrashedTopic) -> None:
        """Check that the other brokers have their parts of the topic, and have finished its deletion."""
        if not self._registry.enabled:
            return
        live = await self._registry.live_brokers() - {self._brokers.broker_id}
        hosting = {broker for brokers in trashed.partitions.values() for broker in brokers} - {self._brokers.broker_id}
        if away := sorted(hosting - live):
            raise BrokerAway(f"broker {away[0]} has partitions of topic {trashed.name!r}, and is away: start it first")
        for peer in sorted(live):
            address = self._brokers.native_address(peer)
            if not address:
                raise BrokerAway(f"broker {peer} has no native listener that is known here: try again")
            place = await self._brokers.connections.ask_admin(address, "deleted_at_peer", {"id": trashed.id})
            if place in (SERVED, REMOVED):
                raise RequestTimedOut(f"broker {peer} is still deleting topic {trashed.name!r}: try again")
            if place != TRASHED and peer in hosting:
                raise InvalidRequest(
                    f"broker {peer} has emptied its trash: its partitions of {trashed.name!r} are gone"
                )

    def _check_files(self, topic: Topic) -> None:
        for _, partition in self._steps.hosted(topic):
            directory = partition_directory.directory_of(self._data_dir, topic.name, partition)
            if directory.exists():
                if partition_directory.topic_id_of(directory) != topic.id:
                    raise InvalidRequest(f"{directory} is in the way: move it away, or take another name")
            elif not partition_directory.trash_directory(self._data_dir, topic.id, partition).is_dir():
                raise InvalidRequest(f"the files of partition {partition} are not in the trash any more")

    # ---- emptying

    async def empty_old(self, config: Config) -> None:
        """Empty the trash of what is old, and of more than TOPICS_MAX.  Called after each look at the clock."""
        await self._report()
        now_ms = self._clock.judging_ms()
        if not now_ms:
            return
        if self._looked is None:
            await self._adopt_strays()
        await self._stamp(now_ms)
        trashed = self.topics()
        old = [topic for topic in trashed if now_ms - topic.deleted_ms >= config.topics.trash_ms]
        await self.empty([topic.id for topic in old], f"deleted {duration(config.topics.trash_ms / 1000)} ago")
        await self.empty([topic.id for topic in self.topics()[:-TOPICS_MAX]], f"more than {TOPICS_MAX:,} are kept")

    async def _report(self) -> None:
        sizes = await self.disk_bytes()
        report = {"topics": len(self._steps.catalog.trash), "bytes": sum(sizes.values())}
        if report != self._reported:
            self._reported = report
            self._on_change(report)

    async def _stamp(self, now_ms: int) -> None:
        """Take the present time for that of deletions before the clock was known, or later than now.

        By what the trusted time has leapt since the last look, a jump that is believed, these times leap, too.
        """
        steady_ms = self._steady_ms()
        before_ms, before_steady_ms = self._looked or (now_ms, steady_ms)
        leap_ms = now_ms - before_ms - (steady_ms - before_steady_ms)
        leap_ms = leap_ms if abs(leap_ms) > JUMP_MS else 0
        self._looked = now_ms, steady_ms
        stamped = [
            msgspec.structs.replace(topic, deleted_ms=min((topic.deleted_ms or now_ms) + leap_ms, now_ms))
            for topic in self._steps.catalog.trash
        ]
        changed = [topic for topic, old in zip(stamped, self._steps.catalog.trash, strict=True) if topic != old]
        await asyncio.gather(*(self._steps.commit(CatalogChange(trash=topic)) for topic in changed))

    async def _adopt_strays(self) -> None:
        """Compare the catalog with the directories: it may have been restored, or a process have died in between."""
        catalog = self._steps.catalog
        known_ids = {topic.id for topic in catalog.topics.values()}
        known_ids |= {topic.id for topic in catalog.trash} | {removal.id for removal in catalog.removals}
        directories = await self._looking(partition_directory.trashed_directories)
        await self._forget_lost({topic_id for topic_id, _ in directories})
        strays: dict[str, list[Path]] = {}
        for topic_id, directory in directories:
            if topic_id not in known_ids:
                strays.setdefault(topic_id, []).append(directory)
        for topic_id, stray_directories in strays.items():
            log.warning(
                "%s: nobody knows the deleted topic %s: it is kept under its id", stray_directories[0], topic_id
            )
            numbers = [partition_directory.partition_in_trash(directory) for directory in stray_directories]
            partitions = {number: [self._brokers.broker_id] for number in range(max(numbers) + 1)}
            await self._steps.commit(CatalogChange(trash=TrashedTopic(topic_id, topic_id, partitions)))

    async def _forget_lost(self, kept: Set[str]) -> None:
        """Forget topics without files here: a backup has what the catalog says of the trash, and no files of it."""
        pending = {removal.id for removal in self._steps.catalog.removals}
        for topic in self.topics():
            here = any(self._brokers.broker_id in brokers for brokers in topic.partitions.values())
            if here and topic.id not in kept and topic.id not in pending:
                log.warning("the deleted topic %s cannot be brought back: its files are not in the trash", topic.name)
                await self._steps.commit(CatalogChange(forget=topic.id))

    async def empty(self, topic_ids: Iterable[str], why: str) -> None:
        """Let the files of topics in the trash be deleted.  A failure is logged, and the next look tries again."""
        for topic_id in topic_ids:
            trashed = self._steps.trashed(topic_id)
            if trashed is None:
                continue
            try:
                async with self._steps.changing(trashed.name):
                    await self._empty(topic_id, why)
            except (ApplianceError, OSError) as error:
                log.error("the deleted topic %s stays in the trash: %s", trashed.name, error)

    async def _empty(self, topic_id: str, why: str) -> None:
        trashed = self._steps.trashed(topic_id)
        if trashed is None:
            return
        await self._steps.leave_trash(trashed)
        log.info("topic %s leaves the trash for good: %s", trashed.name, why)
        try:
            await asyncio.to_thread(partition_directory.throw_away, self._data_dir, topic_id)
        except OSError as error:
            raise disk_fault(error, self._data_dir) from error
        self._partitions.clean_up()
        if self._registry.enabled and self._registry.state == SessionState.CONNECTED.value:
            with suppress(Unavailable):  # else they go with the mark
                await self._registry.ask(deletion.forget_deletion(topic_id, mark=False))

    async def make_room(self, config: Config) -> None:
        """Empty as much of the trash, oldest first, as the disk lacks room, so that it is not even warned of."""
        if not self._steps.catalog.trash:
            return
        lacking = await self._looking(lambda data_dir: _lacking_bytes(data_dir, config))
        if lacking > 0:
            lacking -= await self._looking(partition_directory.leaving_bytes)
        if lacking <= 0:
            return
        sizes = await self.disk_bytes()
        for topic in self.topics():
            if lacking <= 0:
                break
            await self.empty([topic.id], "the disk has no room")
            lacking -= sizes.get(topic.id, 0)


def _lacking_bytes(data_dir: Path, config: Config) -> int:
    system = os.statvfs(data_dir)
    least = min(ROOM_BYTES, system.f_blocks * system.f_frsize // ROOM_SHARE)
    return max(config.disk.free_bytes_min, config.disk.free_bytes_warn, least) - system.f_bavail * system.f_frsize

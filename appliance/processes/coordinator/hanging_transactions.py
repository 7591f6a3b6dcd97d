"""Finds the transactions that hang: they are open in a log, and no coordinator knows of them, so nobody will end them.

They are there when ZooKeeper has lost its data, and when a topic comes back, from the trash or a backup, whose
transactions have ended meanwhile: their markers were not written there.  Who reads committed messages would wait for
ever.  Of a topic that comes back they are aborted here.  All others are shown, and a person aborts them
(``appliance transactions abort-hanging``): perhaps what ZooKeeper had can be restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ...catalog import Topic
from ...errors import ApplianceError, Unavailable, UnknownPartition
from ...kafka_apis.appliance import ProducerInLog
from ...names import TopicPartition
from ...partition_states import OFFLINE, OPENING
from ...transactions.transaction_coordinator import TransactionCoordinator
from .partitions import Partitions

RETRY_S: Final = 0.5
LOOK_S: Final = 5.0
"""How long a look may take; the next one begins where it has ended."""
NAMED_MAX: Final = 100
"""Partitions that are named."""

log = logging.getLogger(__name__)


class HangingTransactions:
    """See the module's docstring.

    Args:
        producers: what the writer of a partition knows of its producers by now.
    """

    def __init__(
        self,
        partitions: Partitions,
        coordinator: TransactionCoordinator,
        producers: Callable[[str, int], Awaitable[Sequence[ProducerInLog]]],
    ) -> None:
        self._partitions, self._coordinator, self._producers = partitions, coordinator, producers
        self._stable: dict[TopicPartition, int] = {}
        """The last stable offsets that were not the end of what is readable, when they were looked at last."""
        self._hanging: dict[TopicPartition, set[int]] = {}
        """The producers whose transactions hang, where the last stable offset stands still for them."""
        self._looked = TopicPartition("", 0)

    async def find(self, partition: TopicPartition) -> list[ProducerInLog]:
        """The producers whose transactions hang in a partition.

        Raises:
            ApplianceError: that is not known now.
        """
        before = await self._open(partition)
        if not before:
            return []
        known_producers = await self._coordinator.known_at(partition)
        after = {(producer.id, producer.open_from) for producer in await self._open(partition)}
        # Whoever is open before and after, and was not known between: nobody has begun or ended it meanwhile.
        return [
            producer
            for producer in before
            if producer.id not in known_producers and (producer.id, producer.open_from) in after
        ]

    async def _open(self, partition: TopicPartition) -> list[ProducerInLog]:
        return [producer for producer in await self._producers(*partition) if producer.open_from >= 0]

    def report(self) -> dict[str, Any]:
        """What ``status.py`` shows: in how many partitions a transaction hangs, and in which."""
        names = [f"{topic}-{number}" for topic, number in sorted(self._hanging)]
        return {"hanging": len(names), "hanging_in": names[:NAMED_MAX]}

    async def note_stuck(self) -> None:
        """Find the partitions whose last stable offset stands still, since the look before, for what nobody will end.

        What has been found is not asked for again while the last stable offset stays where it is.
        """
        stable = {}
        for partition in self._partitions.stored():
            with contextlib.suppress(UnknownPartition):
                view = self._partitions.table(*partition).snapshot()
                if view.stable < view.high_watermark:
                    stable[partition] = view.stable
            await asyncio.sleep(0)  # there may be thousands
        standing = sorted(key for key, offset in stable.items() if self._stable.get(key) == offset)
        self._stable = stable
        self._hanging = {key: hanging for key in standing if (hanging := await self._unknown(key))}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                for partition in sorted(standing, key=lambda key: (key <= self._looked, key)):
                    await self._look_at(partition)
                    self._looked = partition

    async def _unknown(self, partition: TopicPartition) -> set[int]:
        """Those that were found, and are not known by now, as when what ZooKeeper had was restored."""
        hanging = self._hanging.get(partition, set())
        if hanging:
            with contextlib.suppress(Unavailable):
                return hanging - await self._coordinator.known_at(partition)
        return hanging

    async def _look_at(self, partition: TopicPartition) -> None:
        if partition in self._hanging:
            return
        try:
            if hanging := {producer.id for producer in await self.find(partition)}:
                self._hanging[partition] = hanging
                log.warning("%s-%d: nobody will end the transactions of producers %s", *partition, sorted(hanging))
        except ApplianceError as error:
            log.info("%s-%d: it is not known whether a transaction hangs: %s", *partition, error)

    # ---- of topics that come back

    async def end(self, topic: Topic) -> None:
        """Abort what nobody will end, in each partition that has something open, once it can be read."""
        await asyncio.gather(*(self._end(topic, number) for number in topic.partitions))

    async def _end(self, topic: Topic, number: int) -> None:
        while not await self._ended(topic, number):
            await asyncio.sleep(RETRY_S)

    async def _ended(self, topic: Topic, number: int) -> bool:
        current = self._coordinator.store.topics().get(topic.name)
        if current is None or current.id != topic.id or not self._coordinator.store.serves:
            return True
        partition = TopicPartition(topic.name, number)
        try:
            table = self._partitions.table(*partition)
            if table.state in (OPENING, OFFLINE):  # what is open there is not known before it is read
                return False
            view = table.snapshot()
            if view.stable < view.high_watermark:
                await self._coordinator.abort_hanging(partition)
        except UnknownPartition:
            return partition not in self._partitions and number not in current.partitions
        except ApplianceError as error:
            log.info("%s: transactions that nobody will end are still open: %s", partition, error)
            return False
        return True

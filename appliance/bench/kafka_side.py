"""A broker of Kafka's protocol with a client, as a side of workloads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from .. import extras
from . import brokers
from .brokers import APPLIANCE, BARE, KAFKA_PEERS, BareBroker, Launcher, MeasuredBroker
from .compiling import Missing
from .harness import Harness, drop_page_cache
from .kafka_clients import FIFTY, LARGE, KafkaClient, Run
from .stamps import Wrong

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

WARM_UP_ROUNDS = 3
WARM_UP_COUNT, WARM_UP_SIZE = 300_000, 200
TOPIC_S_MAX, COUNT_S_MAX = 30, 30
GROWN_AT_ONCE = 1_000
_numbers = itertools.count(1)


class KafkaSide:
    """``client`` runs against ``broker`` on topics that it makes.  ``security``: its settings for TLS.

    Raises:
        Missing: confluent-kafka is not installed.
    """

    def __init__(self, broker: MeasuredBroker, client: KafkaClient, security: Mapping[str, str] | None = None) -> None:
        self.broker, self.client, self.name = broker, client, broker.name
        self._security = dict(security or {})
        try:
            self._admin = self._new_admin()
        except ImportError:
            raise Missing(f"confluent-kafka: {extras.install('bench')}") from None

    def _new_admin(self) -> AdminClient:
        soon = {"reconnect.backoff.ms": "5", "reconnect.backoff.max.ms": "50"}  # brokers are started again
        return brokers.admin_of(self.broker.address, {**soon, **self._security})

    def cpu_s(self) -> float:
        return self.broker.cpu_s()

    def topic(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        name = f"bench-{next(_numbers)}"
        new = NewTopic(name, partitions, 1, config=dict(settings or {}))
        self._admin.create_topics([new])[name].result(TOPIC_S_MAX)
        self._wait_for_leaders(name, partitions)
        return name

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Kafka answers before all partitions have leaders.  What they refuse is sent again, behind what follows.

        Raises:
            Wrong: there are none within TOPIC_S_MAX.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + TOPIC_S_MAX
        while True:
            try:
                brokers.ends_of(self._admin, topic, partitions)
                return
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise Wrong(f"{self.name}: no leaders of {topic} within {TOPIC_S_MAX} s: {error}") from None
                time.sleep(0.1)
                self._admin = self._new_admin()  # one that asked too early may not learn of the leaders at all

    def grow(self, topic: str, before: int, partitions: int) -> None:
        """Let a topic have so many partitions, in steps that a broker answers in time."""
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        for count in [*range(before + GROWN_AT_ONCE, partitions, GROWN_AT_ONCE), partitions]:
            self._admin.create_partitions([NewPartitions(topic, count)])[topic].result(TOPIC_S_MAX)

    def wait_for(self, count: int, topic: str, partitions: int = 1) -> None:
        """Wait until readers see ``count`` messages in a topic.

        Raises:
            Wrong: they see others within COUNT_S_MAX.
        """
        deadline = time.monotonic() + COUNT_S_MAX
        while (count_there := self.broker.messages(topic, partitions)) != count:
            if count_there > count or time.monotonic() > deadline:
                raise Wrong(f"{self.name}: {count_there} messages in the log, {count} were acknowledged")
            time.sleep(0.005)

    def delete(self, topic: str) -> None:
        """Delete a topic, to free its page cache and its disk."""
        self._admin.delete_topics([topic])[topic].result(TOPIC_S_MAX)

    def empty(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """A new topic, after the page cache was dropped."""
        drop_page_cache()
        return self.topic(partitions, settings)

    def filled(self, count: int, size: int, partitions: int = 1) -> str:
        """A topic with ``count`` messages in large batches, after the page cache was dropped."""
        topic = self.empty(partitions)
        self.fill(topic, count, size, partitions)
        return topic

    def fill(self, topic: str, count: int, size: int, partitions: int = 1) -> None:
        """Produce ``count`` messages in large batches."""
        settings = LARGE | {"acks": "1"} | self._security
        self.client.produce(self.broker.address, topic, count, size, settings, partitions)

    def produce(self, topic: str, count: int, size: int, settings: dict[str, str], partitions: int = 1) -> Run:
        """Produce, then count and check what the log has.  Without acknowledgements it takes until that is done."""
        run = self.client.produce(self.broker.address, topic, count, size, settings | self._security, partitions)
        arrived = self.consume(topic, count, size, partitions)
        if arrived.check != run.check:
            raise Wrong(f"{self.name}: what arrived is not what was sent: {run.check}, {arrived.check}")
        return msgspec.structs.replace(run, seconds=run.seconds + arrived.seconds) if settings["acks"] == "0" else run

    def consume(
        self, topic: str, count: int, size: int, partitions: int = 1, settings: Mapping[str, str] | None = None,
        *, one_processor: bool = False,
    ) -> Run:  # fmt: skip
        """``settings`` go over the client's defaults; ``one_processor``: all its threads run on the same."""
        consumer_settings, client = dict(settings or {}) | self._security, self.client
        return client.consume(
            self.broker.address, topic, count, size, consumer_settings, partitions, one_processor=one_processor
        )


@contextmanager
def ours_and_kafka(
    harness: Harness, settings: Mapping[str, str] | None = None, *, also: Sequence[Launcher] = ()
) -> Iterator[list[KafkaSide]]:
    """An appliance (with ``settings``), Kafka if it is among the peers, and what is ``also`` wanted, all warm.

    Raises:
        Missing: there is no client.
    """
    client = harness.kafka_client()
    with harness.started([*launchers(harness, settings), *also]) as started:
        sides = [KafkaSide(broker, client) for broker in started]
        harness.note(client=client.name)
        warm_up(harness, sides)
        yield sides


def warm_up(harness: Harness, sides: Iterable[KafkaSide]) -> None:
    """A JVM compiles what it has run often; connections and page cache are there on both sides."""
    for side in sides:
        for _ in range(1 if harness.options.smoke else WARM_UP_ROUNDS):
            topic = side.topic()
            side.produce(topic, harness.scaled(WARM_UP_COUNT), WARM_UP_SIZE, FIFTY | {"acks": "1"})
            side.delete(topic)


def launchers(harness: Harness, settings: Mapping[str, str] | None = None) -> list[Launcher]:
    """An appliance with ``settings``, and the versions of Kafka that are wanted."""
    own_settings = dict(settings or {}) | harness.options.settings
    sides = [Launcher(APPLIANCE, lambda directory: brokers.OurBroker(directory, own_settings))]
    peers = [name for peer, name in KAFKA_PEERS.items() if peer in harness.options.peers]
    return sides + [Launcher(name, partial(brokers.KafkaBroker, name=name)) for name in peers]


def bare(harness: Harness) -> list[Launcher]:
    """A broker that only writes, flushes and sends, where the client is as lean: what both leave to win."""
    return [Launcher(BARE, BareBroker)] if harness.options.client == "c" else []

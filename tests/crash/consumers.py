"""Consumers under load, that record what they read and commit: see ``clients.py``."""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar, Final

from appliance.client import Admin, Consumer, GroupConsumer
from appliance.errors import Unavailable

from .client import Client, Guarded, kafka_settings
from .history import Log

RECORDS_MAX: Final = 200
COMMIT_S: Final = 0.05
COMMITS_IN_FLIGHT_MAX: Final = 1
"""librdkafka sends a commit whose connection broke again, behind newer ones: then it is the client that goes back."""
WATCH_S: Final = 0.1
SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 300
"""Of the members of all kinds of groups; those of the consumer protocol are told by the appliance."""


class KafkaReader(Client):
    def run(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition
        from confluent_kafka import Consumer as ConfluentConsumer

        consumer = ConfluentConsumer(
            kafka_settings(self.spec) | {"group.id": self.spec.name, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(log.topic, log.partition, OFFSET_BEGINNING) for log in self.spec.logs])
        while not self.stopping.is_set():
            since_ns = time.monotonic_ns()
            messages = [message for message in consumer.consume(RECORDS_MAX, 0.1) if message.error() is None]
            self.record_poll(since_ns, map(record_of, messages), 0)
        consumer.close()


def record_of(message: Any) -> tuple[str, int, int, bytes | None]:
    return message.topic(), message.partition(), message.offset(), message.value()


class NativeReader(Client):
    def run(self) -> None:
        with Consumer(self.spec.native, request_timeout_ms=10_000) as consumer:
            consumer.assign([(log.topic, log.partition) for log in self.spec.logs])
            while not self.stopping.is_set():
                since_ns = time.monotonic_ns()
                messages = consumer.poll(0.2, RECORDS_MAX)
                records = [(message.topic, message.partition, message.offset, message.value) for message in messages]
                self.record_poll(since_ns, records, 0)


class KafkaMember(Client):
    """Commits asynchronously every ``COMMIT_S``, at a revocation synchronously."""

    protocol: ClassVar[dict[str, Any]] = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "range",
    }

    def run(self) -> None:
        from confluent_kafka import Consumer as ConfluentConsumer

        self._session = 0
        self._batch: list[tuple[str, int, int, bytes | None]] = []
        self._since_ns = time.monotonic_ns()
        self._positions: dict[tuple[str, int], int] = {}
        self._asked_ns: dict[tuple[str, int, int], int] = {}
        settings = kafka_settings(self.spec) | self.protocol
        settings |= {"group.id": self.spec.group, "enable.auto.commit": False, "on_commit": self._committed}
        consumer = ConfluentConsumer(settings)
        topics = sorted({log.topic for log in self.spec.logs})
        consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        commit_due_s = 0.0
        while not self.stopping.is_set():
            message = consumer.poll(0.1 if not self._batch else 0)
            if message is not None and message.error() is None:
                self._batch.append(record_of(message))
            if message is None or len(self._batch) >= RECORDS_MAX:
                self._record()
            room = len(self._asked_ns) < COMMITS_IN_FLIGHT_MAX
            if time.monotonic() >= commit_due_s and self._positions and room:
                commit_due_s = time.monotonic() + COMMIT_S
                self._commit(consumer, asynchronous=True)
        self._record()
        consumer.close()
        self.recorder.flush()

    def _record(self) -> None:
        self.record_poll(self._since_ns, self._batch, self._session)
        for topic, partition, offset, _ in self._batch:
            self._positions[topic, partition] = offset + 1
        self._batch.clear()
        self._since_ns = time.monotonic_ns()

    def _commit(self, consumer: Any, *, asynchronous: bool) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(*place, offset) for place, offset in self._positions.items()]
        for place, offset in self._positions.items():
            self._asked_ns[*place, offset] = time.monotonic_ns()
        self._positions.clear()
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=asynchronous)
        except KafkaException as error:
            self._asked_ns.clear()
            print(f"{self.process}: commit: {error}", file=sys.stderr)

    def _committed(self, error: Any, parts: list[Any]) -> None:
        incarnations = {(log.topic, log.partition): log.incarnation for log in self.spec.logs}
        for part in parts:
            since_ns = self._asked_ns.pop((part.topic, part.partition, part.offset), 0)
            incarnation = incarnations[part.topic, part.partition]
            if error is None and part.error is None and since_ns and incarnation >= 0:
                log = Log(part.topic, incarnation, part.partition)
                self.record("commit", log, group=self.spec.group, offset=part.offset, since_ns=since_ns)

    def _assigned(self, consumer: Any, parts: list[Any]) -> None:
        self._record()
        self._session += 1
        self.record("assigned", group=self.spec.group, session=self._session)

    def _revoked(self, consumer: Any, parts: list[Any]) -> None:
        self._record()
        self._commit(consumer, asynchronous=False)

    def _lost(self, consumer: Any, parts: list[Any]) -> None:
        self._record()
        self._positions.clear()


class ConsumerMember(KafkaMember):
    """Of the consumer protocol (KIP-848): partitions come and go one by one."""

    protocol: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


class NativeMember(Client):
    def run(self) -> None:
        options: dict[str, Any] = {
            "session_timeout_ms": SESSION_MS,
            "auto_commit_ms": 100,
            "request_timeout_ms": 10_000,
        }
        consumer = GroupConsumer(self.spec.native, self.spec.group, **options)
        streams = consumer.create_message_streams(dict.fromkeys(sorted({log.topic for log in self.spec.logs}), 1))
        readers = [Guarded(self._read, stream) for (stream,) in streams.values()]
        for reader in readers:
            reader.start()
        while not self.stopping.wait(0.1) and all(reader.is_alive() for reader in readers):
            pass
        consumer.close(processed=False)
        for reader in readers:
            reader.finish()

    def _read(self, stream: Any) -> None:
        since_ns = time.monotonic_ns()
        for batch in stream.batches():
            first = batch.next_offset - len(batch.values)
            records = [(batch.topic, batch.partition, first + i, value) for i, value in enumerate(batch.values)]
            self.record_poll(since_ns, records, None)
            since_ns = time.monotonic_ns()


class Watch(Client):
    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with Admin(self.spec.native, request_timeout_ms=5_000) as admin:
                    while not self.stopping.wait(WATCH_S):
                        for group in self.spec.groups:
                            self._look(admin, group)
            except (Unavailable, OSError):
                self.stopping.wait(WATCH_S)

    def _look(self, admin: Admin, group: str) -> None:
        since_ns = time.monotonic_ns()
        offsets = admin.offsets(group)
        for log in self.spec.logs:
            offset = offsets.get((log.topic, log.partition))
            if offset is not None:
                self.record("committed", log, group=group, offset=offset, since_ns=since_ns)
        self.recorder.flush()

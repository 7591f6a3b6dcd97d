"""Producers under load, that record what they send and what they are told: see ``clients.py``."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

from appliance.client import Producer
from appliance.records.encode import encode_values
from appliance.wire import native

from ..support.native_peer import Peer
from .client import Client, Recorder, Spec, kafka_settings
from .history import Log, text_of

TICK_S: Final = 0.02
IN_FLIGHT_MAX: Final = 2_000
RAW_IN_FLIGHT_MAX: Final = 64
PADS: Final = (0, 0, 0, 10, 100, 100, 1_000, 20_000)
"""How many blanks end a value."""


class ProducerClient(Client):
    """Sends a few values to each log every ``TICK_S``, as long as not too many are in flight."""

    def __init__(self, spec: Spec, recorder: Recorder, stopping: threading.Event) -> None:
        super().__init__(spec, recorder, stopping)
        self.in_flight = 0
        self._numbers: dict[Log, int] = defaultdict(int)
        self._random = random.Random(spec.name)

    def run(self) -> None:
        self.open()
        try:
            self._go_on()
        finally:
            self.finish()
            self.recorder.flush()

    def _go_on(self) -> None:
        turn, credit = 0, 0.0
        while not self.stopping.wait(TICK_S):
            credit = min(credit + self.spec.per_second * TICK_S, IN_FLIGHT_MAX)
            values = []
            while credit >= 1 and self.in_flight + len(values) < IN_FLIGHT_MAX:
                credit -= 1
                turn += 1
                values.append(self.next_value(self.spec.logs[turn % len(self.spec.logs)]))
            self.recorder.flush()
            self.send(values)
            self.serve()
            self.recorder.flush()

    def next_value(self, log: Log) -> tuple[Log, int, bytes]:
        number, value = self.new_value(log, self.spec.acks)
        self.in_flight += 1
        return log, number, value

    def new_value(self, log: Log, acks: int) -> tuple[int, bytes]:
        """A number that this process has not sent to this log, as text, recorded as about to be sent."""
        number = self._numbers[log]
        self._numbers[log] += 1
        self.record_send(log, number, "invoke", acks=acks)
        return number, text_of(self.process, log, number).encode() + b" " * self._random.choice(PADS)

    def record_send(self, log: Log, number: int, outcome: Any, offset: int = -1, acks: int | None = None) -> None:
        acks = self.spec.acks if acks is None else acks
        self.record("send", log, type=outcome, value=number, offset=offset, acks=acks, idempotent=self.spec.idempotent)

    def delivered(self, log: Log, number: int) -> Callable[[Any, int], None]:
        def settle(error: Any, offset: int) -> None:
            self.in_flight -= 1
            self.record_send(log, number, "info" if error else "ok", -1 if error else offset)
            if error and not self.stopping.is_set():
                print(f"{self.process}: {log}, {number}: {error}", file=sys.stderr)

        return settle

    def open(self) -> None:
        raise NotImplementedError

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        raise NotImplementedError

    def serve(self) -> None:
        """Let what has been answered be recorded."""

    def finish(self) -> None:
        """Wait for what is in flight, and end."""


class KafkaProducer(ProducerClient):
    def open(self) -> None:
        from confluent_kafka import Producer as ConfluentProducer

        settings = kafka_settings(self.spec) | {
            "acks": self.spec.acks,
            "enable.idempotence": self.spec.idempotent and self.spec.acks != 0,
            "linger.ms": 2,
            "retry.backoff.ms": 50,
            "request.timeout.ms": 10_000,
        }
        self._producer = ConfluentProducer(settings)

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        for log, number, value in values:
            settle = self.delivered(log, number)
            self._producer.produce(
                log.topic,
                value,
                partition=log.partition,
                on_delivery=lambda error, message, settle=settle: settle(error, offset_of(message)),
            )

    def serve(self) -> None:
        self._producer.poll(0)

    def finish(self) -> None:
        if self._producer.flush(self.spec.flush_s):
            self._producer.purge()
            self._producer.flush(self.spec.flush_s)


def offset_of(message: Any) -> int:
    offset = message.offset()
    return offset if offset is not None and offset >= 0 else -1


class NativeProducer(ProducerClient):
    def open(self) -> None:
        self._producer = Producer(
            self.spec.native,
            acks=self.spec.acks,
            idempotent=self.spec.idempotent,
            linger_ms=2,
            request_timeout_ms=10_000,
        )

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        for log, number, value in values:
            settle = self.delivered(log, number)
            self._producer.send(
                log.topic,
                value,
                partition=log.partition,
                on_delivery=lambda error, _, __, offset, settle=settle: settle(error, offset),
            )

    def finish(self) -> None:
        self._producer.close(self.spec.flush_s)


class RawProducer(ProducerClient):
    """Never sends a value twice.  On each connection it is another process of the history, ``name.1``, ``name.2`` and
    so on: a request of a connection that is closed may take effect behind those of the next one.
    """

    def open(self) -> None:
        self._connections = 0
        self._peer: Peer | None = None
        self._waiting: deque[tuple[int, Log, int]] = deque()
        self._correlation = 0

    def next_value(self, log: Log) -> tuple[Log, int, bytes]:
        """What is recorded depends on the connection: see :meth:`send`."""
        return log, 0, b""

    def send(self, values: list[tuple[Log, int, bytes]]) -> None:
        try:
            if self._peer is None:
                self._connect()
            frames = [self._frame(log, 0 if turn % 8 else 1) for turn, (log, _, _) in enumerate(values)]
            self.recorder.flush()
            assert self._peer is not None
            self._peer.sock.sendall(b"".join(frames))
            self._receive(RAW_IN_FLIGHT_MAX)
        except (OSError, EOFError):
            self._disconnect()

    def _connect(self) -> None:
        self._peer = Peer(self.spec.native)
        self._connections += 1
        self.process = f"{self.spec.name}.{self._connections}"
        self._numbers.clear()

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = None
        self._waiting.clear()

    def _frame(self, log: Log, acks: int) -> bytes:
        number, value = self.new_value(log, acks)
        self._correlation += 1
        if acks:
            self._waiting.append((self._correlation, log, number))
        batch = encode_values([value], time.time_ns() // 1_000_000)
        header = [native.PRODUCE, self._correlation, log.topic, log.partition, acks, 10_000]
        return native.encode_frame(header, len(batch)) + batch

    def _receive(self, left_max: int) -> None:
        """The replies, which come in order, until at most so many are missing."""
        assert self._peer is not None
        while len(self._waiting) > left_max:
            header, _ = self._peer.receive()
            correlation, log, number = self._waiting.popleft()
            if header[0] != correlation:
                raise AssertionError(f"{self.process}: a reply to {header[0]} instead of {correlation}")
            stored = header[1] == 0
            self.record_send(log, number, "ok" if stored else "info", header[2] if stored else -1, acks=1)

    def finish(self) -> None:
        try:
            if self._peer is not None:
                self._receive(0)
        except (OSError, EOFError):
            pass
        self._disconnect()

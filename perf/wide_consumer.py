"""What does a message cost a broker when a consumer waits at many partitions?

    python perf/wide_consumer.py [--smoke] [--messages 300] [--peer kafka]

A consumer's fetch of 1 to 5,000 partitions waits for more than comes, while a producer sends messages, one at a time,
to one of them.  *cpu/message* is the CPU of all the broker's processes for one message, in µs; it should be the same
for any number of partitions.  The columns say what a consumer does: *nothing*, there is none; *waits*, its fetch names
all partitions and goes on waiting; *session*, it reads each message, in a fetch session (KIP-227).  *request* and
*reply* are the bytes of a fetch of that session that finds nothing.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _bench import headline, row
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from appliance.bench import brokers
from appliance.records.encode import encode_values

PARTITIONS = (1, 10, 100, 1_000, 5_000)
BATCH = encode_values([bytes(200)], 1_000)
HEAD = struct.Struct(">hhih")
WAIT_MS = 600_000
SESSION_AT = 4 + 4 + 2
"""Where a reply has the id of its session, without its size."""
BYTES = 50 << 20
NOT_YET = (3, 5, 6)
"""Errors of a topic that was created just now."""


class Client:
    """A connection with Kafka's protocol."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._sock = socket.create_connection((host, int(port)), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._sock.makefile("rb")

    def send(self, api: int, version: int, body: bytes) -> None:
        frame = HEAD.pack(api, version, 1, -1) + body
        self._sock.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(size)

    def produce(self, topic: str) -> None:
        """Append one message to partition 0, with acks=all; a broker may not lead it yet."""
        while error := self._error_of(topic):
            assert error in NOT_YET, error
            time.sleep(0.1)

    def _error_of(self, topic: str) -> int:
        head = struct.pack(">hhiih", -1, -1, 30_000, 1, len(topic)) + topic.encode()
        self.send(0, 7, head + struct.pack(">iii", 1, 0, len(BATCH)) + BATCH)
        (error,) = struct.unpack_from(">h", self.receive(), 4 + 4 + 2 + len(topic) + 4 + 4)
        return int(error)

    def fetch(
        self, topic: str, offsets: list[int], bytes_min: int, wait_ms: int, session: tuple[int, int] = (0, -1)
    ) -> int:
        """Ask for partitions 0 and so on; the size of the request."""
        head = struct.pack(">iiiibii", -1, wait_ms, bytes_min, BYTES, 0, *session)
        rows = b"".join(struct.pack(">iiqqi", n, -1, offset, -1, BYTES) for n, offset in enumerate(offsets))
        topics = struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">i", len(offsets)) + rows
        body = head + (topics if offsets else struct.pack(">i", 0)) + struct.pack(">ih", 0, 0)
        self.send(1, 11, body)
        return len(body) + HEAD.size

    def close(self) -> None:
        self._file.close()
        self._sock.close()


def cpu_us(broker: brokers.MeasuredBroker, topic: str, messages: int) -> float:
    """CPU of the broker for each message that is sent to a topic's first partition."""
    producer = Client(broker.address)
    for _ in range(max(messages // 10, 3)):
        producer.produce(topic)
    time.sleep(0.2)
    before = broker.cpu_s()
    for _ in range(messages):
        producer.produce(topic)
    used = broker.cpu_s() - before
    producer.close()
    return 1e6 * used / messages


class Session:
    """A fetch session of all partitions; the first of them has messages."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._client, self._topic = Client(address), topic
        self._client.fetch(topic, [0] * partitions, 0, 0, (0, 0))
        (self._id,) = struct.unpack_from(">i", self._client.receive(), SESSION_AT)
        assert self._id, "there is no session"
        self._epoch, self._offset = 1, 0
        while self._read(0):
            pass

    def _read(self, wait_ms: int, between: Callable[[], None] = lambda: None) -> bool:
        """Read the first partition on, and do something while the fetch waits; whether there was something."""
        self._client.fetch(self._topic, [self._offset], min(wait_ms, 1), wait_ms, (self._id, self._epoch))
        self._epoch += 1
        between()
        reply = self._client.receive()
        if len(reply) < SESSION_AT + 8 + 2 + len(self._topic) + 4 + 6 + 8:
            return False
        end = struct.unpack_from(">q", reply, SESSION_AT + 8 + 2 + len(self._topic) + 4 + 6)[0]
        has_new, self._offset = end > self._offset, end
        return has_new

    def empty(self) -> tuple[int, int]:
        """Bytes of a request and of its reply when there is nothing to read."""
        size = self._client.fetch(self._topic, [], 0, 0, (self._id, self._epoch))
        self._epoch += 1
        return size, len(self._client.receive())

    def cpu_us(self, broker: brokers.MeasuredBroker, messages: int) -> float:
        """CPU of the broker for each message that is sent and read, one at a time."""
        producer = Client(broker.address)
        for _ in range(max(messages // 10, 3)):
            self._read(WAIT_MS, lambda: producer.produce(self._topic))
        before = broker.cpu_s()
        for _ in range(messages):
            self._read(WAIT_MS, lambda: producer.produce(self._topic))
        used = broker.cpu_s() - before
        producer.close()
        return 1e6 * used / messages

    def close(self) -> None:
        self._client.close()


def measure(broker: brokers.MeasuredBroker, partitions: int, messages: int) -> None:
    topic = f"wide-{partitions}"
    admin = brokers.admin_of(broker.address)
    admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=120)[topic].result(150)
    idle = cpu_us(broker, topic, messages)
    consumer = Client(broker.address)
    consumer.fetch(topic, [0] * partitions, BYTES, WAIT_MS)
    time.sleep(0.5)
    waits = cpu_us(broker, topic, messages)
    consumer.close()
    session = Session(broker.address, topic, partitions)
    request, reply = session.empty()
    reads = session.cpu_us(broker, messages)
    session.close()
    name = f"{broker.name}, {partitions} partitions"
    row(name, nothing=idle, waits=waits, session=reads, request=request, reply=reply)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--peer", choices=["kafka"], help="measure Kafka, too")
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    sizes, messages = ((1, 20), 10) if options.smoke else (PARTITIONS, options.messages)
    headline("CPU in µs for each message, by what a consumer of so many partitions does", messages=messages)
    makers = [brokers.OurBroker] + ([brokers.KafkaBroker] if options.peer else [])
    for make in makers:
        with tempfile.TemporaryDirectory(prefix="perf-") as directory:
            broker = make(Path(directory))
            try:
                for partitions in sizes:
                    measure(broker, partitions, messages)
            finally:
                broker.stop()


if __name__ == "__main__":
    main()

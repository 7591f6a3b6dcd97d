"""Load for crash tests: numbered messages, an account of what was acknowledged, and what must be in the log then."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from appliance.client import Producer
from appliance.records.decode import Record, decode_batch
from appliance.records.encode import encode_values
from appliance.wire import native

from ..support.native_peer import Peer

FETCH_BYTES: Final = 1 << 22


class NotFetched(Exception):
    """A fetch was refused, or not answered as it should be."""


class Load:
    """A producer in a thread that sends numbers to every partition of a topic until told to stop.

    ``in_flight_max`` messages wait for their acknowledgement: a few make a load that consumers keep up with.
    """

    def __init__(
        self, address: str, topic: str, partitions: int, acks: str | int = "all", in_flight_max: int = 100_000
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._room = threading.Semaphore(in_flight_max)
        self._producer = Producer(address, acks=acks, linger_ms=1, batch_messages_max=20, buffer_bytes_max=1 << 20)
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.failed: list[str] = []
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.close(60)

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                break
            partition = number % self._partitions
            self._room.acquire()
            self._producer.send(
                self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered(partition, number)
            )
        self._producer.flush(60)

    def _delivered(self, partition: int, number: int) -> Callable[[Exception | None, str, int, int], None]:
        def delivered(error: Exception | None, topic: str, _: int, offset: int) -> None:
            self._room.release()
            with self._progress:
                if error is None:
                    self.acknowledged[partition].append(number)
                    self.count += 1
                else:
                    self.failed.append(f"{number}: {error}")
                self._progress.notify_all()

        return delivered

    def wait_for_more(self, count: int, seconds_max: float = 60) -> None:
        """Until ``count`` more messages have been acknowledged."""
        with self._progress:
            target = self.count + count
            assert self._progress.wait_for(lambda: self.count >= target, seconds_max), "the load stands still"


def leader(address: str, topic: str, partition: int) -> str:
    """Where a partition is, according to any appliance of its cluster."""
    with Peer(address) as peer:
        header, _ = peer.call([native.METADATA, 1, [topic]])
    brokers = {broker_id: f"{host}:{port}" for broker_id, host, port in header[2]["brokers"]}
    return brokers[dict(header[2]["topics"][0]["partitions"])[partition]]


def read_all(address: str, topic: str, partition: int) -> list[Record]:
    """Every record of a partition, read through the native listener and checked.

    What was acknowledged with acks=1 is readable once it is flushed: so is everything before a last message that is
    acknowledged with acks=all.
    """
    with Peer(leader(address, topic, partition)) as peer:
        error, _, end, message = peer.produce(topic, encode_values([b"last"], 1_000), partition, acks=-1)
        assert error == 0, message
        records = [record for some in fetched(peer, topic, partition, end) for record in some]
    assert records.pop().value == b"last"
    return records


def fetched(peer: Peer, topic: str, partition: int, end: int) -> Iterator[list[Record]]:
    """All records up to ``end``, as many as come with one reply at a time, checked.

    Raises:
        NotFetched: the reply is not what it should be.
    """
    offset = 0
    while offset < end:
        part, data = peer.fetch(topic, offset, partition, bytes_max=FETCH_BYTES)
        if part[0] or not data:
            raise NotFetched(f"{topic}-{partition} at {offset} of {end}: {part}")
        view, at, records = memoryview(data), 0, []
        while at < len(data):
            records += decode_batch(view, at)
            at += 12 + int.from_bytes(view[at + 8 : at + 12], "big")
        yield records
        offset += len(data)


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def check(address: str, topic: str, load: Load, partitions: int) -> None:
    """Nothing acknowledged is lost, nothing is duplicated, order is kept within each partition."""
    assert not load.failed, load.failed[:3]
    for partition in range(partitions):
        found = numbers(read_all(address, topic, partition))
        acknowledged = load.acknowledged[partition]
        assert found == sorted(set(found)), "doubled or out of order"
        missing = set(acknowledged) - set(found)
        assert not missing, f"{len(missing)} acknowledged messages are lost, such as {min(missing)}"

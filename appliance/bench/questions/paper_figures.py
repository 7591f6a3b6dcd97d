"""How fast are producer and consumer beside message queues, and what does a message take on the disk?

The comparison of the paper (figures 4 and 5, section 5): one producer, then one consumer, messages of 200 bytes; a
batch of 1 and of 50.  The paper's producer got no acknowledgements.  Here everything is acknowledged, and each broker
flushes as its defaults say: an appliance at once, the others later or never.  Queue brokers have clients in Python, as
most of their users do; ``client`` says how busy these were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..harness import Harness
from ..kafka_clients import FIFTY, ONE, Run
from ..kafka_side import KafkaSide, ours_and_kafka
from ..queue_peers import QUEUE_PEERS, QueuePeer

TITLE = "The paper's figures 4 and 5, and bytes per message on the disk"
ROUND_S = 60
SIZE = 200
PRODUCE, CONSUME, STORED = "produce", "consume", "bytes on the disk per message"
BLOCK = 4096
COUNT_FIFTY, COUNT_ONE, COUNT_QUEUE = 500_000, 60_000, 15_000
MANY_IN_FLIGHT = ONE | {"max.in.flight.requests.per.connection": "1000"}


@dataclass(frozen=True)
class Contender:
    """A broker with one way to produce; ``count`` is what takes it a second or so."""

    name: str
    count: int
    data_dir: Path
    cpu_s: Callable[[], float]
    topic: Callable[[], str]
    produce: Callable[[str, int], Run]
    consume: Callable[[str, int], Run]


def run(harness: Harness) -> None:
    harness.note(message_bytes=SIZE, producers=1, consumers=1, acks="1, or what the broker confirms")
    with ours_and_kafka(harness) as sides, harness.started(chosen_queues(harness)) as queues:
        contenders = [contender for side in sides for contender in kafka_contenders(harness, side)]
        contenders += [queue_contender(harness, queue) for queue in queues]
        for contender in contenders:  # connections, code and queues that are used for the first time
            topic = contender.topic()
            contender.produce(topic, contender.count // 10)
            contender.consume(topic, contender.count // 10)
        stored: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        topics: dict[str, str] = {}

        def produce(contender: Contender, topic: str) -> Run:
            before = held(contender.data_dir)
            done = contender.produce(topic, contender.count)
            stored[contender.name].append(added(before, held(contender.data_dir)) / contender.count)
            topics[contender.name] = topic
            return done

        def filled(contender: Contender) -> str:
            topic = contender.topic()
            contender.produce(topic, contender.count)
            return topic

        harness.run(
            PRODUCE, contenders, lambda contender: contender.topic(), produce, limit="page cache write", bytes_each=SIZE
        )
        harness.run(
            CONSUME, contenders, filled, lambda contender, topic: contender.consume(topic, contender.count),
            limit="loopback sendfile", bytes_each=SIZE,
        )  # fmt: skip
        for name, values in stored.items():
            if values:
                harness.add(STORED, name, "bytes", values)


def chosen_queues(harness: Harness) -> list[Callable[[Path], QueuePeer]]:
    return [peer for name, peer in QUEUE_PEERS.items() if name in harness.options.peers]


def kafka_contenders(harness: Harness, side: KafkaSide) -> list[Contender]:
    def with_settings(settings: dict[str, str]) -> Callable[[str, int], Run]:
        return lambda topic, count: side.produce(topic, count, SIZE, settings | {"acks": "1"})

    def consume(topic: str, count: int) -> Run:
        return side.consume(topic, count, SIZE)

    ways = (("50", COUNT_FIFTY, FIFTY), ("1", COUNT_ONE, MANY_IN_FLIGHT))
    return [
        Contender(f"{side.name}, {batch} a batch", harness.scaled(count), side.broker.data_dir, side.cpu_s, side.topic,
                  with_settings(settings), consume)
        for batch, count, settings in ways
    ]  # fmt: skip


def queue_contender(harness: Harness, queue: QueuePeer) -> Contender:
    return Contender(
        queue.name, harness.scaled(COUNT_QUEUE), queue.data_dir, queue.cpu_s, queue.topic,
        lambda topic, count: queue.produce(topic, count, SIZE), lambda topic, count: queue.consume(topic, count, SIZE),
    )  # fmt: skip


def held(directory: Path) -> dict[Path, int]:
    """The bytes in each file below ``directory``, without blocks of zeros: brokers make files before they fill them."""
    held_bytes = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    held_bytes[path] = sum(
                        len(block) for block in iter(lambda: file.read(BLOCK), b"") if block.strip(b"\0")
                    )
    return held_bytes


def added(before: Mapping[Path, int], after: Mapping[Path, int]) -> int:
    """How much more the files hold.  A broker deletes old data when it likes: that is not counted."""
    return sum(size - before.get(path, 0) for path, size in after.items())

"""appliance.wire.kafka.metadata_reply: the encoder against kio, and fast enough for thousands of topics."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from appliance.catalog import Topic
from appliance.wire.kafka.apis import APIS, METADATA
from appliance.wire.kafka.metadata_reply import VERSION_MAX, Broker, MetadataEncoder, MetadataRow

from ...support.kafka_messages import decode_response, kio_response_again

BROKERS = [Broker(0, "h" * 130, 9092), Broker(1, "::1", 65_535)]
TOPICS = [
    Topic("n" * 249, {n: [n % 2, 0] for n in range(130)}, id=UUID(int=5).hex),
    Topic("größer", id=UUID(int=6).hex),
    Topic("c", {0: [7]}, id=UUID(int=7).hex),
]


def encoder() -> MetadataEncoder:
    return MetadataEncoder(lambda topic, partition: n if (n := topic.leader(partition)) < 2 else -1)


def test_it_covers_what_is_advertised() -> None:
    assert APIS[METADATA].version_max == VERSION_MAX


@pytest.mark.parametrize("version", range(VERSION_MAX + 1))
@pytest.mark.parametrize("cluster_id", ["", "cluster"])
def test_every_version_is_what_kio_would_write(version: int, cluster_id: str) -> None:
    encode = encoder()
    rows: list[MetadataRow] = [(topic.name, topic) for topic in TOPICS]
    rows.append(("error", 17))
    rows.append((UUID(int=9), 100))
    topics = encode.topics(version, rows, lambda name: {3} if name == rows[0][0] else set())
    frame = encode.frame(77, version, BROKERS, cluster_id, 1, topics, {5, 8})
    assert kio_response_again(METADATA, version, frame) == frame
    reply = decode_response(METADATA, version, frame)
    assert reply.header.correlation_id == 77
    assert [topic.name for topic in reply.topics[:4]] == [name for name, _ in rows[:4]]
    assert [len(topic.partitions) for topic in reply.topics[:4]] == [130, 0, 1, 0]
    if version >= 10:
        ids = [topic.topic_id for topic in reply.topics]
        assert ids[0] == UUID(int=5) and ids[1] != ids[2] and ids[3] is None
        assert ids[4] == UUID(int=9)
    if version >= 8:
        assert [topic.authorized_operations for topic in reply.topics][:2] == [{3}, set()]
        assert reply.topics[4].authorized_operations is None
    assert reply.topics[4].name == (None if version >= 12 else "")


def test_thousands_of_topics_take_milliseconds() -> None:
    """5,000 topics take 10 ms on the development machine; the bound leaves room for a busy one."""
    encode = encoder()
    rows: list[MetadataRow] = [(f"topic-{n}", Topic(f"topic-{n}", {0: [0]}, id=f"{n:032x}")) for n in range(5_000)]
    best_s = 60.0
    for _ in range(5):
        begun_s = time.thread_time()
        encode.topics(VERSION_MAX, rows)
        best_s = min(best_s, time.thread_time() - begun_s)
    assert best_s < 0.25

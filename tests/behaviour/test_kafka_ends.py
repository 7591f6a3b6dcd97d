"""One end of the log: what acks=1 has acknowledged is there for whoever asks the Kafka listener, flushed or not."""

from __future__ import annotations

from appliance.records.encode import encode_values

from ..support.kafka_peer import KafkaPeer
from ..support.native_peer import Peer
from ..support.server import Server

BATCH = encode_values([b"one", b"two"], 1_000)
NEVER_FLUSHED = {"flush_messages": "1000000", "flush_ms": "3600000", "flush_bytes": "0"}


def test_deleting_to_the_end_deletes_what_acks_1_has_acknowledged(appliance: Server, topic: str) -> None:
    """Also while no flush is due; the answer comes when the start has moved, and the log goes on from there."""
    with Peer(appliance.native) as peer, KafkaPeer(appliance.kafka) as kafka:
        peer.create(topic, **NEVER_FLUSHED)
        for _ in range(3):
            end = peer.produce(topic, BATCH)[2]
            assert _delete(kafka, topic, end + 1) == (1, -1)
            assert _delete(kafka, topic, -1) == (0, end)
            assert peer.fetch(topic, 0)[0][:3] == [1, end, end]
            assert _delete(kafka, topic, -1) == (0, end), "there is nothing more to delete"
        written = [peer.produce(topic, BATCH)[2] for _ in range(2)]
        assert _delete(kafka, topic, written[0]) == (0, written[0])
        assert peer.fetch(topic, written[0])[0][:3] == [0, written[0], written[1]]


def test_the_end_of_the_epoch_is_the_end_of_the_log(appliance: Server, topic: str) -> None:
    with Peer(appliance.native) as peer, KafkaPeer(appliance.kafka) as kafka:
        peer.create(topic, **NEVER_FLUSHED)
        for _ in range(3):
            end = peer.produce(topic, BATCH)[2]
            part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
            reply = kafka.ask("OffsetForLeaderEpoch", replica_id=-1, topics=[{"topic": topic, "partitions": [part]}])
            (row,) = reply.topics[0].partitions
            assert (row.error_code, row.leader_epoch, row.end_offset) == (0, 0, end)


def test_what_is_behind_in_its_flush_counts_in_a_topics_size(appliance: Server, topic: str) -> None:
    """With the default policy the flush is late by some milliseconds, and the question waits for it, not for ever.

    A busy disk may be later than that, now and then.
    """
    counted = 0
    with Peer(appliance.native) as peer:
        peer.create(topic)
        for _ in range(20):
            end = peer.produce(topic, BATCH)[2]
            (row,) = peer.admin("topics", names=[topic])[0]["partitions"]
            counted += row["end"] == end
    assert counted > 10


def test_a_topic_with_kafkas_defaults_of_flushing_shows_what_is_written(appliance: Server, topic: str) -> None:
    never = str(2**63 - 1)
    with Peer(appliance.native) as peer:
        peer.create(topic, flush_messages=never, flush_ms=never)
        for _ in range(3):
            end = peer.produce(topic, BATCH)[2]
            assert peer.end(topic) == end


def _delete(kafka: KafkaPeer, topic: str, offset: int) -> tuple[int, int]:
    """Error and low watermark."""
    partitions = [{"partition_index": 0, "offset": offset}]
    topics = [{"name": topic, "partitions": partitions}]
    (row,) = kafka.ask("DeleteRecords", topics=topics, timeout_ms=10_000).topics[0].partitions
    return row.error_code, row.low_watermark

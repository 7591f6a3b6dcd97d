"""The same requests to an appliance and to Apache Kafka 4.1 itself: the answers must be the same.

Kafka's jars are those of the Java client; where they cannot be had, only the appliance is asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.bench import brokers
from appliance.errors import DuplicateSequence, OutOfOrderSequence
from appliance.records.encode import encode_values

from ..kafka_peer import KafkaPeer
from ..sequence_cases import APPENDED, CASES, EMPTIED, MADE_AGAIN
from .adapters import KAFKA_CLIENT, KAFKA_JARS, jars, new_topic
from .conftest import Broker

SMALL_JVM = ["-Xmx400m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
PRODUCER = 7
NOT_YET = (3, 5, 6)
"""Kafka leads a new partition a moment after it has been created."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of Apache Kafka."""
    if shutil.which("java") is None:
        pytest.skip("no java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LIB", str(KAFKA_JARS or jars("java", KAFKA_CLIENT)))
        patch.setattr(brokers, "JVM", SMALL_JVM)
        broker = brokers.Kafka(tmp_path_factory.mktemp("kafka"))
    yield broker.address
    broker.stop()


@pytest.fixture(params=["appliance", "kafka"])
def peer(request: pytest.FixtureRequest) -> Iterator[KafkaPeer]:
    broker = request.getfixturevalue("broker" if request.param == "appliance" else "kafka")
    with KafkaPeer(broker.kafka if isinstance(broker, Broker) else broker) as connected:
        yield connected


def create(peer: KafkaPeer, topic: str) -> None:
    row = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    assert peer.ask("CreateTopics", 4, topics=[row], timeout_ms=30_000).topics[0].error_code == 0


def delete(peer: KafkaPeer, topic: str) -> None:
    assert peer.ask("DeleteTopics", 3, topic_names=[topic], timeout_ms=30_000).responses[0].error_code == 0


def produce(peer: KafkaPeer, topic: str, batch: bytes) -> Any:
    for _ in range(1_000):
        part = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
        reply = peer.ask("Produce", 8, acks=-1, timeout_ms=10_000, topic_data=[part])
        answer = reply.responses[0].partition_responses[0]
        if answer.error_code not in NOT_YET:
            return answer
    raise AssertionError(f"{topic} is not led")


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_idempotent_producers(peer: KafkaPeer, name: str) -> None:
    topic, bases = new_topic(), []
    create(peer, topic)
    for index, step in enumerate(CASES[name]):
        bases.append(-1)
        if step == MADE_AGAIN:
            delete(peer, topic)
            create(peer, topic)
            bases = [-1] * len(bases)
        elif step == EMPTIED:
            part = {"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}
            peer.ask("DeleteRecords", 1, topics=[part], timeout_ms=30_000)
        else:
            (epoch, sequence, count), answer = step
            numbers = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence}
            said = produce(peer, topic, encode_values([b"v"] * count, 1_000, **numbers))
            bases[-1] = said.base_offset
            what = f"step {index}: {step}"
            if answer == APPENDED:
                assert said.error_code == 0 and said.base_offset not in bases[:-1], what
            elif isinstance(answer, tuple):
                assert (said.error_code, said.base_offset) == (0, bases[answer[1]]), what
            else:
                assert said.error_code == (OutOfOrderSequence if answer is DuplicateSequence else answer).code, what

"""Requests of one Kafka connection take effect in order: pipelines of what a client may send without waiting.

Each pipeline is sent in one piece, with a coordinator and ZooKeeper behind the worker, and every answer must be what
it would be if the client had waited for the one before.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.records.encode import encode_values

from ..support.kafka_messages import decode_response, fill, message, request_frame
from ..support.server import Server
from ..support.zookeeper_fixture import ACCESS, Ensemble, fresh_connect

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
VERSIONS = {
    PRODUCE: 7, FETCH: 11, LIST_OFFSETS: 5, METADATA: 8, OFFSET_COMMIT: 7, OFFSET_FETCH: 5,
    CREATE_TOPICS: 4, DELETE_TOPICS: 3, DELETE_RECORDS: 1,
}  # fmt: skip
BATCH = encode_values([b"one", b"two", b"three"], 1_000)
COMMITS = 50


class Client:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), 30)
        self._asked: list[tuple[int, int]] = []
        self._correlation = 0
        self._unsent = b""

    def ask(self, api: int, **values: Any) -> None:
        """Add a request to the pipeline."""
        cls = message(api, "Request")
        version = VERSIONS[api]
        self._correlation += 1
        frame = request_frame(api, version, fill(cls._struct, version, values), self._correlation)
        self._unsent += len(frame).to_bytes(4, "big") + frame
        self._asked.append((self._correlation, api))

    def produce(self, topic: str, acks: int) -> None:
        part = {"index": 0, "records": BATCH}
        data = [{"name": topic, "partition_data": [part]}]
        self.ask(PRODUCE, acks=acks, timeout_ms=10_000, topic_data=data)
        if not acks:
            self._asked.pop()

    def create(self, topic: str) -> None:
        self.ask(
            CREATE_TOPICS, topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1}], timeout_ms=10_000
        )

    def ask_end(self, topic: str, timestamp: int = -1) -> None:
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        self.ask(LIST_OFFSETS, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])

    def commit(self, topic: str, offset: int) -> None:
        part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        self.ask(
            OFFSET_COMMIT,
            group_id="order",
            generation_id_or_member_epoch=-1,
            topics=[{"name": topic, "partitions": [part]}],
        )

    def answers(self) -> list[Any]:
        """Send the pipeline, and read all it is answered."""
        self.sock.sendall(self._unsent)
        stream = self.sock.makefile("rb")
        found = []
        for correlation, api in self._asked:
            size = stream.read(4)
            frame = size + stream.read(int.from_bytes(size, "big"))
            assert int.from_bytes(frame[4:8], "big") == correlation, "replies are out of order"
            found.append(decode_response(api, VERSIONS[api], frame))
        self._unsent, self._asked = b"", []
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    settings = {"zookeeper.connect": fresh_connect(standalone), "network.workers": 2} | ACCESS
    with Server(Path(tmp_path_factory.mktemp("order")) / "data", **settings) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server.kafka)
    yield made
    made.sock.close()


def test_topics_records_and_ends(client: Client, topic: str) -> None:
    """CreateTopics, Produce with every acks, ListOffsets, DeleteRecords, ListOffsets, DeleteTopics, Produce, again."""
    for _ in range(2):
        client.create(topic)
        for acks in (1, 0, -1, 0):
            client.produce(topic, acks)
        client.ask_end(topic)
        client.ask(
            DELETE_RECORDS,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}],
            timeout_ms=10_000,
        )
        client.ask_end(topic, -2)
        client.ask(METADATA, topics=[{"name": topic}], allow_auto_topic_creation=False)
        client.ask(DELETE_TOPICS, topic_names=[topic], timeout_ms=10_000)
        client.ask(METADATA, topics=[{"name": topic}], allow_auto_topic_creation=False)
    answers = client.answers()
    for at in (0, 9):
        created, first, second, end, deleted, start, known, _, unknown = answers[at : at + 9]
        assert created.topics[0].error_code == 0
        bases = [answer.responses[0].partition_responses[0].base_offset for answer in (first, second)]
        assert bases == [len(BATCH) - 3, 3 * len(BATCH) - 3]
        assert end.topics[0].partitions[0].offset == 4 * len(BATCH)
        assert deleted.topics[0].partitions[0].low_watermark == 4 * len(BATCH)
        assert start.topics[0].partitions[0].offset == 4 * len(BATCH)
        assert (known.topics[0].error_code, unknown.topics[0].error_code) == (0, 3)


def test_commits_and_what_is_committed(client: Client, topic: str) -> None:
    """Every commit of a deep pipeline succeeds, and what is read behind them is the newest."""
    client.create(topic)
    client.ask(OFFSET_FETCH, group_id="order", topics=[{"name": topic, "partition_indexes": [0]}])
    for offset in range(COMMITS):
        client.commit(topic, offset)
    client.ask(OFFSET_FETCH, group_id="order", topics=[{"name": topic, "partition_indexes": [0]}])
    client.commit(topic, 7)
    client.ask(OFFSET_FETCH, group_id="order", topics=[{"name": topic, "partition_indexes": [0]}])
    _, before, *commits, newest, _, last = client.answers()
    committed = [answer.topics[0].partitions[0].committed_offset for answer in (before, newest, last)]
    assert committed == [-1, COMMITS - 1, 7]
    assert [answer.topics[0].partitions[0].error_code for answer in commits] == [0] * COMMITS

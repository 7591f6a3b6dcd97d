"""Single packets that once ended or stalled something, at a real appliance: what they are answered, and what they cost.

Each is one member of a class that other tests cover with generated values; here the whole way is gone, from the socket
to ZooKeeper, and honest clients are asked afterwards.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from appliance.errors import GroupTooLarge, UnsupportedVersion
from appliance.log.reader import RECORDS_MAX
from appliance.records.encode import encode_batch
from appliance.wire import native
from appliance.wire.kafka.apis import APIS
from tests.support.kafka_messages import message, mutated, random_values, request_frame
from tests.support.kafka_peer import KafkaPeer
from tests.support.measures import memory_bytes
from tests.support.native_peer import Peer
from tests.support.server import Server

from ..support.long import chosen_size
from .box import MEASURED

FRAMES = chosen_size("FUZZ_MUTATIONS", 4_000)
GROWTH_BYTES_MAX = 16 << 20
"""Of a process, whatever it is sent."""
TOPIC = "honest"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings: dict[str, Any] = {"network.workers": 1, "zookeeper.nodes": 1}
    with Server(tmp_path_factory.mktemp("probes") / "data", **settings) as running:
        running.wait_for_zookeeper()
        with Peer(running.native) as peer:
            peer.create(TOPIC)
            peer.admin("commit", group="honest", offsets=[[TOPIC, 0, 7]])
        yield running


@pytest.fixture(autouse=True)
def nobody_is_harmed(server: Server) -> Iterator[None]:
    """The processes are those that they were, hold about what they held, and serve producers, readers and groups."""
    before = {pid: memory_bytes(pid) for role in MEASURED for pid in server.pids(role)}
    with Peer(server.native) as witness:
        yield
        with Peer(server.native) as newcomer:
            for peer in (witness, newcomer):
                base = peer.produce(TOPIC, encode_batch([(None, b"v", (), 1)]), acks=-1)[1]
                assert peer.fetch(TOPIC, base)[0][0] == 0 and peer.end(TOPIC) == base + 1
                assert peer.admin("offsets", group="honest") == [[TOPIC, 0, 7]]
    assert {pid for role in MEASURED for pid in server.pids(role)} == before.keys()
    assert not any(row["restarts"] for row in server.state["processes"])
    assert all(memory_bytes(pid) - was < GROWTH_BYTES_MAX for pid, was in before.items())


@pytest.fixture
def kafka(server: Server) -> Iterator[KafkaPeer]:
    with KafkaPeer(server.kafka) as client:
        yield client


def test_numbers_that_no_cell_holds(server: Server) -> None:
    """They overflowed the cell that a waiting fetch is told in, and ended the worker."""
    with Peer(server.native) as peer:
        end, huge = peer.end(TOPIC), 2**64 - 1
        peer.send([native.FETCH, 3, 1_000, huge, huge, [[TOPIC, 0, end, huge]]])
        assert peer.hung_up()
    with Peer(server.native) as peer:  # the largest that may be asked for wait, and are answered
        most = 2**31 - 1
        header, _ = peer.call([native.FETCH, 3, 50, most, most, [[TOPIC, 0, end, most]]])
        assert header[2] == [[0, 0, end, 0]]


@pytest.mark.parametrize("hello", [False, True])
def test_eight_megabytes_of_empty_maps(server: Server, hello: bool) -> None:
    count = (8 << 20) - 64
    header = b"\x93\x09\x01\xdd" + count.to_bytes(4, "big") + b"\x80" * count
    with Peer(server.native, hello=hello) as peer, suppress(ConnectionError):
        peer.sock.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        assert peer.hung_up()


def test_names_of_megabytes_are_not_remembered(server: Server) -> None:
    """Version 12 has compact lengths, which can say more than 32,767."""
    for number in range(12):
        name = b"%08d" % number + b"n" * 7_000_000
        size = len(name) + 1
        varint = bytes((size >> shift & 0x7F) | (0x80 if size >> shift > 0x7F else 0) for shift in (0, 7, 14, 21))
        frame = struct.pack(">hhihx", 1, 12, 7, -1) + struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1)
        frame += b"\x02" + varint + name + b"\x02" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 100) + b"\0\0\x01\x01\0"
        with KafkaPeer(server.kafka) as client, suppress(ConnectionError):
            client.send_frame(frame)
            assert client.hung_up()


@pytest.mark.parametrize("count", [1_000, RECORDS_MAX, 200_000])
def test_one_batch_asked_about_hundreds_of_times(server: Server, kafka: KafkaPeer, count: int) -> None:
    """Up to RECORDS_MAX records the answer is exact; of more it is the batch, which begins no later."""
    topic = f"bomb-{count}"
    batch = encode_batch([(None, b"", (), 5_000 + number) for number in range(count)], codec="zstd")
    with Peer(server.native) as peer:
        peer.create(topic)
        base = peer.produce(topic, batch, acks=-1)[1]
        peer.end(topic)
    parts = [{"partition_index": 0, "timestamp": 5_000 + count - 1}] * 300
    reply = kafka.ask("ListOffsets", 1, replica_id=-1, topics=[{"name": topic, "partitions": parts}])
    found = {(part.error_code, part.offset) for part in reply.topics[0].partitions}
    assert found == {(0, base + count - 1 if count <= RECORDS_MAX else base)} and base >= 0


def test_a_topic_that_is_a_path(kafka: KafkaPeer) -> None:
    """A thousand of them stopped all groups for good."""
    topics = [{"name": name, "partition_indexes": [0]} for name in ("..", ".", "a/b", "/", "")]
    for _ in range(200):
        kafka.send("OffsetFetch", 5, group_id="g", topics=topics)
    for _ in range(200):
        reply = kafka.receive("OffsetFetch", 5)
        assert [part.committed_offset for topic in reply.topics for part in topic.partitions] == [-1] * 5


def test_partitions_that_nobody_has(kafka: KafkaPeer) -> None:
    """They were looked up one by one, and remembered."""
    for number in range(12):
        topics = [{"name": "no-such-topic", "partition_indexes": list(range(8_000))}]
        reply = kafka.ask("OffsetFetch", 5, group_id=f"leak-{number}", topics=topics)
        assert {part.committed_offset for part in reply.topics[0].partitions} == {-1}


def assignment(count: int) -> bytes:
    numbers = struct.pack(">i", count) + struct.pack(f">{count}i", *range(count))
    return struct.pack(">hi", 0, 2) + b"\0\1t" + numbers + b"\0\1u" + numbers + b"\xff" * 4


def join(kafka: KafkaPeer, group: str, metadata: bytes, client_id: str = "probe") -> Any:
    offers = [{"name": "range", "metadata": metadata}]
    values = {"group_id": group, "session_timeout_ms": 6_000, "rebalance_timeout_ms": 3_000, "member_id": ""}
    return kafka.ask("JoinGroup", 3, client_id=client_id, **values, protocol_type="consumer", protocols=offers)


def subscription(names: list[str]) -> bytes:
    texts = b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    return struct.pack(">hi", 0, len(names)) + texts + b"\xff" * 4


@pytest.mark.parametrize(("count", "error"), [(99_000, GroupTooLarge.code), (30_000, 0)])
def test_invented_partitions_of_an_assignment(kafka: KafkaPeer, count: int, error: int) -> None:
    """198,000 took the coordinator 2.7 GB and 90 s; the members of a group may assign what they like all the same."""
    joined = join(kafka, f"big-{count}", subscription(["t"]))
    rows = [{"member_id": joined.member_id, "assignment": assignment(count)}]
    ours = {"group_id": f"big-{count}", "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = kafka.ask("SyncGroup", 2, **ours, assignments=rows)
    assert synced.error_code == error
    assert bytes(synced.assignment) == (b"" if error else assignment(count))


@pytest.mark.parametrize(("count", "error"), [(65_000, GroupTooLarge.code), (25_000, 0)])
def test_a_subscription_that_no_node_of_zookeeper_holds(kafka: KafkaPeer, count: int, error: int) -> None:
    """Values over 1 MiB made the session flap: these names take six times their bytes when they are stored."""
    reply = join(kafka, f"names-{count}", subscription([f"{number:04x}\1\1" for number in range(count)]))
    assert reply.error_code == error


def test_a_client_id_of_any_length(kafka: KafkaPeer) -> None:
    """One of more than 1,000 characters could not be registered, and stopped the timers of all groups."""
    joined = join(kafka, "long", subscription(["t"]), client_id="c" * 30_000)
    assert joined.error_code == 0 and len(joined.member_id) < 400


def test_mutated_frames_of_every_api(server: Server) -> None:
    """Twenty on each connection.  A random Metadata or CreateTopics would otherwise make thousands of topics."""
    rng = random.Random(29)
    harmless = {"allow_auto_topic_creation": False, "validate_only": True}
    frames = [
        request_frame(key, version, random_values(message(key, "Request")._struct, version, rng) | harmless)
        for key, api in APIS.items()
        for version in range(max(api.version_min, 3 if key == 0 else 0), api.version_max + 1)
    ]
    for turn in range(0, FRAMES, 20):
        with KafkaPeer(server.kafka) as client, suppress(ConnectionError):
            for step in range(20):
                client.send_frame(mutated(bytearray(frames[(turn + step) % len(frames)]), rng))


@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", 0),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
    ],
    ids=["negative size", "2 GB", "HTTP", "TLS", "empty frame", "unknown API"],
)
def test_what_is_not_kafka_is_hung_up_on_at_once(kafka: KafkaPeer, start: bytes) -> None:
    kafka.sock.sendall(start)
    assert kafka.hung_up()


def test_a_version_that_is_not_served_gets_a_code(kafka: KafkaPeer) -> None:
    for key, version, known in ((18, 99, 0), (11, 30, 8), (1, 30, 18), (12, 9, 4)):
        kafka.send_frame(struct.pack(">hhih", key, version, 7, -1) + bytes(40))
        assert kafka.receive(APIS[key].name, known).error_code == UnsupportedVersion.code
    assert kafka.ask("Metadata", 1, topics=None).brokers

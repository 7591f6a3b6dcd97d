"""Groups over a damaged range: members go on with everything else, say what is wrong, and continue after the repair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer

from appliance.client import Consumer, GroupConsumer
from appliance.errors import CorruptBatch, StorageFault
from appliance.log.files import log_path
from appliance.records.encode import encode_values
from appliance.zookeeper.ensemble import Ensemble

from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect

FIRST = [b"sound", b"lost", b"behind"]
"""A batch of each in the first partition; the second of them gets damaged."""
OTHER = [b"other 1", b"other 2"]
SERVED = {FIRST[0], *OTHER}


@pytest.fixture
def damaged(tmp_path: Path, standalone: Ensemble) -> Iterator[tuple[Server, int]]:
    """An appliance that has found damage in the first of two partitions, and the first damaged offset."""
    settings = {"zookeeper.connect": fresh_connect(standalone), "scrub.every_ms": 100} | ACCESS
    with Server(tmp_path / "data", **settings) as server, Peer(server.native) as peer:
        peer.create("web", partitions=2)
        damaged, *_ = [peer.produce("web", encode_values([value], 1_000), acks=-1)[2] for value in FIRST]
        for value in OTHER:
            assert peer.produce("web", encode_values([value], 1_000), partition=1, acks=-1)[0] == 0
        with log_path(server.data_dir / "web-0", 0).open("r+b") as file:
            file.seek(damaged + 62)
            file.write(b"\xa5" * 5)
        wait_for(lambda: server.state["damaged"], "the scrubber to find it")
        yield server, damaged


def test_a_native_member_goes_on_and_says_what_is_wrong(damaged: tuple[Server, int]) -> None:
    server, offset = damaged
    at = ("--data", str(server.data_dir))
    said = run("consume", "web", "--group", "shell", "--timeout", "1", *at)
    assert set(said.out.encode().splitlines()) == SERVED
    assert said.status == 74 and f"web-0 is damaged: {log_path(Path(), 0).name}:{offset}: " in said.err, said
    with GroupConsumer(server.native, "native") as consumer:
        (stream,) = consumer.create_message_streams({"web": 1})["web"]
        got: set[bytes | None] = set()

        def read(wanted: set[bytes]) -> bool:
            got.update(message.value for message in stream.messages(0.1))
            return got == wanted

        wait_for(lambda: read(SERVED), "everything that is not damaged")
        wait_for(lambda: len(consumer.troubles()) == 1, "the trouble of the partition")
        (trouble,) = consumer.troubles()
        assert trouble.topic_partition == ("web", 0) and isinstance(trouble.error, StorageFault)
        assert f"web-0 at offset {offset}: " in str(trouble) and "damaged" in str(trouble)
        succeeding("produce", "web", "--partition", "1", *at, stdin=b"later\n")
        wait_for(lambda: read(SERVED | {b"later"}), "the other partition goes on")
        succeeding("log", "repair", "web-0", *at)
        wait_for(lambda: read(SERVED | {b"later", FIRST[2]}), "what stands behind the damage")
        wait_for(lambda: consumer.troubles() == [], "the end of the trouble")


def test_a_kafka_client_goes_on(damaged: tuple[Server, int]) -> None:
    server, _ = damaged
    settings = {"bootstrap.servers": server.kafka, "group.id": "kafka", "auto.offset.reset": "earliest"}
    consumer = KafkaConsumer(settings)
    got: set[bytes | None] = set()

    def read(wanted: set[bytes]) -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            got.add(message.value())
        return got == wanted

    try:
        consumer.subscribe(["web"])
        wait_for(lambda: read(SERVED), "everything that is not damaged")
        succeeding("log", "repair", "web-0", "--data", str(server.data_dir))
        wait_for(lambda: read(SERVED | {FIRST[2]}), "what stands behind the damage")
    finally:
        consumer.close()


def read_raising(server: Server, topic: str) -> None:
    with Consumer(server.native) as consumer:
        consumer.assign_topic(topic)
        with pytest.raises(CorruptBatch):
            list(consumer.messages(60))


def read_values_skipping(server: Server, topic: str) -> None:
    for _ in range(2):  # it is served once, and then withheld
        with Consumer(server.native, on_corrupt="skip") as consumer:
            consumer.assign_topic(topic)
            got = []
            while len(got) < 2:
                got += [value for batch in consumer.fetch_batches(30.0) for value in batch.values]
            assert got == FIRST[::2] and consumer.corrupt_batches == 1
            wait_for(lambda: f"{topic}-0" in server.state["damaged"], f"{topic}-0 is named")


def read_as_a_member(server: Server, topic: str) -> None:
    with GroupConsumer(server.native, "finds-it", on_corrupt="skip") as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        got: list[bytes | None] = []
        wait_for(lambda: got.extend(message.value for message in stream.messages(0.1)) or len(got) == 2, "the rest")


def read_with_the_shell(server: Server, topic: str) -> None:
    said = run("consume", topic, "--from", "earliest", "--timeout", "5", "--data", str(server.data_dir))
    assert said.out.encode().split() == FIRST[:1] and "damaged batch" in said.err, said


def read_merged(server: Server, topic: str) -> None:
    said = succeeding("tail", topic, "--data", str(server.data_dir))
    assert "1 damaged batch was left out" in said.err, said


READERS = (read_raising, read_values_skipping, read_as_a_member, read_with_the_shell, read_merged)


def test_who_meets_damage_tells_it(tmp_path: Path, standalone: Ensemble) -> None:
    """The scrubber comes by in hours: whoever reads a damaged batch with a native client has it named at once."""
    with Server(tmp_path / "data", **{"zookeeper.connect": fresh_connect(standalone)} | ACCESS) as server:
        server.wait_for_zookeeper()
        for reader in READERS:
            topic = reader.__name__
            with Peer(server.native) as peer:
                peer.create(topic)
                damaged, *_ = [peer.produce(topic, encode_values([value], 1_000), acks=-1)[2] for value in FIRST]
            with log_path(server.data_dir / f"{topic}-0", 0).open("r+b") as file:
                file.seek(damaged + 62)
                file.write(b"\xa5" * 5)
            reader(server, topic)
            wait_for(lambda: f"{topic}-0" in server.state["damaged"], f"{topic}-0 is named")  # noqa: B023
            assert f"{topic}-0" in run("doctor", "--data", str(server.data_dir)).out

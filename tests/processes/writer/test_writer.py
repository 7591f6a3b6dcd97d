"""The writer, from the outside: what a full or failing disk, retention and settings do to a partition."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer as ConfluentProducer

from appliance.client import Producer
from appliance.config import Config, TopicSettings
from appliance.errors import DiskFull, StorageFault
from appliance.log import Log
from appliance.processes.control import Channel
from appliance.processes.writer.writer import WriterArguments, run
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch, encode_values
from appliance.shared.doorbell import MarkedDoorbell

from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.ready import reap
from ...support.server import Server, wait_for
from ...support.small_machine import fill, small_machine

BATCH = encode_values([b"one", b"two"], 1_000)
LARGE = encode_values([os.urandom(500_000)], 1_000)


OPENS = """
import sys, msgspec._utils, re._compiler
from pathlib import Path
from appliance.config import Config
from appliance.processes.supervisor import nursery  # what the nursery has, writers have before they are forked
from appliance.processes.writer.writer import WriterArguments, open_log

def told(of, name):
    work = getattr(of, name)
    setattr(of, name, lambda *arguments: print(name, *arguments) or work(*arguments))

told(re._compiler, "compile")
told(msgspec._utils, "get_class_annotations")
modules = set(sys.modules)
settings = dict(setting.split("=") for setting in sys.argv[2:])
log = open_log(WriterArguments(Config(), Path(sys.argv[1]), "t", 0, settings, "", []))
print(*set(sys.modules) - modules, log.end_offset)
"""


def test_what_a_writer_opens_with_is_made_before_it_is_forked(tmp_path: Path) -> None:
    """A pattern, a decoder or a module that each writer makes for itself is memory of each: those here were 0.7 MB."""
    Log.open(tmp_path / "t-0", TopicSettings(), lambda: 0).close()
    assert (tmp_path / "t-0" / "clean-shutdown").exists()
    settings = TopicSettings().as_kafka() | {"retention.ms": "7d", "min.cleanable.dirty.ratio": "0.25"}
    words = [f"{name}={text}" for name, text in settings.items()]
    command = [sys.executable, "-c", OPENS, str(tmp_path), *words]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["0"]


def test_a_writer_of_a_topic_that_is_gone_ends_quietly(tmp_path: Path) -> None:
    """The topic was deleted, and its table with it, after the supervisor had decided to fork."""
    arguments = WriterArguments(Config(), tmp_path, "gone", 0, {}, "/appliance.test.gone", [MarkedDoorbell()])
    ours, control = Channel.pair()
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = run(arguments, control)
        os._exit(status)
    assert reap(pid) == 0
    for end in (ours, control):
        end.close()


def test_a_full_disk_is_named_to_both_listeners_and_goes_away_by_itself(tmp_path: Path) -> None:
    with (
        small_machine(tmp_path, disk="8m") as machine,
        machine.server(tmp_path / "log") as server,
        Peer(server.native) as peer,
        KafkaPeer(server.kafka) as kafka,
    ):
        peer.create("t")
        filler = machine.path / "filler"
        filler.write_bytes(bytes(4 << 20))
        written = 0
        while True:
            error, _, end, message = peer.produce("t", LARGE, acks=-1)
            if error:
                break
            written = end
        assert error == DiskFull.code and free_bytes(server, message) < len(LARGE)
        wait_for(lambda: state_shown(peer) == "disk full", "status to say so")
        wait_for(lambda: server.state["full"], "the supervisor to know")
        assert re.fullmatch(r"/\S+/t-0\S*: No space left on device, \d+ bytes are free", server.state["full"]["t-0"])
        assert server.state["full"]["t-0"] == peer.admin("status")["partitions"][0]["reason"]
        part, _ = peer.fetch("t", 0)
        assert part[:3] == [0, 0, written]
        fill(machine.path / "rest")
        for acks in (1, -1):  # also the next one, and the one after
            error, _, _, message = peer.produce("t", LARGE, acks=acks)
            assert error == DiskFull.code and free_bytes(server, message) == 0
            for version in (7, 8, 9):
                error, text = kafka_produce(kafka, version, acks)
                assert error == DiskFull.code and (version < 8 or free_bytes(server, text) == 0)
        filler.unlink()
        error, _base, end, _ = peer.produce("t", LARGE, acks=-1)
        assert (error, end) == (0, written + len(LARGE))
        assert kafka_produce(kafka, 9, -1)[0] == 0
        assert state_shown(peer) == "online"
        wait_for(lambda: not server.state["full"], "the supervisor to know that there is room")


def free_bytes(server: Server, message: str) -> int:
    found = re.fullmatch(rf"{server.data_dir}/t-0(/\S+)?: No space left on device, (\d+) bytes are free", message)
    assert found, message
    return int(found[2])


def kafka_produce(kafka: KafkaPeer, version: int, acks: int) -> tuple[int, str]:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": LARGE}]}]
    reply = kafka.ask("Produce", version, acks=acks, timeout_ms=10_000, topic_data=topics)
    part = reply.responses[0].partition_responses[0]
    return part.error_code, part.error_message if version >= 8 else ""


def test_producers_that_find_a_disk_full_go_on_when_there_is_room(tmp_path: Path) -> None:
    """Goal: every message once, with the native client and with librdkafka, both idempotent."""
    values = [os.urandom(50_000).hex().encode() for _ in range(4)]
    told: list[object] = []
    with (
        small_machine(tmp_path, disk="8m") as machine,
        machine.server(tmp_path / "log") as server,
        Peer(server.native) as peer,
        Producer(server.native, acks="all", idempotent=True) as native,
    ):
        peer.create("t")
        kafka = ConfluentProducer({"bootstrap.servers": server.kafka, "enable.idempotence": True})
        kafka.produce("t", values[0], on_delivery=lambda error, _: told.append(error))
        assert kafka.flush(60) == 0
        native.send("t", values[1]).result(60)
        filler = machine.path / "filler"
        fill(filler)
        kafka.produce("t", values[2], on_delivery=lambda error, _: told.append(error))
        sent = native.send("t", values[3])
        assert kafka.flush(1.0) == 1 and not sent.done()
        assert peer.produce("t", LARGE)[0] == DiskFull.code
        filler.unlink()
        sent.result(60)
        assert kafka.flush(60) == 0 and told == [None, None]
        _, data = peer.fetch("t", 0, bytes_max=1 << 22)
        found, at = [], 0
        while at < len(data):
            found += [record.value for record in decode_batch(data, at)]
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        assert sorted(found) == sorted(values)


def state_shown(peer: Peer) -> str:
    state: str = peer.admin("status")["partitions"][0]["state"]
    return state


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to make a flush fail")
def test_a_flush_that_fails_is_never_acknowledged_and_takes_the_partition_offline(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance()
    with Peer(server.native) as peer:
        peer.create("t")
        end = peer.produce("t", BATCH, acks=-1)[2]
        writer = server.pid_of("writer")
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", "/dev/null", "-p", str(writer), "-e", "inject=fdatasync:error=EIO"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert tracer.stderr is not None
        try:
            tracer.stderr.readline()  # "attached"
            assert peer.produce("t", BATCH, acks=-1)[0] != 0
        finally:
            tracer.kill()  # strace that is asked to end may wait for ever for a process that ends meanwhile
            tracer.communicate()
        offline = wait_for(lambda: server.state["offline"], "the partition to be offline")
        assert "cannot be flushed" in offline["t-0"]
        assert peer.produce("t", BATCH)[0] == StorageFault.code
        part, _ = peer.fetch("t", 0)
        assert part[:3] == [0, 0, end]


def test_log_append_time_stamps_the_batch_and_its_checksum(appliance: Server, topic: str) -> None:
    with Peer(appliance.native) as peer:
        peer.create(topic, **{"message_timestamp_type": "LogAppendTime"})
        assert peer.produce(topic, BATCH, acks=-1)[0] == 0
        records = decode_batch(memoryview(peer.fetch(topic, 0)[1]))
        assert len({record.timestamp for record in records}) == 1
        assert records[0].timestamp > 1_600_000_000_000


def test_settings_of_a_live_topic_take_effect(appliance: Server, topic: str) -> None:
    with Peer(appliance.native) as peer:
        peer.create(topic)
        assert peer.produce(topic, LARGE)[0] == 0
        peer.admin("alter_topic", name=topic, settings={"max.message.bytes": "1000"})
        assert wait_for(lambda: peer.produce(topic, LARGE)[0], "the new limit") == 10
        assert peer.produce(topic, BATCH)[0] == 0


def test_the_papers_flush_policy_exposes_after_so_many_messages(appliance: Server, topic: str) -> None:
    """flush.messages=4: nothing is readable until four are written, and acks=all waits for that; acks=1 does not."""
    with Peer(appliance.native) as peer:
        peer.create(topic, flush_messages=4, flush_ms=60_000)
        assert peer.produce(topic, BATCH)[0] == 0
        assert peer.fetch(topic, 0, wait_ms=1)[0][2] == 0
        assert peer.produce(topic, BATCH, acks=-1)[0] == 0
        assert peer.fetch(topic, 0)[0][2] == 2 * len(BATCH)


def test_or_after_so_much_time(appliance: Server, topic: str) -> None:
    with Peer(appliance.native) as peer:
        peer.create(topic, flush_messages=1_000, flush_ms=50)
        assert peer.produce(topic, BATCH, acks=1)[0] == 0
        part, _ = peer.fetch(topic, 0, wait_ms=10_000)
        assert part[3] == len(BATCH)


def test_repeats_are_recognised_also_by_the_next_writer(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    with Peer(server.native) as peer:
        peer.create("t")
        producer = peer.admin("init_producer")
        batches = [
            encode_batch(
                [(None, b"%d" % number, (), 1_000)],
                producer_id=producer["producer_id"],
                producer_epoch=producer["epoch"],
                base_sequence=number,
            )
            for number in range(4)
        ]
        first = [peer.produce("t", batch)[:3] for batch in batches[:3]]
        again = [peer.produce("t", batch)[:3] for batch in batches[:3]]
        assert again == first and first[0][0] == 0
        writer = server.pid_of("writer")
        server.kill(writer)
        wait_for(lambda: server.pids("writer") not in ([], [writer]), "the next writer")
        assert [peer.produce("t", batch)[:3] for batch in batches[:3]] == first
        assert peer.produce("t", batches[3])[:2] == (0, first[2][2] + len(batches[3]) - 1)
        assert peer.produce("t", batches[0], acks=-1)[0] == 0  # still known, nothing appended
        assert peer.end("t") == first[2][2] + len(batches[3])


def test_an_idle_writer_retires_and_comes_back(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"writer.idle_ms": 100})
    with Peer(server.native) as peer:
        peer.create("t")
        for number in range(1, 4):
            assert peer.produce("t", BATCH, acks=-1)[2] == number * len(BATCH)
            wait_for((server.data_dir / "t-0" / "clean-shutdown").exists, "the writer to retire")
            assert peer.fetch("t", 0)[0][2] == number * len(BATCH)


def test_an_idle_topic_is_emptied_once_all_of_it_is_too_old(make_appliance: Callable[..., Server]) -> None:
    """Its only segment is the active one; whoever comes later finds the log empty, and goes on at its end."""
    server = make_appliance(**{"writer.idle_ms": 100, "disk.check_ms": 100})
    with Peer(server.native) as peer:
        peer.create("t", retention_ms=300)
        end = peer.produce("t", BATCH, acks=-1)[2]
        wait_for(lambda: peer.fetch("t", end)[0][1] == end, "all to be removed")
        assert peer.produce("t", BATCH, acks=-1)[1:3] == (end + len(BATCH) - 2, end + len(BATCH))

"""Batches that take kilobytes in the log and unpack to hundreds of megabytes, or to millions of records.

Whoever may write to a topic can make them; whoever reads it, also the console, unpacks no more than its bound.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from appliance.client import LATEST, Consumer
from appliance.client.merged_reader import UNPACKED_BYTES_MAX as FOLLOWED_BYTES_MAX
from appliance.client.merged_reader import MergedReader, ReadSpan
from appliance.config import TopicSettings
from appliance.console.message_search import (
    BATCH_BYTES_MAX,
    UNPACKED_BYTES_MAX,
    ConsumedLog,
    Query,
    Search,
    chosen_topics,
)
from appliance.console.value_decoding import MessageView
from appliance.errors import CorruptBatch, MessageTooLarge
from appliance.log import Log
from appliance.log_access.arrow import Decoder as ArrowDecoder
from appliance.records.decode import BYTES_MAX, OBJECT_BYTES, DecodeMeter, decode_batch, decode_values
from appliance.records.encode import encode_batch, encode_values

from ..support.command_line import succeeding
from ..support.log_batches import place_all
from ..support.server import Server

MIB = 1 << 20
GOOD = encode_values([b"a good line"], 1_000)


@cache
def batch_of(kind: str) -> bytes:
    """A batch that is small on the wire; made where it is used, since each worker of a run imports this file.

    Of zeros: less than any bound alone; 85 of them are in a megabyte of the log.  Small: half of the console's bound
    for a batch, nearly all of it objects.
    """
    objects = BYTES_MAX // OBJECT_BYTES + 1
    match kind:
        case "zeros":
            return encode_values([bytes(10 * MIB)], 1_000, codec="zstd")
        case "large":
            return encode_values([bytes(BYTES_MAX + MIB)], 1_000, codec="zstd")
        case "small":
            return encode_values([b""] * 60_000, 1_000, codec="zstd")
        case "many":
            return encode_values([b""] * objects, 1_000, codec="zstd")
    return encode_batch([(None, b"", [("", None)] * objects, 1_000)], codec="zstd")


TOPICS = {"zeros": 30, "large": 12, "small": 8}
"""How many batches of a kind each has, between two good ones."""


@pytest.mark.parametrize("kind", ["large", "many", "many headers"])
def test_a_batch_that_becomes_too_large_is_refused(kind: str) -> None:
    batch = batch_of(kind)
    meter = DecodeMeter()
    with pytest.raises(MessageTooLarge):
        decode_batch(batch, meter=meter)
    assert meter.unpacked_bytes <= BYTES_MAX + len(batch)
    if kind != "many headers":  # which are not decoded for values
        with pytest.raises(MessageTooLarge):
            decode_values(batch)


@pytest.mark.parametrize("kind", ["large", "many"])
def test_spark_steps_over_what_is_too_large(kind: str) -> None:
    (placed, _), (good, _) = place_all(0, [batch_of(kind), GOOD])
    refused: list[int] = []
    decoder = ArrowDecoder("t", 0, 0, 1 << 40, on_corrupt=lambda offset, _: refused.append(offset))
    rows = [row for table in decoder.decode(bytes(placed) + bytes(good), 0) for row in table["value"].to_pylist()]
    assert rows == [b"a good line"] and len(refused) == 1
    with pytest.raises(CorruptBatch, match=r"batch at offset 0: .*more than"):
        list(ArrowDecoder("t", 0, 0, 1 << 40).decode(bytes(placed), 0))


def test_spark_steps_over_a_record_with_too_many_headers() -> None:
    ((placed, _),) = place_all(0, [batch_of("many headers")])
    refused: list[int] = []
    decoder = ArrowDecoder("t", 0, 0, 1 << 40, headers=True, on_corrupt=lambda offset, _: refused.append(offset))
    tables: list[pa.RecordBatch] = list(decoder.decode(bytes(placed), 0))
    assert tables == [] and len(refused) == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with such batches in its logs."""
    server = Server(tmp_path_factory.mktemp("bombs") / "data", **{"console.listen": "127.0.0.1:0"})
    at = ("--data", str(server.data_dir))
    with server:
        for topic in TOPICS:
            succeeding("topics", "create", topic, *at)
            succeeding("produce", topic, *at, stdin=b"the first line\n")
        server.stop()
        for kind, count in TOPICS.items():
            append(server.data_dir / f"{kind}-0", [GOOD, *[batch_of(kind)] * count, GOOD])
        server.start()
        yield server


def append(partition: Path, batches: Sequence[bytes]) -> None:
    log = Log.open(partition, TopicSettings(), lambda: 1_000)
    for batch in batches:
        log.append(place_all(log.end_offset, [batch]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    log.close()


def steps(server: Server, clock: Callable[[], float], **query: Any) -> Iterator[tuple[Any, int]]:
    """Each step of a search as the console makes it, and what it has unpacked."""
    cursor = ""
    for _ in range(10_000):
        with ConsumedLog(server.state["listeners"]["local"], time.monotonic) as log:
            search = Query(cursor=cursor, **query)
            topics = chosen_topics(search, log, lambda _: True)
            found = Search(search, topics, log, clock, lambda _: MessageView()).step()
            yield found, log.unpacked_bytes
        cursor = found.cursor
        if not cursor:
            return
    pytest.fail("the search does not end")


@pytest.mark.parametrize(("order", "slow"), [("newest", False), ("oldest", False), ("newest", True)])
@pytest.mark.parametrize("topics", [*TOPICS, ",".join(TOPICS)])
def test_a_step_of_a_search_unpacks_no_more_than_its_bound(server: Server, topics: str, slow: bool, order: str) -> None:
    """Also where its time is always over: each step makes progress, and all of them find each message once.

    A search of several topics has the bounds of one.
    """
    clock = itertools.count().__next__ if slow else lambda: 0.0
    found: dict[str, list[bytes | None]] = {}
    too_large = 0
    for step, unpacked_bytes in steps(server, clock, topics=topics, order=order, text="line"):
        assert unpacked_bytes <= UNPACKED_BYTES_MAX + BATCH_BYTES_MAX
        for message in step.messages:
            found.setdefault(message.topic, []).append(message.value)
        too_large += step.too_large
        assert not step.unreadable and not step.damaged
    expected = [b"the first line", b"a good line", b"a good line"]
    wanted = expected if order == "oldest" else expected[::-1]
    assert found == dict.fromkeys(topics.split(","), wanted)
    assert too_large == (12 if "large" in topics else 0)


CONSUME = """
import resource, sys
from appliance.client import LATEST, Consumer
with Consumer(sys.argv[1], on_corrupt="skip", fetch_bytes_max=1 << 23, partition_bytes_max=1 << 23) as consumer:
    consumer.assign_topic(sys.argv[2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count, ends = 0, consumer.offsets_at(LATEST)
    while consumer.positions() != ends:
        batches = consumer.fetch_batches(2)
        count += sum(len(batch.values) for batch in batches)
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, consumer.large_batches)
"""


@pytest.mark.parametrize(("topic", "count", "large"), [("zeros", 33, 0), ("large", 3, 12), ("small", 480_003, 0)])
def test_a_consumer_keeps_its_memory(server: Server, topic: str, count: int, large: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONSUME, server.native, topic], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found, grown_kb, skipped = map(int, done.stdout.split())
    assert (found, skipped) == (count, large)
    assert grown_kb < 5 * BYTES_MAX // 1024, "a call's batches, the one too many, and copies of one while it unpacks"


def test_a_call_ends_when_its_time_is_over(server: Server) -> None:
    """The time is looked at after each batch, also one that is stepped over; nothing is lost by that."""
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 0.001
        return now_s

    with Consumer(server.native, on_corrupt="skip", unpacked_bytes_max=MIB, clock=clock) as consumer:
        consumer.assign_topic("large")
        assert [message.value for message in consumer.poll(1_000)] == [b"the first line"]
        assert [message.value for message in consumer.poll(1_000)] == [b"a good line"]
        for stepped_over in range(1, 5):
            assert consumer.poll(0.0) == [] and consumer.large_batches == stepped_over
        assert consumer.fetch_batches(0.0) == [] and consumer.large_batches > 4
        assert [message.value for message in consumer.messages(timeout=0.01)] == [b"a good line"]
        assert consumer.large_batches == 12


def test_a_batch_that_is_too_large_is_an_error_with_a_remedy(server: Server) -> None:
    with Consumer(server.native) as consumer:
        consumer.assign_topic("large")
        assert [message.value for message in itertools.islice(consumer, 2)] == [b"the first line", b"a good line"]
        with pytest.raises(CorruptBatch, match=r"more than .* larger unpacked_bytes_max, or seek to ") as raised:
            consumer.poll(60)
        behind = int(re.findall(r"seek to (\d+)", str(raised.value))[0])
    with Consumer(server.native, unpacked_bytes_max=2 * BYTES_MAX) as consumer:
        consumer.assign({("large", 0): behind - 1})
        (message,) = consumer.poll(60)
        assert message.value is not None and len(message.value) == BYTES_MAX + MIB


def test_what_is_followed_comes_in_pieces(server: Server) -> None:
    with MergedReader(server.native) as reader:
        follow, seen = reader.follow({("zeros", 0): 0}), 0
        while seen < 33:
            before = reader._decoder.unpacked_bytes
            seen += len(next(follow))
            assert reader._decoder.unpacked_bytes - before <= FOLLOWED_BYTES_MAX + 11 * MIB
    with MergedReader(server.native) as reader:
        reader.cluster.refresh(["large"])
        spans = {("large", 0): ReadSpan(0, reader.cluster.offsets({("large", 0): LATEST})["large", 0])}
        values = [message.value for messages in reader.between(spans) for message in messages]
        assert values == [b"the first line", b"a good line", b"a good line"] and reader.large_batches == 12


def test_the_page_says_what_it_has_stepped_over(server: Server) -> None:
    """And the console's process stays small."""
    import http.client
    import json

    cursor, too_large = "", 0
    while True:
        connection = http.client.HTTPConnection(server.state["listeners"]["console"], timeout=120)
        with contextlib.closing(connection):
            connection.request("GET", f"/api/messages?topics=large&text=line&cursor={cursor}")
            found = json.loads(connection.getresponse().read())
        cursor, too_large = found["cursor"], too_large + found["too_large"]
        if not cursor:
            break
    assert too_large == 12
    status = Path(f"/proc/{server.pid_of('console')}/status").read_text()
    peak_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert peak_kb < 250 * 1024

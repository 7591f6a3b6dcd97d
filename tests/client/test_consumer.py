"""appliance.client.consumer and fetcher: every message once, in order, from exactly where it was asked for."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.client import EARLIEST, LATEST, Admin, Consumer
from appliance.errors import BadValue, CorruptBatch, InvalidRequest, OffsetOutOfRange, UnknownPartition
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch, encode_values

from ..support.client_peer import Partition, Peer
from ..support.interruptions import Interruption
from ..support.server import Server, wait_for
from ..support.transactions import COMMITTED, SENT, give

TIMEOUT_S = 60
QUIET_S = 0.05


def fill(log: Partition, counts: list[int], *, first: int = 0, codec: str = "none") -> list[bytes]:
    """Batches of so many values; timestamps are 1000 * number of the batch."""
    values = [b"%d" % (first + i) for i in range(sum(counts))]
    at = 0
    for number, count in enumerate(counts):
        log.append(encode_values(values[at : at + count], 1000 * number, codec=codec))
        at += count
    return values


def offsets_of(log: Partition) -> list[int]:
    return [record.offset for at in log.batches for record in decode_batch(log.data, at)]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 2}) as running:
        yield running


@pytest.fixture
def consumer(peer: Peer) -> Iterator[Consumer]:
    with Consumer(peer.address) as running:
        yield running


def test_a_call_of_another_thread_is_refused_while_one_is_under_way(peer: Peer, consumer: Consumer) -> None:
    """Else both move the positions, and messages come twice or never.  In turn, threads may share it."""
    consumer.assign([("t", 0)], at=EARLIEST)
    assert consumer.poll(0) == []
    found: list[Any] = []

    def wait() -> None:
        while True:
            with suppress(InvalidRequest):  # the other thread's call was under way
                found.extend(consumer.poll(60))
                return

    waiting = threading.Thread(target=wait)
    waiting.start()

    def is_refused() -> bool:
        with suppress(InvalidRequest):
            consumer.poll(0)
            return False
        return True

    wait_for(is_refused, "the other thread to be in its call")
    consumer.interrupt()
    waiting.join(60)
    assert not waiting.is_alive() and found == []
    values = fill(peer.logs["t", 0], [3])
    wait_for(lambda: found.extend(consumer.poll(1)) or len(found) == 3, "the messages")
    assert [message.value for message in found] == values


def test_reads_everything_in_order_both_ways(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [1, 5, 100])
    place = ("t", 0)
    consumer.assign([place])
    messages = list(consumer.messages(QUIET_S))
    assert [message.value for message in messages] == values
    assert [message.offset for message in messages] == offsets_of(peer.log("t", 0))
    assert {message[:2] for message in messages} == {place}
    assert consumer.positions() == {place: len(peer.log("t", 0).data)} == consumer.ends()
    consumer.rewind()
    batches = [batch for found in iter(lambda: consumer.fetch_batches(QUIET_S), []) for batch in found]
    assert [value for batch in batches for value in batch.values] == values
    assert [len(batch.values) for batch in batches] == [1, 5, 100]
    assert batches[-1].next_offset == consumer.position("t", 0) == len(peer.log("t", 0).data)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=6), where=st.floats(0, 1), codec=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_starts_exactly_at_any_offset(
    peer: Peer, consumer: Consumer, counts: list[int], where: float, codec: bool
) -> None:
    """Any byte is a valid offset: the first message handed out is the first one at or after it."""
    log = peer.logs["t", 0] = Partition()
    values = fill(log, counts, codec="zstd" if codec else "none")
    offsets = offsets_of(log)
    start = int(where * len(log.data))
    wanted = [value for offset, value in zip(offsets, values, strict=True) if offset >= start]
    consumer.assign({("t", 0): start})
    arriving = consumer.messages(60)
    assert [message.value for message in islice(arriving, len(wanted))] == wanted
    assert not list(consumer.messages(0.01)), "that was all"
    consumer.seek("t", 0, start)
    found: list[bytes | None] = []
    while len(found) < len(wanted):
        found += [value for batch in consumer.fetch_batches(60) for value in batch.values]
    assert found == wanted and not consumer.fetch_batches(0.01)


def test_small_fetches_find_every_batch(peer: Peer) -> None:
    values = fill(peer.log("t", 0), [3] * 50)
    with Consumer(peer.address, partition_bytes_max=1, buffer_bytes_max=1) as consumer:
        consumer.assign([("t", 0)])
        assert [message.value for message in consumer.messages(QUIET_S)] == values


def test_several_partitions_each_in_order(peer: Peer, consumer: Consumer) -> None:
    expected = {p: fill(peer.log("t", p), [2] * 20, first=1000 * p) for p in (0, 1)}
    consumer.assign_topic("t")
    messages = list(consumer.messages(QUIET_S))
    for partition in (0, 1):
        assert [m.value for m in messages if m.partition == partition] == expected[partition]


def test_partitions_of_several_brokers() -> None:
    brokers: list[Peer] = []
    with Peer({"t": 2}, broker_id=0, brokers=brokers) as one, Peer({"t": 2}, broker_id=1, brokers=brokers) as two:
        for peer in brokers:
            peer.leaders = {("t", 0): 0, ("t", 1): 1}
        expected = [*fill(one.log("t", 0), [5]), *fill(two.log("t", 1), [5], first=5)]
        with Consumer(one.address) as consumer:
            consumer.assign_topic("t")
            assert sorted(m.value or b"" for m in consumer.messages(QUIET_S)) == sorted(expected)


def test_new_messages_arrive_while_it_waits(peer: Peer, consumer: Consumer) -> None:
    consumer.assign([("t", 0)])
    assert consumer.poll(0) == []
    values = fill(peer.log("t", 0), [2, 2])
    stream = consumer.messages(TIMEOUT_S)
    assert [next(stream).value for _ in range(4)] == values


def test_poll_hands_out_no_more_than_asked_for(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [10])
    consumer.assign([("t", 0)])
    got = [consumer.poll(TIMEOUT_S, 4) for _ in range(3)]
    assert [len(messages) for messages in got] == [4, 4, 2]
    assert [m.value for messages in got for m in messages] == values


def test_positions_follow_what_was_handed_out_and_batches_go_on_from_there(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [10])
    offsets = offsets_of(peer.log("t", 0))
    consumer.assign([("t", 0)])
    for message in consumer.messages(TIMEOUT_S):
        if message.value == values[3]:
            break
    assert consumer.position("t", 0) == offsets[3] + 1
    (batch,) = consumer.fetch_batches(TIMEOUT_S)
    assert batch.values == values[4:] and batch.next_offset == offsets[-1] + 1


def test_seeking_by_time_to_the_ends_and_back(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [2, 2, 2])
    fill(peer.log("t", 1), [1])
    consumer.assign({("t", 0): LATEST, ("t", 1): LATEST})
    assert consumer.poll(QUIET_S) == []
    consumer.seek_to_time(1000, ("t", 0))
    assert [m.value for m in consumer.messages(QUIET_S)] == values[2:]
    consumer.seek_to_time(10_000)
    assert consumer.poll(QUIET_S) == []
    consumer.seek_to_beginning()
    assert len(list(consumer.messages(QUIET_S))) == 7
    consumer.seek("t", 0, EARLIEST)
    consumer.seek_to_end(("t", 0))
    assert consumer.poll(QUIET_S) == []
    assert consumer.offsets_at(EARLIEST) == {("t", 0): 0, ("t", 1): 0}
    with pytest.raises(InvalidRequest, match="milliseconds"):
        consumer.seek_to_time(-7)


def test_seeking_by_time_is_exact_within_a_batch(peer: Peer, consumer: Consumer) -> None:
    times = [5, 7, 7, 3, 9]
    peer.log("t", 0).append(encode_batch([(None, b"%d" % i, (), t) for i, t in enumerate(times)], codec="lz4"))
    consumer.assign([("t", 0)])
    for timestamp, first in [(0, b"0"), (5, b"0"), (6, b"1"), (8, b"4"), (9, b"4")]:
        consumer.seek_to_time(timestamp)
        assert consumer.poll(TIMEOUT_S)[0].value == first
    consumer.seek_to_time(10)
    assert consumer.poll(QUIET_S) == []


def test_a_seek_drops_what_was_under_way(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [5, 5])
    consumer.assign([("t", 0)])
    stream = consumer.messages(TIMEOUT_S)
    assert next(stream).value == values[0]
    consumer.seek("t", 0, offsets_of(peer.log("t", 0))[7])
    assert [next(stream).value for _ in range(3)] == values[7:]


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [b"0", b"1"]), ("latest", [])])
def test_out_of_range_goes_where_the_policy_says(peer: Peer, policy: str, expected: list[bytes]) -> None:
    fill(peer.log("t", 0), [2])
    with Consumer(peer.address, on_out_of_range=policy) as consumer:
        consumer.assign({("t", 0): 999_999})
        assert [m.value for m in consumer.messages(QUIET_S)] == expected


def test_out_of_range_raises_if_told_and_the_other_partition_goes_on(peer: Peer) -> None:
    fill(peer.log("t", 0), [2])
    values = fill(peer.log("t", 1), [2])
    with Consumer(peer.address, on_out_of_range="raise") as consumer:
        consumer.assign({("t", 0): 999_999, ("t", 1): 0})
        assert [m.value for m in consumer.poll(TIMEOUT_S)] == values
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="t-0: offset 999999 is outside of 0"):
                consumer.poll(TIMEOUT_S)
        consumer.seek("t", 0, 0)
        assert len(consumer.poll(TIMEOUT_S)) == 2


def damage(log: Partition, batch: int, at: int) -> None:
    log.data[log.batches[batch] + at] ^= 0x10


@pytest.mark.parametrize("at", [10, 16, 30, 58, 70])
def test_a_damaged_batch_is_skipped_and_counted(peer: Peer, at: int) -> None:
    """Wherever the flipped bit is: length, magic, a field, the count, a record.  A wrong length hides what
    follows.
    """
    values = fill(peer.log("t", 0), [5, 5, 5])
    damage(peer.log("t", 0), 1, at)
    with Consumer(peer.address, on_corrupt="skip") as consumer:
        consumer.assign([("t", 0)])
        got = [m.value for m in consumer.messages(QUIET_S)]
        assert got == (values[:5] + values[10:] if at != 10 else values[:5])
        assert consumer.corrupt_batches == 1
        assert consumer.position("t", 0) == offsets_of_end(peer) or at == 10


def offsets_of_end(peer: Peer) -> int:
    return len(peer.log("t", 0).data)


def test_a_damaged_batch_raises_until_one_seeks_behind_it(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [5, 5, 5])
    damage(peer.log("t", 0), 1, 70)
    consumer.assign([("t", 0)])
    (batch,) = consumer.fetch_batches(TIMEOUT_S)
    assert batch.values == values[:5]
    behind = peer.log("t", 0).batches[2]
    for _ in range(2):
        with pytest.raises(CorruptBatch, match=rf"t-0: damaged batch at \d+: .*; seek to {behind}"):
            consumer.fetch_batches(TIMEOUT_S)
    consumer.seek("t", 0, behind)
    assert [m.value for m in consumer.messages(QUIET_S)] == values[10:]


def test_a_base_offset_that_lies_is_noticed(peer: Peer, consumer: Consumer) -> None:
    """No checksum covers it; its place in the log tells."""
    fill(peer.log("t", 0), [5, 5])
    damage(peer.log("t", 0), 1, 6)
    consumer.assign([("t", 0)])
    consumer.fetch_batches(TIMEOUT_S)
    with pytest.raises(CorruptBatch, match="place in the log"):
        consumer.fetch_batches(TIMEOUT_S)


def test_survives_a_broker_that_closes_connections(peer: Peer, consumer: Consumer) -> None:
    values = fill(peer.log("t", 0), [5])
    consumer.assign([("t", 0)])
    assert len(consumer.poll(TIMEOUT_S)) == 5
    peer.hang_up()
    values = fill(peer.log("t", 0), [5], first=5)
    assert [m.value for m in consumer.poll(TIMEOUT_S)] == values


def test_follows_a_partition_to_another_broker() -> None:
    brokers: list[Peer] = []
    with Peer({"t": 1}, broker_id=0, brokers=brokers) as one, Peer({"t": 1}, broker_id=1, brokers=brokers) as two:
        values = fill(one.log("t", 0), [5])
        with Consumer(one.address, wait_ms_max=10) as consumer:
            for peer in brokers:
                peer.leaders = {("t", 0): 0}
            consumer.assign([("t", 0)])
            assert [m.value for m in consumer.poll(TIMEOUT_S)] == values
            two.logs = one.logs
            for peer in brokers:
                peer.leaders = {("t", 0): 1}
            values = fill(two.log("t", 0), [5], first=5)
            assert [m.value for m in consumer.poll(TIMEOUT_S)] == values


def test_random_orders_of_everything_agree_with_the_log(peer: Peer, consumer: Consumer) -> None:
    """A model of a consumer (a position and a sorted list) against the real one, through random operations."""
    rng = random.Random(7)
    values = fill(peer.log("t", 0), [rng.randint(1, 40) for _ in range(30)])
    offsets = offsets_of(peer.log("t", 0))
    consumer.assign([("t", 0)])
    position = 0
    for _ in range(300):
        step = rng.randrange(3)
        if step == 0:
            position = rng.randrange(offsets[-1] + 2)
            consumer.seek("t", 0, position)
            continue
        if step == 1:
            got = [(m.offset, m.value) for m in consumer.poll(TIMEOUT_S if position <= offsets[-1] else 0, 10)]
        else:
            batches = consumer.fetch_batches(TIMEOUT_S if position <= offsets[-1] else 0)
            got = [(None, value) for batch in batches for value in batch.values]
        rest = [(offset, value) for offset, value in zip(offsets, values, strict=True) if offset >= position]
        assert [value for _, value in got] == [value for _, value in rest[: len(got)]]
        assert bool(got) == bool(rest)
        position = rest[len(got) - 1][0] + 1 if got else position
        assert consumer.position("t", 0) == position


def test_headers_and_keys_come_along(peer: Peer, consumer: Consumer) -> None:
    peer.log("t", 0).append(encode_batch([(b"k", None, [("h", b"v")], 42)]))
    consumer.assign([("t", 0)])
    (message,) = consumer.poll(TIMEOUT_S)
    assert (message.key, message.value, message.headers, message.timestamp) == (b"k", None, (("h", b"v"),), 42)


def test_wrong_use_is_named(peer: Peer) -> None:
    consumer = Consumer(peer.address)
    with pytest.raises(InvalidRequest, match="assign"):
        consumer.poll(0)
    with pytest.raises(UnknownPartition, match="0 to 1, not 7"):
        consumer.assign({("t", 7): 0})
    with pytest.raises(UnknownPartition, match="nowhere"):
        consumer.assign([("nowhere", 0)])
    consumer.assign([("t", 0)])
    with pytest.raises(InvalidRequest, match="t-1 is not assigned"):
        consumer.seek("t", 1, 0)
    consumer.close()
    consumer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.fetch_batches(0)
    bad: list[dict[str, Any]] = [{"on_corrupt": "ignore"}, {"on_out_of_range": "stay"}]
    for options in bad:
        with pytest.raises(BadValue):
            Consumer(peer.address, **options)


def test_what_waits_undecoded_is_bounded_and_stops_no_other_partition() -> None:
    """Goal: memory does not grow with the number of partitions.  Method: fetch, decode nothing; then read it all."""
    count, total = 12, 1 << 20
    with Peer({"many": count}) as peer:
        for partition in range(count):
            for number in range(40):
                peer.log("many", partition).append(encode_values([b"%08d" % number * 1000], 0))
        with Consumer(peer.address, total_bytes_max=total) as consumer:
            consumer.assign_topic("many")
            fetcher = consumer._fetcher
            chunks = [chunk for found in iter(lambda: fetcher.poll(QUIET_S), []) for chunk in found]
            assert {chunk.fetched.topic_partition[1] for chunk in chunks} == set(range(count))
            assert total // 4 < sum(len(chunk.data) for chunk in chunks) <= total
            consumer._chunks += chunks
            assert sum(1 for _ in consumer.messages(QUIET_S)) == 40 * count


def test_an_interrupt_in_the_middle_of_reading_skips_nothing(peer: Peer) -> None:
    """Goal: what was fetched and not handed out is fetched again.  Method: an interrupt at line after line."""
    values = fill(peer.log("t", 0), [3] * 20)

    def attempt(nth: int) -> int:
        with Consumer(peer.address) as consumer:
            consumer.assign([("t", 0)])
            got: list[Any] = []
            with Interruption("MainThread", KeyboardInterrupt(), nth) as interruption:
                try:
                    while len(got) < len(values) // 2:
                        got += consumer.poll(TIMEOUT_S, 7)
                except KeyboardInterrupt:
                    assert interruption.raised_at
            while batch := consumer.poll(QUIET_S, 7):
                got += batch
            seen = [message.value for message in got]
            assert list(dict.fromkeys(seen)) == values, interruption.raised_at
            return interruption.counted

    for nth in range(1, attempt(-1), 23):
        attempt(nth)


def test_what_a_transaction_has_aborted_is_for_no_reader_of_committed_messages(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_appliance()
    with Admin(server.native) as admin:
        admin.create_topic("t", 1)
    server.stop()
    give(server, "t", tmp_path)
    for isolation, wanted in (("read_uncommitted", SENT), ("read_committed", COMMITTED)):
        with Consumer(server.native, isolation=isolation) as consumer:
            consumer.assign({("t", 0): EARLIEST})
            assert [message.value for message in islice(consumer.messages(timeout=60), len(wanted))] == wanted
            consumer.assign({("t", 0): EARLIEST})
            assert [one for batch in consumer.fetch_batches(timeout=60) for one in batch.values] == wanted
            (end,) = consumer.offsets_at(LATEST).values()
            assert consumer.ends() == {("t", 0): end}
    with pytest.raises(BadValue, match="read_uncommitted, read_committed"):
        Consumer(server.native, isolation="snapshot")

"""appliance.client.producer: against a peer that fails on command; what is sent is delivered once, in order,
or says why not.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Producer, Sent
from appliance.client.background_requests import METADATA_AGE_S
from appliance.client.sender import AWAKE_TICKS
from appliance.errors import (
    ApplianceError,
    BadValue,
    BrokerAway,
    BufferFull,
    CallbackFailed,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    OutOfOrderSequence,
    RequestTimedOut,
    UnknownPartition,
    WriterGone,
)
from appliance.records.batch import HEADER
from appliance.records.decode import decode_batch
from appliance.records.partitioner import partition_for

from ..support.client_peer import AFTER, DROP, DROP_AFTER, Peer
from ..support.ready import reap
from ..support.server import wait_for

TIMEOUT_S = 60


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 1, "wide": 8}) as running:
        yield running


def make(peer: Peer, **options: Any) -> Producer:
    options = {"retry_backoff_ms": 2, "retry_backoff_ms_max": 20} | options
    return Producer(peer.address, **options)


def once(*outcomes: int | str | None) -> Any:
    """A fault that goes through ``outcomes``, one for each request, and is quiet then."""
    left = list(outcomes)
    return lambda *_: left.pop(0) if left else None


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_send_waits_for_its_own_message_without_lingering(peer: Peer, acks: int | str) -> None:
    with make(peer, acks=acks, linger_ms=60_000) as producer:
        sent = producer.send("t", b"one").result(TIMEOUT_S)
        assert sent[:2] == ("t", 0)
        assert (sent.offset >= 0) == (acks != 0)
    wait_for(lambda: peer.log("t", 0).values() == [b"one"], "the message")  # without acks, it may be on its way


def test_offsets_are_those_of_the_log(peer: Peer) -> None:
    with make(peer, batch_messages_max=7) as producer:
        deliveries = [producer.send("t", b"%d" % i) for i in range(30)]
        producer.flush(TIMEOUT_S)
    log = peer.log("t", 0)
    stored = {record.offset: record.value for at in log.batches for record in decode_batch(log.data, at)}
    assert [stored[delivery.result().offset] for delivery in deliveries] == [b"%d" % i for i in range(30)]
    assert isinstance(deliveries[0].result(), Sent) and deliveries[0].done()


@pytest.mark.parametrize("limit", [{"batch_messages_max": 10}, {"batch_bytes_max": 1024}, {"linger_ms": 0}])
def test_batches_are_bounded(peer: Peer, limit: dict[str, Any]) -> None:
    with make(peer, **limit) as producer:
        for i in range(100):
            producer.send("t", b"%0100d" % i)
        producer.send_many("t", [b"%0100d" % i for i in range(100, 200)])
    log = peer.log("t", 0)
    assert log.values() == [b"%0100d" % i for i in range(200)]
    sizes = [stop - start for start, stop in zip(log.batches, [*log.batches[1:], len(log.data)], strict=True)]
    counts = [len(decode_batch(log.data, at)) for at in log.batches]
    assert max(counts) <= limit.get("batch_messages_max", 100)
    assert max(sizes) <= limit.get("batch_bytes_max", 1 << 20)


def test_linger_sends_what_nobody_waits_for(peer: Peer) -> None:
    arrived = threading.Event()
    with make(peer, linger_ms=1) as producer:
        producer.send("t", b"x", on_delivery=lambda *_: arrived.set())
        assert arrived.wait(TIMEOUT_S)


class Turns:
    """A clock that counts the turns of the producer's thread: it looks at the time once in each."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += threading.current_thread().name == "appliance-sending"
        return time.monotonic()


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_its_thread_rests_soon_after_a_message_that_nothing_follows(peer: Peer, linger_ms: float) -> None:
    turns = Turns()
    with Producer(peer.address, linger_ms=linger_ms, clock=turns) as producer:
        producer.send("t", b"x")
        wait_for(lambda: producer.delivered, "it is sent by the thread")
        before = turns.count
        wait_for(lambda: producer._sender._asleep, "it waits for the next message")
        assert turns.count - before <= 2 * AWAKE_TICKS


@pytest.mark.parametrize(("linger_ms", "waits"), [(0, False), (5, True)], ids=["alone", "beside one that waits"])
def test_its_thread_waits_for_the_end_of_a_back_off_while_the_appliance_is_away(linger_ms: float, waits: bool) -> None:
    """Goal: an appliance that is away for hours costs its producers nothing; it turned a thousand times a second."""
    turns = Turns()
    failed = threading.Event()
    with Peer({"t": 1}) as peer:
        producer = Producer(peer.address, linger_ms=linger_ms, clock=turns, delivery_timeout_ms=500)
        producer.send("t", b"x").result(TIMEOUT_S)
    before = turns.count
    producer.send("t", b"y", on_delivery=lambda *_: failed.set())
    if waits:
        producer.flush(TIMEOUT_S)
    assert failed.wait(TIMEOUT_S)
    assert turns.count - before <= 3 * AWAKE_TICKS
    producer.close()


def test_its_thread_turns_seldom_while_an_appliance_does_not_answer(peer: Peer) -> None:
    """Its socket wakes it, when there is an answer."""
    turns = Turns()
    answers, failed = threading.Event(), threading.Event()
    peer.faults.append(lambda *_: answers.wait(TIMEOUT_S) and None)
    with make(peer, linger_ms=0, clock=turns, delivery_timeout_ms=500) as producer:
        producer.send("t", b"x", on_delivery=lambda *_: failed.set())
        assert failed.wait(TIMEOUT_S)
        assert turns.count <= 12 * AWAKE_TICKS
        answers.set()


def test_records_keep_key_headers_timestamp_and_their_place_among_plain_values(peer: Peer) -> None:
    with make(peer) as producer:
        producer.send("t", b"plain")
        producer.send("t", b"full", key=b"k", headers=[("h", b"v"), ("n", None)], timestamp=123, partition=0)
        producer.send("t", None, key=b"k", partition=0)
        producer.send_many("t", [bytearray(b"many"), memoryview(b"more")])  # type: ignore[list-item]
        producer.flush(TIMEOUT_S)
    log = peer.log("t", 0)
    records = [record for at in log.batches for record in decode_batch(log.data, at)]
    assert [record.value for record in records] == [b"plain", b"full", None, b"many", b"more"]
    assert records[1].key == b"k" and records[1].timestamp == 123
    assert records[1].headers == (("h", b"v"), ("n", None))


def test_keys_go_where_kafkas_java_client_sends_them(peer: Peer) -> None:
    keys = [b"key-%d" % i for i in range(50)]
    with make(peer) as producer:
        deliveries = [producer.send("wide", b"x", key=key) for key in keys]
        producer.flush(TIMEOUT_S)
        assert [d.partition for d in deliveries] == [partition_for(key, 8) for key in keys]


def test_without_a_key_each_batch_takes_another_partition(peer: Peer) -> None:
    # No batch goes before it is full, however slow this is.
    with make(peer, batch_messages_max=5, linger_ms=60_000, rng=random.Random(1)) as producer:
        deliveries = [producer.send("wide", b"x") for _ in range(200)]
        producer.flush(TIMEOUT_S)
    partitions = [d.partition for d in deliveries]
    assert len(set(partitions)) == 8
    assert all(len(set(partitions[i : i + 5])) == 1 for i in range(0, 200, 5))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(peer: Peer, codec: str) -> None:
    values = [b"line %d " % i * 10 for i in range(200)]
    with make(peer, codec=codec) as producer:
        producer.send_many("t", values)
    assert peer.log("t", 0).values() == values
    assert len(peer.log("t", 0).data) < sum(map(len, values)) / 2


FAULTS = [WriterGone.code, 6, 3, 2, AFTER, DROP, DROP_AFTER]


@pytest.mark.parametrize("seed", range(4))
def test_faults_lose_nothing_double_nothing_and_keep_the_order(peer: Peer, seed: int) -> None:
    """A fifth of all requests fail in some way, with many in flight, from two partitions."""
    random_ = random.Random(seed)
    peer.topics["two"] = 2
    peer.faults.append(lambda *_: random_.choice(FAULTS) if random_.random() < 0.2 else None)
    told: list[tuple[Any, ...]] = []
    with make(peer, acks=1, batch_messages_max=3, linger_ms=1) as producer:
        for i in range(600):
            producer.send("two", b"%d" % i, partition=i % 2, on_delivery=lambda *a: told.append(a))
        producer.flush(TIMEOUT_S)
    for partition in (0, 1):
        assert peer.log("two", partition).values() == [b"%d" % i for i in range(partition, 600, 2)]
    assert len(told) == 600 and all(error is None for error, *_ in told)


def test_a_fault_that_stays_fails_at_the_delivery_timeout(peer: Peer) -> None:
    peer.faults.append(lambda *_: WriterGone.code)
    with make(peer, delivery_timeout_ms=100) as producer:
        with pytest.raises(RequestTimedOut, match="t-0"):
            producer.send("t", b"x").result(TIMEOUT_S)
        peer.faults.clear()
        producer.send("t", b"y").result(TIMEOUT_S)
    assert peer.log("t", 0).values() == [b"y"]


def test_a_silent_broker_is_given_up_after_the_request_timeout(peer: Peer) -> None:
    with make(peer, request_timeout_ms=100) as producer:
        producer.send("t", b"x").result(TIMEOUT_S)
        peer.answering = False
        delivery = producer.send("t", b"y")
        with pytest.raises(RequestTimedOut):
            delivery.result(0.05)
        assert not delivery.done()
        peer.answering = True
        assert delivery.result(TIMEOUT_S).offset > 0
    assert peer.log("t", 0).values() == [b"x", b"y"]


def test_a_refusal_reaches_its_message_and_those_behind_it_are_delivered(peer: Peer) -> None:
    peer.faults.append(once(None, InvalidTimestamp.code))
    with make(peer, batch_messages_max=1) as producer:
        deliveries = [producer.send("t", b"%d" % i) for i in range(10)]
        producer.flush(TIMEOUT_S)
        assert isinstance(deliveries[1].exception(), InvalidTimestamp)
        with pytest.raises(InvalidTimestamp):
            deliveries[1].result()
    assert peer.log("t", 0).values() == [b"%d" % i for i in range(10) if i != 1]


@pytest.mark.parametrize("knows", [True, False])
def test_a_broker_that_lost_our_numbers(peer: Peer, knows: bool) -> None:
    """One that knows nothing of us takes what comes; one that lacks some of it is told new ones."""
    with make(peer) as producer:
        producer.send("t", b"a").result(TIMEOUT_S)
        log = peer.log("t", 0)
        log.sequences = sequences = type(log.sequences)(10)
        if knows:
            sequences.record(HEADER.unpack_from(log.data)[9], 0, 100, 1, 0, 1, 0)
            sequences.commit()
        producer.send("t", b"b").result(TIMEOUT_S)
    assert [HEADER.unpack_from(log.data, at)[10] for at in log.batches] == [0, int(knows)]
    assert log.values() == [b"a", b"b"]


def test_stale_epoch_gets_a_new_producer_id(peer: Peer) -> None:
    peer.faults.append(once(None, 47))
    with make(peer) as producer:
        producer.send("t", b"a").result(TIMEOUT_S)
        producer.send("t", b"b").result(TIMEOUT_S)
    log = peer.log("t", 0)
    ids = [HEADER.unpack_from(log.data, at)[9] for at in log.batches]
    assert log.values() == [b"a", b"b"] and ids[0] != ids[1]


def test_without_idempotence_batches_carry_no_producer(peer: Peer) -> None:
    with make(peer, idempotent=False) as producer:
        producer.send("t", b"a").result(TIMEOUT_S)
    assert HEADER.unpack_from(peer.log("t", 0).data)[9] == -1


def test_a_full_buffer_blocks_then_raises(peer: Peer) -> None:
    peer.faults.append(lambda *_: WriterGone.code)
    options = {"batch_bytes_max": 2048, "buffer_bytes_max": 8192, "block_ms_max": 50}
    with make(peer, **options) as producer:
        with pytest.raises(BufferFull, match="buffer_bytes_max"):
            for _ in range(100):
                producer.send("t", b"x" * 1000)
        peer.faults.clear()
        producer.flush(TIMEOUT_S)
        producer.send("t", b"goes again").result(TIMEOUT_S)
    values = peer.log("t", 0).values()
    assert values[-1] == b"goes again" and 2 < len(values) < 10


def test_a_message_too_large_is_refused_by_name(peer: Peer) -> None:
    peer.settings["max.message.bytes"] = "2000"
    with make(peer) as producer:
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
            producer.send("t", b"x" * 2000)
        producer.send_many("t", [b"x" * 900] * 10)
        producer.flush(TIMEOUT_S)
    log = peer.log("t", 0)
    assert max(b - a for a, b in zip(log.batches, log.batches[1:], strict=False)) <= 2000


def test_messages_that_cannot_be_are_refused_at_once(peer: Peer) -> None:
    with make(peer) as producer:
        bad: list[Any] = [{"value": "text"}, {"value": b"", "key": "k"}, {"value": b"", "timestamp": -5}]
        bad += [{"value": b"", "headers": [("h", "text")]}, {"value": b"", "headers": ["h"]}]
        for arguments in bad:
            with pytest.raises(InvalidRequest):
                producer.send("t", arguments.pop("value"), **arguments)
        with pytest.raises(InvalidRequest, match="encode"):
            producer.send_many("t", ["text"])  # type: ignore[list-item]
        with pytest.raises(UnknownPartition, match="0 to 0"):
            producer.send("t", b"", partition=1)


def test_callbacks_come_once_in_order_with_offsets_and_may_send(peer: Peer) -> None:
    told: list[tuple[ApplianceError | None, str, int, int]] = []
    with make(peer, batch_messages_max=2) as producer:

        def on_delivery(error: ApplianceError | None, topic: str, partition: int, offset: int) -> None:
            told.append((error, topic, partition, offset))
            if len(told) == 3:
                producer.send("t", b"from a callback")
            if len(told) == 4:
                raise ValueError("a callback's own error stops no other callback")

        deliveries = [producer.send("t", b"%d" % i, on_delivery=on_delivery) for i in range(9)]
        done: list[int] = []
        deliveries[8].add_done_callback(lambda delivery: done.append(delivery.result().offset))
        with pytest.raises(CallbackFailed) as failed:
            producer.flush(TIMEOUT_S)
        assert isinstance(failed.value.__cause__, ValueError)
        assert told == [(None, "t", 0, delivery.result().offset) for delivery in deliveries]
        deliveries[0].add_done_callback(lambda delivery: done.append(delivery.result().offset))
        assert done == [deliveries[8].result().offset, deliveries[0].result().offset]
    assert b"from a callback" in peer.log("t", 0).values()


def test_a_callback_that_waits_is_not_waited_for(peer: Peer) -> None:
    outcomes: list[Any] = []
    refused = threading.Event()

    def hold(_topic: str, _partition: int, _records: bytes) -> None:
        if peer.log("t", 0).batches:  # the second batch is still on its way while the callback asks for it
            refused.wait(TIMEOUT_S)

    peer.faults = [hold]
    with make(peer) as producer:

        def on_delivery(*_: Any) -> None:
            for wait in (producer.flush, producer.send("t", b"again").result):
                try:
                    outcomes.append(wait())
                except RequestTimedOut as error:
                    outcomes.append(error)
            refused.set()

        producer.send("t", b"x", on_delivery=on_delivery)
        producer.flush(TIMEOUT_S)
    assert [type(outcome) for outcome in outcomes] == [RequestTimedOut, RequestTimedOut]
    assert peer.log("t", 0).values() == [b"x", b"again"]


def test_partitions_that_were_added_are_found_when_metadata_are_old(peer: Peer) -> None:
    now = [0.0]
    with make(peer, clock=lambda: now[0] + time.monotonic()) as producer:
        producer.send("t", b"x").result(TIMEOUT_S)
        peer.topics["t"] = 2
        now[0] += METADATA_AGE_S
        deadline = time.monotonic() + TIMEOUT_S
        while len(producer.partitions("t")) < 2:
            assert time.monotonic() < deadline
            producer.send("t", b"y").result(TIMEOUT_S)
        assert producer.send("t", b"z", partition=1).result(TIMEOUT_S).partition == 1


def test_close_fails_what_cannot_be_delivered(peer: Peer) -> None:
    peer.faults.append(lambda *_: WriterGone.code)
    told: list[Any] = []
    producer = make(peer)
    delivery = producer.send("t", b"x", on_delivery=lambda *a: told.append(a))
    producer.close(0.05)
    assert isinstance(delivery.exception(), RequestTimedOut)
    assert len(told) == 1 and isinstance(told[0][0], RequestTimedOut)
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("t", b"y")


def test_a_topic_that_is_not_there_is_made_by_sending(peer: Peer) -> None:
    with make(peer) as producer:
        producer.send("fresh", b"x").result(TIMEOUT_S)
    assert peer.log("fresh", 0).values() == [b"x"]


def test_a_topic_that_was_deleted_is_made_again_by_what_is_sent_to_it_and_by_nothing_else(peer: Peer) -> None:
    now = [0.0]
    with make(peer, clock=lambda: now[0] + time.monotonic()) as producer:
        producer.send("idle", b"x").result(TIMEOUT_S)
        producer.send("fresh", b"x").result(TIMEOUT_S)
        del peer.topics["fresh"], peer.topics["idle"]
        now[0] += METADATA_AGE_S
        producer.send("fresh", b"y").result(TIMEOUT_S)
        wait_for(lambda: producer._cluster.snapshot.topics["idle"].error, "the other topic to be looked up")
        assert "fresh" in peer.topics and "idle" not in peer.topics


def test_follows_a_partition_to_another_broker() -> None:
    brokers: list[Peer] = []
    with Peer({"t": 2}, broker_id=0, brokers=brokers) as first, Peer({"t": 2}, broker_id=1, brokers=brokers) as second:
        for peer in brokers:
            peer.leaders = {("t", 0): 0, ("t", 1): 1}
        with make(first) as producer:
            producer.send("t", b"0", partition=0).result(TIMEOUT_S)
            producer.send("t", b"1", partition=1).result(TIMEOUT_S)
            assert second.log("t", 1).values() == [b"1"]
            second.logs[("t", 0)] = first.log("t", 0)
            for peer in brokers:
                peer.leaders[("t", 0)] = 1
            producer.send("t", b"2", partition=0).result(TIMEOUT_S)
        assert second.log("t", 0).values() == [b"0", b"2"]


def test_no_appliance_there_is_said() -> None:
    with Producer("127.0.0.1:1", block_ms_max=50) as producer, pytest.raises(BrokerAway, match=r"127\.0\.0\.1:1"):
        producer.send("t", b"x")


def test_a_broker_that_comes_back_elsewhere_is_found() -> None:
    """The appliance is restarted on another port; the producer learns it from another one."""
    brokers: list[Peer] = []
    with Peer({"t": 1}, broker_id=0, brokers=brokers) as other:
        old = Peer({"t": 1}, broker_id=1, brokers=brokers)
        other.leaders = old.leaders = {("t", 0): 1}
        with make(other) as producer:
            producer.send("t", b"0").result(TIMEOUT_S)
            old.close()
            brokers.remove(old)
            delivery = producer.send("t", b"1")
            with pytest.raises(RequestTimedOut):
                delivery.result(0.02)
            with Peer({"t": 1}, broker_id=1, brokers=[other]) as new:
                new.leaders = {("t", 0): 1}
                new.logs = old.logs
                brokers.append(new)
                delivery.result(TIMEOUT_S)
                assert new.log("t", 0).values() == [b"0", b"1"]


def test_many_threads_share_a_producer(peer: Peer) -> None:
    with make(peer, batch_messages_max=20, acks=1) as producer:

        def work(name: int) -> None:
            for i in range(500):
                delivery = producer.send("t", b"%d %d" % (name, i))
                if i % 100 == 0:
                    delivery.result(TIMEOUT_S)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [value.split() for value in peer.log("t", 0).values() if value is not None]
    for name in range(4):
        assert [int(i) for who, i in values if int(who) == name] == list(range(500))


def test_a_forked_child_is_refused(peer: Peer) -> None:
    with make(peer) as producer:
        producer.send("t", b"x").result(TIMEOUT_S)
        pid = os.fork()
        if pid == 0:
            try:
                producer.send("t", b"y")
            except InvalidRequest:
                os._exit(7)
            os._exit(1)
        assert reap(pid) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 2},
        {"codec": "lzma"},
        {"linger_ms": -1},
        {"batch_messages_max": 0},
        {"batch_bytes_max": 10},
        {"buffer_bytes_max": 2048},
        {"acks": 0, "idempotent": True},
        {"in_flight_max": 0},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        Producer("127.0.0.1:9091", **options)


def test_bad_bootstrap_is_refused() -> None:
    for bootstrap in ("", "nowhere", "host:port"):
        with pytest.raises(BadValue):
            Producer(bootstrap)


def test_out_of_order_after_a_repeat_is_told(peer: Peer) -> None:
    peer.faults.append(once(DROP_AFTER, OutOfOrderSequence.code))
    with make(peer) as producer:
        with pytest.raises(OutOfOrderSequence):
            producer.send("t", b"a").result(TIMEOUT_S)
        producer.send("t", b"b").result(TIMEOUT_S)
    assert peer.log("t", 0).values() == [b"a", b"b"]


def test_messages_count_until_their_callbacks_have_returned(peer: Peer) -> None:
    """Goal: a callback that is slow does not let messages pile up behind it.  Method: one that waits for us."""
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        entered.set()
        assert leave.wait(TIMEOUT_S)

    options = {"batch_bytes_max": 2048, "buffer_bytes_max": 8192, "block_ms_max": 50, "linger_ms": 0}
    with make(peer, **options) as producer:
        sending = threading.Thread(target=lambda: producer.send("t", b"x", on_delivery=slow).result(TIMEOUT_S))
        sending.start()
        assert entered.wait(TIMEOUT_S)
        with pytest.raises(BufferFull):
            for _ in range(100):
                producer.send("t", b"x" * 1000, on_delivery=lambda *_: None)
        leave.set()
        sending.join(TIMEOUT_S)
        producer.flush(TIMEOUT_S)

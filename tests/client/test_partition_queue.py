"""appliance.client.partition_queue: whatever fails, an idempotent queue loses nothing, doubles nothing and keeps the
order.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.broker.sequences import Sequences
from appliance.client.delivery import OFFSET_UNKNOWN, ProducerBatch
from appliance.client.partition_queue import EPOCH_MAX, Numbering, PartitionQueue
from appliance.errors import (
    ApplianceError,
    BrokerAway,
    ClientFault,
    DuplicateSequence,
    InvalidTimestamp,
    OutOfOrderSequence,
    RequestTimedOut,
    StaleProducerEpoch,
    WriterGone,
)
from appliance.records.batch import TRANSACTIONAL, read_header

BACKOFF_S = 1.0
DEADLINE_S = 1e9
owner: Any = None


def make_queue(*, idempotent: bool = True, transactional: bool = False) -> PartitionQueue:
    queue = PartitionQueue(
        "t",
        0,
        idempotent=idempotent,
        transactional=transactional,
        backoff_s=BACKOFF_S,
        backoff_s_max=4.0,
        jitter=lambda: 1.0,
    )
    if idempotent:
        queue.identify(7, 0)
    return queue


def make_batch(*values: bytes, deadline_s: float = DEADLINE_S) -> ProducerBatch:
    batch = ProducerBatch(owner, "t", 0, 1000, 100, 0, 0.0, deadline_s)
    batch.items = list(values)
    batch.count = len(values)
    return batch


class Broker:
    """The log and the numbers, as a writer keeps them."""

    def __init__(self) -> None:
        self.log: list[ProducerBatch] = []
        self.sequences = Sequences(10)

    def append(self, batch: ProducerBatch) -> tuple[ApplianceError | None, int]:
        try:
            repeat = self.sequences.check_sequence(batch.producer_id, batch.epoch, batch.sequence, batch.count)
        except ClientFault as error:
            return error, OFFSET_UNKNOWN
        if repeat is not None:
            return None, repeat[0]
        end = len(self.log) + 1
        self.sequences.record(batch.producer_id, batch.epoch, batch.sequence, batch.count, end - 1, end, 0)
        self.sequences.commit()
        self.log.append(batch)
        return None, end - 1


FATES = ["ok", "ok", "ok", "refused", "written, answer lost", "connection lost"]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4, 9]))
def test_nothing_is_lost_doubled_or_overtaken(seed: int, window: int) -> None:
    """Steps of sending, answering and failing in any order, against the broker's own sequence check."""
    random = Random(seed)
    queue, broker = make_queue(), Broker()
    batches = [make_batch(b"%d" % i, b"%d'" % i) for i in range(24)]
    to_seal, settled = list(batches), []
    wire: list[ProducerBatch] = []  # in the order of sending
    now_s = 0.0
    while queue.busy or to_seal:
        if to_seal and random.random() < 0.5:
            queue.waiting.append(to_seal.pop(0))
        while len(wire) < window and (batch := queue.take_batch(now_s, "none")) is not None:
            wire.append(batch)
        if not wire:
            now_s += 1.0
            continue
        fate = random.choice(FATES)
        if fate == "connection lost":
            for batch in wire[: random.randint(0, len(wire))]:
                broker.append(batch)
            wire.clear()
            queue.on_connection_lost(now_s)
            continue
        batch = wire.pop(0)
        assert queue.in_flight[0] is batch
        error, base = (WriterGone("refused"), -1) if fate == "refused" else broker.append(batch)
        if fate == "written, answer lost" and error is None:
            error = WriterGone("who knows")
        outcome = queue.on_reply(error, base, now_s)
        if outcome is not None:
            assert outcome[1] is None
            settled.append(outcome[0])
            assert outcome[2] == OFFSET_UNKNOWN or broker.log[outcome[2]] is outcome[0]
    assert broker.log == batches
    assert sorted(settled, key=batches.index) == batches


def make_known_batch() -> ProducerBatch:
    """The one batch that the queue of :func:`make_known_queue` has sent."""
    batch = make_batch(b"first")
    batch.encode("none", 7, 0, 0)
    return batch


def make_known_queue() -> PartitionQueue:
    """A queue that the log knows: its first message has been acknowledged."""
    queue = make_queue()
    queue.waiting.append(make_batch(b"first"))
    queue.take_batch(0, "none")
    queue.on_reply(None, 0, 0)
    return queue


def test_the_first_batch_of_an_id_and_epoch_is_in_flight_alone() -> None:
    queue = make_queue()
    batches = [make_batch(b"%d" % number) for number in range(4)]
    queue.waiting += batches
    assert queue.take_batch(0, "none") is batches[0]
    assert queue.take_batch(0, "none") is None and queue.waits_for_first
    queue.on_reply(WriterGone(), -1, 0)
    assert queue.take_batch(BACKOFF_S, "none") is batches[0] and queue.take_batch(BACKOFF_S, "none") is None
    queue.on_reply(None, 0, BACKOFF_S)
    assert [queue.take_batch(BACKOFF_S, "none") for _ in range(2)] == batches[1:3] and not queue.waits_for_first
    queue.on_reply(OutOfOrderSequence(), -1, BACKOFF_S)
    queue.on_reply(OutOfOrderSequence(), -1, BACKOFF_S)
    again_s = queue.resume_s
    assert queue.epoch == 1 and queue.take_batch(again_s, "none") is batches[1]
    assert queue.take_batch(again_s, "none") is None, "a new epoch"


def test_a_repeat_at_an_unknown_offset_is_delivered_if_it_was_sent_before() -> None:
    queue = make_known_queue()
    batch = make_batch(b"a")
    queue.waiting.append(batch)
    queue.take_batch(0, "none")
    queue.on_connection_lost(0)
    assert queue.take_batch(BACKOFF_S, "none") is batch
    assert queue.on_reply(DuplicateSequence(), -1, BACKOFF_S) == (batch, None, OFFSET_UNKNOWN)


def test_a_repeat_of_what_was_never_sent_is_somebody_elses() -> None:
    queue = make_known_queue()
    batch = make_batch(b"a")
    queue.waiting.append(batch)
    queue.take_batch(0, "none")
    assert queue.on_reply(DuplicateSequence(), -1, 0) is None and queue.identity is Numbering.WANTED
    queue.identify(8, 0)
    assert queue.take_batch(BACKOFF_S, "none") is batch and (batch.producer_id, batch.sequence) == (8, 0)


def test_after_a_failure_nothing_new_is_sent_until_all_in_flight_are_answered() -> None:
    queue = make_known_queue()
    queue.waiting += [make_batch(b"a"), make_batch(b"b"), make_batch(b"c")]
    first, second = queue.take_batch(0, "none"), queue.take_batch(0, "none")
    assert queue.on_reply(WriterGone(), -1, 0) is None
    assert queue.take_batch(100, "none") is None
    assert queue.on_reply(OutOfOrderSequence(), -1, 0) is None
    assert queue.take_batch(BACKOFF_S / 2, "none") is None, "backs off"
    assert [queue.take_batch(BACKOFF_S, "none") for _ in range(2)] == [first, second]
    assert (first.sequence, second.sequence) == (1, 2)


def test_back_off_doubles_to_its_bound_and_forgets_after_success() -> None:
    queue = make_queue()
    queue.waiting.append(make_batch(b"a"))
    now_s, pauses = 0.0, []
    for _ in range(4):
        assert queue.take_batch(now_s, "none") is not None
        queue.on_reply(BrokerAway(), -1, now_s)
        pauses.append(queue.resume_s - now_s)
        now_s = queue.resume_s
    assert pauses == [1, 2, 4, 4]
    queue.take_batch(now_s, "none")
    queue.on_reply(None, 0, now_s)
    queue.waiting.append(make_batch(b"b"))
    queue.take_batch(now_s, "none")
    queue.on_connection_lost(now_s)
    assert queue.resume_s - now_s == 1


def test_a_refused_batch_fails_and_those_behind_it_go_on_in_the_next_epoch() -> None:
    queue, broker = make_known_queue(), Broker()
    broker.append(make_known_batch())
    bad, good = make_batch(b"bad"), make_batch(b"good")
    queue.waiting += [bad, good]
    queue.take_batch(0, "none")
    queue.take_batch(0, "none")
    refused = InvalidTimestamp()
    assert queue.on_reply(refused, -1, 0) == (bad, refused, OFFSET_UNKNOWN)
    error, _ = broker.append(good)
    assert queue.on_reply(error, -1, 0) is None
    assert queue.take_batch(BACKOFF_S, "none") is good
    assert (good.epoch, good.sequence) == (1, 0)
    assert broker.append(good) == (None, 1)


def test_a_broker_that_lacks_some_of_our_numbers_gets_new_ones() -> None:
    queue, broker = make_known_queue(), Broker()
    broker.append(make_known_batch())
    queue.sequence = 40
    batch = make_batch(b"a")
    queue.waiting.append(batch)
    queue.take_batch(0, "none")
    error, _ = broker.append(batch)
    assert isinstance(error, OutOfOrderSequence)
    assert queue.on_reply(error, -1, 0) is None
    assert queue.take_batch(BACKOFF_S, "none") is batch
    assert broker.append(batch) == (None, 1)


def test_out_of_order_after_a_repeat_fails_rather_than_doubles() -> None:
    queue = make_queue()
    batch = make_batch(b"a")
    queue.waiting.append(batch)
    queue.take_batch(0, "none")
    queue.on_connection_lost(0)
    queue.take_batch(BACKOFF_S, "none")
    error = OutOfOrderSequence()
    assert queue.on_reply(error, -1, BACKOFF_S) == (batch, error, OFFSET_UNKNOWN)
    assert (queue.epoch, queue.sequence) == (1, 0)


def test_stale_epoch_and_used_up_epochs_ask_for_a_new_producer_id() -> None:
    for error, epoch in [(StaleProducerEpoch(), 0), (OutOfOrderSequence(), EPOCH_MAX)]:
        queue = make_queue()
        queue.identify(7, epoch)
        batch = make_batch(b"a")
        queue.waiting.append(batch)
        queue.take_batch(0, "none")
        assert queue.on_reply(error, -1, 0) is None
        assert queue.identity is Numbering.WANTED
        assert queue.take_batch(BACKOFF_S, "none") is None
        queue.identify(8, 0)
        assert queue.take_batch(BACKOFF_S, "none") is batch
        assert (batch.producer_id, batch.epoch, batch.sequence) == (8, 0, 0)


def test_sequences_wrap_as_the_broker_expects() -> None:
    queue, broker = make_queue(), Broker()
    broker.sequences.record(7, 0, 0x7FFF_FFFE, 1, 0, 1, 0)
    broker.sequences.commit()
    queue.sequence = 0x7FFF_FFFF
    for batch in (make_batch(b"a", b"b"), make_batch(b"c")):
        queue.waiting.append(batch)
        assert queue.take_batch(0, "none") is batch
        assert broker.append(batch)[0] is None
        assert queue.on_reply(None, 0, 0)
    assert queue.sequence == 2


def test_expiry_gives_up_what_waits_and_changes_the_numbers_if_it_had_any() -> None:
    queue = make_queue()
    old, young = make_batch(b"old", deadline_s=5), make_batch(b"young", deadline_s=50)
    queue.waiting += [old, young]
    queue.take_batch(0, "none")
    queue.on_connection_lost(0)
    assert queue.expire(4) == []
    [(batch, error, offset)] = queue.expire(5)
    assert batch is old and isinstance(error, RequestTimedOut) and offset == OFFSET_UNKNOWN
    assert queue.take_batch(5, "none") is young
    assert (young.epoch, young.sequence) == (1, 0)


def test_without_idempotence_batches_are_not_numbered() -> None:
    queue = make_queue(idempotent=False)
    batch = make_batch(b"a")
    queue.waiting.append(batch)
    queue.take_batch(0, "none")
    queue.on_connection_lost(0)
    assert queue.take_batch(BACKOFF_S, "none") is batch
    assert (batch.producer_id, batch.epoch, batch.sequence) == (-1, -1, -1)


def test_abandon_hands_back_everything_in_order() -> None:
    queue = make_queue()
    batches = [make_batch(b"%d" % i) for i in range(4)]
    queue.waiting += batches
    for _ in range(3):
        queue.take_batch(0, "none")
    queue.on_reply(WriterGone(), -1, 0)
    assert sorted(queue.abandon(), key=batches.index) == batches
    assert not queue.busy


# ---- in a transaction


def test_a_transaction_waits_for_its_partition_and_goes_on_with_the_numbers() -> None:
    queue = make_queue(transactional=True)
    queue.waiting.append(make_batch(b"a", b"b"))
    first = queue.take_batch(0.0, "none")
    assert first is not None and first.encoded is not None
    assert read_header(first.encoded, 0).attributes & TRANSACTIONAL
    assert queue.on_reply(None, 0, 0.0) == (first, None, 0)
    queue.suspend()
    queue.waiting.append(make_batch(b"c"))
    assert queue.take_batch(0.0, "none") is None, "the partition is not in the transaction yet"
    queue.join(7, 0)
    second = queue.take_batch(0.0, "none")
    assert second is not None and (second.epoch, second.sequence) == (0, 2)
    queue.on_reply(None, 2, 0.0)
    queue.suspend()
    queue.join(7, 1)
    queue.waiting.append(make_batch(b"d"))
    third = queue.take_batch(0.0, "none")
    assert third is not None and (third.epoch, third.sequence) == (1, 0)


@pytest.mark.parametrize("error", [OutOfOrderSequence("x"), StaleProducerEpoch("x"), DuplicateSequence("x")])
def test_lost_numbers_end_a_transaction(error: ApplianceError) -> None:
    """Outside of one the queue goes on in another epoch, and sends again."""
    queue = make_queue(transactional=True)
    queue.waiting.append(make_batch(b"a"))
    batch = queue.take_batch(0.0, "none")
    assert batch is not None
    assert queue.on_reply(error, -1, 0.0) == (batch, error, -1)
    assert not queue.busy and (queue.identity, queue.epoch) == (Numbering.KNOWN, 0)


def test_what_is_not_in_flight_can_be_dropped() -> None:
    queue = make_queue(transactional=True)
    batches = [make_batch(b"a"), make_batch(b"b"), make_batch(b"c")]
    queue.waiting += batches
    assert queue.take_batch(0.0, "none") is batches[0], "the first one is in flight alone"
    assert queue.drop_waiting() == batches[1:]
    queue.on_reply(RequestTimedOut("x"), -1, 0.0)
    assert queue.drop_waiting() == batches[:1], "it would be sent again"
    assert not queue.busy

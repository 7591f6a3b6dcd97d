"""appliance.broker.sequences: repeats are recognised, gaps refused, memory bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.broker.sequences import RECENT_MAX, SEQUENCE_MASK, UNKNOWN, Sequences
from appliance.errors import OutOfOrderSequence, StaleProducerEpoch


def written(*batches: tuple[int, int]) -> Sequences:
    """The state after batches of (sequence, count) of producer 7 in epoch 1, each 100 bytes long."""
    sequences = Sequences(ids_max=3)
    for index, (sequence, count) in enumerate(batches):
        assert sequences.check(7, 1, sequence) is None
        end = 100 * (index + 1)
        sequences.record(7, 1, sequence, count, end - count, end)
    sequences.commit()
    return sequences


def test_a_repeat_is_answered_with_its_first_offsets() -> None:
    sequences = written((0, 10), (10, 5), (15, 1))
    assert sequences.check(7, 1, 10) == (195, 200)
    assert sequences.check(7, 1, 16) is None


@pytest.mark.parametrize("sequence", [17, 100])
def test_a_gap_is_refused(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequence, match="expected 16"):
        written((0, 10), (10, 6)).check(7, 1, sequence)


def test_a_producers_second_batch_cannot_come_before_its_first() -> None:
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        Sequences(ids_max=3).check(9, 0, 50)


def test_only_the_last_batches_are_remembered() -> None:
    sequences = written(*((i, 1) for i in range(RECENT_MAX + 1)))
    assert sequences.check(7, 1, 1) == (199, 200)
    assert sequences.check(7, 1, 0) == (UNKNOWN, UNKNOWN)  # an older one was written too, nobody knows where


def test_an_old_epoch_is_refused_and_a_new_one_starts_at_zero() -> None:
    sequences = written((0, 1))
    with pytest.raises(StaleProducerEpoch):
        sequences.check(7, 0, 1)
    with pytest.raises(OutOfOrderSequence, match="new epoch"):
        sequences.check(7, 2, 1)
    assert sequences.check(7, 2, 0) is None


def test_sequences_wrap() -> None:
    sequences = Sequences(ids_max=1)
    sequences.record(7, 0, SEQUENCE_MASK - 1, 3, 0, 3)
    assert sequences.check(7, 0, 1) is None


def test_what_is_rolled_back_was_never_there() -> None:
    sequences = written((0, 10))
    sequences.record(7, 1, 10, 5, 195, 200)
    sequences.record(8, 0, 0, 5, 295, 300)
    sequences.rollback()
    assert sequences.check(7, 1, 10) is None
    assert sequences.check(8, 0, 0) is None
    assert len(sequences) == 1


def test_the_producer_silent_longest_is_forgotten_first_and_may_come_back() -> None:
    sequences = Sequences(ids_max=2)
    for producer in (1, 2, 1, 3):
        sequences.record(producer, 0, 0, 1, 0, 1)
    assert len(sequences) == 2
    assert sequences.check(2, 0, 77) is None  # forgotten: may go on where it was
    with pytest.raises(OutOfOrderSequence):
        sequences.check(1, 0, 77)


producers = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, SEQUENCE_MASK), st.integers(1, 9)), max_size=40
)


@given(producers, st.integers(0, 2**60))
def test_a_snapshot_brings_everything_back(batches: list[tuple[int, int, int, int]], end: int) -> None:
    sequences = Sequences(ids_max=4)
    for index, (producer, epoch, sequence, count) in enumerate(batches):
        sequences.record(producer, epoch, sequence, count, index, index + count)
    restored = Sequences(ids_max=4)
    assert restored.restore(sequences.snapshot(end)) == end
    assert restored.snapshot(end) == sequences.snapshot(end)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_snapshot_is_not_taken(position: int, flip: int) -> None:
    snapshot = bytearray(written((0, 10), (10, 5)).snapshot(200))
    snapshot[position % len(snapshot)] ^= flip
    restored = Sequences(ids_max=4)
    assert restored.restore(bytes(snapshot)) is None
    assert len(restored) == 0

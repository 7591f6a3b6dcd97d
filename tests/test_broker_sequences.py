"""appliance.broker.sequences: repeats are recognised, gaps refused, memory bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.broker.sequences import RECENT_MAX, UNKNOWN, Sequences, Snapshot
from appliance.errors import OutOfOrderSequence, StaleProducerEpoch
from appliance.records.batch import SEQUENCE_MASK


def written(*batches: tuple[int, int]) -> Sequences:
    """The state after batches of (sequence, count) of producer 7 in epoch 1, each 100 bytes long."""
    sequences = Sequences(ids_max=3)
    for index, (sequence, count) in enumerate(batches):
        assert sequences.check(7, 1, sequence, count) is None
        end = 100 * (index + 1)
        sequences.record(7, 1, sequence, count, end - count, end)
    sequences.commit()
    return sequences


def test_a_repeat_is_answered_with_its_first_offsets() -> None:
    sequences = written((0, 10), (10, 5), (15, 1))
    assert sequences.check(7, 1, 10, 5) == (195, 200)
    assert sequences.check(7, 1, 16, 1) is None


@pytest.mark.parametrize("sequence", [17, 100])
def test_a_gap_is_refused(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequence, match="expected 16"):
        written((0, 10), (10, 6)).check(7, 1, sequence, 1)


def test_a_producers_second_batch_cannot_come_before_its_first() -> None:
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        Sequences(ids_max=3).check(9, 0, 50, 1)


def test_only_the_last_batches_are_remembered() -> None:
    sequences = written(*((i, 1) for i in range(RECENT_MAX + 1)))
    assert sequences.check(7, 1, 1, 1) == (199, 200)
    assert sequences.check(7, 1, 0, 1) == (UNKNOWN, UNKNOWN)  # an older one was written too, nobody knows where


def test_an_old_epoch_is_refused_and_a_new_one_starts_at_zero() -> None:
    sequences = written((0, 1))
    with pytest.raises(StaleProducerEpoch):
        sequences.check(7, 0, 1, 1)
    with pytest.raises(OutOfOrderSequence, match="new epoch"):
        sequences.check(7, 2, 1, 1)
    assert sequences.check(7, 2, 0, 1) is None


def test_sequences_wrap() -> None:
    sequences = Sequences(ids_max=1)
    sequences.record(7, 0, SEQUENCE_MASK - 1, 3, 0, 3)
    assert sequences.check(7, 0, 1, 1) is None


def test_what_is_rolled_back_was_never_there() -> None:
    sequences = written((0, 10))
    sequences.record(7, 1, 10, 5, 195, 200)
    sequences.record(8, 0, 0, 5, 295, 300)
    sequences.rollback()
    assert sequences.check(7, 1, 10, 1) is None
    assert sequences.check(8, 0, 0, 1) is None
    assert len(sequences) == 1


def test_the_producer_silent_longest_is_forgotten_first_and_may_come_back() -> None:
    sequences = Sequences(ids_max=2)
    for producer in (1, 2, 1, 3):
        sequences.record(producer, 0, 0, 1, 0, 1)
    assert len(sequences) == 2
    assert sequences.check(2, 0, 77, 1) is None  # forgotten: may go on where it was
    with pytest.raises(OutOfOrderSequence):
        sequences.check(1, 0, 77, 1)


@given(st.lists(st.integers(1, 6), max_size=9), st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_a_group_that_is_rolled_back_leaves_nothing_whoever_it_made_forgotten(
    before: list[int], group: list[int]
) -> None:
    sequences = Sequences(ids_max=3)
    end = 0
    for producer in before:
        end += 10
        sequences.record(producer, 0, end, 1, end - 1, end)
    sequences.commit()
    snapshot = sequences.snapshot(end)
    for number, producer in enumerate(group, 1):
        sequences.record(producer, 1, number, 1, end + number - 1, end + number)
    sequences.rollback()
    assert sequences.snapshot(end) == snapshot


producers = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, SEQUENCE_MASK), st.integers(1, 9)), max_size=40
)


def restored(data: bytes, ids_max: int = 4) -> Sequences:
    snapshot = Snapshot.decode(data)
    assert snapshot is not None
    sequences = Sequences(ids_max)
    sequences.restore(snapshot)
    return sequences


@given(producers, st.integers(0, 2**60))
def test_a_snapshot_brings_everything_back(batches: list[tuple[int, int, int, int]], end: int) -> None:
    sequences = Sequences(ids_max=4)
    for index, (producer, epoch, sequence, count) in enumerate(batches):
        sequences.record(producer, epoch, sequence, count, index, index + count)
    sequences.commit()
    snapshot = sequences.snapshot(end)
    assert snapshot.end == end
    assert restored(snapshot.encode()).snapshot(end) == snapshot


def test_a_snapshot_of_more_producers_than_are_remembered_forgets_the_silent_ones() -> None:
    sequences = Sequences(ids_max=3)
    for producer in range(3):
        sequences.record(producer, 0, 0, 1, producer, producer + 1)
    sequences.commit()
    some = restored(sequences.snapshot(3).encode(), ids_max=2)
    assert len(some) == 2 and some.check(0, 0, 5, 1) is None and some.check(2, 0, 0, 1) == (2, 3)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_snapshot_is_not_taken(position: int, flip: int) -> None:
    data = bytearray(written((0, 10), (10, 5)).snapshot(200).encode())
    data[position % len(data)] ^= flip
    assert Snapshot.decode(bytes(data)) is None
    assert Snapshot.decode(b"") is None


# ---- a repeat is what was seen, and nothing else


@given(st.integers(0, SEQUENCE_MASK), st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_only_what_was_admitted_is_a_repeat(start: int, counts: list[int], data: st.DataObject) -> None:
    """Goal: of a producer that was forgotten and came back in the middle, nothing earlier is taken for written.

    Method: it is admitted from ``start`` on; a batch at any distance from what comes next, of any size, is a repeat
    exactly when all of its records were among the admitted ones.
    """
    sequences = Sequences(ids_max=1)
    sequences.forgotten = True
    at, end = start, 0
    for count in counts:
        assert sequences.check(7, 0, at, count) is None
        end += 100
        sequences.record(7, 0, at, count, end - count, end)
        at = (at + count) & SEQUENCE_MASK
    total = sum(counts)
    distance, count = data.draw(st.integers(-20, total + 20)), data.draw(st.integers(1, 12))
    sequence = (at - distance) & SEQUENCE_MASK
    if distance == 0:
        assert sequences.check(7, 0, sequence, count) is None
    elif count <= distance <= total:
        assert sequences.check(7, 0, sequence, count) is not None
    else:
        with pytest.raises(OutOfOrderSequence):
            sequences.check(7, 0, sequence, count)


def test_a_batch_that_is_longer_than_the_one_that_was_written_is_no_repeat() -> None:
    with pytest.raises(OutOfOrderSequence):
        written((0, 10), (10, 5)).check(7, 1, 10, 6)

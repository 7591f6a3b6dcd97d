"""appliance.broker.sequences: repeats are recognised, gaps refused, memory bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from appliance.broker.sequences import ProducersSnapshot, Sequences
from appliance.errors import ClientFault, DuplicateSequence, OutOfOrderSequence
from appliance.records.batch import SEQUENCE_MASK

from ..support.sequence_cases import APPENDED, CASES, EMPTIED, MADE_AGAIN

PRODUCER = 7


def append(sequences: Sequences, producer: int, epoch: int, sequence: int, count: int, end: int) -> Any:
    """What a log that ends at ``end`` answers to a batch: APPENDED, the offsets of a repeat, or the error's class."""
    try:
        repeat = sequences.check_sequence(producer, epoch, sequence, count)
    except ClientFault as error:
        return type(error)
    if repeat is not None:
        return repeat
    sequences.record(producer, epoch, sequence, count, end, end + count, 1_000)
    sequences.commit()
    return APPENDED


def written(*batches: tuple[int, int]) -> Sequences:
    """The state after batches of (sequence, count) of producer 7 in epoch 1, each 100 bytes long."""
    sequences = Sequences(ids_max=3)
    for index, (sequence, count) in enumerate(batches):
        assert append(sequences, PRODUCER, 1, sequence, count, 100 * index) == APPENDED
    return sequences


@pytest.mark.parametrize("name", CASES)
def test_it_answers_as_kafka_does(name: str) -> None:
    sequences, bases = Sequences(ids_max=3), []
    for index, step in enumerate(CASES[name]):
        base = 100 * index
        bases.append((base, base + step[0][2]) if isinstance(step, tuple) else ())
        if step == MADE_AGAIN:
            sequences = Sequences(ids_max=3)
        elif step != EMPTIED:  # removed records leave their producers
            batch, answer = step
            expected = bases[answer[1]] if isinstance(answer, tuple) else answer
            assert append(sequences, PRODUCER, *batch, base) == expected, f"step {index}: {batch}"


# ---- what could not be written


def test_a_producer_whose_first_batch_was_refused_sends_it_first() -> None:
    """Goal: of a producer that has nothing in the log, what it has sent behind a refused batch does not overtake it."""
    sequences = Sequences(ids_max=3)
    for sequence in (40, 45):
        assert sequences.check_sequence(PRODUCER, 0, sequence, 5) is None
        sequences.record(PRODUCER, 0, sequence, 5, sequence, sequence + 5, 0)
    sequences.rollback()
    assert append(sequences, PRODUCER, 0, 50, 5, 0) == append(sequences, PRODUCER, 0, 45, 5, 0) == OutOfOrderSequence
    assert append(sequences, 8, 0, 50, 5, 0) == APPENDED
    assert append(sequences, PRODUCER, 0, 40, 5, 10) == APPENDED
    assert append(sequences, PRODUCER, 0, 45, 5, 20) == APPENDED


def test_a_producer_that_gives_a_refused_batch_up_begins_a_new_epoch() -> None:
    sequences = Sequences(ids_max=3)
    sequences.record(PRODUCER, 0, 40, 5, 0, 5, 0)
    sequences.rollback()
    assert append(sequences, PRODUCER, 1, 0, 5, 0) == APPENDED


def test_only_so_many_refused_producers_are_remembered() -> None:
    sequences = Sequences(ids_max=2)
    for producer in range(4):
        sequences.record(producer, 0, 3, 1, 0, 1, 0)
        sequences.rollback()
    answers = [append(sequences, producer, 0, 4, 1, 0) for producer in range(4)]
    assert answers == [APPENDED, APPENDED, OutOfOrderSequence, OutOfOrderSequence]


class Staging(RuleBasedStateMachine):
    """Goal: a turn that fails leaves no trace of its batches: not their numbers, not the producers they pushed out.

    Method: the same committed turns, without those that failed, give the same snapshot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.here, self.model = Sequences(ids_max=3), Sequences(ids_max=3)
        self.end = 0

    @rule(
        producers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=6),
        fails=st.booleans(),
    )
    def turn(self, producers: list[tuple[int, int]], fails: bool) -> None:
        for offset, (producer, sequence) in enumerate(producers, self.end):
            for sequences in (self.here, *([] if fails else [self.model])):
                sequences.record(producer, 0, sequence, 1, offset, offset + 1, 0)
        if fails:
            self.here.rollback()
        else:
            self.here.commit()
            self.model.commit()
            self.end += len(producers)
        assert self.here.snapshot(0) == self.model.snapshot(0)


TestStaging = Staging.TestCase


# ---- memory


def test_the_producer_silent_longest_is_forgotten_first_and_may_come_back() -> None:
    sequences = Sequences(ids_max=2)
    for end, (producer, sequence) in enumerate(((1, 0), (2, 0), (1, 1), (3, 0))):
        assert append(sequences, producer, 0, sequence, 1, end) == APPENDED
    assert len(sequences) == 2
    assert append(sequences, 1, 0, 77, 1, 9) == OutOfOrderSequence
    assert append(sequences, 2, 0, 77, 1, 9) == APPENDED


@given(st.lists(st.integers(1, 6), max_size=9), st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_a_group_that_is_rolled_back_leaves_nothing_whoever_it_made_forgotten(
    before: list[int], group: list[int]
) -> None:
    sequences = Sequences(ids_max=3)
    end = 0
    for producer in before:
        end += 10
        sequences.record(producer, 0, end, 1, end - 1, end, 0)
    sequences.commit()
    snapshot = sequences.snapshot(end)
    for number, producer in enumerate(group, 1):
        sequences.record(producer, 1, number, 1, end + number - 1, end + number, 0)
    sequences.rollback()
    assert sequences.snapshot(end) == snapshot


producers = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, SEQUENCE_MASK), st.integers(1, 9)), max_size=40
)


def restored(data: bytes, ids_max: int = 4) -> Sequences:
    snapshot = ProducersSnapshot.decode(data)
    assert snapshot is not None
    sequences = Sequences(ids_max)
    sequences.restore(snapshot)
    return sequences


@given(producers, st.integers(0, 2**60))
def test_a_snapshot_brings_everything_back(batches: list[tuple[int, int, int, int]], end: int) -> None:
    sequences = Sequences(ids_max=4)
    for index, (producer, epoch, sequence, count) in enumerate(batches):
        sequences.record(producer, epoch, sequence, count, index, index + count, 1_000 + index)
        sequences.commit()
    snapshot = sequences.snapshot(end)
    assert snapshot.end == end
    assert restored(snapshot.encode()).snapshot(end) == snapshot


def test_a_snapshot_of_more_producers_than_are_remembered_forgets_the_silent_ones() -> None:
    sequences = Sequences(ids_max=3)
    for producer in range(3):
        sequences.record(producer, 0, 0, 1, producer, producer + 1, 0)
        sequences.commit()
    some = restored(sequences.snapshot(3).encode(), ids_max=2)
    assert len(some) == 2 and some.check_sequence(0, 0, 5, 1) is None and some.check_sequence(2, 0, 0, 1) == (2, 3)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_snapshot_is_not_taken(position: int, flip: int) -> None:
    data = bytearray(written((0, 10), (10, 5)).snapshot(200).encode())
    data[position % len(data)] ^= flip
    assert ProducersSnapshot.decode(bytes(data)) is None
    assert ProducersSnapshot.decode(b"") is None


# ---- a repeat is what was seen, and nothing else


@given(st.integers(0, SEQUENCE_MASK), st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_only_what_was_admitted_is_known(start: int, counts: list[int], data: st.DataObject) -> None:
    """Goal: of a producer that was forgotten and came back in the middle, nothing earlier is taken for written.

    Method: it is admitted from ``start`` on; a batch at any distance from what comes next, of any size, is a repeat or
    a duplicate exactly when all of its records were among the admitted ones.
    """
    sequences = Sequences(ids_max=1)
    at = start
    for number, count in enumerate(counts):
        assert append(sequences, PRODUCER, 0, at, count, 100 * number) == APPENDED
        at = (at + count) & SEQUENCE_MASK
    total = sum(counts)
    distance, count = data.draw(st.integers(-20, total + 20)), data.draw(st.integers(1, 12))
    answer = append(sequences, PRODUCER, 0, (at - distance) & SEQUENCE_MASK, count, 0)
    if distance == 0:
        assert answer == APPENDED
    elif count <= distance <= total:
        assert isinstance(answer, tuple) or answer is DuplicateSequence
    else:
        assert answer is OutOfOrderSequence

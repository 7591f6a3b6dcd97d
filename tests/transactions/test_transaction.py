"""appliance.transactions.transaction: single rules, and all of them against a model of what Kafka promises."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.transactions.transaction import (
    BYTES_MAX,
    ENDING,
    EPOCH_GIVEN_MAX,
    OFFSETS_MAX,
    PARTITIONS_MAX,
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionOutcome,
    TransactionPart,
    TransactionState,
    decode,
    encode,
)
from appliance.wire.kafka.codes import Code

TOPIC_ID = "0123456789abcdef" * 2
A, B = TransactionPart("a", TOPIC_ID, 0), TransactionPart("a", TOPIC_ID, 1)
NEW_ID = 500


def taken(outcome: TransactionOutcome) -> Transaction:
    assert isinstance(outcome, Transaction), outcome
    return outcome


def producer(of: Transaction) -> ProducerIdentity:
    return ProducerIdentity(of.producer_id, of.epoch)


def begin(epoch: int = -1) -> Transaction:
    return taken(Transaction(7, epoch).initialise(1000, None, NEW_ID, 1))


def ongoing(epoch: int = -1, *parts: TransactionPart) -> Transaction:
    one = begin(epoch)
    return taken(one.add_partitions(producer(one), parts or (A,), 2))


def test_the_first_producer_has_epoch_0_and_each_next_one_more() -> None:
    one = begin()
    assert (one.producer_id, one.epoch, one.state, one.timeout_ms) == (7, 0, TransactionState.EMPTY, 1000)
    assert taken(one.initialise(2000, None, NEW_ID, 2)).epoch == 1


def test_a_transaction_goes_from_its_first_partition_to_its_end() -> None:
    one = ongoing()
    assert (one.state, one.parts, one.started_ms) == (TransactionState.ONGOING, (A,), 2)
    assert one.add_partitions(producer(one), (A,), 3) is one, "nothing to store"
    prepared = taken(one.end(producer(one), True, 4))
    assert (prepared.state, prepared.parts) == (TransactionState.PREPARE_COMMIT, (A,))
    done = prepared.complete(5)
    assert (done.state, done.parts, done.epoch) == (TransactionState.COMPLETE_COMMIT, (), one.epoch)


def test_an_end_that_is_asked_for_again() -> None:
    one = ongoing()
    prepared = taken(one.end(producer(one), True, 4))
    assert prepared.end(producer(one), True, 5) is Code.CONCURRENT_TRANSACTIONS
    assert prepared.end(producer(one), False, 5) is Code.INVALID_TXN_STATE
    done = prepared.complete(6)
    assert done.end(producer(one), True, 7) is done
    assert done.end(producer(one), False, 7) is Code.INVALID_TXN_STATE
    assert begin().end(producer(begin()), True, 7) is Code.INVALID_TXN_STATE, "nothing has begun"


def test_while_it_ends_others_wait() -> None:
    prepared = taken(ongoing().end(ProducerIdentity(7, 0), False, 4))
    assert prepared.add_partitions(ProducerIdentity(7, 0), (B,), 5) is Code.CONCURRENT_TRANSACTIONS
    assert prepared.add_group(ProducerIdentity(7, 0), "g", 5) is Code.CONCURRENT_TRANSACTIONS
    assert prepared.initialise(1, None, NEW_ID, 5) is Code.CONCURRENT_TRANSACTIONS


def test_strangers_are_refused() -> None:
    one = ongoing()
    for stranger, code in (
        (ProducerIdentity(8, 0), Code.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdentity(7, 1), Code.PRODUCER_FENCED),
    ):
        assert one.add_partitions(stranger, (B,), 5) is code
        assert one.add_group(stranger, "g", 5) is code
        assert one.add_offsets(stranger, "g", (), 5) is code
        assert one.end(stranger, True, 5) is code


def test_another_producer_aborts_what_the_first_has_left_open() -> None:
    fenced = taken(ongoing().initialise(9, None, NEW_ID, 5))
    assert (fenced.state, fenced.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert fenced.end(ProducerIdentity(7, 0), True, 6) is Code.PRODUCER_FENCED
    assert producer(taken(fenced.complete(7).initialise(9, None, NEW_ID, 8))) == (7, 2)


def test_a_producer_that_goes_on_is_known_by_id_and_epoch() -> None:
    one = taken(begin().initialise(9, ProducerIdentity(7, 0), NEW_ID, 5))
    assert one.epoch == 1
    again = taken(one.initialise(9, ProducerIdentity(7, 0), NEW_ID, 6))
    assert producer(again) == (7, 1), "its answer was lost"
    later = taken(again.initialise(9, None, NEW_ID, 7))
    assert later.initialise(9, ProducerIdentity(7, 0), NEW_ID, 8) is Code.PRODUCER_FENCED
    assert later.initialise(9, ProducerIdentity(8, later.epoch), NEW_ID, 8) is Code.PRODUCER_FENCED


def test_one_that_went_on_does_not_touch_the_transaction_of_another() -> None:
    one = taken(begin().initialise(9, ProducerIdentity(7, 0), NEW_ID, 5))
    used = taken(one.add_partitions(producer(one), (A,), 6))
    assert used.initialise(9, ProducerIdentity(7, 0), NEW_ID, 7) is Code.PRODUCER_FENCED


def test_one_that_goes_on_is_given_the_epoch_that_aborted_its_transaction() -> None:
    fenced = taken(ongoing().initialise(9, ProducerIdentity(7, 0), NEW_ID, 5))
    assert producer(taken(fenced.complete(6).initialise(9, ProducerIdentity(7, 0), NEW_ID, 7))) == (7, 1)


def test_a_new_id_before_the_epochs_end() -> None:
    last = begin(EPOCH_GIVEN_MAX - 1)
    assert producer(last) == (7, EPOCH_GIVEN_MAX)
    fresh = taken(last.initialise(9, producer(last), NEW_ID, 5))
    assert producer(fresh) == (NEW_ID, 0)
    assert producer(taken(fresh.initialise(9, producer(last), 501, 6))) == (NEW_ID, 0), "its answer was lost"
    fenced = taken(ongoing(EPOCH_GIVEN_MAX - 1).initialise(9, producer(last), NEW_ID, 5))
    assert fenced.epoch == EPOCH_GIVEN_MAX + 1
    for claimed in (None, producer(last)):
        assert producer(taken(fenced.complete(6).initialise(9, claimed, NEW_ID, 7))) == (NEW_ID, 0)


def test_offsets_need_their_group_and_the_last_one_counts() -> None:
    one = ongoing()
    assert one.add_offsets(producer(one), "g", (), 3) is Code.INVALID_TXN_STATE
    one = taken(one.add_group(producer(one), "g", 3))
    assert one.add_group(producer(one), "g", 4) is one
    for offset in (5, 6):
        one = taken(one.add_offsets(producer(one), "g", [PendingOffset("g", A, offset)], 4))
    assert one.offsets == (PendingOffset("g", A, 6),)
    assert taken(one.end(producer(one), True, 5)).offsets == one.offsets
    assert taken(one.end(producer(one), False, 5)).offsets == ()


def test_bounds() -> None:
    one = ongoing()
    many = [TransactionPart("a", TOPIC_ID, number) for number in range(PARTITIONS_MAX + 1)]
    assert one.add_partitions(producer(one), many, 3) is Code.POLICY_VIOLATION
    assert taken(one.add_partitions(producer(one), many[:-1], 3)).parts == tuple(many[:-1])
    one = taken(one.add_group(producer(one), "g", 3))
    offsets = [PendingOffset("g", part, 1) for part in many[: OFFSETS_MAX + 1]]
    assert one.add_offsets(producer(one), "g", offsets, 3) is Code.INVALID_COMMIT_OFFSET_SIZE
    large = [each._replace(metadata="x" * 4096) for each in offsets[:-1]]
    assert one.add_offsets(producer(one), "g", large, 3) is Code.POLICY_VIOLATION
    stored = taken(one.add_offsets(producer(one), "g", offsets[:-1], 3))
    assert len(encode(stored)) < BYTES_MAX and decode(encode(stored)) == stored


def test_it_is_idle_only_when_nothing_is_open() -> None:
    assert begin().idle(101) == 100
    assert ongoing().idle(101) == 0
    assert taken(ongoing().end(ProducerIdentity(7, 0), True, 4)).idle(104) == 0


class AnyOrder(RuleBasedStateMachine):
    """Producers come, go on, and act late; the coordinator dies.  The model knows only who was given what when."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Transaction(1)
        self.given: list[ProducerIdentity] = []
        self.open: set[TransactionPart] = set()
        self.fates: list[bool] = []
        self.ids = 1

    def take(self, outcome: Any) -> Code:
        """Store a value; the coordinator may die afterwards, and another one reads it."""
        if isinstance(outcome, Code):
            assert outcome is not Code.NONE
            return outcome
        self.stored = decode(encode(outcome))
        assert self.stored == outcome
        return Code.NONE

    @property
    def latest(self) -> ProducerIdentity | None:
        """The only producer that may act."""
        return self.given[-1] if self.given and self.given[-1] == producer(self.stored) else None

    @rule(near_the_end=st.booleans(), claimed=st.integers(0, 3))
    def initialise(self, near_the_end: bool, claimed: int) -> None:
        before = self.stored
        if (
            near_the_end
            and before.state is TransactionState.EMPTY
            and 0 <= before.epoch < EPOCH_GIVEN_MAX - 2
            and self.latest
        ):
            self.stored = Transaction(before.producer_id, EPOCH_GIVEN_MAX - 2)
            self.given.append(producer(self.stored))
            before = self.stored
        who = self.given[-claimed] if 0 < claimed <= len(self.given) else None
        self.ids += 1
        outcome = before.initialise(10, who, self.ids, 1)
        code = self.take(outcome)
        if code:
            assert code is not Code.CONCURRENT_TRANSACTIONS or before.state in ENDING
            assert code is not Code.PRODUCER_FENCED or who is not None
        elif before.state is TransactionState.ONGOING:
            assert self.stored.state is TransactionState.PREPARE_ABORT and self.stored.epoch == before.epoch + 1
            assert who in (None, self.given[-1]), "only the producer itself, or a new one, may abort"
        else:
            fresh = producer(self.stored)
            assert fresh.epoch <= EPOCH_GIVEN_MAX
            assert who is None or who in self.given[-2:]
            if fresh in self.given:
                assert fresh == self.given[-1] and who == self.given[-2], "only a lost answer is given again"
            else:
                earlier = [one.epoch for one in self.given if one.id == fresh.id]
                assert fresh.epoch > max(earlier) if earlier else fresh == (self.ids, 0) or not self.given
                self.given.append(fresh)

    @rule(back=st.integers(1, 3), part=st.sampled_from([A, B]))
    def add(self, back: int, part: TransactionPart) -> None:
        if len(self.given) < back:
            return
        who, before = self.given[-back], self.stored
        code = self.take(before.add_partitions(who, (part,), 2))
        if who != self.latest:
            assert code in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING)
        elif before.state in ENDING:
            assert code is Code.CONCURRENT_TRANSACTIONS
        else:
            assert code is Code.NONE
            self.open.add(part)

    @rule(back=st.integers(1, 3), committed=st.booleans())
    def end(self, back: int, committed: bool) -> None:
        if len(self.given) < back:
            return
        who, before = self.given[-back], self.stored
        code = self.take(before.end(who, committed, 3))
        if who != self.latest:
            assert code in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING)
        elif before.state is TransactionState.ONGOING:
            assert code is Code.NONE and self.stored.committed == committed
        elif before.state in ENDING:
            assert code in (Code.CONCURRENT_TRANSACTIONS, Code.INVALID_TXN_STATE)
            assert self.stored.committed == before.committed, "it is decided once"
        elif code is Code.NONE:
            assert self.stored is before or self.stored == before
            assert self.fates[-1] == committed, "only the same end again is a success"

    @precondition(lambda self: self.stored.state is TransactionState.ONGOING)
    @rule()
    def time_out(self) -> None:
        self.take(self.stored.fence(4))
        assert self.latest is None

    @precondition(lambda self: self.stored.state in ENDING)
    @rule()
    def markers_are_written(self) -> None:
        assert set(self.stored.parts) == self.open, "each partition gets its marker"
        self.fates.append(self.stored.committed)
        self.take(self.stored.complete(5))
        self.open.clear()

    @invariant()
    def partitions_are_kept_while_open(self) -> None:
        assert set(self.stored.parts) == self.open
        assert 0 <= self.stored.epoch <= EPOCH_GIVEN_MAX + 1 or not self.given


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_nobody_acts_with_the_epoch_that_only_fences() -> None:
    """It has been given to nobody; a transaction that it began could not be fenced any more."""
    one = Transaction(7, EPOCH_GIVEN_MAX + 1, 60_000, TransactionState.COMPLETE_ABORT)
    nobody = ProducerIdentity(7, EPOCH_GIVEN_MAX + 1)
    assert one.add_partitions(nobody, [A], 1) is Code.PRODUCER_FENCED
    assert one.add_group(nobody, "g", 1) is Code.PRODUCER_FENCED
    assert one.end(nobody, False, 1) is Code.PRODUCER_FENCED

"""appliance.broker.open_transactions: which producers are in a transaction, as the coordinator has said."""

from __future__ import annotations

import pytest

from appliance.broker.open_transactions import OpenTransactions
from appliance.errors import InvalidTransactionState, OutOfResources, StaleProducerEpoch, TransactionUnverified


def test_steps_may_be_repeated() -> None:
    transactions = OpenTransactions(10)
    transactions.open_transaction(7, 3)
    transactions.open_transaction(7, 3)
    transactions.end_transaction(7)
    transactions.end_transaction(7)
    transactions.open_transaction(7, 3)


def test_an_older_incarnation_begins_no_transaction() -> None:
    transactions = OpenTransactions(10)
    transactions.open_transaction(7, 3)
    with pytest.raises(StaleProducerEpoch):
        transactions.open_transaction(7, 2)
    with pytest.raises(StaleProducerEpoch):
        transactions.check_epoch(7, 2)
    transactions.open_transaction(7, 4)


def test_too_many_are_refused_until_one_ends() -> None:
    transactions = OpenTransactions(2)
    for producer_id in (1, 2, 1):
        transactions.open_transaction(producer_id, 0)
    with pytest.raises(OutOfResources):
        transactions.open_transaction(3, 0)
    transactions.end_transaction(1)
    transactions.open_transaction(3, 0)


def test_a_batch_is_refused_for_good_only_when_all_that_is_open_was_sent() -> None:
    transactions = OpenTransactions(10)
    transactions.open_transaction(7, 3)
    transactions.check_batch(7, 3)
    for producer_id, epoch in ((7, 2), (8, 3)):
        with pytest.raises(TransactionUnverified):
            transactions.check_batch(producer_id, epoch)
    transactions.sent = True
    transactions.check_batch(7, 3)
    for producer_id, epoch in ((7, 2), (8, 3)):
        with pytest.raises(InvalidTransactionState):
            transactions.check_batch(producer_id, epoch)

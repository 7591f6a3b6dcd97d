"""appliance.broker.open_transactions: which producers are in a transaction, as the coordinator has said."""

from __future__ import annotations

import pytest

from appliance.broker.open_transactions import OpenTransactions
from appliance.errors import OutOfResources, StaleProducerEpoch


def test_steps_may_be_repeated() -> None:
    transactions = OpenTransactions(10)
    transactions.open(7, 3)
    transactions.open(7, 3)
    transactions.end(7, 3)
    transactions.end(7, 3)
    transactions.open(7, 3)


def test_an_older_incarnation_neither_begins_nor_ends_a_transaction() -> None:
    transactions = OpenTransactions(10)
    transactions.open(7, 3)
    with pytest.raises(StaleProducerEpoch):
        transactions.open(7, 2)
    with pytest.raises(StaleProducerEpoch):
        transactions.end(7, 2)
    transactions.open(7, 4)


def test_too_many_are_refused_until_one_ends() -> None:
    transactions = OpenTransactions(2)
    for producer_id in (1, 2, 1):
        transactions.open(producer_id, 0)
    with pytest.raises(OutOfResources):
        transactions.open(3, 0)
    transactions.end(1, 0)
    transactions.open(3, 0)

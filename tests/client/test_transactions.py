"""appliance.client.transactions: against a peer that gives epochs; what callbacks, interrupts and time do to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.client import Producer
from appliance.errors import InvalidRequest, InvalidTransactionState, RequestTimedOut, TransactionAborted, WriterGone

from ..support.client_peer import Peer

TIMEOUT_S = 60
SILENT_S = 40


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 1}) as running:
        yield running


def make(peer: Peer, **options: Any) -> Producer:
    options = {"retry_backoff_ms": 2, "retry_backoff_ms_max": 20, "transactional_id": "x"} | options
    return Producer(peer.address, **options)


def test_a_callback_neither_begins_nor_ends_a_transaction(peer: Peer) -> None:
    refused: list[Any] = []
    with make(peer) as producer:
        transaction = producer.transaction()
        attempts: list[Callable[[], object]] = [
            lambda: producer.transaction().__enter__(),
            lambda: transaction.__exit__(None, None, None),
            lambda: transaction.__exit__(ValueError, ValueError(), None),
        ]

        def on_delivery(*_: Any) -> None:
            producer.send("t", b"on its way")
            refused.append(producer.deliver())
            for attempt in attempts:
                try:
                    refused.append(attempt())
                except InvalidRequest as error:
                    refused.append(error)

        with transaction:
            producer.send("t", b"first", on_delivery=on_delivery)
            producer.flush(TIMEOUT_S)
            assert [type(each) for each in refused] == [RequestTimedOut] + 3 * [InvalidRequest]
            assert all("callback" in str(each) for each in refused[1:])
            assert not peer.ends, "it is open"
    assert peer.ends == [True]
    assert peer.log("t", 0).values() == [b"first", b"on its way"]


def test_a_callback_closes_a_producer_with_an_open_transaction(peer: Peer) -> None:
    """The producer is closed, and the end of the block says so; the appliance aborts when the time is up."""
    producer = make(peer)
    closed = threading.Event()

    def on_delivery(*_: Any) -> None:
        producer.close()
        closed.set()

    with pytest.raises(InvalidRequest, match="was closed"), producer.transaction():
        producer.send("t", b"x", on_delivery=on_delivery)
        assert closed.wait(TIMEOUT_S), "its own thread calls it"
    assert peer.epoch == 0 and not peer.ends


def test_what_an_interrupted_end_leaves_is_not_sent_in_the_next_transaction(peer: Peer) -> None:
    """Goal: nobody is fenced by the rest of its own.  Method: the clock interrupts the wait, before all is added."""
    here, interrupts = threading.get_ident(), [False]

    def clock() -> float:
        if interrupts[0] and threading.get_ident() == here:
            interrupts[0] = False
            raise KeyboardInterrupt
        return time.monotonic()

    with make(peer, clock=clock) as producer:
        peer.refusals["add_partitions"] = WriterGone.code
        with pytest.raises(KeyboardInterrupt), producer.transaction():
            left = producer.send("t", b"left")
            interrupts[0] = True
        with producer.transaction():
            peer.refusals.clear()
            producer.send("t", b"next")
        assert isinstance(left.exception(TIMEOUT_S), TransactionAborted)
    assert peer.ends == [True]
    assert peer.log("t", 0).values() == [b"next"]


def test_an_abort_that_fails_says_what_becomes_of_the_producer(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with make(peer) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("t", b"x").result(TIMEOUT_S)
            peer.refusals["init_transactions"] = InvalidTransactionState.code
            raise ZeroDivisionError
        (said,) = [row.getMessage() for row in caplog.records if row.name.endswith("client.transactions")]
    assert "aborted when its time is up" in said and "is fenced" in said


@pytest.mark.parametrize("on_its_way", [True, False])
def test_closing_with_an_open_transaction_keeps_its_time(peer: Peer, on_its_way: bool) -> None:
    """An appliance that is silent is waited for neither for a message on its way nor for the abort."""
    producer = make(peer, request_timeout_ms=SILENT_S * 1000)
    with pytest.raises(InvalidRequest, match="was closed"), producer.transaction():
        producer.send("t", b"x").result(TIMEOUT_S)
        peer.answering = False
        if on_its_way:
            producer.send("t", b"y")
        started_s = time.monotonic()
        producer.close(0.1)
        assert time.monotonic() - started_s < SILENT_S / 2

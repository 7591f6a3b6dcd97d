"""appliance.client.threads and callbacks: whatever ends, wherever, the application learns of it and can close.

Method: a workload is run once to count the lines of the client that it passes through; then again and again, each time
with an exception at another one of these lines.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.client import Delivery, Producer
from appliance.client.background_requests import BackgroundRequests
from appliance.client.sender import Sender
from appliance.client.threads import Threads
from appliance.errors import ApplianceError, CallbackFailed, ClientBroken, OutOfResources

from ..support.client_peer import Peer
from ..support.interruptions import Interruption
from ..support.long import LONG
from ..support.server import wait_for

CLOSE_S = 1.0
SEEN_S = 60.0
PLACES = 60
"""So many of the lines that a workload runs are tried, evenly spread."""


class Bug(Exception):
    """What no one expects."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 2}) as running:
        yield running


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Sockets that were made and nobody had yet are collected within the test; no log record keeps them."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


class Workload:
    """A producer in use: plain values, keys, callbacks, and waiting."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.deliveries: list[Delivery] = []
        self.numbers: list[int] = []
        """What each of them carries; one whose call was interrupted may have been sent, too."""
        self.told: list[ApplianceError | None] = []
        self.asked = 0  # callbacks
        self._count = 0
        self.producer = Producer(peer.address, linger_ms=1, batch_messages_max=5, retry_backoff_ms=2)

    def send(self, **options: Any) -> None:
        number, self._count = self._count, self._count + 1
        self.deliveries.append(self.producer.send("t", b"%d" % number, **options))
        self.numbers.append(number)
        self.asked += "on_delivery" in options

    def run(self) -> None:
        for i in range(12):
            self.send()
            self.send(key=b"%d" % i, on_delivery=self.tell)
        self.producer.flush(SEEN_S)

    def tell(self, error: ApplianceError | None, *_: Any) -> None:
        self.told.append(error)

    def close(self) -> ApplianceError | None:
        """Close within the time; what that raises."""
        begun = time.monotonic()
        found = None
        try:
            self.producer.close(CLOSE_S)
        except ApplianceError as error:
            found = error
        assert time.monotonic() - begun < CLOSE_S + 10
        return found

    def check(self) -> None:
        """Every message has ended: delivered once and in the log, or failed and said so."""
        assert all(delivery.done() for delivery in self.deliveries)
        stored = [value for partition in (0, 1) for value in self.peer.log("t", partition).values()]
        assert len(stored) == len(set(stored)), "nothing is doubled"
        for number, delivery in zip(self.numbers, self.deliveries, strict=True):
            if delivery.exception(0) is None:
                assert b"%d" % number in stored


def spread(count: int) -> range:
    return range(1, count + 1, max(1, count // PLACES))


def wait_until_done(deliveries: list[Delivery], interruption: Interruption) -> None:
    wait_for(lambda: all(delivery.done() for delivery in deliveries), interruption.raised_at, SEEN_S)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_in_a_call_reaches_the_caller_and_leaves_a_producer_that_can_be_closed() -> None:
    def attempt(nth: int = -1, place: str = "", goes_on: bool = True) -> Interruption:
        with Peer({"t": 2}) as peer:
            work = Workload(peer)
            with Interruption("MainThread", KeyboardInterrupt(), nth, place) as interruption:
                try:
                    work.run()
                    interrupted = False
                except KeyboardInterrupt:
                    interrupted = True
            assert interrupted == bool(interruption.raised_at)
            if goes_on:
                with contextlib.suppress(ClientBroken):
                    work.run()
            else:  # then it is for the thread to find what was interrupted
                wait_until_done(work.deliveries, interruption)
            work.close()
            work.check()
            assert len(work.told) >= work.asked, interruption.raised_at
            sender = work.producer._sender
            assert sender.broken or sender.torn or not sender.outstanding.buffered_bytes, interruption.raised_at
            return interruption

    untouched = attempt()
    for number, place in enumerate(sorted(untouched.places)):
        for goes_on in (True, False) if LONG else (number % 2 == 0,):
            attempt(place=place, goes_on=goes_on)
    for nth in spread(untouched.counted):
        attempt(nth)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bug_anywhere_in_the_sending_thread_reaches_the_application() -> None:
    """The thread does everything: messages linger, nobody waits for them.

    Each line of code that it comes to is tried, where it is run first, and places that are spread over its whole run.
    """

    def attempt(nth: int = -1, place: str = "") -> Interruption:
        with Peer({"t": 2}) as peer, Interruption("appliance-sending", Bug("here"), nth, place) as interruption:
            work = Workload(peer)
            try:
                for i in range(20):
                    work.send(on_delivery=work.tell)
                    if i == 2:  # what is sent after the thread has ended is told, too
                        wait_until_done(work.deliveries, interruption)
            except ClientBroken:
                assert interruption.raised_at
            wait_until_done(work.deliveries, interruption)
            failed = [delivery.exception(0) for delivery in work.deliveries if delivery.exception(0)]
            error = work.close()
            if interruption.raised_at:
                assert isinstance(error, ClientBroken) and isinstance(error.__cause__, Bug), interruption.raised_at
                assert all(one is error for one in failed)
            work.check()
            assert len(work.told) == len(work.deliveries), interruption.raised_at
            return interruption

    untouched = attempt()
    for place in sorted(untouched.places):
        attempt(place=place)
    for nth in spread(untouched.counted):
        attempt(nth)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_callback_reaches_the_caller_and_close_still_flushes(
    peer: Peer, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(peer.address, linger_ms=60_000)
    monkeypatch.setattr(Sender, "awaken", lambda sender: None)  # a signal comes to the main thread
    told: list[ApplianceError | None] = []

    def on_delivery(error: ApplianceError | None, *_: Any) -> None:
        told.append(error)
        if len(told) == 1:
            raise kind

    with pytest.raises(kind):
        producer.send("t", b"warm", on_delivery=on_delivery).result(SEEN_S)
    for i in range(5):
        producer.send("t", b"%d" % i, on_delivery=on_delivery)
    producer.close(SEEN_S)
    assert told == [None] * 6
    assert peer.log("t", 0).values() + peer.log("t", 1).values() != []


def test_callbacks_behind_an_interrupted_one_are_called_with_the_next_call(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(peer.address, linger_ms=60_000) as producer:
        monkeypatch.setattr(Sender, "awaken", lambda sender: None)
        told: list[int] = []

        def on_delivery(number: int) -> Callable[..., None]:
            def call(*_: Any) -> None:
                told.append(number)
                if number == 1:
                    raise KeyboardInterrupt

            return call

        for i in range(4):
            producer.send("t", b"%d" % i, partition=0, on_delivery=on_delivery(i))
        with pytest.raises(KeyboardInterrupt):
            producer.flush(SEEN_S)
        assert told == [0, 1]
        producer.flush(SEEN_S)
        assert told == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [Bug, KeyboardInterrupt, SystemExit])
def test_a_callback_that_fails_in_the_sending_thread_is_raised_by_the_next_call(
    peer: Peer, kind: type[BaseException]
) -> None:
    producer = Producer(peer.address, linger_ms=1)
    called = threading.Event()

    def on_delivery(*_: Any) -> None:
        called.set()
        raise kind

    producer.send("t", b"x", on_delivery=on_delivery)
    assert called.wait(SEEN_S)
    wait_for(lambda: not producer._sender.outstanding.batches, "the thread goes on")
    assert producer.send("t", b"y").result(SEEN_S).offset >= 0
    with pytest.raises(CallbackFailed) as failed:
        producer.close()
    assert isinstance(failed.value.__cause__, kind)


PRODUCER_CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("t", b"x"),
    "send with a key": lambda producer: producer.send("t", b"x", key=b"k"),
    "send_many": lambda producer: producer.send_many("t", [b"x"]),
    "partitions": lambda producer: producer.partitions("t"),
    "flush": lambda producer: producer.flush(SEEN_S),
    "close": lambda producer: producer.close(SEEN_S),
}


@pytest.mark.parametrize("call", PRODUCER_CALLS)
def test_every_call_of_a_broken_producer_says_so(peer: Peer, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(peer.address, linger_ms=60_000)
    delivery = producer.send("t", b"never sent")
    monkeypatch.setattr(BackgroundRequests, "take_due", _fail)
    wait_for(delivery.done, "the thread ends")
    with pytest.raises(ClientBroken, match="sending thread") as said:
        PRODUCER_CALLS[call](producer)
    assert isinstance(said.value.__cause__, Bug)
    with pytest.raises(ClientBroken):
        delivery.result(SEEN_S)
    if call != "close":
        with pytest.raises(ClientBroken):
            producer.close()


def test_an_error_that_is_raised_by_every_call_does_not_grow(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(peer.address, linger_ms=60_000)
    delivery = producer.send("t", b"never sent")
    monkeypatch.setattr(BackgroundRequests, "take_due", _fail)
    wait_for(delivery.done, "the thread ends")
    lengths = set()
    for call in [lambda: producer.send("t", b"x"), lambda: delivery.result(SEEN_S), lambda: producer.flush(SEEN_S)] * 3:
        with pytest.raises(ClientBroken) as said:
            call()
        lengths.add(len(list(traceback.walk_tb(said.value.__traceback__))))
    assert max(lengths) < 10
    with pytest.raises(ClientBroken):
        producer.close()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (RuntimeError("can't start new thread"), OutOfResources("sending thread of this producer cannot be started")),
        (KeyboardInterrupt("before there is a thread"), KeyboardInterrupt("before")),
    ],
)
def test_a_thread_that_was_not_started_is_started_by_the_next_call(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, refusal: BaseException, said: BaseException
) -> None:
    with Producer(peer.address, linger_ms=1) as producer:
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", lambda self: _raise(refusal))
            for _ in range(2):
                with pytest.raises(type(said), match=str(said)):
                    producer.send("t", b"refused")
        delivery = producer.send("t", b"taken")
        wait_for(delivery.done, "the thread sends what nobody waits for")
        assert not producer._sender.outstanding.buffered_bytes
    assert [value for partition in (0, 1) for value in peer.log("t", partition).values()] == [b"taken"]


def test_a_batch_without_messages_is_not_sent(peer: Peer) -> None:
    """An interrupt came between opening it and its first message."""
    with Producer(peer.address, linger_ms=60_000) as producer:
        known = producer._topics.learn("t")
        with producer._lock:
            batch = producer._batches.batch_with_room("t", known, None, 10, plain=True)
        outstanding = producer._sender.outstanding
        assert batch is not None and outstanding.buffered_bytes > 0
        producer.flush(SEEN_S)
        assert not outstanding.buffered_bytes and not outstanding.delivered and not batch.done
        producer.send("t", b"x").result(SEEN_S)
    assert [value for partition in (0, 1) for value in peer.log("t", partition).values()] == [b"x"]


def test_a_broken_producer_does_not_hide_what_ended_its_block(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), Producer(peer.address, linger_ms=60_000) as producer:
        producer.send("t", b"x").result(SEEN_S)
        delivery = producer.send("t", b"never sent")
        monkeypatch.setattr(BackgroundRequests, "take_due", _fail)
        wait_for(delivery.done, "the thread ends")
        raise KeyboardInterrupt


def _fail(*_: object) -> None:
    raise Bug("here")


def test_what_ends_a_thread_is_kept_and_told_once() -> None:
    told: list[ClientBroken] = []
    threads = Threads("thing", told.append)
    for kind in (Bug("first"), SystemExit(3)):
        threads.start("work", lambda error=kind: _raise(error))  # type: ignore[misc]
    assert threads.join(SEEN_S) == []
    assert sorted(type(error.__cause__).__name__ for error in told) == ["Bug", "SystemExit"]
    with pytest.raises(ClientBroken, match="the work thread of this thing ended"):
        threads.raise_error()


def _raise(error: BaseException) -> None:
    raise error

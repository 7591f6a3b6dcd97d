"""appliance.sql.beside: items of a thread come in order, its errors too, and whoever leaves ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from appliance.sql.beside import AHEAD_MAX, made_beside


def nothing() -> None:
    pass


def test_items_come_in_their_order() -> None:
    assert list(made_beside(lambda: range(100), nothing)) == list(range(100))


def test_an_error_comes_behind_the_items_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("wrong")

    items = made_beside(make, nothing)
    assert next(items) == 1
    with pytest.raises(ValueError, match="wrong"):
        next(items)


def test_only_a_few_items_are_made_ahead() -> None:
    made = []

    def make() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    items = made_beside(make, nothing)
    assert [next(items) for _ in range(10)] == list(range(10))
    items.close()
    assert len(made) <= 10 + AHEAD_MAX + 3


def test_leaving_interrupts_what_is_being_made() -> None:
    interrupted = threading.Event()

    def make() -> Iterator[int]:
        yield 1
        interrupted.wait()

    items = made_beside(make, interrupted.set)
    assert next(items) == 1
    items.close()
    assert interrupted.is_set()
    assert not [each for each in threading.enumerate() if each.name == "query"]


def test_a_signal_ends_whoever_waits() -> None:
    interrupted = threading.Event()

    def make() -> Iterator[int]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        interrupted.wait()
        yield 1

    with pytest.raises(KeyboardInterrupt):
        list(made_beside(make, interrupted.set))
    assert interrupted.is_set()

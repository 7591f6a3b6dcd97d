"""Makes items in a thread of their own, so that a signal ends whoever waits for one, at once.

A signal is handled between two instructions of Python's main thread.  DuckDB makes a batch of results in one call,
which may take minutes; whoever waits in this thread's queue instead is woken up, and then interrupts the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from queue import Empty, Queue
from typing import Final, TypeVar

Item = TypeVar("Item")
AHEAD_MAX: Final = 2
"""Most items that wait to be taken."""
_LOOK_S: Final = 0.05


class _End(Exception):
    """There are no more items."""


def made_beside(make: Callable[[], Iterable[Item]], interrupt: Callable[[], None]) -> Generator[Item, None, None]:
    """The items that ``make`` yields; its errors are raised here.

    Args:
        interrupt: makes the item that is being made fail; called when this iterator is closed, or ended by an error.
    """
    ready: Queue[Item | BaseException] = Queue(AHEAD_MAX)
    closed = threading.Event()

    def run() -> None:
        end: BaseException = _End()
        try:
            for item in make():
                if closed.is_set():
                    return
                ready.put(item)
        except BaseException as error:
            end = error
        if not closed.is_set():
            ready.put(end)

    thread = threading.Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        while True:
            item = ready.get()
            if isinstance(item, _End):
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        while thread.is_alive():
            interrupt()
            with suppress(Empty):
                ready.get(timeout=_LOOK_S)

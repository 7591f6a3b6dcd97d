"""Makes the blocking calls of one client in a thread, for an event loop.

The thread ends with the program, and does not keep it from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ...errors import InvalidRequest
from ..lifetime import inherited
from ..threads import Kept, Threads

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")
S = TypeVar("S")
C = TypeVar("C", covariant=True)


class Worker:
    """One thread, which is started by the first call.  Its calls are made one after another, in their order.

    ``client`` is its client's name in messages.  Calls that wait here are those that tasks of the program wait for.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._pid = os.getpid()
        self._threads = Threads(client, lambda error: None)
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._last: asyncio.Future[Any] | None = None
        self.ended = False
        """Whether no more calls are made."""

    @property
    def last(self) -> asyncio.Future[Any] | None:
        """The last call, until it has returned."""
        return self._last if self._last is not None and not self._last.done() else None

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Make a call.  Its future is not to be cancelled, and says when the thread is done with it.

        Raises:
            InvalidRequest: after :meth:`end`, in a forked child, or while a call waits of another event loop.
        """
        self._check()
        loop = asyncio.get_running_loop()
        if self.last is not None and self.last.get_loop() is not loop:
            raise InvalidRequest(f"this {self._client} belongs to another event loop: make one in each")
        self._threads.raise_error()
        if not self._threads.started:
            self._threads.start("calls", self._run)
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_retrieve)
        self._calls.put(functools.partial(_carry_out, loop, future, functools.partial(function, *args, **kwargs)))
        self._last = future
        return future

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call and wait for it.  Who is cancelled waits no longer; the call is made all the same."""
        return await asyncio.shield(self.begin(function, *args, **kwargs))

    async def finish(self, close: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make the last call behind those that were begun, and end the thread; nothing if that was done before."""
        if not self.ended:
            future = self.begin(close, *args, **kwargs)
            self.end()
            await asyncio.shield(future)

    def end(self) -> None:
        """Make no more calls: the thread ends behind those that were begun."""
        self.ended = True
        self._calls.put(None)

    def _check(self) -> None:
        if os.getpid() != self._pid:  # the thread is in the parent
            raise inherited(self._client, self._pid)
        if self.ended:
            raise InvalidRequest(f"this {self._client} is closed")

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _carry_out(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], function: Callable[[], T]) -> None:
    closed = contextlib.suppress(RuntimeError)  # the loop's end: nobody waits any more
    with closed, Kept(lambda error: loop.call_soon_threadsafe(future.set_exception, error)):
        result = function()
        loop.call_soon_threadsafe(future.set_result, result)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Who has waited for a call may have been cancelled: its error is nobody's then, and nothing to warn of."""
    future.exception()


# ---- classes that are like those of the blocking client


def made_as(kind: Callable[P, M]) -> Callable[[Callable[[S, M], None]], Callable[Concatenate[S, P], None]]:
    """Give a constructor that takes a blocking client the arguments of that client's own."""

    def decorate(init: Callable[[S, M], None]) -> Callable[Concatenate[S, P], None]:
        @functools.wraps(kind.__init__)
        def made(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, kind(*args, **kwargs))

        return made

    return decorate


class Asked(Protocol[C]):
    """A client of an event loop, around a blocking one."""

    async def ask(self, method: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the blocking client in its thread."""
        ...


def asked(method: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[Asked[M], P], Coroutine[Any, Any, T]]:
    """A method of the same name and arguments, to be awaited."""

    @functools.wraps(method)
    async def made(self: Asked[M], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.ask(method, *args, **kwargs)

    return made

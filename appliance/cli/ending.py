"""Ends ``produce`` and ``consume`` cleanly after a signal or when their pipe is closed.

SIGTERM and SIGHUP (a closed terminal) become an exception in the main thread, as Ctrl-C does.  So every ``with`` block
closes what it opened: a member of a group commits the printed messages and leaves, a producer delivers what it can.  A
pipe that is closed at its other end (``| head``) ends the command the same way, without a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class CommandEnded(BaseException):
    """A signal ended the command.  Not an Exception, so that no handler of errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextlib.contextmanager
def end_in_order() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block by raising :class:`CommandEnded`."""
    ignored = {number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN}  # nohup
    before = {number: signal.signal(number, _end) for number in SIGNALS if number not in ignored}
    try:
        with end_on_closed_pipe():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def end_on_closed_pipe() -> Iterator[None]:
    """Lets the end of the pipe behind standard output end the block by raising :class:`CommandEnded`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The rest in the buffer of standard output would raise again at the interpreter's exit.
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise CommandEnded(signal.SIGPIPE) from None


def run_in_order(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in an event loop; SIGTERM and SIGHUP cancel it, as Ctrl-C does, so what it ends with may wait.

    An exception that a handler of signals raises would be lost in the loop.
    """
    ended: list[int] = []

    async def until_ended() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            ended.append(number)
            task.cancel()

        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(until_ended())
    except asyncio.CancelledError:
        if not ended:
            raise
        raise CommandEnded(ended[0]) from None


def _end(number: int, frame: FrameType | None) -> None:
    raise CommandEnded(number)

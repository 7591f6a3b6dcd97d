"""Runs the background threads of one client, and reports the failure of a thread to the application.

An exception of any kind that ends a thread is kept as a :class:`~appliance.errors.ClientBroken` with its cause.
``failed`` is called with it at once, in the ending thread, so that nobody waits for the work of that thread.  The next
call of the application raises it, through :meth:`Threads.raise_error`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from ..errors import ApplianceError, ClientBroken, OutOfResources

logger = logging.getLogger(__name__)


class Threads:
    """The threads of one client.  ``client`` is its name in messages."""

    def __init__(self, client: str, failed: Callable[[ClientBroken], object]) -> None:
        self.error: ClientBroken | None = None
        self._client = client
        self._failed = failed
        self._threads: dict[threading.Thread, None] = {}

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Start a thread.

        Raises:
            OutOfResources: the machine, or the limit of the process, allows no more threads; it may be called again.
        """
        thread = threading.Thread(target=self._run, args=(name, run), name=f"appliance-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OutOfResources(f"the {name} thread of this {self._client} cannot be started: {error}") from error
        self._threads[thread] = None

    @property
    def started(self) -> bool:
        return bool(self._threads)

    def raise_error(self) -> None:
        """Raise the error that ended a thread.

        Raises:
            ClientBroken: its cause is the exception.
        """
        if self.error is not None:
            raise fresh(self.error)

    def join(self, timeout_s: float | None) -> list[str]:
        """Wait for all threads but the calling one, ``timeout_s`` each.  Returns the names of those that still run."""
        others = [thread for thread in list(self._threads) if thread is not threading.current_thread()]
        for thread in others:
            thread.join(timeout_s)
        return [thread.name for thread in others if thread.is_alive()]

    def _run(self, name: str, run: Callable[[], object]) -> None:
        self._threads[threading.current_thread()] = None  # here, too: an interrupt may have ended start() before
        with Kept(lambda error: self._ended(name, error)):
            run()

    def _ended(self, name: str, cause: BaseException) -> None:
        error = broken(f"the {name} thread of this {self._client} ended", cause)
        logger.error("%s", error, exc_info=cause)
        self.error = self.error or error
        self._failed(error)


class Kept:
    """Context that passes any exception to ``keep`` and raises none."""

    def __init__(self, keep: Callable[[BaseException], object]) -> None:
        self._keep = keep

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._keep(error)
        return True


def fresh(error: ApplianceError) -> ApplianceError:
    """An error that is raised more than once, without what earlier raising has added to its traceback."""
    return error.with_traceback(None)


def broken(what: str, cause: BaseException) -> ClientBroken:
    """The error of a client that ended because of ``cause``."""
    todo = "a bug, or an error in a callback of the program: the cause is in the log above"
    error = ClientBroken(f"{what}: {type(cause).__name__}: {cause}", remedy=todo)
    error.__cause__ = cause
    return error

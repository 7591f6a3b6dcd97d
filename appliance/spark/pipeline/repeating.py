"""Calls something every so often in a thread of its own: what goes on beside a run."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls ``do``, which raises nothing, every ``every_s`` seconds from :meth:`start` to :meth:`stop`."""

    def __init__(self, name: str, do: Callable[[], object], every_s: float) -> None:
        self._do, self._every_s = do, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the call that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._do()

"""Raises an exception at a chosen line of a client, as a bug or an interrupt would.

Signals interrupt Python code where it calls or loops, never between taking a lock or making a socket and the block
behind it; so lines that begin a ``with`` or a ``try`` are left out, and everything else is a place where a client may
be left in its middle.
"""

from __future__ import annotations

import linecache
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import appliance.client

ROOT = str(Path(appliance.client.__file__).parent)

NETS = {"threads.py", "callbacks.py"}
"""What catches is not made to fall itself."""


class Interruption:
    """Use as a context: one line of the client that ``thread`` runs raises ``error``, once.

    It is the line at ``place``, or the ``nth`` one that is run.  ``thread`` begins the name of the thread that is
    meant.  ``counted`` is how many lines were run, ``places`` are the different ones.
    """

    def __init__(self, thread: str, error: BaseException, nth: int = -1, place: str = "") -> None:
        self._thread = thread
        self._error = error
        self._nth = nth
        self._place = place
        self.counted = 0
        self.places: set[str] = set()
        self.raised_at = ""

    def __enter__(self) -> Interruption:
        threading.settrace(self._trace)
        if threading.current_thread().name.startswith(self._thread):
            sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT) or Path(frame.f_code.co_filename).name in NETS:
            return None
        if not threading.current_thread().name.startswith(self._thread):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not self._begins_block(frame):
            self.counted += 1
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            self.places.add(place)
            if not self.raised_at and (self.counted == self._nth or place == self._place):
                self.raised_at = place
                raise self._error
        return self._line

    def _begins_block(self, frame: FrameType) -> bool:
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(("with ", "try:"))

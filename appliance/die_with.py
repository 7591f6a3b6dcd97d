"""Lets a program that a process begins end with that process, however that one ends."""

from __future__ import annotations

import os

from . import libc


class DieWith:
    """Runs in the child before exec: sets the umask; the kernel kills the child when the parent ends, or has ended."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        os.umask(0o077)
        libc.end_with_parent()
        if os.getppid() != self._parent:
            os._exit(1)

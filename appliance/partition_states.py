"""The states of a partition that is stored here: its log has one, its table publishes it, and ``status`` names it."""

from __future__ import annotations

from typing import Final

OPENING, ONLINE, OFFLINE, DISK_FULL = range(4)
STATE_NAMES: Final = ("opening", "online", "offline", "disk full")
DAMAGED: Final = "damaged"
"""Shown instead of the state while some offsets of the partition are not served."""

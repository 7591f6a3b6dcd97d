"""Directories for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_place() -> Iterator[Path]:
    """A directory that everybody may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="others-", dir="/tmp") as place:
        Path(place).chmod(0o711)
        yield Path(place)

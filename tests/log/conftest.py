"""Fixtures of the tests of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.log_batches import MEMORY


@pytest.fixture
def path() -> Iterator[Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(prefix="log-", dir=MEMORY) as name:
        yield Path(name)

"""Names the one switch for longer tests: ``LONG=1 make test``."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("LONG"))
"""Whether tests that are marked ``long`` run, and others with more steps, examples or messages."""

"""Harms a file of entries of one size in some way, or takes it away."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st


def harm(path: Path, data: st.DataObject, entry_bytes: int) -> None:
    content = bytearray(path.read_bytes()) if path.exists() else bytearray()
    match data.draw(st.sampled_from(["flip", "short", "long", "missing"])) if content else "missing":
        case "flip":
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(content)
        case "short":
            os.truncate(path, data.draw(st.integers(0, len(content) - 1)))
        case "long":
            path.write_bytes(content + content[-entry_bytes:])
        case "missing":
            path.unlink(missing_ok=True)

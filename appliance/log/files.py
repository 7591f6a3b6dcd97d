"""Names the files of a log.

``position`` is a byte in a file, ``offset`` a byte in the log: ``offset = base + position``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
COMPACTED_SUFFIX: Final = ".compacted"
COMPACTION_STATE: Final = "compaction"
"""The file that says how far compaction is."""
NAME_DIGITS: Final = 20


def log_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{LOG_SUFFIX}"


def index_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{INDEX_SUFFIX}"


def compacted_path(path: Path) -> Path:
    """The name of a file that compaction has written, until it takes the place of the one at ``path``."""
    return path.with_name(path.name + COMPACTED_SUFFIX)


def base_of(name: str, suffix: str) -> int | None:
    """The base in the name of a file; None for another kind of file."""
    digits = name.removesuffix(suffix)
    if len(digits) != NAME_DIGITS or digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def offset_at(path: Path | str, position: int) -> int | None:
    """The offset of a position in a segment file; None for another kind of file."""
    base = base_of(Path(path).name, LOG_SUFFIX)
    return None if base is None else base + position


def sizes(directory: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Sizes in bytes of the segment files and of the index files, by base, ascending.  Opens no file.

    An index that is no file, such as a directory or a link that leads nowhere, has the size -1.
    """
    logs: dict[int, int] = {}
    indexes: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            for suffix, sizes_of_kind in ((LOG_SUFFIX, logs), (INDEX_SUFFIX, indexes)):
                base = base_of(entry.name, suffix)
                if base is not None:
                    sizes_of_kind[base] = entry.stat().st_size if sizes_of_kind is logs or _is_file(entry) else -1
    return dict(sorted(logs.items())), dict(sorted(indexes.items()))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False

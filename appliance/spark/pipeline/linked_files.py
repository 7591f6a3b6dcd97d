"""Shows Spark the files of a version as a directory of links, with the values of their partitions in its names.

Delta's log says which values the rows of a file have in the columns by which the table is partitioned; its files do not
have them.  In directories named as Hive's, ``topic=web/date=2026-11-20``, Spark takes them as constants of a file,
which costs nothing for a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .event_versions import RowFile

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f \"#%'*/:=?\\{\[\]^]|^\.")
"""Characters that Hive, and Spark with it, do not write into the names of directories."""


def link_files(files: Sequence[RowFile], place: Path) -> str:
    """Make the directory; returns its path.  It must stay until the rows have been read."""
    place.mkdir(parents=True)
    for number, file in enumerate(files):
        directory = place.joinpath(*(f"{name}={_escaped(value)}" for name, value in file.partition))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number}.parquet").symlink_to(Path(file.path).absolute())
    return str(place)


def _escaped(value: str | None) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value) if value else NULL

"""``appliance log``: look into partitions' files, verify and repair them.

A partition is named by its directory (``/tmp/box/web-0``) or, with ``--data``, by its name (``web-0``).  Dump and
verify only read and work while the appliance serves; repair refuses then, since one process writes a partition's
files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import AlreadyRunning
from . import output
from .faults import STORAGE
from .target import Data, Json, data_dir

app = typer.Typer(no_args_is_help=True, help="Look into the files of partitions, verify and repair them.")

Partitions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PARTITION]...", help="Directories, or with --data names such as web-0; all if none."),
]


def directories(names: list[str] | None, data: Path | None) -> list[Path]:
    """The partition directories that are meant.

    Raises:
        FileNotFoundError: one of them is not there.
    """
    root = data_dir(data)
    if not names:
        if root is None:
            raise typer.BadParameter("name partitions, or a data directory with --data")
        names = sorted(path.parent.name for path in root.glob("*/*.log") if path.stem.isdecimal())
        return [root / name for name in dict.fromkeys(names)]
    found = []
    for name in names:
        path = root / name if root is not None and "/" not in name else Path(name)
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        found.append(path)
    return found

"""Keeps the version of a data directory's format, so that a release refuses a directory that it does not know.

The file ``<data>/format.json`` has two keys::

    {"format": 2, "release": "0.1.0"}

``format`` grows when an older release would misread the directory, in any of its files.  ``release`` is the last one
that has served it, for the message to whoever goes back to an older one.  A directory without the file is of format 1.

To change the format: increase :data:`FORMAT` by one, and let :func:`take_format` change directories of the former one;
it runs before anything else reads them, and holds their lock.  Debian's package refuses a downgrade by the same file
(``systemd/packages/scripts/preinst``).
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Final

import msgspec

from .. import __version__
from ..durable_files import replace_data_file
from ..errors import ConfigFault, DiskFull, StorageFault, disk_fault

logger = logging.getLogger(__name__)

FORMAT: Final = 2
FILE_NAME: Final = "format.json"


class _File(msgspec.Struct):
    format: int
    release: str


def check_format(data_dir: Path) -> None:
    """Check that this release knows the format of a data directory.  Changes nothing.

    Raises:
        ConfigFault: a newer release has changed it; the message has what to do.
        StorageFault: the file cannot be read.
    """
    _check(data_dir / FILE_NAME, _read(data_dir / FILE_NAME))


def take_format(data_dir: Path) -> None:
    """Check the format of a data directory, and note this release in it.  The caller holds the directory's lock.

    A disk that is full does not prevent a start: the release is noted at a later one.

    Raises:
        ConfigFault, StorageFault: see :func:`check_format`; nothing was changed.
    """
    path = data_dir / FILE_NAME
    stored = _read(path)
    _check(path, stored)
    if stored == _File(FORMAT, __version__):
        return
    try:
        replace_data_file(path, msgspec.json.encode(_File(FORMAT, __version__)) + b"\n")
    except DiskFull as error:
        logger.warning("the release was not noted: %s", error)


def _read(path: Path) -> _File | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_fault(error, path) from error
    except msgspec.DecodeError as error:
        quoted = shlex.quote(str(path))
        todo = f"`mv {quoted} {quoted}.damaged`, if no newer release than {__version__} has ever used this directory"
        raise StorageFault(f"{path}: damaged: {error}", remedy=f"restore it from a backup, or {todo}") from error


def _check(path: Path, stored: _File | None) -> None:
    if stored is not None and not 1 <= stored.format <= FORMAT:
        raise ConfigFault(
            f"{path.parent} has format {stored.format}, of appliance {stored.release}; this is {__version__}, which"
            f" knows formats up to {FORMAT}: install {stored.release} or newer again, or restore a backup that was made"
            " before the upgrade"
        )

"""Reads and replaces ``security.json`` in the data directory: users, roles, access rules and quotas.

The coordinator stores it; other processes of the appliance read it when it has changed.  It is readable for its owner
only, and replaced as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ..durable_files import replace_data_file
from ..errors import damaged_file, disk_fault
from .security_state import SecurityState

FILE_NAME: Final = "security.json"


class _File(msgspec.Struct):
    state: SecurityState
    version: int = 1


def load(path: Path) -> SecurityState:
    """The stored state; an empty one when there is no file.

    Raises:
        StorageFault: the file exists and cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).state
    except FileNotFoundError:
        return SecurityState()
    except OSError as error:
        raise disk_fault(error, path) from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise damaged_file(path, "no users, access rules and quotas of this release") from None


def store(path: Path, state: SecurityState) -> None:
    """Replace the file.

    Raises:
        DiskFull, StorageFault: it cannot be written; the old one remains.
    """
    replace_data_file(path, msgspec.json.format(msgspec.json.encode(_File(state)), indent=1) + b"\n")

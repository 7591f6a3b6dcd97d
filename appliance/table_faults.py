"""Turns what delta-rs, Iceberg, Arrow and DuckDB raise about a table into errors of the appliance, with what to do.

They have few classes: to delta-rs a damaged file, a full disk and a store that is away are all one, so what it was is
read from the text.  That has colours, a trace and many lines: one sentence of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import ApplianceError, BadValue, DiskFull, FileNotPermitted, StorageFault, Unavailable

MODULES: Final = ("_internal", "pyarrow.lib", "pyiceberg.exceptions", "_duckdb", "sqlalchemy.exc")
"""Where the libraries define their errors.  The first one is what delta-rs calls its own."""
ARROWS_ERRORS: Final = (OSError, FileNotFoundError, PermissionError, FileExistsError)
CHARACTERS_MAX: Final = 400
OTHER_WRITERS: Final = ("CommitFailedError", "CommitFailedException", "WaitingForLockException")
_OTHER_WRITER = re.compile(r"database is locked")
_NO_ROOM = re.compile(r"No space left|Disk quota exceeded|os error (28|122)\b|database or disk is full")
_CLOSED = re.compile(r"Permission denied|os error (1|13)\b|Access ?Denied|\b403 Forbidden", re.I)
_AWAY = re.compile(r"error sending request|NETWORK_CONNECTION|Connection (refused|reset)|timed out|dns error", re.I)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRACE = re.compile(r"\n\s*0: ")
RESTORE: Final = "restore it from a copy, or delete the whole output: the next run reads again what the topics have"


def table_fault(error: Exception, table: str = "", damaged: str = RESTORE) -> ApplianceError | None:
    """The error in our terms; None if it is none of a library of tables.

    Args:
        table: where it is; "" if only the text of the error may know.
        damaged: what to do if a file of it is damaged or missing.
    """
    if not _of_library(error):
        return None
    text = " ".join(_TRACE.split(_COLOUR.sub("", str(error)))[0].replace("↳", "").split())
    text = text[:CHARACTERS_MAX] or type(error).__name__
    told = f"{table}: {text}" if table else text
    name = type(error).__name__
    if _NO_ROOM.search(text):
        return DiskFull(told, remedy="make room, then run it again: nothing was committed")
    if _CLOSED.search(text):
        return FileNotPermitted(told, remedy="run it as the user whose files they are, or with the keys of the store")
    if name in OTHER_WRITERS or _OTHER_WRITER.search(text):
        return Unavailable(told, remedy="another process has written the table meanwhile: run it again")
    if _AWAY.search(text):
        return Unavailable(told, remedy="run it again when the store answers; output.storage has its address")
    if any(cls.__name__ == "ProgrammingError" for cls in type(error).__mro__):  # what DuckDB calls a wrong query
        return BadValue(told, remedy="mend the query")
    if name == "SchemaMismatchError":
        return BadValue(told, remedy="the table has other columns: `appliance pipeline check CONFIG.toml` shows which")
    return StorageFault(told, remedy=damaged)


@contextmanager
def told_of(table: str = "", damaged: str = RESTORE) -> Iterator[None]:
    """Raises what the libraries raise about this table as :func:`table_fault` says."""
    try:
        yield
    except Exception as error:
        if (fault := table_fault(error, table, damaged)) is None:
            raise
        raise fault from None


def _of_library(error: Exception) -> bool:
    if isinstance(error, OSError):
        # Of the system they have a file's name, or a number; Arrow gives the number, with its own words before it.
        # Kinds that Arrow does not raise, as TimeoutError and what the standard library derives, have neither.
        is_arrows = error.filename is None and (error.errno is None or "[errno " in str(error).removeprefix("[Errno"))
        return is_arrows and type(error) in ARROWS_ERRORS
    return any(cls.__module__ in MODULES for cls in type(error).__mro__)

"""Says whether this user could write what a run of a pipeline writes, without writing anything.

What is not there yet is made by a run, in the nearest directory above that there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ...errors import BadValue, not_permitted
from .output_files import LOG, OutputFiles
from .settings import Settings
from .table_files import EVENTS


def refuse_unwritable(settings: Settings) -> None:
    """Raises BadValue with the key of the first place that cannot be written, and why."""
    for key, place in _directories(settings):
        if fault := _fault_of_directory(place):
            raise BadValue(f"{key}: {place} cannot be written: {fault}")
    catalogue = settings.iceberg.file
    if catalogue is not None and catalogue.is_file() and not _is_permitted(catalogue, os.R_OK | os.W_OK):
        raise BadValue(f"iceberg.catalogue: {_fault_of_access(catalogue)}")


def _directories(settings: Settings) -> Iterator[tuple[str, Path]]:
    """The directories, each with the key of the configuration that names it."""
    if OutputFiles(settings.output).local:
        yield from (("output.path", Path(settings.output.path, name)) for name in ("", EVENTS, f"{EVENTS}/{LOG}"))
    yield "pipeline.state", settings.state_dir
    if settings.iceberg.file is not None:
        yield "iceberg.catalogue", settings.iceberg.file.parent


def _fault_of_directory(place: Path) -> str:
    above = next(directory for directory in (place, *place.parents) if os.path.lexists(directory))
    if not above.is_dir():
        return f"{above} is no directory"
    return "" if _is_permitted(above, os.W_OK | os.X_OK) else _fault_of_access(above)


def _is_permitted(place: Path, mode: int) -> bool:
    return os.access(place, mode, effective_ids=True)


def _fault_of_access(place: Path) -> str:
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"the file system of {place} is mounted read-only"
    return str(not_permitted(place))

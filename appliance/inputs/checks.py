"""Says before an input begins whether it can: files that are there and readable, addresses that are free."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import ApplianceError
from ..input_settings import Files, Http, InputSettings, Journal, Syslog, listen_of
from ..owners import acting_as_owner
from ..processes.supervisor.inputs import bind_input
from .files import expand
from .journal import NO_PROGRAM, PROGRAM, RIGHTS, journal_directories, journal_files
from .machinery import is_readable

SHOWN_MAX = 5
"""Files that cannot be read, by name."""


class Finding(NamedTuple):
    """``fault``: what is in the way, "" for nothing; ``todo``: what to do about it."""

    input: str
    what: str
    fault: str = ""
    todo: str = ""


def findings(name: str, settings: InputSettings, data_dir: Path | None, bound: frozenset[str]) -> Iterator[Finding]:
    """Look as the user of the service, the owner of ``data_dir``; ``bound``: addresses that its process has already."""
    match settings:
        case Files():
            yield from _files(name, settings, data_dir)
        case Journal():
            yield from _journal(name, settings, data_dir)
        case Http() | Syslog():
            for text in listen_of(settings):
                yield Finding(name, text, "") if text in bound else _address(name, text)


def _files(name: str, settings: Files, data_dir: Path | None) -> Iterator[Finding]:
    with acting_as_owner(data_dir or Path("/")):
        for pattern in settings.include:
            paths = expand([pattern], settings.exclude)
            unreadable = [path for path in paths if not is_readable(path)]
            if not paths:
                yield Finding(name, f"{pattern}: no file yet")
            elif len(unreadable) < len(paths):
                yield Finding(name, f"{pattern}: {len(paths) - len(unreadable)} files")
            for path in unreadable[:SHOWN_MAX]:
                group = Path(path).stat().st_gid
                todo = f"let the service's user read it, as a member of the group {_group(group)}"
                yield Finding(name, path, "cannot be read", todo)
            if len(unreadable) > SHOWN_MAX:
                yield Finding(name, pattern, f"{len(unreadable) - SHOWN_MAX} more cannot be read")


def _journal(name: str, settings: Journal, data_dir: Path | None) -> Iterator[Finding]:
    if shutil.which(PROGRAM) is None:
        yield Finding(name, PROGRAM, NO_PROGRAM, "install systemd, or leave this input out")
    directories = journal_directories(settings.directory)
    what = " and ".join(map(str, directories))
    with acting_as_owner(data_dir or Path("/")):
        files = journal_files(directories)
        unreadable = [path for path in files if not is_readable(path)]
    if not files:
        yield Finding(name, what, "no files of a journal", "let journald keep one: Storage= in journald.conf")
    elif len(unreadable) < len(files):
        yield Finding(name, f"{what}: {len(files) - len(unreadable)} files")
    for path in unreadable[:SHOWN_MAX]:
        yield Finding(name, path, "cannot be read", RIGHTS)
    if len(unreadable) > SHOWN_MAX:
        yield Finding(name, what, f"{len(unreadable) - SHOWN_MAX} more cannot be read")


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _address(name: str, text: str) -> Finding:
    if text.startswith("unix:"):
        return Finding(name, text)  # binding it would replace that of another process
    try:
        bind_input(name, text).close()
    except ApplianceError as error:
        return Finding(name, text, str(error), error.remedy)
    return Finding(name, text)

"""Says before an input begins whether it can: files that are there and readable, addresses that are free."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import ApplianceError, FileNotPermitted
from ..input_settings import Files, Http, InputSettings, Journal, Syslog, listen_of, parse_address
from ..owners import acting_as_owner
from ..processes.supervisor.inputs import bind_input
from .guard import Guard
from .journal import NO_PROGRAM, PROGRAM, RIGHTS, journal_directories, journal_files
from .machinery import is_readable
from .rotation import Patterns
from .service_rights import needs_root

SHOWN_MAX = 5
"""Files that cannot be read, by name."""
LEAVE_OUT: Final = "the input does not read it: name it in `exclude`, or put the log itself there"
APPLY: Final = "`appliance inputs rights --apply` gives the service what it needs"


class InputFinding(NamedTuple):
    """``fault``: what is in the way, "" for nothing; ``todo``: what to do about it."""

    input: str
    what: str
    fault: str = ""
    todo: str = ""


def findings(
    name: str,
    settings: InputSettings,
    data_dir: Path | None,
    bound: frozenset[str],
    guard: Guard,
    groups: Sequence[int] = (),
    further: int = 0,
) -> Iterator[InputFinding]:
    """Look as the user of the service, the owner of ``data_dir``.

    ``bound``: addresses that its process has already; ``guard``: that of the input; ``groups``: those that the service
    is in beside its user's own; ``further``: how many sockets systemd passes beyond one for each of its processes.
    """
    if further:
        yield InputFinding(
            name, f"systemd passes {further} sockets more than it has processes, which its first reads", "", APPLY
        )
    match settings:
        case Files():
            yield from _files(name, settings, data_dir, guard, groups)
        case Journal():
            yield from _journal(name, settings, data_dir, groups)
        case Http() | Syslog():
            for text in listen_of(settings):
                yield InputFinding(name, text, "") if text in bound else _address(name, text, data_dir)


def _files(
    name: str, settings: Files, data_dir: Path | None, guard: Guard, groups: Sequence[int]
) -> Iterator[InputFinding]:
    with acting_as_owner(data_dir or Path("/"), groups):
        guard.begin_scan()
        for pattern in settings.include:
            patterns = Patterns((pattern,), settings.exclude)
            paths, closed = patterns.paths(), patterns.closed()
            faults = [_not_readable(name, path, error) for path, error in closed.items()]
            faults += [fault for fault in (_fault_of(name, path, guard) for path in paths) if fault]
            if paths == [pattern] and not closed and Path(pattern).is_dir():
                faults = [InputFinding(name, pattern, "is a directory", f"name its files: {pattern.rstrip('/')}/*")]
            if not paths and not closed:
                yield InputFinding(name, f"{pattern}: no file yet")
            elif count := len(paths) + len(closed) - len(faults):
                yield InputFinding(name, f"{pattern}: {count} files")
            yield from faults[:SHOWN_MAX]
            if len(faults) > SHOWN_MAX:
                yield InputFinding(name, pattern, f"{len(faults) - SHOWN_MAX} more are not read")


def _fault_of(name: str, path: str, guard: Guard) -> InputFinding | None:
    """Why the input would not read a file, as :mod:`.files` opens it."""
    try:
        os.close(guard.open(path))
    except FileNotPermitted as error:
        return InputFinding(name, path, str(error), LEAVE_OUT)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            return (
                None
                if error.errno == errno.ENOENT
                else InputFinding(name, path, error.strerror or "cannot be read", LEAVE_OUT)
            )
        return _not_readable(name, path, "cannot be read")
    return None


def _not_readable(name: str, path: str, fault: str) -> InputFinding:
    return InputFinding(
        name, path, fault, f"let the service's user read it, as a member of the group {_group_of(path)}: {APPLY}"
    )


def _journal(name: str, settings: Journal, data_dir: Path | None, groups: Sequence[int]) -> Iterator[InputFinding]:
    if shutil.which(PROGRAM) is None:
        yield InputFinding(name, PROGRAM, NO_PROGRAM, "install systemd, or leave this input out")
    directories = journal_directories(settings.directory)
    what = " and ".join(map(str, directories))
    with acting_as_owner(data_dir or Path("/"), groups):
        files = journal_files(directories)
        unreadable = [path for path in files if not is_readable(path)]
    if not files:
        yield InputFinding(name, what, "no files of a journal", "let journald keep one: Storage= in journald.conf")
    elif len(unreadable) < len(files):
        yield InputFinding(name, f"{what}: {len(files) - len(unreadable)} files")
    for path in unreadable[:SHOWN_MAX]:
        yield InputFinding(name, path, "cannot be read", f"{RIGHTS}: {APPLY}")
    if len(unreadable) > SHOWN_MAX:
        yield InputFinding(name, what, f"{len(unreadable) - SHOWN_MAX} more cannot be read")


def _group_of(path: str) -> str:
    import grp

    try:
        gid = Path(path).stat().st_gid
    except OSError:  # its directory is closed, too
        return "of its directory"
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _address(name: str, text: str, data_dir: Path | None) -> InputFinding:
    if text.startswith("unix:"):
        return InputFinding(name, text)  # binding it would replace that of another process
    if data_dir is not None and needs_root(parse_address(text), data_dir):
        return InputFinding(name, text, "only root may bind this port", APPLY)
    try:
        bind_input(name, text).close()
    except ApplianceError as error:
        return InputFinding(name, text, str(error), error.remedy)
    return InputFinding(name, text)

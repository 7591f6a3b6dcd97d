"""Reports an error: its message on one line, a remedy on the next, and an exit status; with ``--json`` as an object::

    {"error": {"kind": "UnknownPartition", "message": "no topic 'web'", "advice": "...", "exit_status": 66}}

The exit statuses from 65 to 78 are those of ``sysexits.h``; a command that a signal or a closed pipe ends has 128 and
the number of the signal.  Scripts rely on them, so ``appliance --help`` and ``systemd/README.md`` list them.  An error
class has the status of its branch, or one of its own (``exit_status`` in ``errors.py``).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import (
    ApplianceError,
    BrokerAway,
    OffsetOutOfRange,
    StorageFault,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownTransactionalId,
    UnknownUser,
    not_permitted,
)
from . import output

EXIT_STATUSES = {
    0: "done",
    1: "failed otherwise",
    2: "wrong usage",
    65: "refused: what was sent is wrong",
    66: "no such topic, partition, group or file",
    70: "a bug, or a callback that failed",
    74: "a log on the disk is damaged",
    75: "not now, try again: not running, already running, address taken, disk full, ZooKeeper away",
    76: "the other side does not speak this protocol",
    77: "not permitted",
    78: "wrong configuration, or one that cannot be read",
    129: "its terminal was closed",
    130: "interrupted",
    141: "the other end of its pipe was closed",
    143: "terminated",
}
NO_INPUT, STORAGE, NOT_PERMITTED = 66, 74, 77

At = tuple[str, ...]
"""The options of a command that name an appliance, such as ``("--data", "/srv/logs")``."""


def named_in(words: Sequence[str]) -> At:
    """The appliance that a command line names, itself or by the environment; nothing for the default one.

    ``APPLIANCE_CONTEXT`` is for one command, so it goes before what is exported for all.
    """
    options = {"--data": "APPLIANCE_DATA", "--connect": "APPLIANCE_CONNECT"}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in options and (value if equals else following):
            return option, value if equals else following
    if os.environ.get("APPLIANCE_CONTEXT"):
        return ()
    exported = ((option, os.environ.get(variable, "")) for option, variable in options.items())
    return next((pair for pair in exported if pair[1]), ())


def remedy(error: ApplianceError, at: At | None) -> str:
    """What to do about the error; "" when its message says so itself.

    Whoever raises it knows best (``error.remedy``).  Errors that only a running appliance can explain are left to its
    doctor, and for a name that there is not the names that there are can be listed: both hold in every case.

    Args:
        at: the appliance that the command is about; None: it is about none that runs.
    """
    if error.remedy or "`" in str(error) or at is None:
        return error.remedy

    def command(*words: str) -> str:
        return f"`{shlex.join(['appliance', *words, *at])}`"

    match error:
        case BrokerAway() if at[:1] == ("--data",):
            return f"{command('doctor')} says whether it runs, and why not"
        case BrokerAway():
            return "start it with `appliance start --data DIR`, or name one with --data DIR or --connect HOST:PORT"
        case UnknownPartition():
            return f"{command('topics', 'list')} shows what there is"
        case UnknownGroup():
            return f"{command('groups', 'list')} shows what there is"
        case UnknownTransactionalId():
            return f"{command('transactions', 'list')} shows what there is"
        case UnknownUser():
            return f"{command('users', 'list')} shows who there is"
        case OffsetOutOfRange() if error.about:
            topic = error.about.rpartition("-")[0]
            return f"{command('topics', 'describe', topic)} shows the first and the last offset of each partition"
        case Unavailable() | StorageFault():
            return f"{command('doctor')} says why, and what to do"
    return ""


class Fault(NamedTuple):
    """What is shown of an error.  ``kind``: the name of its class, which scripts may compare."""

    kind: str
    message: str
    advice: str
    exit_status: int


def describe(error: ApplianceError | OSError, at: At | None = None) -> Fault:
    """The message, remedy and exit status of an error; ``at`` as for :func:`remedy`."""
    kind = type(error).__name__
    if isinstance(error, ApplianceError):
        return Fault(kind, str(error) or kind, remedy(error, at), error.exit_status)
    if isinstance(error, PermissionError):
        refused = not_permitted(error.filename or "")
        return Fault(kind, str(refused), "", NOT_PERMITTED)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return Fault(kind, f"{error.filename}: is no directory", "", NO_INPUT)
    if isinstance(error, IsADirectoryError):
        return Fault(kind, f"{error.filename}: is a directory, not a file", "", NO_INPUT)
    if isinstance(error, FileNotFoundError):
        return Fault(kind, f"{error.filename}: no such file or directory", "", NO_INPUT)
    return Fault(kind, str(error), "", STORAGE)


def show(fault: Fault, *, as_json: bool) -> int:
    """Print a fault to standard error: two lines, or one object of JSON.  Returns the exit status."""
    if as_json:
        output.remark(output.json_text({"error": fault._asdict()}))
        return fault.exit_status
    output.remark(f"appliance: {fault.message}")
    if fault.advice:
        output.remark(f"  {fault.advice}")
    return fault.exit_status


def report(error: ApplianceError | OSError, *, at: At | None = None, as_json: bool = False) -> int:
    """Print the error and its remedy.  Returns the exit status."""
    return show(describe(error, at), as_json=as_json)

"""Reports an error: its message on one line, a remedy on the next, and an exit status; with ``--json`` as an object::

    {"error": {"kind": "UnknownPartition", "message": "no topic 'web'", "advice": "...", "exit_status": 66}}

The exit statuses from 65 to 78 are those of ``sysexits.h``; a command that a signal or a closed pipe ends has 128 and
the number of the signal.  Scripts rely on them, so ``appliance --help`` and ``systemd/README.md`` list them.  An error
class has the status of its branch, or one of its own (``exit_status`` in ``errors.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import (
    AddressInUse,
    AlreadyRunning,
    ApplianceError,
    BrokerAway,
    ClientBroken,
    ConfigFault,
    CorruptLog,
    DiskFull,
    InvalidTopic,
    NoDirectory,
    NotLeader,
    OffsetOutOfRange,
    StorageFault,
    UnknownGroup,
    UnknownPartition,
    ZooKeeperAway,
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

_DESCRIBE = "`appliance topics describe NAME`"
_VERIFY = "`appliance log verify --data DIR`"
REMEDIES: dict[type[ApplianceError], str] = {
    BrokerAway: "start it with `appliance start --data DIR`, or name one with --data DIR or --connect HOST:PORT",
    ZooKeeperAway: "groups and topic changes need ZooKeeper: see `appliance status`, then try again",
    NotLeader: f"another appliance of this ensemble leads the partition: {_DESCRIBE} says which",
    DiskFull: "make room, or keep less: `appliance topics alter NAME --setting retention.bytes=10GiB`",
    UnknownPartition: "`appliance topics list` shows what there is",
    UnknownGroup: "`appliance groups list` shows what there is",
    OffsetOutOfRange: f"{_DESCRIBE} shows the first and the last offset of each partition",
    InvalidTopic: "a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -",
    CorruptLog: f"look with {_VERIFY}; `appliance log repair` keeps all that is not damaged",
    StorageFault: f"look with {_VERIFY}; the partition stays offline until it is repaired",
    AlreadyRunning: "",  # its message has the remedy
    AddressInUse: "",
    NoDirectory: "name the directory that `appliance start --data DIR` was given",
    ClientBroken: "a bug, or an error in a callback of the program: the cause is in the log above",
    ConfigFault: "`appliance config show` documents every key",
}


def remedy(error: ApplianceError) -> str:
    """What to do about the error; "" when its message says so itself."""
    if "`" in str(error):
        return ""
    return next((REMEDIES[kind] for kind in type(error).__mro__ if kind in REMEDIES), "")


class Fault(NamedTuple):
    """What is shown of an error.  ``kind``: the name of its class, which scripts may compare."""

    kind: str
    message: str
    advice: str
    exit_status: int


def describe(error: ApplianceError | OSError) -> Fault:
    """The message, remedy and exit status of an error."""
    kind = type(error).__name__
    if isinstance(error, ApplianceError):
        return Fault(kind, str(error) or kind, remedy(error), error.exit_status)
    if isinstance(error, PermissionError):
        return Fault(kind, f"{error.filename}: not permitted", "run it as the owner of the data", NOT_PERMITTED)
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


def report(error: ApplianceError | OSError, *, as_json: bool = False) -> int:
    """Print the error and its remedy.  Returns the exit status."""
    return show(describe(error), as_json=as_json)

"""Reports on standard error what a command waits for, with the cause from the appliance.

A client that waits for a partition, a disk or an appliance raises no error.  Meanwhile :class:`TroubleWatch` reads the
client's troubles.  It prints one line for each trouble that lasts for :data:`REPORT_AFTER_S`, another one every
:data:`REPEAT_S`, and one when it is over.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import units
from ..addresses import parse_listeners
from ..errors import ApplianceError, DiskFull, StorageFault
from ..security.configuration import is_loopback
from . import output
from .target import cluster

if TYPE_CHECKING:
    from ..client.troubles import Subject, Trouble

REPORT_AFTER_S: Final = 2.0
REPEAT_S: Final = 30.0
LOOK_S: Final = 0.2
_TROUBLES: Final = logging.getLogger("appliance.client.troubles")
CODE_STORAGE: Final = StorageFault.code


class TroubleWatch:
    """Reports troubles; use it as a context around the waiting.

    ``troubles`` returns the client's troubles.  ``progress`` returns the progress of the command, "" for none.
    """

    def __init__(
        self, address: str, troubles: Callable[[], Sequence[Trouble]], progress: Callable[[], str] = lambda: ""
    ) -> None:
        self._address = address
        self._troubles = troubles
        self._progress = progress
        self._reported_s: dict[Subject, float] = {}  # by subject: time of the last report
        self._causes: dict[Subject, ApplianceError] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="appliance-watch", daemon=True)

    def __enter__(self) -> TroubleWatch:
        _TROUBLES.disabled = True  # the client would log the same troubles, and sooner
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._report(time.monotonic())
        _TROUBLES.disabled = False

    def error(self) -> ApplianceError | None:
        """The error of the oldest trouble, with its cause."""
        troubles = self._troubles()
        return self.cause(troubles[0].subject, troubles[0].error) if troubles else None

    def cause(self, subject: Subject, error: ApplianceError) -> ApplianceError:
        """The error; for a partition that cannot be used, one with the reason from the appliance."""
        name, text = _name(subject), str(error)
        plain = type(error)(text if name in text else f"{name}: {text}", remedy=error.remedy, about=name)
        if not isinstance(subject, tuple) or error.code != CODE_STORAGE:
            return plain
        cause = self._causes.get(subject)
        if cause is None:
            cause = self._causes[subject] = explain(self._address, subject) or plain
        return cause

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._report(time.monotonic())

    def _report(self, now_s: float) -> None:
        troubles = self._troubles()
        for trouble in troubles:
            last_s = self._reported_s.get(trouble.subject)
            due_s = trouble.since_s + REPORT_AFTER_S if last_s is None else last_s + REPEAT_S
            if now_s >= due_s:
                self._reported_s[trouble.subject] = now_s
                progress = self._progress()
                output.remark(
                    f"waiting: {self.cause(trouble.subject, trouble.error)}" + (f" ({progress})" if progress else "")
                )
        for subject in self._reported_s.keys() - {trouble.subject for trouble in troubles}:
            del self._reported_s[subject]
            self._causes.pop(subject, None)
            output.remark(f"going on: {_name(subject)}")


def _name(subject: Subject) -> str:
    return subject if isinstance(subject, str) else f"{subject[0]}-{subject[1]}"


def explain(address: str, part: tuple[str, int]) -> ApplianceError | None:
    """The reason why a partition cannot be used, from the appliance that leads it; None if it gives none."""
    topic, partition = part
    try:
        with cluster(None, address) as asked:
            asked.refresh([topic])
            seen = asked.admin("status", {}, broker_id=asked.leader(topic, partition))
    except ApplianceError:
        return None
    rows = [row for row in seen["partitions"] if (row["topic"], row["partition"]) == part]
    state = rows[0]["state"] if rows else ""
    if state == "offline":
        reason = rows[0].get("reason") or "`appliance status` says why"
        return StorageFault(f"{topic}-{partition} is offline: {reason}")
    if state == "damaged":
        return StorageFault(f"{topic}-{partition} is damaged: {rows[0]['reason']}")
    if state == "disk full":
        return DiskFull(f"{topic}-{partition}: the disk of {seen['data']} is full{_free(address, seen['data'])}")
    return None


def _free(address: str, data: str) -> str:
    """The free space of the disk, if it is on this host."""
    if not is_loopback(parse_listeners("native", address)[0]) or not Path(data).is_dir():
        return ""
    return f": {units.size(shutil.disk_usage(data).free)} free"

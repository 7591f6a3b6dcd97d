"""A load that comes through the inputs of an appliance: files that are rotated, syslog, RELP and HTTP.

The lines of files are promised: each is in the topic, once and in the order of its file, or the ledger names the gap
that it is in.  The ledger is compared with what the files had.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from appliance.client import Consumer
from appliance.inputs.ledger import LedgerRow, read_rows
from appliance.wire.requests import EARLIEST

from ..support.server import wait_for
from .client import Spec
from .history import Log, Operation, Report, text_of
from .workload import Workload

FILES, NET, WEB = Log("disk", 0, 0), Log("net", 0, 0), Log("web", 0, 0)
LOG_FILES: Final = "log-files"
QUIET_S: Final = 5.0
"""So long nothing has come: what is missing then is in a gap, or lost."""
READ_S_MAX: Final = 120
LEDGER_S_MAX: Final = 130


def settings_of(directory: Path, ports: list[int]) -> dict[str, Any]:
    """The tables of the inputs; the files are in ``directory``."""
    return {
        "inputs.disk.type": "files",
        "inputs.disk.include": f"{directory}/*.log",
        "inputs.disk.topic": FILES.topic,
        "inputs.disk.scan_ms": 1_000,
        "inputs.disk.rotate_ms": 500,
        "inputs.net.type": "syslog",
        "inputs.net.listen": f"tcp://127.0.0.1:{ports[0]},relp://127.0.0.1:{ports[1]}",
        "inputs.net.topic": NET.topic,
        "inputs.web.type": "http",
        "inputs.web.listen": f"127.0.0.1:{ports[2]}",
        "inputs.web.topic": WEB.topic,
    }


class InputLoad(Workload):
    """See :class:`Workload`; ``files`` and ``ports`` are those of :func:`settings_of`."""

    def __init__(self, directory: Path, native: str, kafka: str, *, files: Path, ports: list[int], **more: Any) -> None:
        self._files, self._ports = files, ports
        super().__init__(directory, native, kafka, topics={log.topic: 1 for log in (FILES, NET, WEB)}, **more)

    def _producers(self) -> list[Spec]:
        tcp, relp, web = (f"127.0.0.1:{port}" for port in self._ports)
        rate = self._per_second // 4
        common = {"idempotent": False, "per_second": rate}
        return [
            self.spec(LOG_FILES, LOG_FILES, logs=(FILES,), address=str(self._files), per_second=rate),
            self.spec("syslog-lines", "syslog", logs=(NET,), address=tcp, acks=0, **common),
            self.spec("relp", "relp", logs=(NET,), address=relp, **common),
            self.spec("http-lines", "http", logs=(WEB,), address=web, **common),
        ]

    def finish(self) -> Report:
        self.processes["producers"].stop()
        for _ in range(2):  # also what the first start reads
            self._wait_read()
            self.settle()  # and the ledger is published
        unnamed = ["nothing was asked"]

        def is_named() -> bool:
            unnamed[:] = self._unnamed(self._rows())
            return not unnamed

        with suppress(AssertionError):  # what could not be published at the stop is published with the next minute
            wait_for(is_named, "the ledger to name what is missing", LEDGER_S_MAX)
        self._take_back()
        report = super().finish()
        for text in unnamed:
            report.add("lost", f"{text}: not as the ledger says")
        return report

    def _wait_read(self) -> None:
        """Until all lines are there, or nothing has come for QUIET_S."""
        count, moved_s = -1, time.monotonic()

        def is_quiet() -> bool:
            nonlocal count, moved_s
            missing = sum(map(len, self._missing().values()))
            if missing != count:
                count, moved_s = missing, time.monotonic()
            return not missing or time.monotonic() - moved_s > QUIET_S

        wait_for(is_quiet, "files to be read", READ_S_MAX)

    def _lines(self) -> dict[str, list[str]]:
        """What each life of a file had, in order."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.history.operations:
            if one.op == "send" and one.type == "invoke" and one.process.startswith(f"{LOG_FILES}."):
                found[one.process].append(text_of(one.process, FILES, one.value))
        return found

    def _missing(self) -> dict[str, list[int]]:
        """The numbers of the lines of each life that nobody has read."""
        self.collect()
        read = {
            text for one in self.history.operations if one.op == "poll" and one.topic == FILES.topic
            for _, text in one.records
        }  # fmt: skip
        missing = {
            process: [number for number, text in enumerate(lines) if text not in read]
            for process, lines in self._lines().items()
        }
        return {process: numbers for process, numbers in missing.items() if numbers}

    def _rows(self) -> list[LedgerRow]:
        with Consumer(self.control) as consumer:
            return list(read_rows(consumer, "ledger", EARLIEST))

    def _unnamed(self, rows: list[LedgerRow]) -> list[str]:
        """What is missing and in no gap of the ledger, one for each life of a file; and how the counts differ."""
        gaps = Counter(gap.start for row in rows if row.input == "disk" for gap in row.gaps)
        unnamed = []
        lines, missing = self._lines(), self._missing()
        for process, numbers in missing.items():
            first = numbers[0]
            start = sum(len(text) + 1 for text in lines[process][:first])
            is_tail = numbers == list(range(first, len(lines[process])))
            if is_tail and gaps[start]:
                gaps[start] -= 1
            else:
                unnamed.append(f"{process}: lines {numbers} of {len(lines[process])}, from byte {start}")
        stored = sum(map(len, lines.values())) - sum(map(len, missing.values()))
        told = sum(row.lines for row in rows if row.input == "disk")
        if told != stored:
            unnamed.append(f"{stored} lines of files are in the topic, and the ledger has {told}")
        return unnamed

    def _take_back(self) -> None:
        """Lines in a gap that the ledger names were not promised."""
        for process, numbers in self._missing().items():
            for number in numbers:
                self.history.append(Operation("send", time.monotonic_ns(), process, "info", *FILES, value=number))

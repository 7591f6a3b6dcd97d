"""Formats the appliance's own log: one line per event on standard error, for people, journald or a collector.

- ``log.format = "text"``: time, level, pid, module, message.  Further lines of an event (a traceback) are indented.
- ``"text"`` under systemd: journald's ``<priority>``, module and message, because journald knows time and pid.  Line
  breaks are escaped.
- ``"json"``: an object per line.

Messages may quote what clients send, so :func:`.output.safe` escapes control characters.  Forked children inherit the
set-up.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from ..config import LogSection
from . import output

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class TextFormatter(logging.Formatter):
    def __init__(self, for_journald: bool) -> None:
        super().__init__()
        self._for_journald = for_journald

    def format(self, record: logging.LogRecord) -> str:
        where = record.name.removeprefix("appliance.")
        message = _message(self, record)
        if self._for_journald:
            return f"<{PRIORITIES.get(record.levelno, 6)}>{where}: " + output.safe(message)
        message = output.safe(message, kept="\n").replace("\n", "\n    ")
        return f"{_moment(record)} {record.levelname.lower():7} {record.process} {where}: {message}"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {"time": _moment(record), "level": record.levelname.lower(), "pid": record.process}
        event |= {"module": record.name, "message": _message(self, record)}
        return output.json_text(event)


def _moment(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text


def configure(settings: LogSection) -> None:
    """Send everything from ``settings.level`` on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if settings.format == "json" else TextFormatter(bool(os.environ.get("JOURNAL_STREAM")))
    )
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)

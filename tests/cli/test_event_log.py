"""appliance.cli.event_log: one event, one line, for whoever reads it."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from appliance.cli.event_log import JsonFormatter, TextFormatter, configure
from appliance.config import LogSection


def record(message: str, *arguments: object, fault: bool = False) -> logging.LogRecord:
    info = None
    if fault:
        try:
            raise ValueError("what")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("appliance.processes.writer.writer", logging.WARNING, "w.py", 1, message, arguments, info)


def test_text_has_time_level_pid_module_and_message() -> None:
    line = TextFormatter(for_journald=False).format(record("cut %d bytes", 7))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z warning +\d+ processes\.writer\.writer: cut 7 bytes", line)


def test_further_lines_are_indented_for_people_and_escaped_for_journald() -> None:
    assert "\n    Traceback" in TextFormatter(for_journald=False).format(record("bug", fault=True))
    line = TextFormatter(for_journald=True).format(record("bug", fault=True))
    assert line.startswith("<4>processes.writer.writer: bug\\nTraceback") and "\n" not in line


def test_json_is_one_object_per_line() -> None:
    line = JsonFormatter().format(record("bug", fault=True))
    event = json.loads(line)
    assert "\n" not in line
    assert (event["level"], event["module"]) == ("warning", "appliance.processes.writer.writer")
    assert "ValueError: what" in event["message"]


def test_level_is_the_least_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    try:
        configure(LogSection(level="warning", format="json"))
        logging.getLogger("appliance.x").info("unseen")
        logging.getLogger("appliance.x").error("seen")
        assert json.loads(capsys.readouterr().err)["message"] == "seen"
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]

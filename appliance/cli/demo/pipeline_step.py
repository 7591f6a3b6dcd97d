"""Runs the Spark pipeline over the lines that the demo has shipped.

The pipeline is a process of its own, ``appliance pipeline run --once``.  Its tables stay after the demo, in one
directory that the next demo replaces.  Everything else, Spark's files included, is in the sandbox and is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ... import extras
from ...errors import RequestTimedOut, Unavailable
from .sandbox import Sandbox

AUDIT = "audit"
DEAD_LETTERS = "dead-letters"
LOG = "pipeline"
PATIENCE_S = 300.0
TOP = 5
PARSERS = {
    "system": ["syslog5424", "syslog", "dpkg", "alternatives"],
    "applications": ["syslog", "access", "plain"],
    "files": ["syslog5424", "syslog", "access", "dpkg", "alternatives", "json", "logfmt"],
}


class DemoTables(NamedTuple):
    """The results of the pipeline; ``talkers``: service and number of lines, the most first."""

    seconds: float
    parsed: int
    dead: dict[str, int]
    lost: int
    doubled: int
    talkers: list[tuple[str, int]]
    events: str
    page: str

    def faults(self, lines: int) -> list[str]:
        """What is wrong with the results; ``lines``: how many were shipped."""
        faults = []
        if self.lost or self.doubled:
            faults.append(f"the audit found {self.lost} lines lost and {self.doubled} doubled")
        accounted = self.parsed + sum(self.dead.values())
        if accounted != lines:
            faults.append(f"the pipeline accounts for {accounted} lines, not for {lines}")
        return faults

    def as_json(self) -> dict[str, Any]:
        return self._asdict() | {"talkers": dict(self.talkers)}


def missing() -> str:
    """Why the pipeline cannot run here; "" when it can."""
    names = extras.missing("pyspark", "pyarrow", "numpy", "deltalake")
    return f"without {', '.join(names)} ({extras.install('spark')})" if names else ""


def run(sandbox: Sandbox, bootstrap: str, topics: Sequence[str]) -> DemoTables:
    """Run the pipeline over all messages in the topics.

    Raises:
        Unavailable: it failed; the message has the end of its log.
    """
    tables = tables_directory()
    config = sandbox.path / "pipeline.toml"
    config.write_text(_config(sandbox.path, tables, bootstrap, topics))
    result = _run_command(sandbox, "run", str(config), "--once")
    page = _run_command(sandbox, "report", str(config), "--to", str(tables))["html"]
    from ...spark.pipeline.event_questions import questions
    from ...spark.pipeline.settings import load

    asked = questions(load(config))
    by_lines = "where service is not null group by 1 order by 2 desc, 1"
    sql = f"select service, count(*) as lines from events {by_lines} limit {TOP}"
    talkers = [] if asked is None else asked.rows(sql)
    return DemoTables(
        seconds=result["seconds"],
        parsed=result["parsed"],
        dead=result["by_reason"],
        lost=result["audit"]["lost"],
        doubled=result["audit"]["doubled"],
        talkers=[(row["service"], row["lines"]) for row in talkers],
        events=result["events"],
        page=page,
    )


def tables_directory() -> Path:
    """An empty directory for the tables, in the place of that of the last demo; elsewhere if that is somebody else's.

    Everybody may make such a name in /tmp; who made the directory could read and exchange what is in it.
    """
    usual = Path(tempfile.gettempdir()) / f"appliance-tables-{os.getuid()}"
    with contextlib.suppress(FileNotFoundError):
        seen = usual.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
            shutil.rmtree(usual)
    try:
        usual.mkdir(0o700)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{usual.name}-"))
    return usual


def _run_command(sandbox: Sandbox, *words: str) -> Any:
    """Runs a command of the pipeline and returns the JSON that it prints."""
    child = sandbox.spawn("appliance", "pipeline", *words, "--json", log=LOG)
    try:
        status = child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RequestTimedOut(f"the pipeline took more than {PATIENCE_S:.0f} s:\n{sandbox.log_end_of(LOG)}") from None
    if status:
        raise Unavailable(f"the pipeline ended with status {status}:\n{sandbox.log_end_of(LOG)}")
    return json.loads(sandbox.output_of(LOG))


def _config(directory: Path, tables: Path, bootstrap: str, topics: Sequence[str]) -> str:
    """The configuration in TOML, of which JSON's texts and lists are a part."""
    sources = "".join(
        f"[[source]]\ntopics = {json.dumps([topic])}\nparsers = {json.dumps(PARSERS[topic])}\n"
        f"service = {json.dumps(topic)}\n"
        for topic in topics
    )
    return f"""\
[pipeline]
name = "demo"
bootstrap = {json.dumps(bootstrap)}
{sources}
[output]
path = {json.dumps(str(tables))}
[dead_letters]
topic = "{DEAD_LETTERS}"
[audit]
topic = "{AUDIT}"
grace_ms = 1
"""

"""Lines of real programs, run here: which share is parsed, and why the others are dead letters."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from appliance.spark.pipeline.events import Outcome, Transform
from appliance.spark.pipeline.multiline import Joiner
from appliance.spark.pipeline.settings import parse

from ...support.server import wait_for
from .test_events import batch

TRACE = """
import java.util.logging.*;
class Program {
    static void fail(int depth) {
        if (depth == 0) throw new IllegalStateException("broken\\nin two lines");
        fail(depth - 1);
    }
    public static void main(String[] words) {
        String form = "%1$tF %1$tT,%1$tL [main] %4$s %3$s - %5$s%6$s%n";
        System.setProperty("java.util.logging.SimpleFormatter.format", form);
        Logger logger = Logger.getLogger("org.example.Program");
        for (int number = 0; number < 20; number++) {
            logger.info("request " + number);
            try { fail(number % 5); } catch (IllegalStateException error) { logger.log(Level.SEVERE, "failed", error); }
        }
    }
}
"""


def parsed(lines: Sequence[bytes], parser: str, **source: Any) -> Outcome:
    """All lines through joining and parsing, as a task of the pipeline does it."""
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": [parser]} | source],
        "output": {"path": "out"},
    }
    made = parse(given, Path("/nowhere"))
    joiner, transform = Joiner(made), Transform(made)
    whole = [*joiner.add(batch(lines)), *joiner.rest()]
    outcomes = [transform.run(each) for each in whole]
    return Outcome(*(pa.concat_tables(tables) for tables in zip(*(each[:2] for each in outcomes), strict=True)))


def run(*command: str | Path, **options: Any) -> bytes:
    """What a program writes to standard output and standard error."""
    kept = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return bytes(subprocess.run(command, timeout=100, check=False, env=kept, **both, **options).stdout)


@pytest.mark.parametrize(("parser", "file"), [("dpkg", "dpkg.log"), ("alternatives", "alternatives.log")])
def test_this_hosts_own_logs(parser: str, file: str) -> None:
    path = Path("/var/log") / file
    if not path.exists():
        pytest.skip(f"no {path} here")
    found = parsed(path.read_bytes().splitlines(), parser)
    assert not found.dead.to_pylist()[:3] and not found.rows.column("column_errors").drop_null().to_pylist()[:3]


def test_the_journal() -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("no journalctl here")
    lines = [
        line for line in run("journalctl", "-o", "json", "-n", "2000", "--no-pager").splitlines() if line[:1] == b"{"
    ]
    if not lines:
        pytest.skip("the journal is empty, or not readable")
    found = parsed(lines, "journald")
    assert not found.dead.to_pylist()[:3] and not found.rows.column("column_errors").drop_null().to_pylist()[:3]
    assert found.events.column("time").null_count == found.events.column("message").null_count == 0


@pytest.fixture
def readable() -> Iterator[Path]:
    """A directory that other users reach: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_postgresql(readable: Path) -> None:
    """Errors with DETAIL, HINT and STATEMENT, also of several lines, with Debian's prefix."""
    binaries = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *filter(None, [_directory_of("initdb")])]
    if not binaries:
        pytest.skip("no PostgreSQL here")
    data = readable / "data"
    data.mkdir()
    given: dict[str, Any] = {}
    if os.getuid() == 0:
        shutil.chown(data, "postgres")
        given = {"user": "postgres", "cwd": "/"}
    run(binaries[0] / "initdb", "-D", data, "-A", "trust", "--no-sync", **given)
    statements = b"select 1/0;\n\nselect * from nothing;\n\nselect 'a\n  b'::int;\n\nselect lower(1, 2);\n\n"
    postgres = [binaries[0] / "postgres", "--single", "-j", "-D", data, "-c", "log_line_prefix=%m [%p] %q%u@%d "]
    output = run(*postgres, "postgres", input=statements, **given)
    prompted = [line.removeprefix(b"backend> ") for line in output.splitlines()]
    lines = [line for line in prompted if line and not line.startswith(b"PostgreSQL stand-alone backend")]
    found = parsed(lines, "postgresql", multiline={"start": r"^\d{4}-\d\d-\d\d "})
    levels = found.events.column("level").to_pylist()
    assert levels.count("error") >= 4 and set(found.events.column("service").to_pylist()) == {"postgresql"}, output
    assert not found.dead.to_pylist()[:3], "every line is the first, or another one, of an event"


def _directory_of(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found).parent if found else None


def test_a_java_program_with_traces(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("no javac here")
    (tmp_path / "Program.java").write_text(TRACE)
    lines = run("java", "-Xshare:auto", tmp_path / "Program.java").splitlines()
    found = parsed(lines, "java", multiline={"start": r"^\d{4}-\d\d-\d\d "})
    assert not found.dead.to_pylist()[:3] and len(found.events) == 40
    rows = found.events.to_pylist()
    failed = [row for row in rows if row["level"] == "error"]
    assert len(failed) == 20 and {row["exception"] for row in failed} == {"java.lang.IllegalStateException"}
    assert all("Program.main" in row["message"] for row in failed), "the whole trace is in the event"
    assert sum(row["lines"] for row in rows) == len(lines) and {row["logger"] for row in rows} == {
        "org.example.Program"
    }


NGINX = """
pid {0}/nginx.pid; daemon off; error_log {0}/error.log info; worker_processes 1;
events {{ worker_connections 16; }}
http {{
    access_log {0}/access.log combined; root {0};
    client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;
    uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
    server {{ listen unix:{0}/socket; }}
}}
"""
REQUESTS = [
    b"GET /file HTTP/1.1",
    b"GET /none HTTP/1.1",
    b'GET /a"b\\c HTTP/1.0',
    b"\x16\x03\x01",
    b"POST /file HTTP/1.1",
]


def test_nginx(readable: Path) -> None:
    """Its access log and its error log, also of what is no request."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("no nginx here")
    (readable / "nginx.conf").write_text(NGINX.format(readable))
    (readable / "file").write_text("content")
    command = [nginx, "-p", str(readable), "-c", str(readable / "nginx.conf"), "-e", str(readable / "error.log")]
    with subprocess.Popen(command) as server:
        try:
            wait_for((readable / "nginx.pid").exists, "nginx")
            for request in REQUESTS:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(readable / "socket"))
                    client.sendall(request + b'\r\nHost: h\r\nUser-Agent: "quoted"\r\nConnection: close\r\n\r\n')
                    while client.recv(4096):
                        pass
        finally:
            server.terminate()
    access = parsed((readable / "access.log").read_bytes().splitlines(), "access")
    assert len(access.events) == len(REQUESTS) and not access.dead.to_pylist()
    assert access.events.column("status").to_pylist() == [200, 404, 404, 400, 405]
    errors = parsed((readable / "error.log").read_bytes().splitlines(), "nginx_error")
    assert not errors.dead.to_pylist()[:3] and "/none" in errors.events.column("path").to_pylist()

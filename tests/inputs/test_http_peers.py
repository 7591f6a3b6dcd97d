"""Shippers that people run send a file to an input by HTTP, which is killed and must wait: no line is lost.

The OpenTelemetry collector is found by OTELCOL (its program, with the receiver filelog and the exporter otlphttp, which
``collector/`` makes) or on the PATH; rsyslog sends by the bulk requests of Elasticsearch: apt-get install rsyslog
rsyslog-elasticsearch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from appliance.client import Admin

from ..support.server import runs, wait_for
from .http_box import Box, box, headers_of

LINES = 3_000
RSYSLOG = shutil.which("rsyslogd", path="/usr/sbin:/usr/bin")
OMELASTICSEARCH = Path("/usr/lib/x86_64-linux-gnu/rsyslog/omelasticsearch.so")
OTELCOL = os.environ.get("OTELCOL") or shutil.which("otelcol") or shutil.which("otelcol-contrib")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Box]:
    tables = '[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\n'
    with box(tmp_path, tables, **{"topics.auto_create": False}) as found:
        yield found


@contextmanager
def running(command: list[str], place: Path) -> Iterator[None]:
    with (place / "shipper.out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ship(
    web: Box, command: list[str], place: Path, log: Path, *, waits: bool = True
) -> list[tuple[bytes, dict[str, str]]]:
    """What is in the topic once each line is there.  ``waits``: that is made once the shipper knows."""
    lines = [b"line %d of the shop" % number for number in range(LINES)]

    def write(start: int, stop: int) -> None:
        with log.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines[start:stop]))

    def missing() -> set[bytes]:
        found = b"\n".join(message.value or b"" for message in web.messages("web"))
        return {line for line in lines if line + b'"' not in found and line + b"\\" not in found}

    write(0, 1_000)
    with running(command, place), Admin(web.server.native) as admin:
        if waits:
            wait_for(lambda: "no topic 'web'" in web.row("web")["trouble"], "the shipper to be told to wait", 60)
            admin.create_topic("web")
        wait_for(lambda: len(missing()) <= 2_000, "the first lines", 120)
        write(1_000, 2_000)
        pid = web.pid("web")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not runs(pid), "the input to end")
        write(2_000, LINES)
        wait_for(lambda: not missing(), "all lines", 120)
    assert web.row("web")["refused"] == 0
    return [(message.value or b"", headers_of(message)) for message in web.messages("web")]


@pytest.mark.skipif(RSYSLOG is None or not OMELASTICSEARCH.exists(), reason="no rsyslog-elasticsearch")
def test_rsyslog_by_bulk_requests(web: Box, tmp_path: Path) -> None:
    """It sends again what was not answered, and nothing that was refused for now: it cannot read that.

    With ``retryfailures`` rsyslog 8.2302 finds these, and then gives them up: "could not convert original request
    metadata header JSON back into JSON object".
    """
    with Admin(web.server.native) as admin:
        admin.create_topic("web")
    host, port = web.address("web")
    log = tmp_path / "app.log"
    log.touch()
    (tmp_path / "rsyslog.conf").write_text(
        f"""global(workDirectory="{tmp_path}")
module(load="imfile") module(load="omelasticsearch")
input(type="imfile" file="{log}" tag="shop:" severity="warning")
template(name="document" type="list" option.jsonf="on") {{
    property(outname="@timestamp" name="timereported" dateFormat="rfc3339" format="jsonf")
    property(outname="host" name="hostname" format="jsonf")
    property(outname="level" name="syslogseverity-text" format="jsonf")
    property(outname="message" name="msg" format="jsonf")
}}
action(type="omelasticsearch" server="{host}" serverport="{port}" searchIndex="shop" searchType=""
    bulkmode="on" writeoperation="create" bulkid="" template="document"
    action.resumeRetryCount="-1" action.resumeInterval="1" action.resumeIntervalMax="1")
"""
    )
    found = ship(
        web,
        [str(RSYSLOG), "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "rsyslog.pid")],
        tmp_path,
        log,
        waits=False,
    )
    value, headers = found[0]
    assert msgspec.json.decode(value)["message"].endswith("of the shop")
    assert (headers["app"], headers["index"], headers["severity"]) == ("shop", "shop", "warning")
    assert "time" in headers


@pytest.mark.skipif(OTELCOL is None, reason="no OpenTelemetry collector: set OTELCOL to its program")
def test_the_collector_by_otlp(web: Box, tmp_path: Path) -> None:
    host, port = web.address("web")
    log = tmp_path / "app.log"
    log.touch()
    (tmp_path / "otelcol.yaml").write_text(
        f"""receivers:
  filelog:
    include: [{log}]
    start_at: beginning
    poll_interval: 100ms
    resource: {{service.name: shop, host.name: web-1}}
exporters:
  otlphttp:
    logs_endpoint: http://{host}:{port}/v1/logs
    compression: gzip
    retry_on_failure: {{initial_interval: 500ms, max_interval: 1s, max_elapsed_time: 0}}
service:
  pipelines:
    logs: {{receivers: [filelog], exporters: [otlphttp]}}
"""
    )
    found = ship(web, [str(OTELCOL), "--config", f"file:{tmp_path}/otelcol.yaml"], tmp_path, log)
    assert Counter(headers["app"] for _, headers in found) == {"shop": len(found)}
    assert {headers["host"] for _, headers in found} == {"web-1"}

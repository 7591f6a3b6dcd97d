"""How many records an input by HTTP takes in a second, and in a second of its processor time, by protocol.

    python perf/inputs_http.py [--seconds 10] [--senders 4] [--smoke]

One appliance, one input, one topic of one partition; every request is answered after the flush.  The senders are
threads of one process: on a busy machine, or where they are the limit, only the figure per second of processor time
counts.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from _bench import headline, row
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from appliance.bench import accounts
from appliance.bench.local_appliance import LocalAppliance

TABLE = '[inputs.web]\ntype = "http"\nlisten = ["127.0.0.1:0"]\ntopic = "web"\n'
LINE_BYTES = 200
WARM_S = 0.2
TIME_NS = 1_795_219_200 * 10**9


class Work(NamedTuple):
    """``records``: in each request."""

    name: str
    path: str
    content_type: str
    body: bytes
    records: int


def works(lines: int) -> list[Work]:
    texts = [f"{number:0{LINE_BYTES - 1}d}" for number in range(lines)]
    ndjson = "".join(f'{{"message":"{text[15:]}"}}\n' for text in texts)
    values = [[str(TIME_NS + number), text] for number, text in enumerate(texts)]
    streams = {"streams": [{"stream": {"app": "shop", "host": "web-1"}, "values": values}]}
    bulk = "".join(f'{{"create":{{}}}}\n{{"host":{{"name":"web-1"}},"message":"{text[40:]}"}}\n' for text in texts)
    return [
        Work("lines", "/", "text/plain", "\n".join(texts).encode(), lines),
        Work("NDJSON", "/", "application/x-ndjson", ndjson.encode(), lines),
        Work("OTLP protobuf", "/v1/logs", "application/x-protobuf", otlp(lines // 5), lines // 5),
        Work("Loki JSON", "/loki/api/v1/push", "application/json", msgspec.json.encode(streams), lines),
        Work("bulk", "/_bulk", "application/x-ndjson", bulk.encode(), lines),
    ]


def otlp(records: int) -> bytes:
    export = ExportLogsServiceRequest()
    resource_logs = export.resource_logs.add()
    resource_logs.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope_logs = resource_logs.scope_logs.add()
    for number in range(records):
        record = scope_logs.log_records.add(time_unix_nano=TIME_NS + number, severity_number=9)
        record.body.string_value = f"{number:0120d}"
        for name in ("thread", "logger", "order"):
            record.attributes.add(key=name).value.string_value = name
    return export.SerializeToString()


def measure(host: tuple[str, int], pid: int, work: Work, senders: int, seconds: float) -> None:
    taken = [0] * senders

    def send(sender: int) -> None:
        connection = http.client.HTTPConnection(*host, timeout=60)
        while time.monotonic() < deadline_s:
            connection.request("POST", work.path, work.body, {"content-type": work.content_type})
            response = connection.getresponse()
            answer = response.read()
            if response.status not in (200, 204):
                raise SystemExit(f"{work.name}: {response.status} {answer[:200]!r}")
            taken[sender] += work.records
        connection.close()

    begun_s, begun_cpu_s = time.monotonic(), accounts.cpu_s(pid)
    deadline_s = begun_s + seconds
    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, cpu_s = time.monotonic() - begun_s, accounts.cpu_s(pid) - begun_cpu_s
    if seconds < WARM_S:
        return
    row(
        work.name,
        records_s=sum(taken) / took_s,
        records_cpu_s=sum(taken) / max(cpu_s, 0.01),
        mb_s=sum(taken) / work.records * len(work.body) / took_s / (1 << 20),
        pss_mb=accounts.pss_bytes(pid) >> 20,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    seconds, lines = (0.2, 100) if options.smoke else (options.seconds, 10_000)
    headline("records of an input by HTTP", seconds=seconds, senders=options.senders, lines_in_a_request=lines)
    run([work.name for work in works(1)], seconds, options.senders, lines)


def run(names: list[str], seconds: float, senders: int, lines: int) -> None:
    """Measure the works of these names, one after the other."""
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        file = Path(directory) / "appliance.toml"
        file.write_text(TABLE)
        with LocalAppliance(Path(directory) / "data", file) as server:
            while not server.pids("input"):
                time.sleep(0.1)
            host, _, port = server.state["inputs"]["web"]["addresses"][0].removeprefix("http://").partition(":")
            pid = server.pids("input")[0]
            for work in works(lines):
                if work.name in names:
                    measure((host, int(port)), pid, work, senders, WARM_S / 2)  # topic, imports, caches
                    measure((host, int(port)), pid, work, senders, seconds)


if __name__ == "__main__":
    main()

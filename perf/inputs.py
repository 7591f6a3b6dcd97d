"""What inputs take in, beside rsyslog with omkafka on the same lines: lines a second, processor time, memory, losses.

    python perf/inputs.py [--lines 500000] [--files 1000] [--rounds 3] [--journal DIRECTORY] [--only-rest] [--smoke]

Lines have 200 bytes, and count once they are flushed in the log (acks=all).  Sides take turns.  ``per_cpu_s`` is by the
processor time of the input's process, or of rsyslogd: what a core of its own would take; the rate on the clock shares
this machine with the sender, the workers and the writer.  ``pss_mb`` is the largest that was seen.  rsyslog parses
syslog and sends lines as they came; without rsyslogd and its omkafka that side is left out.

HTTP and OTLP have no other side: ``inputs_http.py`` has all their protocols.  At rest: what an appliance without
inputs, one with an input of each type, and each of these inputs use while nothing comes; of files there are so many.
"""

from __future__ import annotations

import argparse
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from syslog import HOST, rfc3164
from typing import Any, Final, NamedTuple

import inputs_http
from _bench import headline, row

from appliance.bench import accounts
from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Admin

LINE_BYTES: Final = 200
REST_S: Final = 20.0
"""A multiple of ``scan_ms``."""
SETTLED_S: Final = 4.0
QUIET_S: Final = 3.0
"""Without a new line: what is missing was lost."""
BURST: Final = 250
UDP_S: Final = 60_000
"""Datagrams that are sent in a second, at most."""
INPUTS: Final = """
[inputs.disk]
type = "files"
include = ["{place}/*.log"]
topic = "disk"
scan_ms = 200
[inputs.net]
type = "syslog"
listen = ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"]
topic = "net"
"""
RSYSLOG: Final = """global(workDirectory="{place}")
module(load="imfile") module(load="imtcp") module(load="imudp") module(load="omkafka")
template(name="line" type="string" string="%rawmsg%")
input(type="imfile" file="{place}/*.log" tag="disk:" ruleset="disk")
input(type="imtcp" address="127.0.0.1" port="{port}" ruleset="net")
input(type="imudp" address="127.0.0.1" port="{port}" rcvbufSize="8m" ruleset="net")
ruleset(name="disk") {{ {disk} }}
ruleset(name="net" queue.type="LinkedList" queue.size="2000000") {{ {net} }}
"""
KAFKA: Final = """action(type="omkafka" broker=["{kafka}"] topic="{topic}" template="line" partitions.auto="on"
    resubmitOnFailure="on" confParam=["acks=all", "enable.idempotence=true", "queue.buffering.max.ms=5",
    "queue.buffering.max.messages=1000000"])"""


class Side(NamedTuple):
    """Who takes lines in: where, how many are in the log, and what its process uses."""

    name: str
    place: Path
    tcp: tuple[str, int]
    udp: tuple[str, int]
    count: Callable[[str], int]
    pid: Callable[[str], int]
    """Of the process for a topic."""


def messages_of(appliance: LocalAppliance, topic: str) -> int:
    """How many are in a topic, flushed."""
    with Admin(appliance.native) as admin:
        return sum(part["messages"] or 0 for listed in admin.topics([topic]) for part in listed["partitions"])


def title_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@contextmanager
def ours() -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="perf-") as name:
        place = Path(name) / "logs"
        place.mkdir()
        file = Path(name) / "appliance.toml"
        file.write_text(INPUTS.format(place=place))
        with LocalAppliance(Path(name) / "data", file) as appliance:
            while any(input_state["state"] != "running" for input_state in appliance.state["inputs"].values()):
                time.sleep(0.1)
            inputs = appliance.state["inputs"]
            tcp, udp = [(HOST, int(text.rpartition(":")[2])) for text in inputs["net"]["addresses"]]

            def pid(topic: str) -> int:
                return next(input_pid for input_pid in appliance.pids("input") if title_of(input_pid).endswith(topic))

            yield Side("input", place, tcp, udp, lambda topic: int(appliance.state["inputs"][topic]["messages"]), pid)


@contextmanager
def rsyslog() -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="perf-") as name, LocalAppliance(Path(name) / "data") as appliance:
        place = Path(name) / "logs"
        place.mkdir()
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        actions = {topic: KAFKA.format(kafka=appliance.kafka, topic=topic) for topic in ("disk", "net")}
        with Admin(appliance.native) as admin:
            for topic in actions:
                admin.create_topic(topic)
        conf = place / "rsyslog.conf"
        conf.write_text(RSYSLOG.format(place=place, port=port, **actions))
        command = ["rsyslogd", "-n", "-f", str(conf), "-i", str(place / "pid")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(2)  # until it listens
                yield Side(
                    *("rsyslog", place, (HOST, port), (HOST, port)),
                    *(lambda topic: messages_of(appliance, topic), lambda _: process.pid),
                )
            finally:
                process.terminate()


def write_file(side: Side, lines: list[bytes]) -> None:
    made = side.place / "lines.part"
    made.write_bytes(b"\n".join([*lines, b""]))
    made.rename(side.place / f"{time.monotonic_ns()}.log")


def send_tcp(side: Side, lines: list[bytes]) -> None:
    with socket.create_connection(side.tcp) as sock:
        sock.sendall(b"\n".join([*lines, b""]))


def send_udp(side: Side, lines: list[bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(side.udp)
        for start in range(0, len(lines), BURST):
            for line in lines[start : start + BURST]:
                sock.send(line)
            select.select([], [], [], BURST / UDP_S)


def measure(side: Side, name: str, topic: str, send: Callable[[Side, list[bytes]], None], lines: list[bytes]) -> None:
    pid = side.pid(topic)
    before, cpu_s, begun_s = side.count(topic), accounts.cpu_s(pid), time.monotonic()
    send(side, lines)
    seen, changed_s, pss_bytes = before, time.monotonic(), 0
    while seen < before + len(lines) and time.monotonic() - changed_s < QUIET_S:
        select.select([], [], [], 0.05)
        now = side.count(topic)
        if now != seen:
            seen, changed_s = now, time.monotonic()
            pss_bytes = max(pss_bytes, accounts.pss_bytes(pid))
    used_s = accounts.cpu_s(pid) - cpu_s
    taken = seen - before
    row(
        f"{name}, {side.name}",
        per_cpu_s=taken / max(used_s, 0.01),
        per_s=taken / (changed_s - begun_s),
        lost=len(lines) - taken,
        pss_mb=pss_bytes / 1e6,
    )


def rest(files: int, seconds: float, journal: str) -> None:
    """What an appliance uses with no input, and each input of one that has all types, while nothing comes."""
    with tempfile.TemporaryDirectory(prefix="perf-") as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        for number in range(files):
            (logs / f"{number}.log").write_bytes(b"a line\n")
        tables: dict[str, dict[str, Any]] = {
            "files": {"include": f"{logs}/*.log"},
            "syslog": {"listen": "tcp://127.0.0.1:0,udp://127.0.0.1:0,relp://127.0.0.1:0"},
            "http": {"listen": "127.0.0.1:0"},
        }
        if journal:
            tables["journal"] = {"directory": journal}
        inputs = {f"{kind}.{key}": value for kind, table in tables.items() for key, value in table.items()}
        inputs |= {f"{kind}.{key}": value for kind in tables for key, value in (("type", kind), ("topic", kind))}
        with LocalAppliance(Path(name) / "none") as appliance:
            rest_row("at rest: an appliance without inputs", appliance, [], seconds)
        settings: dict[str, Any] = {f"inputs.{key}": value for key, value in inputs.items()}
        with LocalAppliance(Path(name) / "data", **settings) as appliance:
            while appliance.state["inputs"]["files"]["lines"] < files:
                time.sleep(0.1)
            if seconds >= REST_S:
                time.sleep(60 - time.time() % 60)  # the ledger has a row for each file in the first minute
            rest_row("at rest: an appliance with all of them", appliance, list(tables), seconds)


def rest_row(what: str, appliance: LocalAppliance, kinds: list[str], seconds: float) -> None:
    time.sleep(SETTLED_S)  # the last commits; what other processes do once after a start
    assert appliance.process is not None
    pids = {kind: pid for pid in appliance.pids("input") for kind in kinds if title_of(pid).endswith(kind)}
    whole = {what: appliance.process.pid} | {f"at rest: an input of type {kind}": pids[kind] for kind in kinds}
    before = {label: tree_cpu_s(pid) for label, pid in whole.items()}
    time.sleep(seconds)
    used = {label: tree_cpu_s(pid) - before[label] for label, pid in whole.items()}
    for label, pid in whole.items():
        pss_bytes = sum(map(accounts.pss_bytes, accounts.tree(pid)))
        row(label, percent_of_a_core=100 * used[label] / seconds, pss_mb=pss_bytes / 1e6)


def tree_cpu_s(pid: int) -> float:
    """Of a process and its descendants, such as journalctl; by the scheduler, whose counts are not in ticks."""
    return sum(
        int(task.joinpath("schedstat").read_text().split()[0]) / 1e9
        for process in accounts.tree(pid)
        for task in Path(f"/proc/{process}/task").iterdir()
    )


def sides() -> list[Callable[[], AbstractContextManager[Side]]]:
    has_rsyslog = shutil.which("rsyslogd") and any(Path("/usr/lib").glob("*/rsyslog/omkafka.so"))
    return [ours, rsyslog] if has_rsyslog else [ours]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--journal", default="", help="directory of a journal, for the input that follows one at rest")
    parser.add_argument("--only-rest", action="store_true", help="only what inputs use while nothing comes")
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it works")
    options = parser.parse_args()
    lines, files, rounds, rest_s, http_s = options.lines, options.files, options.rounds, REST_S, 4.0
    if options.smoke:
        lines, files, rounds, rest_s, http_s = 5_000, 20, 1, 1.0, 0.2
    headline("What do inputs take in?", lines=lines, bytes=LINE_BYTES, rounds=rounds)
    if options.only_rest:
        rest(files, rest_s, options.journal)
        return
    texts = list(rfc3164(lines, LINE_BYTES))
    for _ in range(rounds):
        for begin in sides():
            with begin() as side:
                for topic, send in (("disk", write_file), ("net", send_tcp)):
                    send(side, texts[:10])  # topic, imports, caches
                    while side.count(topic) < 10:
                        time.sleep(0.05)
                measure(side, "files", "disk", write_file, texts)
                measure(side, "syslog, TCP", "net", send_tcp, texts)
                measure(side, "syslog, UDP", "net", send_udp, texts)
    inputs_http.run(["lines", "OTLP protobuf"], http_s, senders=2, lines=100 if options.smoke else 10_000)
    rest(files, rest_s, options.journal)


if __name__ == "__main__":
    main()

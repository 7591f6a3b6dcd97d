"""How many messages of syslog a second one input takes: parsed, and flushed in the log.

    python perf/syslog.py [--smoke] [--messages 500000] [--bytes 200] [--rounds 3]
    python perf/syslog.py --only-udp --processes 2 --udp-per-s 60000 80000 100000 120000

One sender, one input, one partition.  What counts is the processor time of the input's process, since sender, writer
and worker share the machine: messages for each second of it is what it takes with a processor of its own.  Rounds show
how much that differs; the best of them is the one that others disturbed least.  UDP is sent in bursts with pauses, at
each of the given rates, and what the kernel dropped is shown; with several processes by as many senders as these need.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from _bench import headline, row

from appliance.bench.local_appliance import LocalAppliance

CONFIG: Final = """
[inputs.net]
type = "syslog"
topic = "net"
processes = {processes}
listen = ["udp://127.0.0.1:0", "tcp://127.0.0.1:0", "relp://127.0.0.1:0"]
"""
HOST: Final = "127.0.0.1"
OFFERS: Final = b"relp_version=0\ncommands=syslog"
HOSTS, APPS = 20, 7
PER_S: Final = 100_000
"""Messages with the same second in their time."""
BURST: Final = 250
UDP_PER_S: Final = 60_000
SENDERS: Final = 16
"""Sockets for each process that UDP comes to: the kernel shares senders out, not datagrams."""
WAIT_S: Final = 60


def rfc3164(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        second = number // PER_S % 60
        head = b"<%d>Nov 25 22:14:%02d web-%d app%d[%d]: " % (
            *(8 + number % 8, second, number % HOSTS, number % APPS, number),
        )
        yield head.ljust(size, b"x")


def rfc5424(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        head = b"<%d>1 2026-11-25T22:14:%02d.%06dZ web-%d app%d %d - - " % (
            *(8 + number % 8, number // PER_S % 60, 10 * number % 1_000_000, number % HOSTS, number % APPS, number),
        )
        yield head.ljust(size, b"x")


class Bench:
    """An appliance with one input, of so many processes."""

    def __init__(self, appliance: LocalAppliance, processes: int) -> None:
        self._appliance, self._processes = appliance, processes
        self._wait_until(lambda: len(self._input()["addresses"]) == 3)
        ports = [int(text.rpartition(":")[2]) for text in self._input()["addresses"]]
        self._udp, self._tcp, self._relp = [(HOST, port) for port in ports]

    def _input(self) -> dict[str, Any]:
        state: dict[str, Any] = self._appliance.state["inputs"]["net"]
        return state

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        """Whether it came true; False once no message has come for 3 s."""
        seen, since = -1, time.monotonic()
        while not condition():
            now = self._input()["messages"]
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > 3 and seen:
                return False
            select.select([], [], [], 0.02)
        return True

    def make_topic(self) -> None:
        self.tcp([b"<13>first"])
        self._wait_until(lambda: bool(self._input()["messages"]))

    def measure(self, name: str, send: Callable[[list[bytes]], None], messages: list[bytes]) -> None:
        before, begun_s, cpu_s = self._input()["messages"], time.monotonic(), self._appliance.cpu_s("input")
        send(messages)
        self._wait_until(lambda: bool(self._input()["messages"] >= before + len(messages)))
        took_s, used_s = time.monotonic() - begun_s, self._appliance.cpu_s("input") - cpu_s
        taken = self._input()["messages"] - before
        row(
            name,
            per_cpu_s=taken / used_s,
            per_s=taken / took_s,
            lost=len(messages) - taken,
            memory_MB=self._appliance.pss_bytes("input") / 1e6,
        )

    def tcp(self, messages: list[bytes]) -> None:
        with socket.create_connection(self._tcp) as sock:
            sock.sendall(b"\n".join([*messages, b""]))

    def octets(self, messages: list[bytes]) -> None:
        with socket.create_connection(self._tcp) as sock:
            sock.sendall(b"".join([b"%d %b" % (len(message), message) for message in messages]))

    def udp(self, messages: list[bytes], per_s: int = UDP_PER_S) -> None:
        with contextlib.ExitStack() as opened:
            count = 1 if self._processes == 1 else SENDERS * self._processes
            sockets = [opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
            for sock in sockets:
                sock.connect(self._udp)
            begun_s = time.monotonic()
            for number, start in enumerate(range(0, len(messages), BURST)):
                send = sockets[number % count].send
                for message in messages[start : start + BURST]:
                    send(message)
                ahead_s = begun_s + (start + BURST) / per_s - time.monotonic()
                select.select([], [], [], max(0, ahead_s))
        sent_per_s = len(messages) / (time.monotonic() - begun_s)
        if sent_per_s < 0.95 * per_s:
            print(f"the sender made {sent_per_s:,.0f} a second of {per_s:,}")

    def relp(self, messages: list[bytes]) -> None:
        frames = [b"%d syslog %d %b\n" % (number, len(message), message) for number, message in enumerate(messages, 2)]
        with socket.create_connection(self._relp) as sock:
            sock.sendall(b"1 open %d %b\n" % (len(OFFERS), OFFERS))
            sending = threading.Thread(target=sock.sendall, args=(b"".join(frames),))
            sending.start()
            answered, held = -1, b""  # that of open is not one of these
            while answered < len(messages):
                held += sock.recv(1 << 20)
                answered += held.count(b" 200 OK\n")
                held = held[held.rfind(b"\n") + 1 :]
            sending.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="at a size that proves that it still works")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="of the input, which share what comes over UDP")
    parser.add_argument("--udp-per-s", type=int, nargs="+", default=[UDP_PER_S], help="rates of UDP")
    parser.add_argument("--only-udp", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.messages, options.rounds = 5_000, 1
    headline("How many messages of syslog does one input take?", messages=options.messages, bytes=options.bytes)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        file = Path(directory) / "appliance.toml"
        file.write_text(CONFIG.format(processes=options.processes))
        with LocalAppliance(Path(directory) / "data", file) as appliance:
            bench = Bench(appliance, options.processes)
            bench.make_topic()
            old, new = list(rfc3164(options.messages, options.bytes)), list(rfc5424(options.messages, options.bytes))
            for _ in range(options.rounds):
                for per_s in options.udp_per_s:
                    rate = f", {per_s:,} a second" if len(options.udp_per_s) > 1 else ""
                    bench.measure(f"UDP, RFC 3164{rate}", partial(bench.udp, per_s=per_s), old)
                if options.only_udp:
                    continue
                bench.measure("TCP, RFC 3164", bench.tcp, old)
                bench.measure("TCP, RFC 5424", bench.tcp, new)
                bench.measure("TCP, RFC 5424, octet counting", bench.octets, new)
                bench.measure("RELP, RFC 5424", bench.relp, new)


if __name__ == "__main__":
    main()

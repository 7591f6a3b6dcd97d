"""How soon `appliance sql` has its first row, and how long a question about all messages takes.

    python perf/sql.py [--messages 10000000] [--smoke]

Access lines of some 100 bytes are produced by the native client in batches of 1,000.  Each question is a process of its
own, as a person starts it, on one core (``taskset``); CPU seconds are those of that process and its threads.  The rows
that it prints are compared with what was sent.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

from _bench import appliance, headline, row

from appliance.client import Admin, Producer

TOPIC = "web"
STATUSES = (200, 200, 200, 304, 404, 500)
BATCH = 1000
LINES = 60 * BATCH
CPU_S_MAX = {"first row": 1.0, "count": 6.0}


def line(number: int) -> bytes:
    when = f"20/Nov/2026:{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d} +0000"
    status = STATUSES[number % len(STATUSES)]
    return (
        f'10.0.{number % 7}.{number % 250} - - [{when}] "GET /{number % 1000} HTTP/1.1" {status} 512 "-" "t"'.encode()
    )


def fill(address: str, messages: int) -> None:
    lines = [line(number) for number in range(LINES)]
    with Admin(address) as admin:
        admin.create_topic(TOPIC, partitions=2)
    with Producer(address) as producer:
        for first in range(0, messages, BATCH):
            at = first % len(lines)
            producer.send_many(TOPIC, lines[at : at + min(BATCH, messages - first)])


def ask(address: str, query: str) -> tuple[str, float, float]:
    """What the command prints, its seconds and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    command = ["taskset", "-c", "0", sys.executable, "-m", "appliance", "sql", query, "--connect", address]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--smoke", action="store_true", help="100,000 messages")
    options = parser.parse_args()
    messages = 100_000 if options.smoke else options.messages
    headline(__doc__.splitlines()[0], messages=messages, cores=f"1 of {os.cpu_count()}")
    by_status = dict.fromkeys(sorted(STATUSES), 0)
    for number in range(messages):
        by_status[STATUSES[number % LINES % len(STATUSES)]] += 1
    questions = {
        "first row": (f"select count(status) from (select * from {TOPIC} limit 1)", "1\n"),
        "count": (f"select count(*) from {TOPIC}", f"{messages}\n"),
        "count where value like": (
            f"select count(*) from {TOPIC} where value like '%\" 404 %'",
            f"{by_status[404]}\n",
        ),
        "count by status": (
            f"select status, count(*) from {TOPIC} group by 1 order by 1",
            "".join(f"{status}\t{count}\n" for status, count in by_status.items()),
        ),
    }
    late: list[str] = []
    with appliance() as broker:
        fill(broker.server.native, messages)
        for name, (query, expected) in questions.items():
            said, seconds, cpu_s = ask(broker.server.native, query)
            rows = said.partition("\n")[2]
            assert rows == expected, f"{name}: {rows!r} instead of {expected!r}"
            row(name, seconds=seconds, cpu_s=cpu_s, messages_per_s=messages / seconds)
            if name in CPU_S_MAX and not options.smoke and cpu_s > CPU_S_MAX[name]:
                late.append(f"{name} took {cpu_s:.2f} s of CPU, more than {CPU_S_MAX[name]:g} s")
    if late:
        sys.exit("; ".join(late))


if __name__ == "__main__":
    main()

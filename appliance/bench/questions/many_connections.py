"""What do many connections cost: memory, and the rate and delays of others beside them?

Every tenth connection produces, 500 messages/s (acks=1) all together; the others are idle.  *rate* is that of a
producer beside them, 50 messages a batch, acks=1; *p50* and *p99* are end to end at 1,000 messages/s, from the time at
which a message is due.  *memory* is that of all processes of the broker with the connections open, *memory of each*
what it has more than before, per connection.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from .. import brokers
from ..harness import Harness
from ..kafka_clients import FIFTY
from ..kafka_side import KafkaSide, ours_and_kafka
from ..stamps import Wrong
from . import end_to_end

TITLE = "Many connections"
ROUND_S = 75
SIZE = 200
CONNECTIONS, SMOKE_CONNECTIONS = (1, 100, 1_000, 5_000), (50,)
SPARE_FILES = 500
"""Open files of a process besides these connections."""
MESSAGES, RATE, SECONDS = 500_000, 1_000, 2
REQUESTS_PER_S = 500
PROGRAM = [sys.executable, "-m", f"{brokers.__package__}.connection_crowd"]
END_S_MAX = 90


def run(harness: Harness) -> None:
    harness.note(message_bytes=SIZE, crowd_messages_per_s=REQUESTS_PER_S, delays_at=f"{RATE}/s")
    with ours_and_kafka(harness) as sides:
        for connections in SMOKE_CONNECTIONS if harness.options.smoke else CONNECTIONS:
            name = f"{connections:,} connections" if connections > 1 else "1 connection"
            if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < connections + SPARE_FILES:
                harness.notice(f"{name}: skipped, missing: ulimit -Hn {connections + SPARE_FILES}")
                continue
            harness.figures(name, sides, lambda side: once(harness, side, connections))  # noqa: B023 - run at once


def once(harness: Harness, side: KafkaSide, connections: int) -> dict[str, float]:
    count, seconds = harness.scaled(MESSAGES), 1 if harness.options.smoke else SECONDS
    busy = side.filled(1, SIZE)  # what a partition costs that is in use is not counted
    before = side.broker.pss_bytes()
    with crowd(side, busy, connections):
        memory = side.broker.pss_bytes()
        topic = side.empty()
        used = side.cpu_s()
        run = side.produce(topic, count, SIZE, FIFTY | {"acks": "1"})
        cpu = (side.cpu_s() - used) / count * 1e6
        delays = end_to_end.once(side, side.topic(), RATE, seconds)
    figures = {"rate": run.rate, "cpu": cpu, **delays.delays, "memory_bytes": memory}
    return figures | ({"each_bytes": max(memory - before, 0) / connections} if connections > 1 else {})


@contextmanager
def crowd(side: KafkaSide, topic: str, connections: int) -> Iterator[None]:
    """So many connections, as long as the block runs; some produce to ``topic``, which has one message before.

    Raises:
        Wrong: a message of theirs is missing.
    """
    command = [*PROGRAM, side.broker.address, topic, str(connections), str(REQUESTS_PER_S)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            ready = program.stdout.readline().strip() == "ready"
            if ready:
                yield
            said, why = program.communicate(timeout=END_S_MAX)
        finally:
            program.kill()
    if not ready or program.returncode:
        raise Wrong(f"{side.name}, {connections} connections: {why.strip()[-600:]}")
    side.wait_for(1 + msgspec.json.decode(said)["acknowledged"], topic)

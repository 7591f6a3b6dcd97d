"""The clients of Kafka's protocol that workloads run with: librdkafka in C, and confluent-kafka for Python.

Both are programs with the same arguments and the same line of JSON, which ``c/kafka_client.c`` describes.  Each run is
a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Set
from functools import partial

import msgspec

from .. import extras
from .compiling import Missing, fetch_client, kafka_client
from .stamps import Wrong

RUN_S_MAX, MESSAGES_PER_S_MIN = 300, 50_000
LARGE = {"linger.ms": "5", "batch.size": "1000000", "batch.num.messages": "10000"}
FIFTY = {"linger.ms": "5", "batch.num.messages": "50"}
ONE = {"linger.ms": "0", "batch.num.messages": "1", "max.in.flight.requests.per.connection": "5"}
QUEUE = {"queue.buffering.max.messages": "1000000", "queue.buffering.max.kbytes": "1000000"}
FETCH_BYTES_MAX = 4_000_000
LONG_QUEUE = {
    "queued.min.messages": "1000000",
    "fetch.message.max.bytes": str(FETCH_BYTES_MAX),
}
NO_PAUSE = {"fetch.queue.backoff.ms": "1"}
"""A consumer of librdkafka that is queued.min.messages ahead fetches nothing for a second, if nobody says otherwise.

The faster the broker, the likelier that is; of a run of a second, it is most of what would be measured.
"""
AT_ONCE = {"fetch.wait.max.ms": "500", "fetch.error.backoff.ms": "1"}


class Run(msgspec.Struct, frozen=True):
    """What a client program printed.  ``check`` is the same for who sent and who received if nothing was lost."""

    count: int
    seconds: float
    client_cpu_s: float
    check: str
    disorder: int = 0
    version: str = ""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    max_ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def delays(self) -> dict[str, float]:
        return {"p50_ms": self.p50_ms, "p99_ms": self.p99_ms, "p999_ms": self.p999_ms, "max_ms": self.max_ms}


class KafkaClient:
    """Starts one of the two programs."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self._command = name, command

    def start(
        self, what: str, address: str, topic: str, number: int, count: int, size: int, settings: dict[str, str],
        *, processors: Set[int] = frozenset(),
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start ``produce``, ``timed``, ``consume`` or ``delays``; :func:`outcome` waits for it.

        It runs on these ``processors``; none: on any.

        A consumer has NO_PAUSE, if the settings say nothing else.
        """
        settings = NO_PAUSE | settings if what == "consume" else settings
        words = [what, address, topic, str(number), str(count), str(size)]
        more = [f"{key}={value}" for key, value in settings.items()]
        return subprocess.Popen(
            [*self._command, *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=partial(os.sched_setaffinity, 0, processors) if processors else None,
        )  # fmt: skip

    def produce(
        self, address: str, topic: str, count: int, size: int, settings: dict[str, str], partitions: int = 1
    ) -> Run:
        return outcome(self.start("produce", address, topic, partitions, count, size, QUEUE | settings), count)

    def consume(
        self, address: str, topic: str, count: int, size: int, settings: dict[str, str], partitions: int = 1,
        *, one_processor: bool = False,
    ) -> Run:  # fmt: skip
        """Read ``count`` messages from the beginning, perhaps with all threads on one processor."""
        processors = {max(os.sched_getaffinity(0))} if one_processor else frozenset[int]()
        program = self.start("consume", address, topic, partitions, count, size, settings, processors=processors)
        return outcome(program, count)


def outcome(program: subprocess.Popen[str], count: int) -> Run:
    """Wait for a client, at most RUN_S_MAX and what ``count`` messages take at MESSAGES_PER_S_MIN.

    Raises:
        Wrong: it failed, or did not handle ``count`` messages.
    """
    try:
        said, why = program.communicate(timeout=RUN_S_MAX + count / MESSAGES_PER_S_MIN)
    except subprocess.TimeoutExpired:
        program.kill()
        said, why = program.communicate()
    if program.returncode:
        raise Wrong(why.strip()[-600:] or f"a client ended with {program.returncode}")
    run = msgspec.json.decode(said.strip().splitlines()[-1], type=Run)
    if run.count != count or run.disorder:
        raise Wrong(f"{run.count} of {count} messages, {run.disorder} out of order")
    return run


def fetch_headers(address: str, topic: str, count: int) -> Run:
    """Fetch ``count`` messages of a topic's only partition and look at the headers of batches alone.

    librdkafka spends more on a message than a broker does, so it hides the broker; this shows it.
    """
    host, port = address.rsplit(":", 1)
    command = [str(fetch_client()), host, port, topic, str(count), str(FETCH_BYTES_MAX)]
    return outcome(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), count)


def c_client() -> KafkaClient:
    """
    Raises:
        Missing: there is no compiler, or no librdkafka.
    """
    return KafkaClient("C", [str(kafka_client())])


def python_client() -> KafkaClient:
    """
    Raises:
        Missing: confluent-kafka is not installed.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise Missing(f"confluent-kafka: {extras.install('bench')}") from None
    return KafkaClient("Python", [sys.executable, "-m", f"{__package__}.python_kafka_client"])


CLIENTS = {"c": c_client, "python": python_client}

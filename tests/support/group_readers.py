"""Members of a group that read all the time: in threads, or in processes of their own that can be killed or frozen.

``python -m tests.support.group_readers ADDRESS GROUP TOPIC...`` is such a process.  It prints a line for every batch,
before it asks for the next one: ``topic partition offset value value ...``; so what it has not printed is not committed
either.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from appliance.client import GroupConsumer, MessageStream

ROOT = Path(__file__).parents[2]
SESSION_MS = 2_000
COMMIT_MS = 100
JOIN_S_MAX = 60


class Seen(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Reader:
    """Threads that read streams into lists until the consumer is closed: ``by_stream``, and ``seen`` all together."""

    def __init__(self, streams: list[MessageStream]) -> None:
        self.by_stream: list[list[Seen]] = [[] for _ in streams]
        self.threads = [
            threading.Thread(target=self._read, args=(stream, seen))
            for stream, seen in zip(streams, self.by_stream, strict=True)
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: MessageStream, seen: list[Seen]) -> None:
        for message in stream:
            seen.append(Seen(message.topic, message.partition, message.offset, message.value or b""))

    @property
    def seen(self) -> list[Seen]:
        return [entry for entries in self.by_stream for entry in list(entries)]

    def values(self) -> list[bytes]:
        return [entry.value for entry in self.seen]


class Member:
    """A consumer of one topic in this process, and its reader."""

    def __init__(self, address: str, group: str, topic: str, streams: int = 1, **options: Any) -> None:
        options = {"session_timeout_ms": SESSION_MS, "auto_commit_ms": COMMIT_MS} | options
        self.consumer = GroupConsumer(address, group, **options)
        self.id = self.consumer.consumer_id
        self.reader = Reader(self.consumer.create_message_streams({topic: streams})[topic])

    @property
    def partitions(self) -> set[int]:
        return {partition for _, partition in self.consumer.owned}

    @property
    def seen(self) -> list[Seen]:
        return self.reader.seen

    def values(self) -> list[bytes]:
        return self.reader.values()

    def close(self) -> None:
        self.consumer.close()
        for thread in self.reader.threads:
            thread.join(JOIN_S_MAX)

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemberProcess:
    """A consumer in a process of its own; ``seen`` is what it has printed."""

    def __init__(self, address: str, group: str, *topics: str) -> None:
        command = [sys.executable, "-m", "tests.support.group_readers", address, group, *topics]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self.seen: list[Seen] = []
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of printing
                topic, partition, offset, *values = line.split()
                first = int(offset)
                self.seen += [Seen(topic.decode(), int(partition), first + i, value) for i, value in enumerate(values)]

    def values(self) -> list[bytes]:
        return [entry.value for entry in list(self.seen)]

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM: it commits and leaves; its exit status."""
        self.process.terminate()
        self._reap()
        return self.process.returncode

    def _reap(self) -> None:
        self.process.wait(JOIN_S_MAX)
        self._thread.join(JOIN_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.stop()


def _print_all(stream: MessageStream) -> None:
    for batch in stream.batches():
        first = batch.next_offset - len(batch.values)
        line = b"%s %d %d %s\n" % (batch.topic.encode(), batch.partition, first, b" ".join(filter(None, batch.values)))
        while line:
            line = line[os.write(1, line) :]


def main(address: str, group: str, *topics: str) -> None:
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    consumer = GroupConsumer(address, group, session_timeout_ms=SESSION_MS, auto_commit_ms=COMMIT_MS)
    streams = consumer.create_message_streams(dict.fromkeys(topics, 1))
    readers = [threading.Thread(target=_print_all, args=(stream,)) for (stream,) in streams.values()]
    for reader in readers:
        reader.start()
    ending.wait()
    consumer.close(processed=False)
    for reader in readers:
        reader.join(JOIN_S_MAX)


if __name__ == "__main__":
    main(*sys.argv[1:])

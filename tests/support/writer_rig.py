"""A writer in a thread of the test, with the test as its supervisor and its one network worker."""

from __future__ import annotations

import itertools
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from appliance.config import Config, TopicSettings
from appliance.log import Log
from appliance.processes.control import Channel
from appliance.processes.messages import FROM_WRITER, Append, Appended, ToWriter, WorkerChannel
from appliance.processes.writer.writer import Writer, WriterArguments, open_log
from appliance.shared import memory
from appliance.shared.doorbell import MarkedDoorbell
from appliance.shared.table import TABLE_BYTES, SegmentTable

from .server import wait_for

ARENA_BYTES = 1 << 20


class Rig:
    """``settings`` are a topic's, with ``_`` for ``.``.  Use it as a context; what ended the writer is ``error``.

    ``serves=False``: the test makes the turns of the loop.
    """

    def __init__(self, path: Path, table_bytes: int = TABLE_BYTES, serves: bool = True, **settings: Any) -> None:
        self.path, self._serves = path, serves
        table_name, table = memory.create(f"test{os.getpid()}", "rig", table_bytes)
        arena_name, arena = memory.create(f"test{os.getpid()}", "rig", ARENA_BYTES)
        self._names = [table_name, arena_name]
        if not (path / "t-0").exists():  # as the opener does, which comes before the first writer
            Log.open(path / "t-0", TopicSettings(), lambda: 0).close()
        self.table = SegmentTable(memoryview(table).cast("Q"))
        self._arena = memoryview(arena)
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.supervisor, control = Channel.pair()
        self._control = control
        self.worker, self._theirs = Channel.pair()
        arguments = WriterArguments(Config(), path, "t", 0, named, table_name, [MarkedDoorbell()])
        self.writer = Writer(arguments, control, self.table, open_log(arguments))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="writer")
        self._tokens = itertools.count(1)
        self._answers: dict[int, list[int]] = {}

    def __enter__(self) -> Rig:
        self.writer.publish()
        self.supervisor.send(WorkerChannel(self._names[1]), (self._theirs.fileno(),))
        if self._serves:
            self._thread.start()
        return self

    def _serve(self) -> None:
        try:
            self.writer.serve()
        except Exception as error:
            self.error = error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.close()
        if self._serves:
            self._thread.join(10)
        self._let_go()
        for name in self._names:
            memory.unlink(name)

    def _let_go(self) -> None:
        """What the end of the process does."""
        writer = self.writer
        writer._unflushed._flusher.stop()
        for link in writer._links.values():
            with writer._unflushed.lock:
                link.close()
        writer._epoll.close()
        for channel in (self.worker, self._theirs, self._control):
            channel.close()

    def ended(self, seconds_max: float = 10) -> BaseException | None:
        """Wait until the writer's loop has ended, and say why."""
        self._thread.join(seconds_max)
        assert not self._thread.is_alive(), f"still serving after {seconds_max} s"
        return self.error

    def wait_for_guard(self) -> None:
        """Wait until the thread guards: the loop may make the next flush."""
        wait_for(lambda: self.writer._unflushed._flusher.may_flush_here, "the thread to guard")

    def produce(self, batch: bytes, acks: int = -1) -> int:
        """Send one batch; returns its token.  One at a time: it stands at the front of the arena."""
        token = next(self._tokens)
        self._arena[: len(batch)] = batch
        self.worker.send(Append([(token, acks, [0, len(batch)])]))
        return token

    def answer(self, token: int, seconds_max: float = 10) -> list[int]:
        """(error, base, end) of what was produced."""
        poll = select.poll()
        poll.register(self.worker.fileno(), select.POLLIN)
        while token not in self.answers():
            assert poll.poll(seconds_max * 1000), f"no answer within {seconds_max} s"
        return self._answers.pop(token)

    def answers(self) -> dict[int, list[int]]:
        """What has been answered, and not been asked for."""
        for message, _ in self.worker.receive(FROM_WRITER):
            assert isinstance(message, Appended)
            self._answers |= {number: numbers for number, numbers, _, _ in message.answers}
        return self._answers

    def order(self, message: ToWriter) -> None:
        """What the supervisor says."""
        self.supervisor.send(message)


def jumping(clock: Callable[[], int], jump_ms: list[int]) -> Callable[[], int]:
    """A clock that somebody sets: ``jump_ms[0]`` ahead of the true one."""
    return lambda: clock() + jump_ms[0]

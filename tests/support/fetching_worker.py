"""A network worker's fetches, with logs that are numbers, and clients that are lists of answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from appliance.log.page_cache import NotInMemory
from appliance.names import TopicPartition
from appliance.partition_states import ONLINE
from appliance.processes.connection import Lifetime
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.fetch_sessions import SESSION_PARTS_MAX, SESSIONS_MAX, FetchSessions
from appliance.processes.network.fetches import Fetches
from appliance.processes.network.known_partitions import WorkerPartition
from appliance.processes.network.wait_lists import DelayedRequest, WaitLists
from appliance.security.acls import UNRESTRICTED, Access
from appliance.shared.table import ROWS, SegmentTable
from appliance.wire.requests import (
    WITHOUT_SESSION,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    SessionReply,
    SessionStep,
)

WORKER = 3
WORKERS = 4
NOWHERE = Path("/nonexistent")
COLD_READS = ColdReads()


class Log:
    """A partition's log, all of which is one batch that grows.  ``looks``: how often it was looked at.

    ``cold``: what has to be brought into memory before it can be looked at; None: nothing.
    """

    def __init__(self, readable: int, part_bytes: int = 1 << 20) -> None:
        self.table = SegmentTable([0] * (ROWS + 4))
        self.table.publish([0], 0, readable, 0)
        self.table.set_state(ONLINE)
        self.looks, self._part_bytes = 0, part_bytes
        self.looked_bytes = 0
        self.cold: FileRange | None = None

    def locate_kept(self, bases: tuple[int, ...], end: int, offset: int, bytes_max: int) -> FileRange | None:
        self.looks += 1
        if self.cold is not None:
            raise NotInMemory(self.cold)
        return FileRange(cast(Any, None), offset, min(end - offset, bytes_max)) if offset < end else None

    def grow(self, size: int) -> None:
        self.table.publish_high_watermark(self.table.high_watermark + size, 0)


class Client(Lifetime):
    """A connection.  ``answers``: results and session of each reply, or the error of a refused fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.read_ns = 0
        self.codec, self.counters = self, self
        self.answers: list[Any] = []
        self.requests: list[Any] = []
        self.access: Access = UNRESTRICTED
        self.closed = False

    def end(self) -> None:
        self.closed = True
        super().end()

    def begin_request(self, pending: object) -> None:
        self.requests.append(pending)

    def failed(self, api: int, count: int = 1) -> None:
        pass

    def encode_fetch(self, request: Fetch, results: list[FetchResult], session: SessionReply | None) -> Any:
        return results, session

    def refuse_fetch(self, request: Fetch, error: int) -> Any:
        return error

    @property
    def delayed(self) -> Any:
        """The fetch that waits for news, if one does."""
        return next((thing for thing in self._owned if isinstance(thing, DelayedRequest)), None)

    @property
    def sizes(self) -> list[list[int]]:
        """The bytes of each part in each answer."""
        return [[result.size for result in answer[0]] for answer in self.answers if not isinstance(answer, int)]


class Worker:
    """A worker with partitions 0 and so on of one topic, and a client.

    ``busy``: its turns are over as soon as they have begun.  ``finish`` lets it have as many as it needs.
    """

    def __init__(
        self,
        logs: Sequence[Log],
        wait_lists: WaitLists | None = None,
        sessions_max: int = SESSIONS_MAX,
        parts_max: int = SESSION_PARTS_MAX,
        cold_reads: ColdReads = COLD_READS,
    ) -> None:
        self.asked: list[bool] = []
        self.busy = False
        self.turn: Any = SimpleNamespace(now_ms=0, stopping=False, is_over=lambda: self.busy)
        self.wait_lists = wait_lists or WaitLists(WORKER, self.turn.is_over)
        self.logs: dict[int, Log] = {}
        self.by_key: dict[tuple[str, int], WorkerPartition] = {}
        known: Any = SimpleNamespace(
            number=WORKER,
            changes=0,
            partitions_of=lambda request: [self._at(part) for part in request.parts],
            partition_of=self._at,
        )
        self._known = known
        for number, log in enumerate(logs):
            self.add(number, log)
        access: Any = lambda client: client.access  # noqa: E731
        self.sessions = FetchSessions(self.turn, known, self.wait_lists, access, sessions_max, parts_max)
        connections: Any = SimpleNamespace(defer_for_announcement=lambda *_: False, answer=self._answer)
        self.fetches = Fetches(self.turn, connections, known, self.wait_lists, self.sessions, cold_reads)
        self.client = Client()

    def _at(self, part: FetchPart) -> WorkerPartition | None:
        return self.by_key.get((part.topic, part.partition))

    def _answer(self, pending: Any, reply: Any) -> None:
        pending.connection.answers.append(reply[0] if isinstance(reply, list) else reply)

    def add(self, number: int, log: Log) -> None:
        """Add a partition, or one in the place of one that is deleted."""
        link: Any = SimpleNamespace(ask_for_flush=lambda written, now: self.asked.append(now))
        key = TopicPartition("t", number)
        self.logs[number] = log
        self._known.changes += 1
        self.by_key["t", number] = WorkerPartition(key, log.table, cast(Any, log), link, lambda *_: None, NOWHERE)

    def drop(self, number: int) -> None:
        """Delete a partition."""
        del self.logs[number]
        self._known.changes += 1
        self.wait_lists.drop(self.by_key.pop(("t", number)).wait_list)

    def parts(self, offsets: Sequence[int], part_bytes: int = 1 << 20) -> list[FetchPart]:
        return [FetchPart("t", number, offset, part_bytes) for number, offset in enumerate(offsets)]

    def fetch(
        self, offsets: Sequence[int], bytes_min: int, wait_ms: int = 500, part_bytes: int = 1 << 20, epoch: int = -1
    ) -> None:
        self.start(self.client, self.parts(offsets, part_bytes), bytes_min, wait_ms, SessionStep(0, epoch, []))

    def start(
        self,
        client: Client,
        parts: list[FetchPart],
        bytes_min: int = 1,
        wait_ms: int = 500,
        session: SessionStep = WITHOUT_SESSION,
    ) -> None:
        request = Fetch(None, wait_ms, bytes_min, 1 << 20, parts, session=session)
        assert self.fetches.start(cast(Any, client), request, 0, memoryview(b""))

    def ring(self, *numbers: int) -> None:
        self.wait_lists.retry_reached(self.by_key["t", number].wait_list.slot for number in numbers)

    def expire(self, client: Client) -> None:
        """The time of a client's fetch is up, if it waits."""
        if client.delayed is not None:
            self.fetches.answer_now(client.delayed)

    def step(self) -> None:
        """A turn in which nothing new happens."""
        self.wait_lists.retry_ready()
        self.fetches.go_on()

    def finish(self) -> int:
        """Let there be turns until nothing is left; how many."""
        turns = 0
        while self.fetches.unfinished or self.wait_lists.unfinished:
            self.step()
            turns += 1
        return turns

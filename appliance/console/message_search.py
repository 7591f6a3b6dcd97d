"""Looks for messages of a topic in bounded steps: newest or oldest first, by key and text, with a cursor to continue.

Offsets count bytes, so a *window* of a log is a range of offsets of a known size.  A step reads windows of each
partition, next to those of the step before, until it has found enough, has read STEP_BYTES_MAX, or STEP_S_MAX have
passed.  A window is read as a whole or not at all.  The cursor has the offset of each partition that is not finished::

    "n" newest first: messages below the offset are left      n.0-52811.3-901
    "o" oldest first: messages at or above it are left        o.1-4096

Messages of one step are in the order of their timestamps; each partition keeps its own order across steps.  Newest
first, messages that arrive later do not appear: the search begins at the ends of its first step.

A partition that cannot be read within READ_S_MAX is named in ``unreadable`` and left out; the others go on.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

from msgspec import Meta, Struct

from ..client import EARLIEST, LATEST, Consumer, Message
from ..client.cluster_client import Cluster
from ..errors import ApplianceError, InvalidRequest, UnknownPartition
from ..names import TOPIC_PATTERN

KIB: Final = 1024
STEP_BYTES_MAX: Final = 32 * KIB * KIB
STEP_S_MAX: Final = 0.5
READ_S_MAX: Final = 2.0
POLL_S: Final = 0.2
REQUEST_MS_MAX: Final = 5_000
CLIENT_NAME: Final = "appliance-console"
WINDOW_BYTES_MIN: Final = 16 * KIB
WINDOW_BYTES_MAX: Final = 1024 * KIB
FIRST_BYTES: Final = 256 * KIB
"""Shared by the first windows of all partitions, when nothing is filtered."""
PARTITIONS_MAX: Final = 512
"""Of one search; more make a cursor that is longer than an address may be."""
FOUND_MAX: Final = 200
POLLED_MAX: Final = 5_000
CURSOR: Final = re.compile(r"[no](\.\d{1,6}-\d{1,19}){1,512}")
Text = Annotated[str, Meta(max_length=1_000)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Bounds = Mapping[int, tuple[int, int]]
"""Partition → its first offset and its end."""


class Query(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to look for.  ``time_ms`` and ``offset`` say where to begin, by default at the end that ``order`` names."""

    topic: Annotated[str, Meta(pattern=TOPIC_PATTERN)]
    partition: Annotated[int, Meta(ge=0, le=999_999)] | None = None
    order: Literal["newest", "oldest"] = "newest"
    time_ms: Offset | None = None
    offset: Offset | None = None
    key: Text = ""
    text: Text = ""
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 50
    cursor: Annotated[str, Meta(max_length=16 * KIB)] = ""


class Found(NamedTuple):
    """The result of one step.  ``cursor``: "" when all is read; ``reached_ms``: time of the last message read."""

    messages: list[Message]
    cursor: str
    scanned: int
    scanned_bytes: int
    reached_ms: int | None
    damaged: int
    unreadable: dict[int, str]


class Log(Protocol):
    """Where messages come from."""

    @property
    def damaged(self) -> int:
        """Damaged batches that were skipped."""

    def partitions(self, topic: str) -> int: ...

    def offsets(self, topic: str, partitions: list[int], when: int) -> tuple[dict[int, int], dict[int, str]]:
        """The offsets of EARLIEST, LATEST or a time; and why those of other partitions are not known."""

    def read(self, topic: str, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        """Yields messages from ``start`` to ``stop``, and perhaps some behind.  Raises ApplianceError."""


def parse_cursor(text: str) -> dict[int, int]:
    """The offset of each partition.

    Raises:
        InvalidRequest: not a cursor that :func:`cursor_text` has made.
    """
    if not CURSOR.fullmatch(text):
        raise InvalidRequest("not a cursor of a search: search again")
    pairs = (part.split("-") for part in text.split(".")[1:])
    return {int(partition): int(offset) for partition, offset in pairs}


def cursor_text(newest: bool, left: Mapping[int, int]) -> str:
    places = [f"{partition}-{offset}" for partition, offset in sorted(left.items())]
    return ".".join(["n" if newest else "o", *places]) if places else ""


class Search:
    """One step of a search."""

    def __init__(self, query: Query, log: Log, clock: Callable[[], float]) -> None:
        self._query, self._log, self._clock = query, log, clock
        self._newest = query.order == "newest"
        self._key, self._text = query.key.lower().encode(), query.text.lower().encode()
        self._matches: dict[int, list[Message]] = {}
        self._scanned = self._bytes = 0
        self._reached_ms: int | None = None
        self._unreadable: dict[int, str] = {}

    def step(self) -> Found:
        """Read until enough is found, or a bound is reached.

        Raises:
            UnknownPartition: there is no such topic or partition.
            InvalidRequest: the query contradicts itself.
        """
        bounds, left = self._begin()
        deadline_s = self._clock() + STEP_S_MAX
        size = self._first_size(len(left))
        while left and self._found < self._query.limit and self._bytes < STEP_BYTES_MAX and self._clock() < deadline_s:
            for partition in sorted(left):
                if self._clock() >= deadline_s:
                    break
                self._read_window(partition, left, bounds[partition], size)
            size = min(size * 2, WINDOW_BYTES_MAX)
        messages = self._first(left)
        return Found(
            messages,
            cursor_text(self._newest, left),
            *(self._scanned, self._bytes, self._reached_ms, self._log.damaged, self._unreadable),
        )

    @property
    def _found(self) -> int:
        return sum(map(len, self._matches.values()))

    def _begin(self) -> tuple[Bounds, dict[int, int]]:
        """The bounds of the partitions, and where to continue in those that are not finished."""
        query, log = self._query, self._log
        count = log.partitions(query.topic)
        if query.partition is not None and query.partition >= count:
            raise UnknownPartition(f"topic {query.topic!r} has the partitions 0 to {count - 1}, not {query.partition}")
        if query.cursor:
            left = parse_cursor(query.cursor)
            if (query.cursor[0] == "n") != self._newest or max(left) >= count:
                raise InvalidRequest("the cursor belongs to another search: search again")
        else:
            chosen = list(range(count)) if query.partition is None else [query.partition]
            if len(chosen) > PARTITIONS_MAX:
                raise InvalidRequest(f"{query.topic} has {count} partitions: choose one of them")
            left = self._starts(chosen)
        starts = self._offsets(sorted(left), EARLIEST)
        ends = self._offsets(sorted(starts), LATEST)
        bounds = {partition: (starts[partition], end) for partition, end in ends.items()}
        inside = {partition: min(max(left[partition], first), end) for partition, (first, end) in bounds.items()}
        return bounds, {part: at for part, at in inside.items() if at != bounds[part][0 if self._newest else 1]}

    def _starts(self, chosen: list[int]) -> dict[int, int]:
        query = self._query
        if query.offset is not None:
            if len(chosen) != 1:
                raise InvalidRequest("an offset belongs to one partition: choose the partition, too")
            return {chosen[0]: query.offset + (1 if self._newest else 0)}
        if query.time_ms is not None:
            return self._offsets(chosen, query.time_ms)
        return self._offsets(chosen, LATEST if self._newest else EARLIEST)

    def _offsets(self, partitions: list[int], when: int) -> dict[int, int]:
        found, failed = self._log.offsets(self._query.topic, partitions, when)
        self._unreadable |= failed
        return found

    def _first_size(self, count: int) -> int:
        if self._key or self._text:
            return WINDOW_BYTES_MAX
        return max(FIRST_BYTES // max(1, count), WINDOW_BYTES_MIN)

    def _read_window(self, partition: int, left: dict[int, int], bounds: tuple[int, int], size: int) -> None:
        """Read the next window of a partition, and move its place in ``left``; drop it there when it is finished."""
        first, end = bounds
        at = left[partition]
        start, stop = (max(first, at - size), at) if self._newest else (at, min(end, at + size))
        found: list[Message] = []
        count, reached = 0, list[int]()
        try:
            for messages in self._log.read(self._query.topic, partition, start, stop):
                inside = [message for message in messages if start <= message.offset < stop]
                found += filter(self._fits, inside)
                count += len(inside)
                if inside and not (self._newest and reached):
                    reached = [inside[0 if self._newest else -1].timestamp]
        except ApplianceError as error:
            self._unreadable[partition] = str(error)
            del left[partition]
            return
        self._bytes += stop - start
        self._scanned += count
        self._reached_ms = reached[0] if reached else self._reached_ms
        if found:
            self._matches.setdefault(partition, []).extend(found)
        left[partition] = start if self._newest else stop
        if left[partition] == (first if self._newest else end):
            del left[partition]

    def _fits(self, message: Message) -> bool:
        if self._key and (message.key is None or self._key not in message.key.lower()):
            return False
        return not self._text or (message.value is not None and self._text in message.value.lower())

    def _first(self, left: dict[int, int]) -> list[Message]:
        """The first ``limit`` of what was found; ``left`` is moved back to what is not among them.

        The partitions are merged by timestamp.  Each keeps its order, also where its timestamps go back.
        """
        sign = -1 if self._newest else 1
        for found in self._matches.values():
            found.sort(key=lambda message: sign * message.offset)
        merged = heapq.merge(*self._matches.values(), key=lambda message: sign * message.timestamp)
        chosen = list(itertools.islice(merged, self._query.limit))
        for message in merged:
            at, partition = message.offset + (1 if self._newest else 0), message.partition
            known = left.get(partition)
            left[partition] = at if known is None else (max if self._newest else min)(known, at)
        return chosen


class ConsumedLog:
    """Reads the logs of an appliance with a client, which is closed at the end."""

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cluster = Cluster(address, client_name=CLIENT_NAME, request_timeout_ms=REQUEST_MS_MAX)
        self._consumer = Consumer(
            address,
            client_name=CLIENT_NAME,
            on_out_of_range="earliest",
            on_corrupt="skip",
            partition_bytes_max=WINDOW_BYTES_MAX // 4,
            total_bytes_max=4 * WINDOW_BYTES_MAX,
            wait_ms_max=100,
            request_timeout_ms=REQUEST_MS_MAX,
        )

    def __enter__(self) -> ConsumedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._cluster.close()

    @property
    def damaged(self) -> int:
        return self._consumer.corrupt_batches

    def partitions(self, topic: str) -> int:
        self._cluster.refresh([topic])
        return len(self._cluster.topic(topic).leaders)

    def offsets(self, topic: str, partitions: list[int], when: int) -> tuple[dict[int, int], dict[int, str]]:
        found, failed = self._cluster.try_offsets({(topic, partition): when for partition in partitions})
        known = {partition: offset for (_, partition), offset in found.items()}
        return known, {partition: str(error) for (_, partition), error in failed.items()}

    def read(self, topic: str, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        consumer, part = self._consumer, (topic, partition)
        consumer.assign({part: start})
        silent_s = self._clock()
        while consumer.positions().get(part, start) < stop:
            messages = consumer.poll(POLL_S, POLLED_MAX)
            if messages:
                yield messages
                silent_s = self._clock()
            elif self._clock() - silent_s > READ_S_MAX:
                for trouble in consumer.troubles():
                    raise trouble.error
                return  # the rest of the window has no messages


def shown(message: Message, bytes_max: int) -> dict[str, Any]:
    """A message as JSON, at most ``bytes_max`` bytes of its value, and of its key and headers."""
    return {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": _shown_bytes(message.key, bytes_max),
        "value": _shown_bytes(message.value, bytes_max),
        "headers": [
            {"name": name[:1_000], **(_shown_bytes(value, KIB) or {})} for name, value in message.headers[:100]
        ],
    }


def _shown_bytes(value: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """``text`` if it is UTF-8, else ``hex``; ``bytes``: its whole size."""
    if value is None:
        return None
    first = value[:bytes_max]
    size = {"bytes": len(value)}
    try:
        return {"text": first.decode(), **size}
    except UnicodeDecodeError as error:
        if len(value) > bytes_max and error.start > bytes_max - 4:  # cut inside of a character
            return {"text": first[: error.start].decode(), **size}
    return {"hex": first.hex(" "), **size}

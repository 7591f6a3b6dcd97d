"""Looks for messages of topics in bounded steps: newest or oldest first, by key and text, with a cursor to continue.

Offsets count bytes, so a *window* of a log is a range of offsets of a known size.  A step reads windows of each
partition in turn, next to those of the step before, until it has found enough, has read STEP_BYTES_MAX, which have
unpacked to UNPACKED_BYTES_MAX, has decoded values to as many bytes, or STEP_MS_MAX have passed.  One topic or many: a
step has the same bounds, and the next one begins with the partition that has waited longest.

The batches of a window are unpacked one by one, newest first from its end, so a step can stop behind any batch, and
unpacks no batch that it does not search.  Where an expression or a field is looked for, which may take long, a step can
also stop behind any message.  A batch that unpacks to more than BATCH_BYTES_MAX is stepped over and counted.

The cursor has the topic and the offset of each partition that is not finished, in the order in which they are read
on::

    "n" newest first: messages below the offset are left      n,web:0-52811.3-901,app:0-17
    "o" oldest first: messages at or above it are left        o,web:1-4096

With ``follow`` no partition is ever finished: the cursor keeps those at their ends, and the next step goes on with what
has arrived there.  Without a place to begin it begins at the ends.

Messages of one step are in the order of their timestamps; each partition keeps its own order across steps.  Newest
first, messages that arrive later do not appear: the search begins at the ends of its first step.

With ``until_ms`` only messages of before then are found.  What lies behind the first later message of a partition is
not read, as with ``appliance tail --until``: a producer's times may go back, but mostly do not.

Values are decoded, and what a mask hides is hidden, before anything is looked for: no search can guess it.

A partition that cannot be read within READ_S_MAX is named in ``unreadable`` and left out; the others go on.

``topics`` of a query are names, or patterns that stand for the topics that are there when the search begins; from then
on the cursor says which.  Whoever makes a :class:`Search` has checked that all of them may be read.
"""

from __future__ import annotations

import heapq
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

from msgspec import Meta, Struct

from ..client import EARLIEST, LATEST, Message
from ..client.cluster_client import Cluster
from ..client.damage_reports import DamageReports
from ..client.decoder import ChunkDecoder, single_batches
from ..client.fetcher import Chunk, Fetcher, FetchOptions
from ..errors import ApplianceError, InvalidRequest, UnknownPartition
from ..names import TOPIC_CHARACTERS_MAX, TopicPartition
from ..records.value_filter import make_select
from ..topic_rules import topics_pattern
from .value_decoding import MessageView

KIB: Final = 1024
STEP_BYTES_MAX: Final = 32 * KIB * KIB
STEP_MS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 16 * KIB * KIB
"""Bytes that a batch may unpack to; a larger one is stepped over."""
UNPACKED_BYTES_MAX: Final = 32 * KIB * KIB
"""Bytes that one step unpacks, with what Python needs for each message; the last batch may go beyond it."""
READ_S_MAX: Final = 2.0
POLL_S: Final = 0.2
REQUEST_MS_MAX: Final = 5_000
CLIENT_NAME: Final = "appliance-console"
WINDOW_BYTES_MIN: Final = 16 * KIB
WINDOW_BYTES_MAX: Final = 1024 * KIB
OPTIONS: Final = FetchOptions(
    bytes_max=4 * WINDOW_BYTES_MAX,
    partition_bytes_max=WINDOW_BYTES_MAX // 4,
    buffer_bytes_max=2 * WINDOW_BYTES_MAX,
    total_bytes_max=4 * WINDOW_BYTES_MAX,
    wait_ms_max=100,
    bytes_min=1,
    request_timeout_ms=REQUEST_MS_MAX,
    reset="earliest",
)
FIRST_BYTES: Final = 256 * KIB
"""Shared by the first windows of all partitions, when nothing is filtered."""
TOPICS_MAX: Final = 20
PARTITIONS_MAX: Final = 512
"""Partitions of one search; more, or more topics, would make a cursor longer than an address may be."""
FOUND_MAX: Final = 200
PATTERN_MEMORY_BYTES_MAX: Final = 32 * KIB
"""Memory of RE2 for a program and its cache: some 1,000 instructions.  Where its cache does not help, each byte costs
time for each of them.  Expressions that people write need a tenth of it."""
EXPRESSION_STEPS_MAX: Final = 1 << 26
"""Instructions of an expression times bytes of one value: about 0.3 s where no cache of RE2 helps.  An expression of 64
instructions, as people write, is applied to values of up to 1 MiB."""
POLLED_MAX: Final = 5_000
TOPIC: Final = rf"[a-zA-Z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}"
NAME_OR_PATTERN: Final = rf"[a-zA-Z0-9._*-]{{1,{TOPIC_CHARACTERS_MAX}}}"
CURSOR: Final = re.compile(rf"[no](,{TOPIC}:\d{{1,6}}-\d{{1,19}}(\.\d{{1,6}}-\d{{1,19}})*)+")
SearchText = Annotated[str, Meta(max_length=1_000)]
CursorOffset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PartitionNumber = Annotated[int, Meta(ge=0, le=999_999)]

LogBounds = Mapping[TopicPartition, tuple[int, int]]
"""Partition → its first offset and its end."""
Places = dict[TopicPartition, int]
"""The offset at which each partition is read on, in the order in which they are."""


class Query(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to look for.  ``time_ms`` and ``offset`` say where to begin, by default at the end that ``order`` names."""

    topics: Annotated[str, Meta(pattern=rf"\A{NAME_OR_PATTERN}(, ?{NAME_OR_PATTERN})*\Z", max_length=8 * KIB)]
    """Names and patterns, with commas between: ``web,app-*``."""
    partition: PartitionNumber | None = None
    order: Literal["newest", "oldest"] = "newest"
    time_ms: CursorOffset | None = None
    offset: CursorOffset | None = None
    until_ms: CursorOffset | None = None
    """Only messages of before this time."""
    key: SearchText = ""
    text: SearchText = ""
    match: SearchText = ""
    """A regular expression (RE2) that is found in the value."""
    field: SearchText = ""
    """``NAME=TEXT``: a field of a value that is JSON or ``key=value`` text."""
    follow: bool = False
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 50
    cursor: Annotated[str, Meta(max_length=20 * KIB)] = ""

    @property
    def names(self) -> list[str]:
        """The names and patterns of ``topics``."""
        return [name.strip() for name in self.topics.split(",")]


class StepResult(NamedTuple):
    """The result of one step.  ``cursor``: "" when all is read; ``reached_ms``: time of the last message read."""

    messages: list[Message]
    cursor: str
    scanned: int
    scanned_bytes: int
    reached_ms: int | None
    damaged: int
    too_large: int
    too_costly: int
    unreadable: dict[TopicPartition, str]


class SearchedBatch(NamedTuple):
    """The messages of a batch, none if it is stepped over, and its place in the log: ``start`` to ``stop``."""

    messages: list[Message]
    start: int
    stop: int


class SearchedLog(Protocol):
    """Where messages come from."""

    @property
    def damaged(self) -> int:
        """Damaged batches that were skipped."""

    @property
    def too_large(self) -> int:
        """Batches that were skipped since they unpack to more than BATCH_BYTES_MAX."""

    @property
    def unpacked_bytes(self) -> int:
        """What has been unpacked so far."""

    def topics(self) -> Iterable[str]:
        """The names of all topics."""

    def partitions(self, topic: str) -> int: ...

    def offsets(self, parts: Sequence[TopicPartition], when: int) -> tuple[Places, dict[TopicPartition, str]]:
        """The offsets of EARLIEST, LATEST or a time; and why those of other partitions are not known."""

    def read(self, part: TopicPartition, start: int, stop: int, *, newest_first: bool) -> Iterator[SearchedBatch]:
        """Yields the batches that have a part of ``start`` to ``stop``; each is unpacked when it is its turn.

        Raises:
            ApplianceError: the partition cannot be read.
        """


def chosen_topics(query: Query, log: SearchedLog, may_read: Callable[[str], bool]) -> list[str]:
    """The topics of a search, those of its cursor if it goes on.

    ``may_read`` says of a topic that a pattern stands for whether it is among them; whether a name may be read has to
    be checked for all that are returned.

    Raises:
        InvalidRequest: they are none, or too many; or no cursor of this search.
    """
    patterns = [topics_pattern(name) for name in query.names]
    if query.cursor:
        topics = sorted({part.topic for part in parse_cursor(query.cursor)})
        if not all(any(pattern.fullmatch(topic) for pattern in patterns) for topic in topics):
            raise InvalidRequest("the cursor belongs to another search: search again")
    else:
        chosen = {name for name in query.names if "*" not in name}
        if len(chosen) < len(query.names):
            others = filter(may_read, (set(log.topics()) - chosen))
            chosen.update(topic for topic in others if any(pattern.fullmatch(topic) for pattern in patterns))
        topics = sorted(chosen)
    if not topics:
        raise InvalidRequest(f"{query.topics:.300}: no topic that you may read has such a name")
    if len(topics) > TOPICS_MAX:
        raise InvalidRequest(f"{query.topics:.300} stands for {len(topics)} topics: name {TOPICS_MAX} at most")
    return topics


def parse_cursor(text: str) -> Places:
    """The offset of each partition.

    Raises:
        InvalidRequest: not a cursor that :func:`cursor_text` has made.
    """
    if not CURSOR.fullmatch(text):
        raise InvalidRequest("not a cursor of a search: search again")
    places: Places = {}
    for of_topic in text.split(",")[1:]:
        topic, _, offsets = of_topic.partition(":")
        for partition, offset in (pair.split("-") for pair in offsets.split(".")):
            places[TopicPartition(topic, int(partition))] = int(offset)
    if len(places) > PARTITIONS_MAX:
        raise InvalidRequest("not a cursor of a search: search again")
    return places


def cursor_text(newest: bool, next_offsets: Mapping[TopicPartition, int]) -> str:
    if not next_offsets:
        return ""
    by_topic = [
        f"{topic}:" + ".".join(f"{part.partition}-{offset}" for part, offset in places)
        for topic, places in itertools.groupby(next_offsets.items(), lambda place: place[0].topic)
    ]
    return ",".join(["n" if newest else "o", *by_topic])


def moved_back(cursor: str, messages: Iterable[Message], *, newest: bool) -> str:
    """The cursor of a search that has not seen these messages."""
    places = parse_cursor(cursor) if cursor else {}
    _move_back(places, messages, newest=newest)
    return cursor_text(newest, places)


def _part_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def _move_back(places: Places, messages: Iterable[Message], *, newest: bool) -> None:
    for message in messages:
        at, part = message.offset + (1 if newest else 0), _part_of(message)
        place = places.get(part)
        places[part] = at if place is None else (max if newest else min)(place, at)


class Search:
    """Does one step of a search; the cursor of what it returns begins the next."""

    def __init__(
        self,
        query: Query,
        topics: Sequence[str],
        log: SearchedLog,
        clock: Callable[[], float],
        view_of_topic: Callable[[str], MessageView],
    ) -> None:
        """``topics``: of :func:`chosen_topics`; ``view_of_topic``: how the messages of a topic are shown."""
        self._query, self._topics, self._log, self._clock = query, topics, log, clock
        self._views = {topic: view_of_topic(topic) for topic in topics}
        self._newest = query.order == "newest"
        self._key, self._text = query.key.lower().encode(), query.text.lower().encode()
        self._select, self._value_bytes_max = _select(query)
        self._until_ms = sys.maxsize if query.until_ms is None else query.until_ms
        self._is_filtered = bool(self._key or self._text or self._select)
        self._too_costly = 0
        self._ended: Places = {}
        """Where partitions have ended, or could not be read, for who follows."""
        self._matches: dict[TopicPartition, list[Message]] = {}
        self._scanned = self._bytes = 0
        self._reached_ms: int | None = None
        self._unreadable: dict[TopicPartition, str] = {}
        self._deadline_s = 0.0
        self._enough = 0
        self._shown_bytes = 0
        """Of values that were decoded: they may be many times as long as what was unpacked."""

    def step(self) -> StepResult:
        """Read until enough is found, or a bound is reached.

        Raises:
            UnknownPartition: there is no such topic or partition.
            InvalidRequest: the query contradicts itself.
        """
        bounds, places = self._begin()
        self._deadline_s = self._clock() + STEP_MS_MAX / 1000
        self._enough = self._log.unpacked_bytes + UNPACKED_BYTES_MAX
        size = self._first_size(len(places))
        while places and self._found < self._query.limit and self._bytes < STEP_BYTES_MAX:
            for part in list(places):
                if self._bytes and self._is_over:
                    break
                self._read_window(part, places, bounds[part], size)
            if self._bytes and self._is_over:
                break
            size = min(size * 2, WINDOW_BYTES_MAX)
        messages = self._first(places)
        return StepResult(
            messages,
            cursor_text(self._newest, {**places, **self._ended, **places} if self._query.follow else places),
            *(self._scanned, self._bytes, self._reached_ms),
            *(self._log.damaged, self._log.too_large),
            *(self._too_costly, self._unreadable),
        )

    @property
    def _is_over(self) -> bool:
        """Whether the step has taken what it may: time, or room for what it unpacks."""
        return self._clock() >= self._deadline_s or self._log.unpacked_bytes >= self._enough or self._shows_enough

    @property
    def _shows_enough(self) -> bool:
        return self._shown_bytes >= UNPACKED_BYTES_MAX

    @property
    def _found(self) -> int:
        return sum(map(len, self._matches.values()))

    def _begin(self) -> tuple[LogBounds, Places]:
        """The bounds of the partitions, and where to continue in those that are not finished."""
        query = self._query
        if query.follow and self._newest:
            raise InvalidRequest("who follows reads the oldest first")
        if query.follow and query.until_ms is not None:
            raise InvalidRequest("what arrives has no end: leave out the end, or begin elsewhere")
        if query.time_ms is not None and query.time_ms > self._until_ms:
            raise InvalidRequest("the end lies before the beginning: exchange them")
        counts = {topic: self._log.partitions(topic) for topic in self._topics}
        if query.cursor:
            places = parse_cursor(query.cursor)
            beyond = any(part.partition >= counts.get(part.topic, 0) for part in places)
            if (query.cursor[0] == "n") != self._newest or beyond:
                raise InvalidRequest("the cursor belongs to another search: search again")
        else:
            places = self._starts(self._chosen_parts(counts))
        starts = self._offsets(list(places), EARLIEST)
        ends = self._offsets(list(starts), LATEST if query.until_ms is None else query.until_ms)
        bounds = {part: (starts[part], ends[part]) for part in places if part in starts and part in ends}
        inside = {part: min(max(places[part], first), end) for part, (first, end) in bounds.items()}
        self._ended = {**places, **inside}
        return bounds, {part: at for part, at in inside.items() if at != bounds[part][0 if self._newest else 1]}

    def _chosen_parts(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """The partitions that are searched.

        Raises:
            UnknownPartition, InvalidRequest: see the message.
        """
        partition = self._query.partition
        if partition is None:
            parts = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
            if len(parts) > PARTITIONS_MAX:
                raise InvalidRequest(
                    f"{self._query.topics:.300}: {len(parts)} partitions are more than a search reads"
                    f" ({PARTITIONS_MAX}): choose one partition, or fewer topics"
                )
            return parts
        if len(counts) > 1:
            raise InvalidRequest("a partition belongs to one topic: name one")
        ((topic, count),) = counts.items()
        if partition >= count:
            raise UnknownPartition(f"topic {topic!r} has the partitions 0 to {count - 1}, not {partition}")
        return [TopicPartition(topic, partition)]

    def _starts(self, chosen: list[TopicPartition]) -> Places:
        query = self._query
        if query.offset is not None:
            if len(chosen) != 1:
                raise InvalidRequest("an offset belongs to one partition: choose the partition, too")
            return {chosen[0]: query.offset + (1 if self._newest else 0)}
        if query.time_ms is not None:
            return self._offsets(chosen, query.time_ms)
        return self._offsets(chosen, LATEST if self._newest or query.follow else EARLIEST)

    def _offsets(self, parts: list[TopicPartition], when: int) -> Places:
        offsets, failed = self._log.offsets(parts, when)
        self._unreadable |= failed
        return {part: offsets[part] for part in parts if part in offsets}

    def _first_size(self, count: int) -> int:
        if self._is_filtered:
            return WINDOW_BYTES_MAX
        return max(FIRST_BYTES // max(1, count), WINDOW_BYTES_MIN)

    def _read_window(self, part: TopicPartition, places: Places, bounds: tuple[int, int], size: int) -> None:
        """Read on in a partition, batch by batch, for ``size`` bytes or until the step is over.

        Moves the partition's place in ``places`` behind what is read, and behind the others, whose turn is next; drops
        it there when it is finished.
        """
        view = self._views[part.topic]
        first, end = bounds
        at = places.pop(part)
        start, stop = (max(first, at - size), at) if self._newest else (at, min(end, at + size))
        lowest, above = (first, at) if self._newest else (at, end)
        reached, target = at, start if self._newest else stop
        try:
            for batch in self._log.read(part, start, stop, newest_first=self._newest):
                inside = [message for message in batch.messages if lowest <= message.offset < above]
                if self._newest:
                    inside.reverse()
                matching, count = self._chosen(inside, view)
                self._scanned += count
                if matching:
                    self._matches.setdefault(part, []).extend(matching)
                if inside:
                    self._reached_ms = inside[count - 1].timestamp
                if count < len(inside):
                    reached = inside[count - 1].offset + (0 if self._newest else 1)
                    break
                reached = batch.start if self._newest else batch.stop
                if self._is_over:
                    break
            else:  # a batch may stand on both sides of the border, and there may be none
                reached = min(reached, target) if self._newest else max(reached, target)
        except ApplianceError as error:
            self._unreadable[part] = str(error)
            return
        reached = min(max(reached, first), end)
        self._bytes += abs(reached - at)
        self._ended[part] = reached
        if reached != (first if self._newest else end):
            places[part] = reached

    def _chosen(self, messages: list[Message], view: MessageView) -> tuple[list[Message], int]:
        """The messages that match, and how many were looked at: all, or until the step is over."""
        changes = self._is_filtered and not view.is_plain
        if self._select is None and not changes:
            return list(filter(self._fits, messages)), len(messages)
        # A batch is unpacked again by each step that goes on in it, so it has the time of a step for itself.
        until_s = max(self._deadline_s, self._clock() + STEP_MS_MAX / 1000)
        matching: list[Message] = []
        for count, whole in enumerate(messages, 1):
            message = view.show_message(whole) if changes else whole
            if not self._fits(message):
                pass
            elif len(message.value or b"") > self._value_bytes_max:
                self._too_costly += 1
            elif self._select is None or self._select([message.value]):
                matching.append(message)
                self._shown_bytes += len(message.value or b"") * changes
            if self._clock() >= until_s or self._shows_enough:
                return matching, count
        return matching, len(messages)

    def _fits(self, message: Message) -> bool:
        if message.timestamp >= self._until_ms:
            return False
        if self._key and (message.key is None or self._key not in message.key.lower()):
            return False
        return not self._text or (message.value is not None and self._text in message.value.lower())

    def _first(self, places: Places) -> list[Message]:
        """The first ``limit`` of what was found; ``places`` is moved back to what is not among them.

        The partitions are merged by timestamp.  Each keeps its order, also where its timestamps go back.
        """
        sign = -1 if self._newest else 1
        for matching in self._matches.values():
            matching.sort(key=lambda message: sign * message.offset)
        merged = heapq.merge(*self._matches.values(), key=lambda message: sign * message.timestamp)
        chosen = itertools.islice(merged, self._query.limit)
        plain = self._is_filtered or all(view.is_plain for view in self._views.values())
        messages = list(chosen if plain else self._viewed(chosen))
        _move_back(places, merged, newest=self._newest)
        return messages

    def _viewed(self, messages: Iterable[Message]) -> Iterator[Message]:
        """The first of them as they are shown: those for which there is time and room, and one at least."""
        until_s = max(self._deadline_s, self._clock() + STEP_MS_MAX / 1000)
        for whole in messages:
            message = self._views[whole.topic].show_message(whole)
            self._shown_bytes += len(message.value or b"")
            yield message
            if self._clock() >= until_s or self._shows_enough:
                return


def _select(query: Query) -> tuple[Callable[[Sequence[bytes | None]], list[int]] | None, int]:
    """What chooses values by ``match`` and ``field``, None: all; and the largest value to which it may be applied.

    Raises:
        InvalidRequest: the expression or the field is none.
    """
    search, value_bytes_max = None, sys.maxsize
    if query.match:
        import re2  # 4 MB, for who asks for it

        options = re2.Options()
        options.log_errors, options.max_mem = False, PATTERN_MEMORY_BYTES_MAX
        options.encoding = re2.Options.Encoding.LATIN1  # values are bytes
        try:
            compiled = re2.compile(query.match.encode(), options)
            search, value_bytes_max = compiled.search, EXPRESSION_STEPS_MAX // compiled.programsize
        except re2.error as error:
            why = error.args[0].decode(errors="replace") if error.args else ""
            raise InvalidRequest(f"{query.match!r:.300} is no regular expression: {why}") from None
    try:
        return make_select(search, [query.field] if query.field else []), value_bytes_max
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


class ConsumedLog:
    """Reads the logs of an appliance with a client, which is closed at the end."""

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cluster = Cluster(address, client_name=CLIENT_NAME, request_timeout_ms=REQUEST_MS_MAX)
        self._fetcher = Fetcher(self._cluster, OPTIONS, clock=clock)
        reports = DamageReports(self._cluster, clock)
        self._decoder = ChunkDecoder(reports, BATCH_BYTES_MAX, check_crc=True, on_corrupt="skip")

    def __enter__(self) -> ConsumedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._fetcher.close()
        self._cluster.close()

    @property
    def damaged(self) -> int:
        return self._decoder.corrupt_batches

    @property
    def too_large(self) -> int:
        return self._decoder.large_batches

    @property
    def unpacked_bytes(self) -> int:
        return self._decoder.unpacked_bytes

    def topics(self) -> Iterable[str]:
        return self._cluster.refresh(None).topics

    def partitions(self, topic: str) -> int:
        self._cluster.refresh([topic])
        return len(self._cluster.topic(topic).leaders)

    def offsets(self, parts: Sequence[TopicPartition], when: int) -> tuple[Places, dict[TopicPartition, str]]:
        offsets, failed = self._cluster.try_offsets(dict.fromkeys(parts, when))
        known = {TopicPartition(*part): offset for part, offset in offsets.items()}
        return known, {TopicPartition(*part): str(error) for part, error in failed.items()}

    def read(self, part: TopicPartition, start: int, stop: int, *, newest_first: bool) -> Iterator[SearchedBatch]:
        batches = self._fetch(part, start, stop)
        for batch in reversed(batches) if newest_first else batches:
            yield SearchedBatch(self._decoder.messages(batch) or [], batch.start_offset, batch.stop_offset)

    def _fetch(self, part: TopicPartition, start: int, stop: int) -> list[Chunk]:
        """The batches from ``start`` to ``stop``, still packed, each as a chunk of its own."""
        fetcher = self._fetcher
        fetcher.assign({})
        fetcher.assign({part: start})
        batches: list[Chunk] = []
        silent_s = self._clock()
        while fetcher.next_offset(part) < stop:
            chunks = fetcher.poll(POLL_S)
            for chunk in chunks:
                batches += single_batches(chunk)
                chunk.release()
                silent_s = self._clock()
            if not chunks and self._clock() - silent_s > READ_S_MAX:
                for trouble in fetcher.troubles.current():
                    raise trouble.error
                break  # the rest of the window has no messages
        fetcher.assign({})
        return [batch for batch in batches if batch.start_offset < stop]


def shown(message: Message, bytes_max: int) -> dict[str, Any]:
    """A message as JSON, at most ``bytes_max`` bytes of its value, and of its key and headers."""
    return {
        "topic": message.topic,
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

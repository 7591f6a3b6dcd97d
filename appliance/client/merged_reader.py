"""Reads several partitions as one stream, in the order of the messages' times.

Example::

    with MergedReader("127.0.0.1:9091", select=lambda values: [0]) as reader:
        spans = {("web", 0): Span(0, 4711), ("app", 0): Span(0, 99)}
        newest = reader.last(10, spans)
        for messages in reader.between(spans):
            ...
        for messages in reader.follow({("web", 0): 4711}):
            ...

A span is from an offset up to another one, which readers may read already.  Within a partition messages keep the order
of the log, whatever their times; between partitions the one with the older next message comes first.  Messages that are
followed come as they arrive: those that arrive together are sorted.  A message without a time (Kafka's -1) stands
behind the one before it in its partition.

Bounded memory: one batch of each partition is decoded, of at most UNPACKED_BYTES_MAX, and the fetcher bounds what is
not; when messages are followed, as much of all of them together.  ``select`` decides by the values alone, so that a
batch without a match is never decoded to messages.

A partition that cannot be read for :data:`PATIENCE_S` is left out of a span, so that the others are read; ``left_out``
has its error.  A damaged batch is skipped and counted.

Not thread-safe.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from ..errors import ApplianceError
from .cluster_client import Cluster
from .damage_reports import DamageReports
from .decoder import ChunkDecoder, Message, Select
from .fetcher import Chunk, Fetcher, FetchOptions
from .troubles import Trouble

TopicAndPartition = tuple[str, int]
PATIENCE_S: Final = 3.0
POLL_S: Final = 0.5
NO_TIME: Final = -1
MEBIBYTE: Final = 1024 * 1024
OPTIONS: Final = FetchOptions(
    bytes_max=8 * MEBIBYTE,
    partition_bytes_max=2 * MEBIBYTE,
    buffer_bytes_max=4 * MEBIBYTE,
    total_bytes_max=64 * MEBIBYTE,
    wait_ms_max=500,
    bytes_min=1,
    request_timeout_ms=30_000,
    reset="earliest",
)
UNPACKED_BYTES_MAX: Final = 16 * MEBIBYTE
"""A batch that unpacks to more is skipped and counted, as a damaged one."""
LAST_BYTES: Final = 64 * 1024
"""How far before the end of a span :meth:`MergedReader.last` looks first; then four times as far, and so on."""


class ReadSpan(NamedTuple):
    """Offsets from ``start`` up to ``stop``, which is not included."""

    start: int
    stop: int


class _Source:
    """One partition that is read: chunks that arrived, and the messages of the batch that is decoded."""

    def __init__(self, span: ReadSpan) -> None:
        self.span = span
        self.chunks: deque[Chunk] = deque()
        self.ready: Sequence[Message] = ()
        self.at = 0
        self.reached = span.start  # everything before is decoded
        self._time = NO_TIME  # of the last message that had one

    @property
    def head(self) -> int:
        """The time of the next message, or of the one before it."""
        own = self.ready[self.at].timestamp
        return own if own >= 0 else self._time

    def take_until(self, timestamp: float) -> list[Message]:
        """The messages of the decoded batch up to the first one that is newer."""
        ready, start = self.ready, self.at
        end = start + 1
        while end < len(ready) and ready[end].timestamp <= timestamp:
            end += 1
        self.at = end
        self._time = next(
            (message.timestamp for message in reversed(ready[start:end]) if message.timestamp >= 0), self._time
        )
        return list(ready[start:end])


class MergedReader:
    """See the module's docstring."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_name: str = "",
        select: Select | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = Cluster(bootstrap, client_name=client_name)
        self.left_out: dict[TopicAndPartition, ApplianceError] = {}
        self._clock = clock
        self._fetcher = Fetcher(self.cluster, OPTIONS, clock=clock)
        reports = DamageReports(self.cluster, clock)
        self._decoder = ChunkDecoder(reports, UNPACKED_BYTES_MAX, check_crc=True, on_corrupt="skip", select=select)
        self._sources: dict[TopicAndPartition, _Source] = {}

    def __enter__(self) -> MergedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._fetcher.close()
        self.cluster.close()

    @property
    def corrupt_batches(self) -> int:
        """Damaged batches that were skipped."""
        return self._decoder.corrupt_batches

    @property
    def large_batches(self) -> int:
        """Batches that were skipped since they unpack to more than UNPACKED_BYTES_MAX."""
        return self._decoder.large_batches

    def troubles(self) -> list[Trouble]:
        """What this reader waits for at the moment."""
        return self._fetcher.troubles.current()

    def between(self, spans: Mapping[TopicAndPartition, ReadSpan]) -> Iterator[list[Message]]:
        """Yield all selected messages of the spans, merged by time, in lists."""
        self._begin(spans)
        waiting = [source for part, source in self._sources.items() if self._fill(part, source)]
        parts = {id(source): part for part, source in self._sources.items()}
        while waiting:
            first = min(waiting, key=lambda source: source.head)
            others = [source.head for source in waiting if source is not first]
            yield first.take_until(min(others, default=float("inf")))
            if first.at == len(first.ready) and not self._fill(parts[id(first)], first):
                waiting.remove(first)

    def last(self, count: int, spans: Mapping[TopicAndPartition, ReadSpan]) -> list[Message]:
        """The ``count`` newest selected messages of all spans together, the oldest first.

        Partitions in which no message has a time get their share of ``count``: nothing says how old they are.  Looks
        from the ends backwards, farther each time, and reads nothing twice.
        """
        kept: dict[TopicAndPartition, deque[Message]] = {part: deque(maxlen=count) for part in spans}
        unread = {part: span for part, span in spans.items() if span.start < span.stop}
        bytes_back = LAST_BYTES
        while unread and count:
            looked = {
                part: ReadSpan(max(span.start, span.stop - bytes_back), span.stop) for part, span in unread.items()
            }
            newer, lists = dict(kept), self.between(looked)
            kept |= {part: deque(maxlen=count) for part in looked}
            for messages in lists:
                kept[messages[0][:2]].extend(messages)
            for part in looked:  # what is older goes before what was found in the rounds before
                missing = count - len(newer[part])
                older = list(kept[part])[-missing:] if missing else []
                kept[part] = deque([*older, *newer[part]], maxlen=count)
            unread = {
                part: ReadSpan(span.start, looked[part].start)
                for part, span in unread.items()
                if looked[part].start > span.start and len(kept[part]) < count and part not in self.left_out
            }
            bytes_back *= 4
        return _newest(count, [list(messages) for messages in kept.values() if messages])

    def follow(self, starts: Mapping[TopicAndPartition, int]) -> Iterator[list[Message]]:
        """Yield what arrives from these offsets on, for ever; an empty list when nothing has come for POLL_S."""
        self._begin({part: ReadSpan(start, 2**63) for part, start in starts.items()})
        while True:
            arrived: list[Message] = []
            enough = self._decoder.unpacked_bytes + UNPACKED_BYTES_MAX
            for chunk in self._fetcher.poll(POLL_S):
                while (messages := self._decoder.messages(chunk)) is not None:
                    arrived += messages
                    if self._decoder.unpacked_bytes >= enough:
                        enough = self._decoder.unpacked_bytes + UNPACKED_BYTES_MAX
                        yield _sorted_by_time(arrived)
                        arrived = []
                chunk.release()
            yield _sorted_by_time(arrived)

    def also_follow(self, part: TopicAndPartition, start: int) -> None:
        """Follow one more partition."""
        self._fetcher.seek(part, start)

    def _begin(self, spans: Mapping[TopicAndPartition, ReadSpan]) -> None:
        self.cluster.refresh({topic for topic, _ in spans})
        readable = spans.keys() - self.left_out.keys()
        self._sources = {
            part: _Source(span) for part, span in spans.items() if part in readable and span.start < span.stop
        }
        self._fetcher.assign({})
        self._fetcher.assign({part: source.span.start for part, source in self._sources.items()})

    def _fill(self, part: TopicAndPartition, source: _Source) -> bool:
        """Decode until the partition has messages; False at its end, or when it cannot be read."""
        stop = source.span.stop
        while source.reached < stop:
            if not source.chunks:
                for chunk in self._fetcher.poll(POLL_S):
                    self._sources[chunk.fetched.topic_partition].chunks.append(chunk)
                if not source.chunks and (self._fetcher.next_offset(part) >= stop or self._give_up(part)):
                    break  # retention has deleted what was left, or it cannot be read
                continue
            chunk = source.chunks[0]
            messages = self._decoder.messages(chunk)
            source.reached = chunk.start_offset + chunk.at
            if messages is None:
                source.chunks.popleft().release()
                continue
            if messages and messages[-1].offset >= stop:
                messages = [message for message in messages if message.offset < stop]
            if messages:
                source.ready, source.at = messages, 0
                return True
        self._fetcher.remove_partition(part)
        source.chunks.clear()
        return False

    def _give_up(self, part: TopicAndPartition) -> bool:
        """Leave a partition out that has been in trouble for PATIENCE_S, by itself or with its appliance."""
        since_s = self._clock() - PATIENCE_S
        for trouble in self._fetcher.troubles.current():
            if trouble.since_s <= since_s and (trouble.subject == part or isinstance(trouble.subject, str)):
                self.left_out[part] = trouble.error
                return True
        return False


def _sorted_by_time(messages: Iterable[Message]) -> list[Message]:
    last_times: dict[TopicAndPartition, int] = {}
    with_times: list[tuple[int, Message]] = []
    for message in messages:
        part = message[:2]
        time_ms = last_times[part] = message.timestamp if message.timestamp >= 0 else last_times.get(part, NO_TIME)
        with_times.append((time_ms, message))
    with_times.sort(key=itemgetter(0))
    return [message for _, message in with_times]


def _newest(count: int, partitions: list[list[Message]]) -> list[Message]:
    """The newest of what each partition has; see :meth:`MergedReader.last`."""
    timed: list[list[Message]] = []
    untimed: list[list[Message]] = []
    for messages in partitions:
        (timed if any(message.timestamp >= 0 for message in messages) else untimed).append(messages)
    newest = _sorted_by_time(message for messages in timed for message in messages)
    if untimed:  # at least one place is theirs
        room = count - min(len(newest), count * len(timed) // len(partitions))
        share = -(-room // len(untimed))
        without = [message for messages in untimed for message in messages[-share:]][-room:]
        return [*without, *newest[len(newest) - max(0, count - len(without)) :]]
    return newest[-count:] if count else []

"""Reads partitions, offsets, and the bytes of a range from appliances.

A request is repeated, with growing pauses, while an appliance is away or busy: a query ends with the first error that
it gets, and a restart of a broker takes only seconds.  After ``retry_timeout_ms`` without progress the last error is
raised, with the address in it.

Bytes come through the native listener, where the next fetch is in flight while the last one is decoded.  When the
appliance runs on this host, they come directly from its segment files (short circuit).  A task on another host than
planned, or without permission to read the files, uses the listener.

Objects are pickled on their way from Spark's driver to its tasks.  Connections are opened on first use and not pickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from .. import status
from ..addresses import PLAINTEXT, parse_addresses
from ..client import damage_reports
from ..client.broker_connection import BrokerConnection, parse_bootstrap, speaks_kafka
from ..client.cluster_client import Cluster, TopicSnapshot
from ..durable_files import File
from ..errors import (
    ApplianceError,
    BadValue,
    CorruptBatch,
    CorruptLog,
    OffsetOutOfRange,
    RequestTimedOut,
    StorageFault,
    Unavailable,
    UnknownPartition,
    UnsupportedVersion,
    from_code,
)
from ..log import FileCache, LogReader
from ..log.files import log_path, offset_at, sizes
from ..names import TopicPartition
from ..owners import acting_as_owner
from ..records.batch import EMPTIED, HEADER_BYTES, end_offset, read_header, walk
from ..records.markers import aborted_batches
from ..wire.native import FETCH, OFFSETS
from ..wire.requests import EARLIEST
from .arrow import OnCorrupt, raise_corrupt
from .ranges import Positions, Range, lost

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 2.0
FETCH_WAIT_MS_MAX: Final = 500
PLANNED: Final = 1
"""For :meth:`.LogReader.aborted`: the indexes are looked for once."""
_Step = tuple[int, memoryview, Sequence[tuple[int, int]]]
"""The offset behind whole batches, these, and the aborted transactions that they may have messages of."""
REQUEST_TIMEOUT_S: Final = 30.0
LISTENER_S: Final = 1.0
"""How long to wait for the answer that shows which protocol a listener has."""

T = TypeVar("T")


class Home(NamedTuple):
    """The directory of an appliance's segments, and the process that serves them."""

    data_dir: str
    pid: int

    def here(self) -> bool:
        """Whether this is the appliance's host: the process with this pid holds the lock of the directory."""
        with acting_as_owner(Path(self.data_dir)):
            return status.holder(Path(self.data_dir)) == self.pid


class Patience:
    """Pauses between attempts, and raises when there was no progress for ``timeout_ms``."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self.progress()

    def progress(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._pause_s = PAUSE_S_MIN

    def pause(self, error: Unavailable) -> None:
        """Pause; or, when the time is over, raise an error of the same class as ``error``."""
        if time.monotonic() + self._pause_s > self._deadline:
            raise type(error)(f"gave up after {self._timeout_s:g} s without progress: {error}") from error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


class LogAccess:
    """Reads from the appliances at ``bootstrap``, and asks again while they are away.  Pickles to its arguments.

    ``program``: begins the name under which the appliances know this client.
    """

    def __init__(self, bootstrap: str, retry_timeout_ms: int, program: str) -> None:
        self._arguments = (bootstrap, retry_timeout_ms, program)
        self._cluster: Cluster | None = None
        self._connections: dict[int, BrokerConnection] = {}
        self._homes: dict[int, Home | None] = {}
        self._reported: set[tuple[str, int]] = set()  # partitions whose damage the appliance was told of

    def __reduce__(self) -> tuple[type[LogAccess], tuple[str, int, str]]:
        return LogAccess, self._arguments

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._arguments[0], client_name=f"{self._arguments[2]}-{os.getpid()}")
        return self._cluster

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._homes.clear()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def report_damage(self, topic: str, partition: int, offset: int) -> None:
        """Tell the appliance that the batch at this offset is damaged."""
        if (topic, partition) not in self._reported:
            self._reported.add((topic, partition))
            damage_reports.report(self.cluster, topic, partition, offset, offset + 1)

    def patience(self) -> Patience:
        return Patience(self._arguments[1])

    def patiently(self, ask: Callable[[], T]) -> T:
        patience = self.patience()
        while True:
            try:
                return ask()
            except Unavailable as error:
                self.close()
                self._check_listener()
                patience.pause(error)

    def _check_listener(self) -> None:
        """Raises BadValue if this is the Kafka listener, with which waiting does not help."""
        for server in parse_bootstrap(self._arguments[0]):
            plain = server.security == PLAINTEXT and not server.unix
            if plain and speaks_kafka(parse_addresses(server.address)[0], LISTENER_S):
                raise BadValue(
                    f"{server.address} is the Kafka listener of an appliance, or a Kafka broker. This source "
                    "reads through the native listener, by default port 9091: `appliance status` shows its address"
                )

    def connection(self, broker_id: int) -> BrokerConnection:
        connection = self._connections.get(broker_id)
        if connection is None:
            connection = self._connections[broker_id] = self.cluster.connect(self.cluster.address(broker_id))
        return connection

    # ---- partitions and offsets

    def topics(self, names: Sequence[str]) -> dict[str, TopicSnapshot]:
        """Those of these topics that exist.  Raises the error of a topic that cannot be described."""
        return self.patiently(lambda: self._topics(names))

    def _topics(self, names: Sequence[str]) -> dict[str, TopicSnapshot]:
        listed = self.cluster.refresh(names).topics
        there = {name: listed[name] for name in names if listed[name].error != UnknownPartition.code}
        for name, topic in there.items():
            if topic.error:
                raise from_code(topic.error, about=f"topic {name!r}")
        return there

    def offsets(self, times: Mapping[TopicPartition, int]) -> Positions:
        """For each partition the first offset at or after a time in ms (or EARLIEST, LATEST); -1: there is none.

        LATEST is the last stable offset: the source reads committed messages.
        """
        return self.patiently(lambda: self._offsets(times)) if times else {}

    def _offsets(self, times: Mapping[TopicPartition, int]) -> Positions:
        if any(topic not in self.cluster.snapshot.topics for topic, _ in times):
            self.cluster.refresh(None)
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in times:
            by_leader.setdefault(self.cluster.leader(*key), []).append(key)
        offsets: Positions = {}
        for broker_id, keys in by_leader.items():
            parts = [[*key, times[key], -1] for key in keys]
            reply = self.connection(broker_id).call(OFFSETS, parts, True, timeout_s=REQUEST_TIMEOUT_S)
            for key, (error, offset, _, _) in zip(keys, reply.header[2], strict=True):
                if error:
                    raise _named(error, key)
                offsets[key] = offset
        return offsets

    def home(self, topic: str, partition: int) -> Home | None:
        """The home of the partition's leader, if it is on this host; else None."""
        try:
            leader = self.cluster.leader(topic, partition)
            if leader not in self._homes:
                self._homes[leader] = self._home(leader)
            return self._homes[leader]
        except Unavailable:
            return None

    def _home(self, broker_id: int) -> Home | None:
        try:
            seen: dict[str, Any] = self.cluster.admin("status", {}, broker_id=broker_id)
            home = Home(str(seen["data"]), int(seen["pid"]))
            return home if home.here() else None
        except (ApplianceError, OSError, KeyError, TypeError, ValueError):
            return None  # use the listener

    # ---- reading

    def read(
        self,
        span: Range,
        home: Home | None,
        bytes_max: int,
        fail_on_data_loss: bool,
        on_damage: OnCorrupt = raise_corrupt,
    ) -> Iterator[tuple[int, memoryview]]:
        """Yields whole batches, from the one with ``wanted.first`` to the one before ``wanted.end``.

        Batches of aborted transactions are left out.  What compaction has emptied may be left out.  Where it stands
        before ``wanted.end``, the batch behind it comes as well: its first offsets may lie there.

        Each item is an offset and the bytes that start there.  The next step overwrites the bytes.

        Args:
            on_damage: is told of offsets that the appliance knows to be damaged, and does not serve.

        Raises:
            CorruptBatch: from ``on_damage``.
            OffsetOutOfRange: retention has deleted records of the range, and ``fail_on_data_loss``.
            Unavailable: no progress for too long.
        """
        position, patience = span.first, self.patience()
        more = position < span.end
        while more:
            try:
                steps = self._local(span, position, home, bytes_max) if home else None
                for following, data, aborted in steps or self._remote(span, position, bytes_max):
                    more = _goes_on(span, data, following)
                    yield from _without_aborted(following - len(data), data, aborted)
                    position = following
                    patience.progress()
                more, home = more and steps is not None, None  # the broker may have more than there was at the planning
            except CorruptLog:  # damaged, or of a topic that was created again meanwhile: the broker knows which
                if home is None:
                    raise
                home = None
            except OffsetOutOfRange:
                key = span.key
                start = self.offsets({key: EARLIEST})[key]
                if start <= position:
                    raise OffsetOutOfRange(
                        f"{span.topic}-{span.partition} ends before offset {position}, which it had: the topic was "
                        f"created again meanwhile"
                    ) from None
                lost(key, position, start, fail_on_data_loss)
                position, more = start, start < span.end
            except Unavailable as error:
                is_withheld = error.code == StorageFault.code
                row = damage_reports.withheld_at(self.cluster, *span.key, position) if is_withheld else None
                if row is None:
                    self.close()
                    patience.pause(error)
                    continue
                where = f"{span.topic}-{span.partition}: batch at offset {position}: {row['reason']}"
                what = f"the offsets to {row['stop']} are not served: `appliance log repair` keeps the others"
                on_damage(position, CorruptBatch(f"{where}: {what}"))
                position, more = row["stop"], row["stop"] < span.end

    def _remote(self, span: Range, position: int, bytes_max: int) -> Iterator[_Step]:
        topic, partition = span.topic, span.partition
        self.cluster.refresh([topic])
        with_leader = self.cluster.connect(self.cluster.address(self.cluster.leader(topic, partition)))
        try:
            _ask(with_leader, span, position, bytes_max)
            more, at_start = True, False
            while more:
                reply = _wait(with_leader)
                error, _, _, _, end, aborted = reply.header[2][0]
                if error:
                    raise _named(error, span.key)
                if not reply.payload:
                    if position >= span.end:
                        return
                    raise RequestTimedOut(f"{topic}-{partition} ends at {end}, but has ended at {span.end} before")
                position = start_offset(reply.payload, span, position, at_start) + len(reply.payload)
                more, at_start = _goes_on(span, reply.payload, position), True
                if more:
                    _ask(with_leader, span, position, bytes_max)
                yield position, reply.payload, aborted
        finally:
            with_leader.close()

    def _local(self, span: Range, position: int, home: Home, bytes_max: int) -> Iterator[_Step] | None:
        """As :meth:`_remote`, from the files; None if they cannot be read here."""
        directory = Path(home.data_dir) / f"{span.topic}-{span.partition}"
        try:
            if not home.here():
                return None
            with acting_as_owner(directory):
                bases = [base for base in sizes(directory)[0] if base < span.log_end]
                if not bases or not os.access(log_path(directory, bases[-1]), os.R_OK, effective_ids=True):
                    return None
        except OSError:
            return None
        return _segments(directory, bases, span, position, bytes_max)


def _segments(directory: Path, bases: Sequence[int], span: Range, position: int, bytes_max: int) -> Iterator[_Step]:
    log = LogReader(directory, FileCache(4))
    buffer = memoryview(bytearray(bytes_max))
    more = True
    while more:
        with acting_as_owner(directory):
            piece = log.locate_kept(bases, span.log_end, position, bytes_max)
        if piece is None:
            if position >= span.end:
                return
            raise OffsetOutOfRange(f"{span.topic}-{span.partition} ends at {position}, before {span.end}")
        if piece.count > len(buffer):
            buffer = memoryview(bytearray(piece.count))
        assert isinstance(piece.file, File)
        filled = 0
        while filled < piece.count:
            read_bytes = os.preadv(piece.file.fd, [buffer[filled : piece.count]], piece.position + filled)
            if not read_bytes:
                raise CorruptLog(str(piece.file.path), piece.position + filled, "the file ends below the log's end")
            filled += read_bytes
        start = offset_at(piece.file.path, piece.position)
        assert start is not None
        position = start + piece.count
        with acting_as_owner(directory):
            # All that was aborted below the end was known when that was planned.
            aborted = log.aborted(bases, PLANNED, start, position)
        data = buffer[: piece.count]
        more = _goes_on(span, data, position)
        yield position, data, aborted


def _without_aborted(
    start: int, data: memoryview, aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, memoryview]]:
    """Yields the parts of ``data``, which begins at offset ``start``, between batches of aborted transactions."""
    at = 0
    for out in sorted(aborted_batches(data, aborted)) if aborted else ():
        if at < out:
            yield start + at, data[at:out]
        at = out + read_header(data, out).size
    if at < len(data):
        yield start + at, data[at:]


def _goes_on(span: Range, data: memoryview, stop: int) -> bool:
    """Whether there may be more of a range behind ``data``, which ends at ``stop``: see :meth:`LogAccess.read`."""
    if stop < span.end:
        return True
    with suppress(CorruptBatch, UnsupportedVersion):  # the decoder reports it
        last = max((start for start, _, _ in walk(data, 0, len(data))), default=None)
        return last is not None and read_header(data, last).attributes == EMPTIED
    return False


def start_offset(data: memoryview, span: Range, position: int, at_start: bool = False) -> int:
    """The offset at which ``data`` starts: whole batches, of which the first contains ``position``, or follows it.

    It is computed from a batch's base offset, which no checksum covers: from the first batch if the result fits, else
    from the last one; behind emptied bytes all have to say the same.  ``at_start``: at ``position``, or behind such.
    """
    if at_start and len(data) >= HEADER_BYTES and end_offset(data, 0) - read_header(data, 0).size == position:
        return position
    where = f"{span.topic}-{span.partition}: around offset {position}"
    try:
        batches = list(walk(data, 0, len(data)))
    except (CorruptBatch, UnsupportedVersion) as error:
        if at_start:
            return position
        raise CorruptBatch(f"{where}: {error}; check: appliance log verify") from error
    starts = [stop - size - start for start, size, stop in batches]
    for start in starts[:1] + starts[-1:]:
        if start <= position < start + batches[0][1]:
            return position if at_start else start
    if len(set(starts)) == 1 and starts[0] > position:  # what compaction has emptied is left out
        return starts[0]
    if at_start:
        return position
    raise CorruptBatch(f"{where}: batches contradict each other; check: appliance log verify")


def _ask(connection: BrokerConnection, span: Range, position: int, bytes_max: int) -> None:
    part = [span.topic, span.partition, position, bytes_max]
    connection.post(FETCH, FETCH_WAIT_MS_MAX, 1, bytes_max, [part], True)
    connection.flush()


def _wait(connection: BrokerConnection) -> Any:
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        connection.flush()
        if replies := connection.receive():
            return replies[0]
        if not connection.wait(deadline - time.monotonic()):
            raise RequestTimedOut(f"{connection} did not answer within {REQUEST_TIMEOUT_S:g} s")


def _named(code: int, key: TopicPartition) -> ApplianceError:
    return from_code(code, f"{key.topic}-{key.partition}: error {code}")

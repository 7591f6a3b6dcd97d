"""Writes rows to topics: ``df.write`` and ``df.writeStream``.  Repetitions by Spark do not double rows.

Columns are those of Spark's Kafka connector: ``value`` (string or binary, required), ``key``, ``headers``, ``topic``
(or the option of that name, which wins) and ``partition``.

Spark repeats a failed task, and a whole micro-batch when the driver ended before the checkpoint.  So that no row is
duplicated, each task writes as an idempotent producer.  Its identity follows from the task and the micro-batch, which
are the same in a repetition, and not from the process::

    producer id    2^62 + hash(query id, number of the task, batch id / 2^15)    query id: from the checkpoint
    epoch          batch id % 2^15                                               a write without a stream: a
    sequence       number of the row within the task, per partition              random id or txnAppId, txnVersion

The partition's writer compares these with its log.  A row that is there already is confirmed and not written again.  So
a repetition completes an unfinished micro-batch, without markers or transactions.  A task of an older micro-batch that
outlives its driver is refused because of its epoch.

This holds if a repeated task has the same rows in the same order, and the topic as many partitions as before.  A query
that reads a log and maps or filters it fulfils this.  After a shuffle (aggregates) the order of rows may differ: the
option ``sortRows`` sorts each task's rows first.

Rows without a key and a partition go to one partition after the other, a record batch each.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, ByteType, IntegerType, LongType, ShortType, StringType, StructType

from ..client.broker_connection import BrokerConnection
from ..errors import (
    ApplianceError,
    BadValue,
    ClientFault,
    DuplicateSequence,
    MessageTooLarge,
    RequestTimedOut,
    Unavailable,
    UnknownPartition,
    from_code,
)
from ..log_access.access import REQUEST_TIMEOUT_S, LogAccess, Patience
from ..names import TopicPartition
from ..records.encode import Fields, encode_batch, encode_values
from ..records.partitioner import partition_for
from ..wire.native import ProduceHead
from .options import SinkOptions
from .python_workers import spare_collector

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
EPOCHS: Final = 1 << 15
RECORD_OVERHEAD_BYTES: Final = 24
"""Upper bound of the bytes of an encoded record without headers besides key and value."""

_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)


@dataclass
class Written(WriterCommitMessage):
    """How many rows and bytes a task has written."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskProducer:
    """The idempotent producer that one task is: its id and epoch."""

    producer_id: int
    epoch: int


def producer_of_task(query: str, task: int, batch: int) -> TaskProducer:
    """The same for the same task of the same micro-batch, whichever process runs it."""
    digest = hashlib.blake2b(f"{query}/{task}/{batch // EPOCHS}".encode(), digest_size=8).digest()
    # Ids that a cluster gives out are below 2**62.
    return TaskProducer((1 << 62) | int.from_bytes(digest, "big") >> 2, batch % EPOCHS)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises BadValue when these columns cannot be written."""
    types = {column.name: column.dataType for column in schema.fields}
    kinds: dict[str, tuple[type, ...]] = {
        "key": _TEXT,
        "value": _TEXT,
        "headers": (ArrayType,),
        "topic": (StringType,),
        "partition": _WHOLE,
    }
    for name, kind in types.items():
        if name not in kinds:
            raise BadValue(f"column {name!r} cannot be written: the columns are {', '.join(kinds)}")
        if not isinstance(kind, kinds[name]):
            allowed = " or ".join(
                allowed_kind().simpleString() for allowed_kind in kinds[name] if allowed_kind is not ArrayType
            )
            raise BadValue(f"column {name!r} is {kind.simpleString()}, not {allowed or 'an array of key, value'}")
    if "value" not in types:
        raise BadValue("there is no column 'value': select what is to be written AS value")
    if "topic" not in types and not options.topic:
        raise BadValue("where to: give the option topic, or a column of that name")


@lru_cache(10_000)
def _hashed(key: bytes, partitions: int) -> int:
    """The partition of a key.  Cached, because keys repeat: names of hosts, services or users."""
    return partition_for(key, partitions) if partitions > 1 else 0


# ---- a task


@dataclass(slots=True)
class _PartitionQueue:
    """One partition's records that wait for a batch, and its unconfirmed batches, in order."""

    key: TopicPartition
    head: ProduceHead
    bytes_max: int
    message_bytes_max: int
    values: list[bytes] = field(default_factory=list)
    records: list[Fields] = field(default_factory=list)
    waiting_bytes: int = 0
    sequence: int = 0
    unconfirmed: deque[bytes] = field(default_factory=deque)
    is_confirmed: bool = False
    """Whether a batch was confirmed: from then on the log knows the task, and refuses numbers out of order."""


class TaskWriter:
    """Writes the rows of one task, in order, and returns when all of them are confirmed."""

    def __init__(self, options: SinkOptions, who: TaskProducer, *, leaves_out: bool = False) -> None:
        """``leaves_out``: rows that are too large for the topic are left out, and counted as ``too_large``."""
        self._options = options
        self._who = who
        self._leaves_out = leaves_out
        self.too_large = 0
        self._access = LogAccess(options.bootstrap, options.retry_timeout_ms, "spark")
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}  # looked up for every row
        self._partitions: dict[str, int] = {}
        self._turn: dict[str, int] = {}
        self._awaited: dict[BrokerConnection, deque[_PartitionQueue]] = {}
        self._posted_bytes = 0
        self._timestamp = int(time.time() * 1000)
        self.written = Written(0, 0)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        if self._options.sort_rows:
            batches = _sorted(batches)
        spare_collector()
        try:
            for batch in batches:
                self._timestamp = int(time.time() * 1000)
                self._add(batch)
            for queue in self._queues.values():
                self._seal(queue)
            self._wait_until(lambda: not self._posted_bytes)
        finally:
            self._access.close()
        return self.written

    def _add(self, batch: pa.RecordBatch) -> None:
        count = batch.num_rows
        columns = {name: batch.column(index).to_pylist() for index, name in enumerate(batch.schema.names)}
        values = columns["value"]
        topics = [self._options.topic] * count if self._options.topic else columns["topic"]
        nothing = [None] * count
        keys = columns.get("key", nothing)
        partitions = columns.get("partition", nothing)
        headers = columns.get("headers", nothing)
        for value, topic, key, partition, row_headers in zip(values, topics, keys, partitions, headers, strict=True):
            value = value.encode() if isinstance(value, str) else value
            key = key.encode() if isinstance(key, str) else key
            queue = self._queue_for(topic, key, partition)
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
            pairs = _pairs(row_headers) if row_headers else ()
            size += sum(16 + len(name) + len(content or b"") for name, content in pairs)
            if queue.waiting_bytes + size > queue.bytes_max and queue.waiting_bytes:
                self._seal(queue)
                if key is None and partition is None:
                    self._turn[topic] += 1
                    queue = self._queue_for(topic, key, partition)
            queue.waiting_bytes += size
            if key is None and value is not None and not pairs and not queue.records:
                queue.values.append(value)
            else:
                if queue.values:
                    queue.records += [(None, value, (), self._timestamp) for value in queue.values]
                    queue.values = []
                queue.records.append((key, value, pairs, self._timestamp))
        self.written.rows += count

    def _queue_for(self, topic: str, key: bytes | None, partition: int | None) -> _PartitionQueue:
        if not topic:
            raise BadValue("a row has no topic, and there is no option topic")
        count = self._partitions.get(topic) or self._learn(topic)
        if partition is None:
            partition = self._turn[topic] % count if key is None else _hashed(key, count)
        elif not 0 <= partition < count:
            raise UnknownPartition(f"a row is for {topic}-{partition}, but there are {count} partitions")
        queue = self._queues.get((topic, partition))
        if queue is None:
            head = ProduceHead(topic, partition, self._options.acks, int(REQUEST_TIMEOUT_S * 1000))
            limit = int(self._access.cluster.topic(topic).settings.get("max.message.bytes", 1 << 30))
            queue = _PartitionQueue(
                TopicPartition(topic, partition), head, min(self._options.batch_bytes_max, limit * 9 // 10), limit
            )
            self._queues[topic, partition] = queue
        return queue

    def _learn(self, topic: str) -> int:
        """The number of partitions of the topic; the appliance may create it."""
        cluster = self._access.cluster

        def ask() -> int:
            snapshot = self._access.cluster.refresh([topic]).topics.get(topic)
            if snapshot is None or snapshot.error == UnknownPartition.code:
                cluster.admin("ensure_topic", {"name": topic})
                self._access.cluster.refresh([topic])
            return len(self._access.cluster.topic(topic).leaders)

        self._partitions[topic] = count = self._access.patiently(ask)
        # Each task and micro-batch begins with another partition, a repetition with the same one.
        self._turn[topic] = self._who.producer_id % count
        return count

    def _seal(self, queue: _PartitionQueue) -> None:
        """Encode the waiting records as a batch, and send it."""
        count = len(queue.records) or len(queue.values)
        if not count:
            return
        numbers: dict[str, Any] = {
            "codec": self._options.codec,
            "producer_id": self._who.producer_id,
            "producer_epoch": self._who.epoch,
            "base_sequence": queue.sequence,
        }
        if queue.records:
            batch = encode_batch(queue.records, **numbers)
        else:
            batch = encode_values(queue.values, self._timestamp, **numbers)
        if len(batch) > queue.message_bytes_max:
            if self._leaves_out:
                self._seal_apart(queue)
                return
            raise MessageTooLarge(
                f"{queue.key[0]}-{queue.key[1]}: a row makes a batch of {len(batch)} bytes, limit "
                f"{queue.message_bytes_max}: raise the topic's max.message.bytes"
            )
        if not queue.is_confirmed and queue.unconfirmed:  # the second batch must not enter if the first one fails
            self._wait_until(lambda: queue.is_confirmed)
        queue.sequence += count
        queue.values, queue.records, queue.waiting_bytes = [], [], 0
        queue.unconfirmed.append(batch)
        self.written.bytes += len(batch)
        try:
            self._post(queue, batch)
        except Unavailable as error:
            self._resend(error, self._access.patience())
        self._wait_until(lambda: self._posted_bytes <= IN_FLIGHT_BYTES_MAX)

    def _seal_apart(self, queue: _PartitionQueue) -> None:
        """Make a batch of each waiting record; one that is too large by itself goes."""
        records = queue.records or [(None, value, (), self._timestamp) for value in queue.values]
        queue.values, queue.records, queue.waiting_bytes = [], [], 0
        if len(records) == 1:
            self.too_large += 1
            self.written.rows -= 1
            return
        for record in records:
            queue.records = [record]
            self._seal(queue)

    # ---- requests and replies

    def _post(self, queue: _PartitionQueue, batch: bytes) -> None:
        topic, partition = queue.key
        connection = self._access.connection(self._access.cluster.leader(topic, partition))
        connection.post_batch(queue.head, batch, expects_reply=True)
        self._awaited.setdefault(connection, deque()).append(queue)
        self._posted_bytes += len(batch)
        connection.flush()

    def _wait_until(self, enough: Callable[[], bool]) -> None:
        """Process confirmations until there are enough.

        Raises:
            Unavailable: no confirmation for too long.
            ClientFault: a batch was refused for good.
        """
        patience = self._access.patience()
        while not enough():
            try:
                self._receive()
                patience.progress()
            except Unavailable as error:
                self._resend(error, patience)

    def _receive(self) -> None:
        """Wait for replies on one connection, and process them."""
        connection = next(awaited for awaited, queues in self._awaited.items() if queues)
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        connection.flush()
        replies = connection.receive()
        while not replies:
            if not connection.wait(deadline - time.monotonic()):
                raise RequestTimedOut(f"{connection} did not confirm within {REQUEST_TIMEOUT_S:g} s")
            connection.flush()
            replies = connection.receive()
        for reply in replies:
            queue = self._awaited[connection].popleft()
            code, message = reply.header[1], reply.header[5]
            if code not in (0, DuplicateSequence.code):  # a row that is in the log already is confirmed
                raise _refusal(code, message, queue.key)
            self._posted_bytes -= len(queue.unconfirmed.popleft())
            queue.is_confirmed = True

    def _resend(self, error: Unavailable, patience: Patience) -> None:
        """Send all unconfirmed batches again.  The broker recognises by their numbers those that it has."""
        while True:
            patience.pause(error)
            self._access.close()
            self._awaited.clear()
            self._posted_bytes = 0
            try:
                self._access.cluster.refresh(sorted({topic for topic, _ in self._queues}))
                for queue in self._queues.values():
                    for batch in queue.unconfirmed:
                        self._post(queue, batch)
                return
            except Unavailable as another:
                error = another


def _refusal(code: int, message: str, key: TopicPartition) -> ApplianceError:
    error = from_code(code, f"{key.topic}-{key.partition}: {message or f'error {code}'}")
    # The partition may be moving to another broker, or the batch was damaged in transit: both are retriable.
    if isinstance(error, ClientFault) and code not in (2, UnknownPartition.code):
        return error
    return error if isinstance(error, Unavailable) else Unavailable(str(error))


def _pairs(headers: Sequence[Any]) -> list[tuple[str, bytes | None]]:
    return [(header["key"] or "", header["value"]) for header in headers]


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorts all rows of the task by topic, partition, key and value, so that a shuffle cannot change their order."""
    first = next(batches, None)
    if first is None:
        return
    table = pa.Table.from_batches([first, *batches])
    order = [name for name in ("topic", "partition", "key", "value") if name in table.schema.names]
    yield from table.sort_by([(name, "ascending") for name in order]).to_batches(max_chunksize=10_000)


# ---- what Spark sees


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of one job.

    Its tasks write under a random id, chosen on the driver, which a task's retry has too.  The options ``txnAppId`` and
    ``txnVersion`` (Delta's names) give the id instead: a name for a sequence of writes, and the number of this one.  So
    a repetition of the whole job is recognised, too.  In ``foreachBatch`` use a name for each write and the batch's id.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._query, self._batch = options.transaction or (uuid.uuid4().hex, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        return TaskWriter(self._options, producer_of_task(self._query, context.partitionId(), self._batch)).write(
            iterator
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of the micro-batches of one query.  Tasks find its id and the batch's in Spark's properties."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        if options.transaction:
            raise BadValue("option txnAppId: a stream's micro-batches are numbered by Spark")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query and batch is not None, "Spark sets the query and micro-batch of every task of a stream"
        return TaskWriter(self._options, producer_of_task(query, context.partitionId(), int(batch))).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: all rows are confirmed, and a replay of this micro-batch confirms them again."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: the replay writes the missing rows."""

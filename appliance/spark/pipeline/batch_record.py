"""Describes what a micro-batch has read.

A record is stored with the rows of its micro-batch in the same commit: in its ``commitInfo``, under the key
:data:`COMMIT_KEY`.  As JSON::

    {"batch": 12, "run": "5f0c", "parsing": "77c0e1", "since": {"web": {"0": 0, "1": 80}},
     "read": {"web": {"id": "9d31", "ranges": {"0": [100, 250], "1": [80, 80]}}}}

``read`` has the range of offsets of every partition that the table has ever read, also of those from which this
micro-batch has read nothing: the last record alone says where to continue.  ``since`` has each of them, too.  A
micro-batch that goes back (``backfill``) has the ranges that it has read in ``back``: they end where ``since`` was, and
begin where it is now.  Delta's log forgets commits after days; so a copy of the last record stands beside the table,
which counts where its number is that of the table.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from ...errors import BadValue
from ...log_access.ranges import Positions
from ...names import TopicPartition
from .output_files import OutputFiles

COMMIT_KEY: Final = "appliance"
COPY: Final = "_record.json"
BEGINNING: Final = -1
"""Number of the record that says where a pipeline begins.  Micro-batches count from 0."""


class TopicRead(msgspec.Struct, frozen=True):
    """The ranges that were read of a topic with this id, from the first offset to before the second one."""

    id: str
    ranges: dict[int, tuple[int, int]]


class BatchRecord(msgspec.Struct, frozen=True):
    """See the module's docstring.  ``run``: the run that has read it.

    ``parsing``: a digest of all settings that decide what becomes of a line.  ``since``: the offset, by topic and
    partition, from which on the table has had all lines.  ``back``: ranges that it has read from before ``since``.
    """

    batch: int
    run: str = ""
    read: dict[str, TopicRead] = {}
    parsing: str = ""
    since: dict[str, dict[int, int]] = {}
    back: dict[str, dict[int, tuple[int, int]]] = {}

    def __post_init__(self) -> None:
        """A record that does not say where reading began would let ``backfill`` read again what the table has.

        Raises:
            ValueError: ``since`` lacks a partition of ``read``.
        """
        for topic, topic_read in self.read.items():
            if lacking := topic_read.ranges.keys() - self.since.get(topic, {}).keys():
                raise ValueError(f"since: {topic}-{min(lacking)} is not in it")

    @property
    def ends(self) -> Positions:
        """The offset at which each partition continues."""
        return {key: end for key, (_, end) in self.ranges()}

    @property
    def beginnings(self) -> Positions:
        """The offset from which on the table has had all lines of each partition."""
        return {
            TopicPartition(topic, part): offset for topic, parts in self.since.items() for part, offset in parts.items()
        }

    @property
    def bytes(self) -> int:
        return sum(end - first for first, end in self.spans().values())

    def ranges(self) -> Iterable[tuple[TopicPartition, tuple[int, int]]]:
        for topic, topic_read in self.read.items():
            for partition, bounds in topic_read.ranges.items():
                yield TopicPartition(topic, partition), bounds

    def spans(self) -> dict[TopicPartition, tuple[int, int]]:
        """What this micro-batch has read, by partition."""
        spans = {key: bounds for key, bounds in self.ranges() if bounds[0] < bounds[1]}
        for topic, parts in self.back.items():
            spans |= {TopicPartition(topic, part): bounds for part, bounds in parts.items()}
        return spans

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(BatchRecord).decode


def decode_record(text: str | bytes, where: str) -> BatchRecord:
    """The record that a commit has; ``where`` is named in errors.

    Raises:
        BadValue: it is none, or one of an earlier release.
    """
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        raise BadValue(
            f"{where}: what a commit says of the offsets that were read cannot be used ({error}): "
            "use another output.path, or restore the table from a copy"
        ) from None


def topics_read(ids: Mapping[str, str], ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[str, TopicRead]:
    """``read`` of a record, from ids by topic and ranges by partition."""
    read: dict[str, TopicRead] = {}
    for (topic, partition), bounds in sorted(ranges.items()):
        read.setdefault(topic, TopicRead(ids[topic], {})).ranges[partition] = bounds
    return read


def store_copy(files: OutputFiles, record: BatchRecord) -> None:
    """Keep a copy of the last record, in place of the one before."""
    files.write(COPY, record.encode())


def load_copy(files: OutputFiles) -> BatchRecord | None:
    """None if there is none, or if it cannot be read."""
    copy = files.read(COPY)
    try:
        return None if copy is None else _decode(copy)
    except msgspec.DecodeError:
        return None


def encode_schema(schema: pa.Schema) -> str:
    """A schema as text: the message of Arrow's IPC format, in base 64."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

"""Describes what a micro-batch has read, and what its tables are.

A record is stored with the rows of its micro-batch in the same commit: in the manifest of Parquet tables, and in the
``commitInfo`` of each Delta commit under the key :data:`COMMIT_KEY`.  As JSON::

    {"batch": 12, "run": "5f0c", "cores": 2,
     "read": {"web": {"id": "9d31", "ranges": {"0": [100, 250], "1": [80, 80]}}},
     "tables": {"events": {"columns": "…", "meaning": {…}}},
     "dead": {"id": "77c0", "ranges": {"0": [40, 40]}}}

``read`` has the range of offsets of every partition that the tables have ever read, also of those from which this
micro-batch has read nothing: the last record alone says where to continue.  A *plan* is the record of a micro-batch
that is not committed yet.  It is stored in :data:`PLAN` before the first task starts, so that a repetition after a
crash reads the same ranges.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from ...names import TopicPartition
from ..stream_offsets import Positions
from .output_files import OutputFiles

COMMIT_KEY: Final = "appliance"
PLAN: Final = "_plan.json"
BEGINNING: Final = -1
"""Number of the record that says where a pipeline begins.  Micro-batches count from 0."""


class TopicRead(msgspec.Struct, frozen=True):
    """The ranges that were read of a topic with this id, from the first offset to before the second one."""

    id: str
    ranges: dict[int, tuple[int, int]]


class TableDefinition(msgspec.Struct, frozen=True):
    """The columns of a table (see :func:`encode_schema`), and the settings that its rows depend on."""

    columns: str
    meaning: dict[str, Any] = {}


class BatchRecord(msgspec.Struct, frozen=True):
    """See the module's docstring.  ``run``: the run that planned it, for tasks on so many ``cores``.

    ``dead``: see ``earlier_letters``; None without a topic of dead letters.
    """

    batch: int
    run: str = ""
    cores: int = 0
    read: dict[str, TopicRead] = {}
    tables: dict[str, TableDefinition] = {}
    dead: TopicRead | None = None

    @property
    def ends(self) -> Positions:
        """The offset at which each partition continues."""
        return {key: end for key, (_, end) in self.ranges()}

    @property
    def bytes(self) -> int:
        return sum(end - first for _, (first, end) in self.ranges())

    def ranges(self) -> Iterable[tuple[TopicPartition, tuple[int, int]]]:
        for topic, each in self.read.items():
            for partition, bounds in each.ranges.items():
                yield TopicPartition(topic, partition), bounds

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(BatchRecord).decode


def decode_record(text: str | bytes) -> BatchRecord:
    """Raises msgspec.DecodeError if it is none."""
    return _decode(text)


def topics_read(ids: Mapping[str, str], ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[str, TopicRead]:
    """``read`` of a record, from ids by topic and ranges by partition."""
    found: dict[str, TopicRead] = {}
    for (topic, partition), bounds in sorted(ranges.items()):
        found.setdefault(topic, TopicRead(ids[topic], {})).ranges[partition] = bounds
    return found


def store_plan(files: OutputFiles, plan: BatchRecord) -> None:
    """Keep a plan durably, in place of the last one.  The plan of a committed micro-batch stays until the next one."""
    files.write(PLAN, plan.encode())


def load_plan(files: OutputFiles) -> BatchRecord | None:
    """The last plan; None if there is none, or if it cannot be read: it is then planned again."""
    found = files.read(PLAN)
    try:
        return None if found is None else _decode(found)
    except msgspec.DecodeError:
        return None


def encode_schema(schema: pa.Schema) -> str:
    """A schema as text: the message of Arrow's IPC format, in base 64."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

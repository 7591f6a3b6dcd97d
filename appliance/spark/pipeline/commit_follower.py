"""Sends what the commits of a Delta table have added to a topic, each commit once, one after the other.

Nothing is sent before it is committed.  A commit names its files, which never change, so its messages are the same
whenever they are made, in the order of the commit.  They are written as an idempotent producer whose id follows from
the commit itself (see ``spark/sink.py``), and a file beside the table says behind which version all are sent.  So
whoever is killed in between repeats the messages of one commit, and the appliance leaves out those that it has.
A message that is too large for the topic is left out, logged and counted: those behind it do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from ..options import SinkOptions
from ..sink import TaskWriter, producer_of_task
from .output_files import LOG, OutputFiles
from .settings import Settings
from .table_files import file_of

log = logging.getLogger(__name__)


class Sent(msgspec.Struct, frozen=True):
    """The messages of all versions up to this one are in their topic, but for those that were ``too_large``."""

    version: int
    too_large: int = 0


class CommitFollower(ABC):
    """Follows one table of an output; ``progress``: the name of the file that says how far."""

    def __init__(self, settings: Settings, table: str, topic: str, progress: str) -> None:
        self._settings = settings
        self._files = OutputFiles(settings.output)
        self._table = table
        self._topic = topic
        self._progress = progress

    @abstractmethod
    def messages(self, told: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        """The messages of a commit; ``told``: its ``commitInfo``, ``entries``: all of its actions."""

    def begin(self) -> None:
        """Begin behind what the table has now, unless messages were sent before."""
        if self._topic and self._files.read(self._progress) is None:
            self._store(Sent(self.latest()))

    def latest(self) -> int:
        """The latest version of the table; -1 before the first one."""
        if not self._files.exists(f"{self._table}/{LOG}"):
            return -1
        return int(self._files.delta_table(self._table).version())

    def sent(self) -> int:
        return self._sent().version

    @property
    def too_large(self) -> int:
        """How many messages were left out, ever."""
        return self._sent().too_large

    def _sent(self) -> Sent:
        progress = self._files.read(self._progress)
        sent = Sent(-1) if progress is None else msgspec.json.decode(progress, type=Sent)
        return sent if sent.version <= self.latest() else Sent(-1)  # of a table that is gone

    def has_messages(self, told: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether there may be messages of a commit; arguments as of :meth:`messages`."""
        return True

    def waiting(self) -> list[datetime]:
        """When the commits were made that have messages which were not sent; of those that Delta's log has still."""
        if not self._topic or self._files.read(self._progress) is None:
            return []
        committed = []
        for version in range(self.sent() + 1, self.latest() + 1):
            text = self._files.read(self._log_of(version))
            entries = [] if text is None else _entries(text)
            told = _told(entries)
            if entries and self.has_messages(told, entries):
                committed.append(datetime.fromtimestamp(told.get("timestamp", 0) / 1000, UTC))
        return committed

    def _log_of(self, version: int) -> str:
        return f"{self._table}/{LOG}/{version:020d}.json"

    def send(self) -> int:
        """Send those of all commits that have come since.  Returns their number.

        Raises:
            ApplianceError: they cannot be sent.
        """
        if not self._topic:
            return 0
        count, sent, latest = 0, self._sent(), self.latest()
        for version in range(sent.version + 1, latest + 1):
            text = self._files.read(self._log_of(version))
            if text is None:
                log.warning("%s: Delta's log has version %d no more: nothing of it is sent", self._table, version)
                continue
            rows, too_large = self._send_commit(text)
            if rows or too_large:  # the appliance knows the last producers only
                count, sent = count + rows, Sent(version, sent.too_large + too_large)
                self._store(sent)
        if sent.version < latest:
            self._store(Sent(latest, sent.too_large))
        return count

    def _store(self, sent: Sent) -> None:
        self._files.write(self._progress, msgspec.json.encode(sent).decode())

    def _send_commit(self, text: bytes) -> tuple[int, int]:
        """Returns how many were sent, and how many were too large."""
        entries = _entries(text)
        messages = self.messages(_told(entries), entries)
        if (first := next(messages, None)) is None:
            return 0, 0
        settings = self._settings
        options = SinkOptions(settings.pipeline.bootstrap, topic=self._topic, retry_timeout_ms=settings.input.retry_ms)
        who = producer_of_task(f"{self._table}/{hashlib.blake2b(text, digest_size=16).hexdigest()}", 0, 0)
        writer = TaskWriter(options, who, leaves_out=True)
        rows = writer.write(_chained(first, messages)).rows
        if writer.too_large:
            log.warning(
                "%s: %d messages are left out: they are larger than max.message.bytes of the topic %s allows",
                self._table,
                writer.too_large,
                self._topic,
            )
        return rows, writer.too_large

    def rows(self, add: Mapping[str, Any], columns: Sequence[str] | None = None) -> pa.Table | None:
        """These columns of a file that a commit has added; None, with a warning, if it is gone."""
        partition = add.get("partitionValues") or {}
        inside = None if columns is None else [name for name in columns if name not in partition]
        try:
            rows = self._files.open_table(f"{self._table}/{file_of(add['path'])}").read(inside)
        except FileNotFoundError:
            log.warning("%s: %s is gone: nothing of it is sent", self._table, add["path"])
            return None
        for name, value in partition.items():
            if columns is None or name in columns:
                rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
        return rows


def _entries(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line]


def _told(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return next((entry["commitInfo"] for entry in entries if "commitInfo" in entry), {})


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others

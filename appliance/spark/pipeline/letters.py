"""Sends rejected lines as dead letters: follows the commits of ``events`` (``commit_follower``).

Only micro-batches are followed: compaction, reparse and forget write rows again, and send nothing.  Of lines that a
rule has dropped there is nothing to send.  If the output is restored from an older copy, its lines are read again, by
other commits, and so their letters are sent again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ApplianceError
from .batch_record import COMMIT_KEY, decode_record
from .commit_follower import CommitFollower
from .events import RAW, RAW_KEY, REJECTED
from .quality import is_dropped
from .repeating import Repeating
from .settings import Settings
from .table_files import EVENTS
from .troubles import LETTERS, Troubles

SENT: Final = "_letters.json"
WAIT_S: Final = 1.0
"""How often it looks for new commits."""
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS: Final = ("topic", "partition", "offset", "received", REJECTED, RAW, RAW_KEY)
log = logging.getLogger(__name__)


class Letters(CommitFollower):
    """The dead letters of one pipeline."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, EVENTS, settings.dead_letters.topic, SENT)

    @property
    def left_out(self) -> str:
        """What to tell of letters that were too large, or ""."""
        count = self.too_large
        text = f"{count} dead letters were left out: they are larger than max.message.bytes of {self._topic} allows"
        return f"{text}, the lines are in {EVENTS}" if count else ""

    def send_waiting(self) -> int:
        """As :meth:`send`, before files go that the letters need: those of earlier versions.

        Raises:
            ApplianceError: they cannot be sent.
        """
        self.begin()
        try:
            return self.send()
        except ApplianceError as error:
            raise ApplianceError(
                f"nothing is removed: dead letters wait whose lines only earlier versions of {EVENTS} have, and they "
                f"cannot be sent: {error}"
            ) from None

    def has_messages(self, told: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
        is_micro_batch = COMMIT_KEY in told and any("txn" in entry for entry in entries)
        return is_micro_batch and any(_has_rejected(entry["add"]) for entry in entries if "add" in entry)

    def messages(self, told: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        if not self.has_messages(told, entries):
            return
        ids = {topic: read.id for topic, read in decode_record(told[COMMIT_KEY], EVENTS).read.items()}
        for entry in entries:
            if "add" in entry and _has_rejected(entry["add"]):
                rows = self.rows(entry["add"], COLUMNS)
                if rows is not None:
                    reasons = rows.column(REJECTED)
                    dead = rows.filter(pc.and_not(pc.is_valid(reasons), is_dropped(reasons)))
                    yield from letters(dead, self._settings.pipeline.name, ids)


def _has_rejected(add: Mapping[str, Any]) -> bool:
    """Whether a file may have rejected rows, by its statistics."""
    statistics = json.loads(add.get("stats") or "{}")
    return bool(statistics.get("nullCount", {}).get(REJECTED, -1) != statistics.get("numRecords"))


def letters(rows: pa.Table, pipeline: str, ids: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Messages with unchanged key and value, and headers with their origin and the reason; ``ids``: of the topics."""
    origin = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset", "received", REJECTED)]
    headers = [
        [
            {"key": "reason", "value": reason.encode()},
            {"key": "topic", "value": topic.encode()},
            {"key": "topic_id", "value": ids.get(topic, "").encode()},
            {"key": "partition", "value": b"%d" % partition},
            {"key": "offset", "value": b"%d" % offset},
            {"key": "timestamp", "value": stamp.isoformat().encode()},
            {"key": "pipeline", "value": pipeline.encode()},
        ]
        for topic, partition, offset, stamp, reason in zip(*origin, strict=True)
    ]
    columns = {"key": rows.column(RAW_KEY), "value": rows.column(RAW), "headers": pa.array(headers, HEADERS)}
    yield from pa.table(columns).to_batches()


class LetterKeeper:
    """Sends dead letters while a pipeline runs, in a thread of its own, and once more at the end.

    Letters that cannot be sent do no harm to the pipeline: they are in the table, and are sent when that is possible.
    """

    def __init__(self, settings: Settings) -> None:
        self._letters = Letters(settings)
        self._troubles = Troubles(settings)
        self._wanted = bool(settings.dead_letters.topic)
        self.waiting = self._letters.waiting
        self._looks = Repeating("dead letters", self.look, WAIT_S)
        self.remark = ""
        """Why letters are not sent, or are left out, or ""."""

    def __enter__(self) -> LetterKeeper:
        if self._wanted:
            self._looks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._looks.stop()
        if self._wanted:
            self.look()

    def look(self) -> None:
        try:
            self._letters.send()
            self.remark = self._letters.left_out
            self._troubles.note(LETTERS, "")
        except Exception as error:  # whatever it is, the thread goes on, and a run has its result
            text = f"dead letters are not sent, the lines are in {EVENTS}: {str(error) or type(error).__name__}"
            if text != self.remark:
                log.warning("%s", text)
            self.remark = text
            self._troubles.note(LETTERS, text)

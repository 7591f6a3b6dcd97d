"""Makes a file of what a search finds: lines of JSON, as ``appliance consume --json`` writes them, or CSV.

A file has the messages that are found first, in the order of the search, up to MESSAGES_MAX, BYTES_MAX of file, or
what is found in SEARCH_MS_MAX; ``cursor`` says where the search goes on, "" when it has all.  It is made in memory, and
one at a time, so the page is told of its end with its beginning.

In CSV a text that a spreadsheet would take for a formula gets a ``'`` before it.  Lines of JSON have exactly what the
messages have.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ..client.message_rows import json_row
from ..errors import InvalidRequest
from .message_search import Query, Search, SearchedLog, moved_back
from .value_decoding import MessageView

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a file; the last message may go beyond it."""
SEARCH_MS_MAX: Final = 20_000
STEP_MESSAGES: Final = 500
MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A text that begins so is a formula to spreadsheets (OWASP, *CSV Injection*); the last are wide forms of the first."""


class Download(Query, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search, and what is made of it.  ``limit`` does not count."""

    format: Literal["csv", "jsonl"] = "jsonl"


class DownloadFile(NamedTuple):
    content: bytes
    messages: int
    cursor: str


def make_file(
    download: Download,
    topics: Sequence[str],
    log: SearchedLog,
    clock: Callable[[], float],
    view_of_topic: Callable[[str], MessageView],
) -> DownloadFile:
    """Search until the file is full, or all is found.  ``topics`` and ``view_of_topic``: see :class:`.Search`.

    Raises:
        InvalidRequest: nobody can download what is still to come; or see :meth:`.message_search.Search.step`.
        UnknownPartition: there is no such topic or partition.
    """
    if download.follow:
        raise InvalidRequest("what arrives is not downloaded: begin at the newest, the oldest, a time or an offset")
    writer = _Csv() if download.format == "csv" else _JsonLines()
    until_s = clock() + SEARCH_MS_MAX / 1000
    query: Query = download
    count = 0
    while True:
        limit = min(STEP_MESSAGES, MESSAGES_MAX - count)
        page = Search(msgspec.structs.replace(query, limit=limit), topics, log, clock, view_of_topic).step()
        for place, message in enumerate(page.messages):
            writer.add(json_row(message))
            count += 1
            if writer.size >= BYTES_MAX and place + 1 < len(page.messages):
                unwritten = page.messages[place + 1 :]
                return DownloadFile(
                    writer.content, count, moved_back(page.cursor, unwritten, newest=query.order == "newest")
                )
        if not page.cursor or count >= MESSAGES_MAX or writer.size >= BYTES_MAX or clock() >= until_s:
            return DownloadFile(writer.content, count, page.cursor)
        query = msgspec.structs.replace(query, cursor=page.cursor)


class _JsonLines:
    def __init__(self) -> None:
        self._file = bytearray()

    def add(self, row: dict[str, Any]) -> None:
        self._file += msgspec.json.encode(row) + b"\n"

    @property
    def size(self) -> int:
        return len(self._file)

    @property
    def content(self) -> bytes:
        return bytes(self._file)


class _Csv:
    def __init__(self) -> None:
        self._file = io.StringIO(newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def add(self, row: dict[str, Any]) -> None:
        headers = msgspec.json.encode(row["headers"]).decode() if "headers" in row else ""
        texts = [_cell(row.get(name, row.get(f"{name}_base64"))) for name in ("key", "value")]
        numbers = [row[name] for name in ("partition", "offset", "timestamp")]
        self._writer.writerow([_cell(row["topic"]), *numbers, *texts, headers])

    @property
    def size(self) -> int:
        return self._file.tell()

    @property
    def content(self) -> bytes:
        return self._file.getvalue().encode("utf-8", "surrogatepass")


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    return f"'{text}" if text.startswith(FORMULAS) else text

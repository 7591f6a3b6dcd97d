"""Reads the bulk requests of Elasticsearch's clients, and encodes the answers that they want.  No I/O.

Actions ``create`` and ``index`` add their document as a message, byte by byte; ``update``, ``delete`` and others are
refused one by one, as Elasticsearch does with what it cannot do.  ``app`` is service.name of the document or else the
index, ``host`` its host.name, ``time`` its @timestamp.

https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from ..records.compression import NONE
from .bodies import (
    BATCH_BYTES,
    BATCH_RECORDS,
    JSON_FAULTS,
    NAME_CHARS_MAX,
    RETRY_AFTER_S,
    BodyFault,
    BodyTooLarge,
    HttpAnswer,
    HttpRequest,
    RecordBatch,
    RequestOutcome,
    front,
    severity_header,
    severity_of,
    time_header,
)

JSON: Final = "application/json"
VERSION: Final = "8.19.0"
"""The version of Elasticsearch that clients are told: they refuse one that they do not know."""
ITEMS_MAX: Final = 100_000
"""Actions of a request: the answer has an object for each."""
BULK_PATH: Final = re.compile(r"(?:/([^/]+))?/_bulk/?")
TAKEN: Final = ("create", "index")
_OF_ITEM: Final = {
    400: "illegal_argument_exception",
    413: "illegal_argument_exception",
    429: "es_rejected_execution_exception",
    503: "unavailable_shards_exception",
}
_OF_REQUEST: Final = {401: "security_exception", 403: "security_exception", 400: "parse_exception"}
_PREPARATIONS: Final = re.compile(r"/_(nodes|ilm|index_template|component_template|ingest|cluster)\b.*")

encode_json = msgspec.json.Encoder().encode


class _Meta(Struct):
    index: str | None = field(default=None, name="_index")
    id: str | int | None = field(default=None, name="_id")


class _Document(Struct):
    """What headers need of a document; of any type, since indices are."""

    timestamp: Any = field(default=None, name="@timestamp")
    host: Any = None
    service: Any = None
    log: Any = None
    level: Any = None
    host_name: Any = field(default=None, name="host.name")
    service_name: Any = field(default=None, name="service.name")
    log_level: Any = field(default=None, name="log.level")


class _Item(Struct):
    """An action: where its document is in the body, or why there is none."""

    action: str
    index: str
    id: str
    start: int = 0
    stop: int = 0


_decode_action = msgspec.json.Decoder(dict[str, _Meta]).decode
_decode_document = msgspec.json.Decoder(_Document).decode


class ElasticBulk:
    """The protocol.  Made for each request: the answer names each of its items."""

    per_record = True
    packed = NONE

    def __init__(self) -> None:
        self._items: list[_Item] = []

    def batches(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        path = BULK_PATH.fullmatch(request.path)
        self._items = _items(body, (path and path[1]) or "")
        if not self._items:
            raise BodyFault("request body is required")
        return self._yield(request, body, outcome)

    def _yield(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        groups: dict[tuple[str, str], RecordBatch] = {}
        size = records = 0
        for number, item in enumerate(self._items):
            if item.action not in TAKEN:
                outcome.refuse(number, 400, f"{item.action}: this input takes only create and index")
                continue
            value = body[item.start : item.stop].strip()
            if len(value) > request.message_bytes_max:
                reason = f"a document has {len(value)} bytes: more than {request.message_bytes_max} (message_bytes_max)"
                outcome.refuse(number, 413, reason)
                continue
            try:
                document = _decode_document(value)
            except JSON_FAULTS as error:
                outcome.refuse(number, 400, f"failed to parse: {error}")
                continue
            host = _text(document.host_name) or _name(document.host, "name") or request.host
            app = _text(document.service_name) or _name(document.service, "name") or item.index
            host, app = host[:NAME_CHARS_MAX], app[:NAME_CHARS_MAX]
            batch = groups.setdefault((host, app), RecordBatch(host, app, [], [], []))
            batch.values.append(value)
            batch.tails.append(_tail(host, app, item.index, document))
            batch.numbers.append(number)  # type: ignore[attr-defined]  # a list: see above
            size += len(value)
            records += 1
            if size >= BATCH_BYTES or records >= BATCH_RECORDS:
                yield from groups.values()
                groups, size, records = {}, 0, 0
        yield from groups.values()

    def accepted(self, request: HttpRequest, outcome: RequestOutcome) -> HttpAnswer:
        prefix = os.urandom(9).hex()
        refused = outcome.refused
        items = [_row(item, f"{prefix}{number}", refused.get(number)) for number, item in enumerate(self._items)]
        return _answer(200, encode_json({"took": 0, "errors": bool(refused), "items": items}))

    def fault(self, request: HttpRequest, status: int, reason: str) -> HttpAnswer:
        return _answer(status, _fault(status, _OF_REQUEST.get(status, _OF_ITEM.get(status, "exception")), reason))


def _items(body: bytes, index: str) -> list[_Item]:
    """The actions of a body.  Raises BodyFault: a line that should be an action is none."""
    items: list[_Item] = []
    at, line = 0, 1
    while at < len(body):
        stop = _line_end(body, at)
        text = body[at:stop].strip()
        at, line = stop + 1, line + 1
        if not text:
            continue
        action, meta = _action(text, line - 1)
        item = _Item(action, (meta.index or index)[:200], "" if meta.id is None else str(meta.id)[:512])
        if action != "delete":
            if at >= len(body):
                raise BodyFault(f"line {line - 1}: there is no document behind the action {action}")
            item.start, item.stop = at, _line_end(body, at)
            at, line = item.stop + 1, line + 1
        items.append(item)
        if len(items) > ITEMS_MAX:
            raise BodyTooLarge(f"more than {ITEMS_MAX} actions: send smaller requests")
    return items


def _line_end(body: bytes, at: int) -> int:
    stop = body.find(b"\n", at)
    return len(body) if stop < 0 else stop


def _action(text: bytes, line: int) -> tuple[str, _Meta]:
    try:
        entries = _decode_action(text)
    except JSON_FAULTS as error:
        raise BodyFault(f"Malformed action/metadata line [{line}]: {error}") from None
    if len(entries) != 1:
        raise BodyFault(f"Malformed action/metadata line [{line}]: it must have one action")
    ((action, meta),) = entries.items()
    if action not in (*TAKEN, "update", "delete"):
        raise BodyFault(f"Malformed action/metadata line [{line}]: unknown action {action[:40]!r}")
    return action, meta


def _tail(host: str, app: str, index: str, document: _Document) -> bytes:
    shared = front(host, app, *(("index", index) if index else ()))
    more: list[bytes] = []
    level = _text(document.log_level) or _name(document.log, "level") or _text(document.level)
    if level:
        more.append(severity_header(severity_of(level)))
    if time := _text(document.timestamp):
        more.append(time_header(time))
    return shared.tail(*more)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _name(value: object, key: str) -> str:
    """The text under ``key`` of an object, or the text that a value is."""
    return _text(value.get(key)) if isinstance(value, dict) else _text(value)


def _row(item: _Item, new_id: str, refused: tuple[int, str] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"_index": item.index, "_id": item.id or new_id}
    if refused is None:
        row |= {
            "_version": 1,
            "result": "created",
            "_shards": {"total": 1, "successful": 1, "failed": 0},
            "_seq_no": 0,
            "_primary_term": 1,
            "status": 201,
        }
    else:
        status, reason = refused
        if status in RETRY_AFTER_S:  # what all clients send again; some drop the items of a request that is 503 itself
            status = 429
        row |= {"status": status, "error": {"type": _OF_ITEM.get(status, "exception"), "reason": reason}}
    return {item.action: row}


def _fault(status: int, kind: str, reason: str) -> bytes:
    cause = {"type": kind, "reason": reason}
    return encode_json({"error": {"root_cause": [cause], **cause}, "status": status})


def preparation(method: str, path: str) -> HttpAnswer | None:
    """The answer to what clients ask before they send; None: they do not ask this."""
    if path == "/" and method in ("GET", "HEAD"):
        version = {
            "number": VERSION,
            "build_flavor": "default",
            "build_type": "tar",
            "build_hash": "unknown",
            "build_date": "2025-01-01T00:00:00Z",
            "build_snapshot": False,
            "lucene_version": "9.12.2",
            "minimum_wire_compatibility_version": "7.17.0",
            "minimum_index_compatibility_version": "7.0.0",
        }
        about = {"name": "appliance", "cluster_name": "appliance", "cluster_uuid": "appliance", "version": version}
        return _answer(200, encode_json(about | {"tagline": "You Know, for Search"}))
    if path.startswith(("/_license", "/_xpack")) and method == "GET":
        terms = {"status": "active", "uid": "appliance", "type": "basic", "mode": "basic"}
        return _answer(200, encode_json({"license": terms}))
    return _answer(200, b'{"acknowledged":true}') if _PREPARATIONS.fullmatch(path) else None


def _answer(status: int, body: bytes) -> HttpAnswer:
    return HttpAnswer(status, JSON, body, ((b"x-elastic-product", b"Elasticsearch"),))

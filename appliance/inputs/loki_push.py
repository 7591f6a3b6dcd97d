"""Reads the push requests of Loki's clients, in JSON and in protobuf.  No I/O.

The value of an entry is its line.  Its labels, and its structured metadata, are headers; those of them that name an
application, a host or a severity are also ``app``, ``host`` and ``severity``.

https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from msgspec import Struct

from ..records.compression import NONE, SNAPPY
from .bodies import (
    BATCH_BYTES,
    HEADERS_MAX,
    JSON_FAULTS,
    RESERVED,
    SEVERITY_OF,
    VALUES_MAX,
    Answer,
    Batch,
    BodyFault,
    BodyTooLarge,
    Front,
    Outcome,
    Request,
    front,
    header,
    open_name,
    part_tails,
    rfc3339,
    split_line,
    time_header,
)

PROTOBUF: Final = "application/x-protobuf"
BATCH_RECORDS: Final = 2_000
APP_LABELS: Final = ("app", "service_name", "service", "application", "container", "job")
HOST_LABELS: Final = ("host", "hostname", "node_name", "instance")
SEVERITY_LABELS: Final = ("severity", "level", "detected_level")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_:][\w:.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|`([^`]*)`)\s*(,|$)', re.DOTALL)


class Entry(NamedTuple):
    """``metadata``: of this entry alone."""

    time_ns: int
    line: bytes
    metadata: Mapping[str, str]


class LokiPush:
    """The requests of one of the two content types."""

    per_record = False

    def __init__(self, content_type: str) -> None:
        self._is_protobuf = content_type == PROTOBUF
        self.packed = SNAPPY if self._is_protobuf else NONE

    def batches(self, request: Request, body: bytes, outcome: Outcome) -> Iterator[Batch]:
        streams = _protobuf_streams(body) if self._is_protobuf else _json_streams(body)
        return _yield(request, streams)

    def accepted(self, request: Request, outcome: Outcome) -> Answer:
        return Answer(204, "text/plain", b"")

    def fault(self, request: Request, status: int, reason: str) -> Answer:
        return Answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode("utf-8", "replace"))


Streams = list[tuple[dict[str, str], list[Any]]]
"""Labels, and entries: those of JSON, or of protobuf."""


def _yield(request: Request, streams: Streams) -> Iterator[Batch]:
    number = 0
    for labels, entries in streams:
        host = _first(labels, HOST_LABELS) or request.host
        app = _first(labels, APP_LABELS)
        severity = _first(labels, SEVERITY_LABELS)
        shared = front(host, app, _open_headers(labels, host, app))
        values: list[bytes] = []
        tails: list[bytes] = []
        numbers: list[int] = []
        size = 0
        for entry in map(_entry, entries):
            parts = split_line(entry.line, request.message_bytes_max)
            values += parts
            tails += part_tails(shared, len(parts), *_more(shared, entry, severity))
            numbers += [number] * len(parts)
            number += 1
            size += len(entry.line)
            if size >= BATCH_BYTES or len(values) >= BATCH_RECORDS:
                yield Batch(host, app, values, tails, numbers)
                values, tails, numbers, size = [], [], [], 0
        if values:
            yield Batch(host, app, values, tails, numbers)


def _more(shared: Front, entry: Entry, severity: str) -> list[bytes]:
    """The headers of one entry."""
    metadata = entry.metadata
    severity = _first(metadata, SEVERITY_LABELS) or severity if metadata else severity
    more = [header("severity", _severity(severity))] if severity else []
    if time := rfc3339(entry.time_ns):
        more.append(time_header(time))
    room = max(0, HEADERS_MAX - shared.headers)
    return more + [header(open_name(name), value) for name, value in list(metadata.items())[:room]]


def _severity(text: str) -> str:
    return SEVERITY_OF.get(text.lower(), text[:40])


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _open_headers(labels: Mapping[str, str], host: str, app: str) -> tuple[tuple[str, str], ...]:
    """The labels as headers, without those that are ``host``, ``app`` and ``severity`` already."""
    told = {"host": host, "app": app, "severity": labels.get("severity")}
    return tuple(
        (open_name(name), value) for name, value in labels.items() if not (name in RESERVED and told.get(name) == value)
    )


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > HEADERS_MAX:
        raise BodyFault(f"a stream has {len(labels)} labels: at most {HEADERS_MAX} become headers")


# ---- JSON


class _Stream(Struct):
    stream: dict[str, str] = {}
    values: list[list[str | int | dict[str, str]]] = []


class _Push(Struct):
    streams: list[_Stream] = []


_decode_push = msgspec.json.Decoder(_Push).decode


def _json_streams(body: bytes) -> Streams:
    if body.count(b"[") > VALUES_MAX:
        raise BodyTooLarge(f"more than {VALUES_MAX} entries: send smaller requests")
    try:
        push = _decode_push(body)
    except JSON_FAULTS as error:
        raise BodyFault(f"no push request: {error}") from None
    for stream in push.streams:
        _check_labels(stream.stream)
        for value in stream.values:
            if len(value) not in (2, 3) or not isinstance(value[1], str) or isinstance(value[0], dict):
                raise BodyFault('a value must be ["TIME IN NS", "LINE"], with an object of metadata behind it or not')
            if len(value) == 3 and not isinstance(value[2], dict):
                raise BodyFault("the third field of a value must be an object of metadata")
            if not str(value[0]).isdecimal():
                raise BodyFault(f"{str(value[0])[:40]!r} is no time in ns since 1970")
    return [(stream.stream, stream.values) for stream in push.streams]


def _entry(entry: Any) -> Entry:
    if isinstance(entry, list):
        metadata = entry[2] if len(entry) == 3 else {}
        return Entry(int(str(entry[0])[:20]), entry[1].encode("utf-8", "replace"), metadata)
    time_ns = entry.timestamp.seconds * 10**9 + entry.timestamp.nanos
    return Entry(time_ns, entry.line, {pair.name: pair.value for pair in entry.structured_metadata})


# ---- protobuf


@cache
def _push_request() -> Any:
    """The class of logproto.PushRequest, of Loki's pkg/push/push.proto.  A line is bytes here: it may be no UTF-8."""
    file = descriptor_pb2.FileDescriptorProto(name="appliance/loki_push.proto", package="logproto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    messages: dict[str, list[tuple[str, int, Any, str]]] = {
        "Timestamp": [("seconds", 1, kinds.TYPE_INT64, ""), ("nanos", 2, kinds.TYPE_INT32, "")],
        "LabelPair": [("name", 1, kinds.TYPE_STRING, ""), ("value", 2, kinds.TYPE_STRING, "")],
        "Entry": [
            ("timestamp", 1, kinds.TYPE_MESSAGE, "Timestamp"),
            ("line", 2, kinds.TYPE_BYTES, ""),
            ("structured_metadata", 3, kinds.TYPE_MESSAGE, "*LabelPair"),
        ],
        "Stream": [("labels", 1, kinds.TYPE_STRING, ""), ("entries", 2, kinds.TYPE_MESSAGE, "*Entry")],
        "PushRequest": [("streams", 1, kinds.TYPE_MESSAGE, "*Stream")],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, inner in fields:
            label = kinds.LABEL_REPEATED if inner.startswith("*") else kinds.LABEL_OPTIONAL
            type_name = f".logproto.{inner.lstrip('*')}" if inner else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.PushRequest"))


def _protobuf_streams(body: bytes) -> Streams:
    push = _push_request()()
    try:
        push.ParseFromString(body)
    except DecodeError as error:
        raise BodyFault(f"no PushRequest: {error}") from None
    streams: Streams = [(parse_labels(stream.labels), stream.entries) for stream in push.streams]
    for labels, _ in streams:
        _check_labels(labels)
    return streams


@lru_cache(1_024)
def parse_labels(text: str) -> dict[str, str]:
    """``{app="nginx", host="web-1"}``.  Raises BodyFault."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise BodyFault(f"labels {text[:60]!r}: must be within braces")
    inner = inner[1:-1].strip()
    labels: dict[str, str] = {}
    at = 0
    while at < len(inner):
        found = _LABEL.match(inner, at)
        if found is None:
            raise BodyFault(f'labels {text[:60]!r}: must be NAME="VALUE", separated by commas')
        labels[found[1]] = found[3] if found[3] is not None else _unquote(found[2])
        at = found.end()
    return labels


def _unquote(text: str) -> str:
    """The text between quotes, as Go and Prometheus write it; escapes that JSON has not stay as they are."""
    try:
        return str(msgspec.json.decode(f'"{text}"'.encode("utf-8", "replace"), type=str))
    except JSON_FAULTS:
        return text

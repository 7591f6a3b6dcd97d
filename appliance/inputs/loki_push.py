"""Reads the push requests of Loki's clients, in JSON and in protobuf.  No I/O.

The value of an entry is its line.  Its labels, and its structured metadata, are headers; those of them that name an
application, a host or a severity are also ``app``, ``host`` and ``severity``.

https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from msgspec import Struct

from ..records.compression import NONE, SNAPPY
from .bodies import (
    BATCH_BYTES,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    JSON_FAULTS,
    NAME_CHARS_MAX,
    RECORDS_MAX,
    RESERVED,
    VALUES_MAX,
    BodyFault,
    BodyTooLarge,
    HttpAnswer,
    HttpRequest,
    RecordBatch,
    RequestOutcome,
    encode_header,
    front,
    is_time_ns,
    open_name,
    part_tails,
    rfc3339,
    severity_header,
    severity_of,
    small_cache,
    split_line,
    submessages,
    time_header,
)

PROTOBUF: Final = "application/x-protobuf"
BATCH_RECORDS: Final = 2_000
APP_LABELS: Final = ("app", "service_name", "service", "application", "container", "job")
HOST_LABELS: Final = ("host", "hostname", "node_name", "instance")
SEVERITY_LABELS: Final = ("severity", "level", "detected_level")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_:][\w:.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|`([^`]*)`)\s*(,|$)', re.DOTALL)


class LokiEntry(NamedTuple):
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

    def batches(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        streams = _protobuf_streams(body) if self._is_protobuf else _json_streams(body)
        return _yield(request, streams)

    def accepted(self, request: HttpRequest, outcome: RequestOutcome) -> HttpAnswer:
        return HttpAnswer(204, "text/plain", b"")

    def fault(self, request: HttpRequest, status: int, reason: str) -> HttpAnswer:
        return HttpAnswer(status, "text/plain; charset=utf-8", f"{reason}\n".encode("utf-8", "replace"))


LokiStreams = list[tuple[dict[str, str], list[Any]]]
"""Labels, and entries: those of JSON, or of protobuf."""


def _yield(request: HttpRequest, streams: LokiStreams) -> Iterator[RecordBatch]:
    number = 0
    for labels, entries in streams:
        host = _first(labels, HOST_LABELS)[:NAME_CHARS_MAX] or request.host
        app = _first(labels, APP_LABELS)[:NAME_CHARS_MAX]
        severity = _first(labels, SEVERITY_LABELS)
        shared = front(host, app, *_open_headers(labels, host, app))
        values: list[bytes] = []
        tails: list[bytes] = []
        numbers: list[int] = []
        size = 0
        for entry in map(_entry, entries):
            parts = split_line(entry.line, request.message_bytes_max)
            values += parts
            tails += part_tails(shared, len(parts), *_more(entry, severity))
            numbers += [number] * len(parts)
            number += 1
            size += len(entry.line)
            if size >= BATCH_BYTES or len(values) >= BATCH_RECORDS:
                yield RecordBatch(host, app, values, tails, numbers)
                values, tails, numbers, size = [], [], [], 0
        if values:
            yield RecordBatch(host, app, values, tails, numbers)


def _more(entry: LokiEntry, severity: str) -> list[bytes]:
    """The headers that this entry has beside those of its stream."""
    metadata = entry.metadata
    severity = _first(metadata, SEVERITY_LABELS) or severity if metadata else severity
    more = [severity_header(severity_of(severity))] if severity else []
    if time := rfc3339(entry.time_ns):
        more.append(time_header(time))
    return more + [encode_header(open_name(name), value) for name, value in metadata.items()]


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _open_headers(labels: Mapping[str, str], host: str, app: str) -> Iterator[str]:
    """The labels as headers, without those that are ``host``, ``app`` and ``severity`` already."""
    told = {"host": host, "app": app, "severity": labels.get("severity")}
    for name, value in labels.items():
        if not (name in RESERVED and told.get(name) == value):
            yield from (open_name(name), value)


def _check_labels(labels: Mapping[str, str], metadata: Mapping[str, str]) -> None:
    if len(labels) + len(metadata) > HEADERS_MAX:
        count = f"{len(labels)} labels and {len(metadata)} fields of metadata"
        raise BodyFault(f"an entry has {count}: at most {HEADERS_MAX} together become headers")
    for name, value in (*labels.items(), *metadata.items()):
        if len(name) > NAME_CHARS_MAX or len(value) > HEADER_BYTES_MAX // 4:
            raise BodyFault(
                f"label {name[:40]!r}: at most {NAME_CHARS_MAX} characters, {HEADER_BYTES_MAX // 4} of value"
            )


# ---- JSON


class _Stream(Struct):
    stream: dict[str, str] = {}
    values: list[list[str | int | dict[str, str]]] = []


class _Push(Struct):
    streams: list[_Stream] = []


_decode_push = msgspec.json.Decoder(_Push).decode


def _json_streams(body: bytes) -> LokiStreams:
    if body.count(b",") > VALUES_MAX:
        raise BodyTooLarge(f"more than {VALUES_MAX} commas: send smaller requests")
    try:
        push = _decode_push(body)
    except JSON_FAULTS as error:
        raise BodyFault(f"no push request: {error}") from None
    for stream in push.streams:
        _check_labels(stream.stream, {})
        for value in stream.values:
            if len(value) not in (2, 3) or not isinstance(value[1], str) or isinstance(value[0], dict):
                raise BodyFault('a value must be ["TIME IN NS", "LINE"], with an object of metadata behind it or not')
            if len(value) == 3:
                if not isinstance(value[2], dict):
                    raise BodyFault("the third field of a value must be an object of metadata")
                _check_labels(stream.stream, value[2])
            if not is_time_ns(str(value[0])):
                raise BodyFault(f"{str(value[0])[:40]!r} is no time in ns since 1970")
    return [(stream.stream, stream.values) for stream in push.streams]


def _entry(entry: Any) -> LokiEntry:
    if isinstance(entry, list):
        metadata = entry[2] if len(entry) == 3 else {}
        return LokiEntry(int(str(entry[0])), entry[1].encode("utf-8", "replace"), metadata)
    message = _entry_class().FromString(entry)
    time_ns = message.timestamp.seconds * 10**9 + message.timestamp.nanos
    return LokiEntry(time_ns, message.line, {pair.name: pair.value for pair in message.structured_metadata})


# ---- protobuf


STREAMS: Final = 1
"""A field of logproto.PushRequest, in Loki's pkg/push/push.proto; the next two are fields of a StreamAdapter."""
LABELS: Final = 1
ENTRIES: Final = 2


@cache
def _entry_class() -> Any:
    """The class of logproto.EntryAdapter.  A line is bytes here: it may be no UTF-8."""
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
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, inner in fields:
            label = kinds.LABEL_REPEATED if inner.startswith("*") else kinds.LABEL_OPTIONAL
            type_name = f".logproto.{inner.lstrip('*')}" if inner else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.Entry"))


def _protobuf_streams(body: bytes) -> LokiStreams:
    streams: LokiStreams = []
    count = 0
    try:
        for field, start, stop in submessages(body, 0, len(body)):
            labels: dict[str, str] = {}
            entries: list[Any] = []
            for inner, at, end in submessages(body, start, stop) if field == STREAMS else ():
                if inner == LABELS:
                    labels = parse_labels(body[at:end].decode("utf-8", "replace"))
                elif inner == ENTRIES:
                    entries.append(body[at:end])
                    count += 1
                if count > RECORDS_MAX:
                    raise BodyTooLarge(f"more than {RECORDS_MAX} entries: send smaller requests")
            for entry in entries:  # each is read again when its turn comes: as objects they take more memory
                _check_labels(labels, _entry(entry).metadata)
            if entries:
                streams.append((labels, entries))
    except DecodeError as error:
        raise BodyFault(f"no PushRequest: {error}") from None
    return streams


@small_cache(1_024)
def parse_labels(text: str) -> dict[str, str]:
    """``{app="nginx", host="web-1"}``.  Raises BodyFault."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise BodyFault(f"labels {text[:60]!r}: must be within braces")
    inner = inner[1:-1].strip()
    labels: dict[str, str] = {}
    at = 0
    while at < len(inner):
        label = _LABEL.match(inner, at)
        if label is None:
            raise BodyFault(f'labels {text[:60]!r}: must be NAME="VALUE", separated by commas')
        labels[label[1]] = label[3] if label[3] is not None else _unquote(label[2])
        at = label.end()
    return labels


def _unquote(text: str) -> str:
    """The text between quotes, as Go and Prometheus write it; escapes that JSON has not stay as they are."""
    try:
        return str(msgspec.json.decode(f'"{text}"'.encode("utf-8", "replace"), type=str))
    except JSON_FAULTS:
        return text

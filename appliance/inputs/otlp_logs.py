"""Reads OTLP/HTTP requests with logs, in protobuf and in JSON, and encodes what answers them.  No I/O.

The value of a record is its LogRecord as OTLP JSON: that of a JSON request as it came, that of a protobuf request by
the mapping of the specification (names in lowerCamelCase, ids in hexadecimal, 64-bit numbers as text).  What a record
shares with others is in its headers ``resource`` and ``scope``, as OTLP JSON, too; ``host`` and ``app`` come from the
resource's host.name and service.name.

https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Meta, Raw, Struct
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ..records.compression import NONE
from ..records.encode import encode_headers
from ..records.varints import unsigned
from .bodies import (
    BATCH_BYTES,
    JSON_FAULTS,
    NAME_CHARS_MAX,
    RECORDS_MAX,
    RETRY_AFTER_S,
    VALUES_MAX,
    BodyFault,
    BodyTooLarge,
    Front,
    HttpAnswer,
    HttpRequest,
    RecordBatch,
    Rejected,
    RequestOutcome,
    is_time_ns,
    rfc3339,
    severity_header,
    severity_of,
    small_cache,
    submessages,
    time_header,
)

PROTOBUF: Final = ("application/x-protobuf", "application/protobuf")
JSON: Final = "application/json"
BATCH_RECORDS: Final = 1_000
"""Reading a record takes about 10 us: others have their turn in between."""
GROUPS_MAX: Final = 50_000
"""Scopes of a request, with their resources."""
RESOURCE_LOGS: Final = ExportLogsServiceRequest.RESOURCE_LOGS_FIELD_NUMBER
RESOURCE: Final = ResourceLogs.RESOURCE_FIELD_NUMBER
SCOPE_LOGS: Final = ResourceLogs.SCOPE_LOGS_FIELD_NUMBER
SCOPE: Final = ScopeLogs.SCOPE_FIELD_NUMBER
LOG_RECORDS: Final = ScopeLogs.LOG_RECORDS_FIELD_NUMBER
REASONS_MAX: Final = 100
"""Refused records of which the reason is kept: the answer has the first one."""
_GRPC_CODES: Final = {401: 16, 403: 7, 404: 5, 408: 4, 413: 8, 429: 8, 503: 14}
_INVALID_ARGUMENT: Final = 3

encode_json = msgspec.json.Encoder().encode


class OtlpLogs:
    """The requests of one of the two content types."""

    per_record = True
    packed = NONE

    def batches(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        if request.content_type in PROTOBUF:
            return _protobuf_batches(request, body, outcome)
        if request.content_type == JSON:
            return _json_batches(request, body, outcome)
        raise Rejected(415, f"Content-Type {request.content_type[:60]}: must be {PROTOBUF[0]} or {JSON}")

    def accepted(self, request: HttpRequest, outcome: RequestOutcome) -> HttpAnswer:
        refused = outcome.refused
        for status, reason in refused.values():
            if status in RETRY_AFTER_S:  # the protocol has no way to send again only those: all
                return self.fault(request, status, reason)
        reason = next(iter(refused.values()))[1] if refused else ""
        if request.content_type == JSON:
            partial = {"partialSuccess": {"rejectedLogRecords": str(len(refused)), "errorMessage": reason}}
            return HttpAnswer(200, JSON, encode_json(partial if refused else {}))
        response = ExportLogsServiceResponse()
        if refused:
            response.partial_success.rejected_log_records = len(refused)
            response.partial_success.error_message = reason
        return HttpAnswer(200, PROTOBUF[0], response.SerializeToString())

    def fault(self, request: HttpRequest, status: int, reason: str) -> HttpAnswer:
        """A google.rpc.Status: code (1) and message (2)."""
        code = _GRPC_CODES.get(status, _INVALID_ARGUMENT)
        if request.content_type == JSON:
            return HttpAnswer(status, JSON, encode_json({"code": code, "message": reason}))
        text = reason.encode("utf-8", "replace")
        return HttpAnswer(status, PROTOBUF[0], b"".join((b"\x08", unsigned(code), b"\x12", unsigned(len(text)), text)))


class _Records:
    """Collects the records of one resource and scope, and gives them as batches."""

    def __init__(
        self, request: HttpRequest, outcome: RequestOutcome, first: int, resource: bytes, scope: bytes
    ) -> None:
        self._bytes_max, self._outcome = request.message_bytes_max, outcome
        self._number = first
        names = _names_of(resource)
        self._host, self._app = names[0][:NAME_CHARS_MAX] or request.host, names[1][:NAME_CHARS_MAX]
        self._front = _front(self._host, self._app, resource, scope)
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes] = []
        self._tails: list[bytes] = []
        self._numbers: list[int] = []
        self._bytes = 0

    def put(self, value: bytes, time_ns: int, severity: str) -> RecordBatch | None:
        """Take one record more; a batch that it has filled."""
        more: list[bytes] = []
        if severity:
            more.append(severity_header(severity))
        if time := rfc3339(time_ns):
            more.append(time_header(time))
        tail = self._front.tail(*more)
        size = len(value) + len(tail)
        if size > self._bytes_max:
            reason = f"a record has {size} bytes with its resource: more than {self._bytes_max} (message_bytes_max)"
            self.refuse(413, reason)
            return None
        self._values.append(value)
        self._tails.append(tail)
        self._numbers.append(self._number)
        self._number += 1
        self._bytes += size
        return self.end() if self._bytes >= BATCH_BYTES or len(self._values) >= BATCH_RECORDS else None

    def refuse(self, status: int, reason: str) -> None:
        """Leave one record out."""
        refused = self._outcome.refused
        refused[self._number] = status, reason if len(refused) < REASONS_MAX else ""
        self._number += 1

    def end(self) -> RecordBatch | None:
        """What was collected, if it is anything."""
        if not self._values:
            return None
        batch = RecordBatch(self._host, self._app, self._values, self._tails, self._numbers)
        self._begin()
        return batch

    @property
    def next_number(self) -> int:
        return self._number


@small_cache(1_024)
def _front(host: str, app: str, resource: bytes, scope: bytes) -> Front:
    headers = [("host", host.encode("utf-8", "replace"))]
    if app:
        headers.append(("app", app.encode("utf-8", "replace")))
    headers += [
        (name, value) for name, value in (("resource", resource), ("scope", scope)) if value not in (b"", b"{}")
    ]
    return Front(len(headers), encode_headers(headers)[1:])


def _severity(number: int, text: str) -> str:
    """syslog's name of a severity, by the appendix B of the data model of logs."""
    if 1 <= number <= 24:
        if number < 10:
            return "debug" if number < 9 else "info"
        if number < 17:
            return "notice" if number < 13 else "warning"
        return ("err", "crit", "alert", "alert")[number - 17] if number < 21 else "emerg"
    return severity_of(text)


# ---- JSON


class _KeyValue(Struct):
    key: str = ""
    value: Raw = Raw(b"")


class _Attributes(Struct):
    attributes: list[_KeyValue] | None = None


class _Record(Struct, rename="camel"):
    """What headers need of a record, and what would be wrong for all who read it."""

    time_unix_nano: str | int | None = None
    observed_time_unix_nano: str | int | None = None
    severity_number: int | str | None = 0
    severity_text: str | None = ""
    attributes: list[_KeyValue] | None = None
    body: dict[str, Raw] | None = None
    trace_id: Annotated[str, Meta(pattern=r"^([0-9a-fA-F]{32})?$")] | None = ""
    span_id: Annotated[str, Meta(pattern=r"^([0-9a-fA-F]{16})?$")] | None = ""


class _ScopeLogs(Struct, rename="camel"):
    log_records: list[Raw] | None = None
    scope: Raw = Raw(b"")


class _ResourceLogs(Struct, rename="camel"):
    scope_logs: list[_ScopeLogs] | None = None
    resource: Raw = Raw(b"")


class _Export(Struct, rename="camel"):
    resource_logs: list[_ResourceLogs] | None = None


_decode_export = msgspec.json.Decoder(_Export).decode
_decode_record = msgspec.json.Decoder(_Record).decode
_decode_attributes = msgspec.json.Decoder(_Attributes).decode
_decode_text = msgspec.json.Decoder(dict[str, Any]).decode


@small_cache(1_024)
def _names_of(resource: bytes) -> tuple[str, str]:
    """host.name and service.name of a resource, which is OTLP JSON.  Raises BodyFault."""
    if not resource:
        return "", ""
    try:
        rows = _decode_attributes(resource).attributes or []
        values = {row.key: _decode_text(row.value) for row in rows if row.key in ("host.name", "service.name")}
    except JSON_FAULTS as error:
        raise BodyFault(f"a resource is no OTLP JSON: {error}") from None
    texts = {key: value.get("stringValue", "") for key, value in values.items()}
    host, app = texts.get("host.name"), texts.get("service.name")
    return host if isinstance(host, str) else "", app if isinstance(app, str) else ""


def _json_batches(request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
    if body.count(b",") > VALUES_MAX:
        raise BodyTooLarge(f"more than {VALUES_MAX} commas: send smaller requests")
    try:
        export = _decode_export(body)
    except JSON_FAULTS as error:
        raise BodyFault(f"no OTLP JSON: {error}") from None
    groups = [
        (_bytes_of(resource_logs.resource), _bytes_of(scope_logs.scope), scope_logs.log_records or [])
        for resource_logs in export.resource_logs or []
        for scope_logs in resource_logs.scope_logs or []
    ]
    if sum(len(records) for _, _, records in groups) > RECORDS_MAX:
        raise BodyTooLarge(f"more than {RECORDS_MAX} records: send smaller requests")
    for resource, scope, _ in groups:  # before anything is taken
        _names_of(_small(request, resource))
        _small(request, scope)
    return _yield_json(request, groups, outcome)


def _time_ns(value: str | int | None) -> int:
    """Raises ValueError: it is no time."""
    text = str(value or 0)
    if not is_time_ns(text):
        raise ValueError(f"{text[:40]!r} is no time in ns since 1970")
    return int(text)


def _bytes_of(raw: Raw) -> bytes:
    value = bytes(raw)
    return b"" if value == b"null" else value


def _yield_json(
    request: HttpRequest, groups: list[tuple[bytes, bytes, list[Raw]]], outcome: RequestOutcome
) -> Iterator[RecordBatch]:
    number = 0
    for resource, scope, raws in groups:
        records = _Records(request, outcome, number, resource, scope)
        for raw in raws:
            try:
                record = _decode_record(raw)
                time_ns = _time_ns(record.time_unix_nano) or _time_ns(record.observed_time_unix_nano)
                level = record.severity_number if isinstance(record.severity_number, int) else 0
            except (*JSON_FAULTS, ValueError) as error:
                records.refuse(400, f"a record is no LogRecord: {error}")
                continue
            batch = records.put(bytes(raw), time_ns, _severity(level, record.severity_text or ""))
            if batch is not None:
                yield batch
        number = records.next_number
        if (batch := records.end()) is not None:
            yield batch


# ---- protobuf


def _protobuf_batches(request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
    """Records are parsed one by one.  All that is around them is checked before the first is taken."""
    groups: list[tuple[bytes, bytes, list[tuple[int, int]]]] = []
    count = 0
    try:
        for number, start, stop in submessages(body, 0, len(body)):
            if number == RESOURCE_LOGS:
                fields = list(_bounded(submessages(body, start, stop)))
                resource = b"".join(body[start:stop] for number, start, stop in fields if number == RESOURCE)
                resource_json = encode_json(_resource(Resource.FromString(_small(request, resource))))
                for number, start, stop in fields:
                    if number == SCOPE_LOGS:
                        scope, records = _scope_logs(request, body, start, stop)
                        count += len(records)
                        groups.append((resource_json, scope, records))
            if count > RECORDS_MAX or len(groups) > GROUPS_MAX:
                raise BodyTooLarge(f"more than {RECORDS_MAX} records, or {GROUPS_MAX} scopes: send smaller requests")
    except DecodeError as error:
        raise BodyFault(f"no ExportLogsServiceRequest: {error}") from None
    return _yield_protobuf(request, body, groups, outcome)


def _scope_logs(request: HttpRequest, body: bytes, start: int, stop: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The scope as JSON, and where the records are."""
    scope = b""
    records: list[tuple[int, int]] = []
    for number, at, end in _bounded(submessages(body, start, stop)):
        if number == LOG_RECORDS:
            records.append((at, end))
        elif number == SCOPE:
            scope += body[at:end]
    return encode_json(_scope(InstrumentationScope.FromString(_small(request, scope)))), records


def _bounded(fields: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    for count, field in enumerate(fields):
        if count > RECORDS_MAX:
            raise BodyTooLarge(f"more than {RECORDS_MAX} records: send smaller requests")
        yield field


def _small(request: HttpRequest, encoded: bytes) -> bytes:
    if len(encoded) > request.message_bytes_max:
        raise BodyTooLarge(f"a resource or scope has more than {request.message_bytes_max} bytes (message_bytes_max)")
    return encoded


def _yield_protobuf(
    request: HttpRequest, body: bytes, groups: list[tuple[bytes, bytes, list[tuple[int, int]]]], outcome: RequestOutcome
) -> Iterator[RecordBatch]:
    number = 0
    for resource, scope, places in groups:
        records = _Records(request, outcome, number, resource, scope)
        for start, stop in places:
            if stop - start > request.message_bytes_max:
                records.refuse(413, f"a record has more than {request.message_bytes_max} bytes (message_bytes_max)")
                continue
            try:
                record = LogRecord.FromString(body[start:stop])
            except DecodeError as error:
                records.refuse(400, f"a record is no LogRecord: {error}")
                continue
            time_ns = record.time_unix_nano or record.observed_time_unix_nano
            severity = _severity(record.severity_number, record.severity_text)
            batch = records.put(encode_json(_log_record(record)), time_ns, severity)
            if batch is not None:
                yield batch
        number = records.next_number
        if (batch := records.end()) is not None:
            yield batch


def _resource(resource: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if resource.attributes:
        fields["attributes"] = _key_values(resource.attributes)
    if resource.dropped_attributes_count:
        fields["droppedAttributesCount"] = resource.dropped_attributes_count
    return fields


def _scope(scope: Any) -> dict[str, Any]:
    named = {name: text for name, text in (("name", scope.name), ("version", scope.version)) if text}
    return named | _resource(scope)


def _log_record(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if time := record.time_unix_nano:
        fields["timeUnixNano"] = str(time)
    if time := record.observed_time_unix_nano:
        fields["observedTimeUnixNano"] = str(time)
    if number := record.severity_number:
        fields["severityNumber"] = number
    if text := record.severity_text:
        fields["severityText"] = text
    if record.HasField("body"):
        fields["body"] = _any_value(record.body)
    if attributes := record.attributes:
        fields["attributes"] = _key_values(attributes)
    if count := record.dropped_attributes_count:
        fields["droppedAttributesCount"] = count
    if flags := record.flags:
        fields["flags"] = flags
    if trace_id := record.trace_id:
        fields["traceId"] = trace_id.hex()
    if span_id := record.span_id:
        fields["spanId"] = span_id.hex()
    if name := getattr(record, "event_name", ""):  # since release 1.5 of the protocol
        fields["eventName"] = name
    return fields


def _key_values(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"key": row.key, "value": _any_value(row.value)} for row in rows]


def _any_value(value: Any) -> dict[str, Any]:
    match value.WhichOneof("value"):
        case "string_value":
            return {"stringValue": value.string_value}
        case "int_value":
            return {"intValue": str(value.int_value)}
        case "bool_value":
            return {"boolValue": value.bool_value}
        case "double_value":
            return {"doubleValue": _double(value.double_value)}
        case "array_value":
            return {"arrayValue": {"values": [_any_value(item) for item in value.array_value.values]}}
        case "kvlist_value":
            return {"kvlistValue": {"values": _key_values(value.kvlist_value.values)}}
        case "bytes_value":
            return {"bytesValue": b64encode(value.bytes_value).decode()}
    return {}


def _double(value: float) -> float | str:
    """JSON has no numbers for these: protobuf's mapping has names."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

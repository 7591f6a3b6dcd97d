"""The readers of OTLP, Loki and bulk bodies take what is right whole, and refuse anything else without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from appliance.inputs import elastic_bulk, loki_push, otlp_logs
from appliance.inputs.bodies import BodyFault, BodyReader, BodyTooLarge, HttpRequest, Rejected, RequestOutcome
from appliance.inputs.elastic_bulk import ElasticBulk
from appliance.inputs.loki_push import LokiPush, parse_labels
from appliance.inputs.otlp_logs import OtlpLogs, _any_value, _log_record

from .loki_messages import push_class

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
READERS: dict[str, tuple[str, str, Callable[[], BodyReader]]] = {
    "otlp protobuf": ("/v1/logs", PROTOBUF, OtlpLogs),
    "otlp json": ("/v1/logs", JSON, OtlpLogs),
    "loki protobuf": ("/loki/api/v1/push", PROTOBUF, lambda: LokiPush(PROTOBUF)),
    "loki json": ("/loki/api/v1/push", JSON, lambda: LokiPush(JSON)),
    "bulk": ("/_bulk", JSON, ElasticBulk),
}


def request(path: str, content_type: str) -> HttpRequest:
    return HttpRequest("192.0.2.1", path, content_type, {}, 1 << 10)


def taken(reader: BodyReader, asked: HttpRequest, body: bytes) -> tuple[list[bytes], RequestOutcome]:
    """The values of a body, and what was refused of it; each record is one or the other."""
    outcome = RequestOutcome()
    values: list[bytes] = []
    numbers: list[int] = []
    for batch in reader.batches(asked, body, outcome):
        assert len(batch.values) == len(batch.tails) == len(batch.numbers)
        values += batch.values
        numbers += batch.numbers
    assert not set(numbers) & set(outcome.refused)
    assert set(numbers) | set(outcome.refused) == set(range(len(set(numbers) | set(outcome.refused))))
    outcome.taken = len(values)
    return values, outcome


# ---- anything


def mutations(body: bytes) -> st.SearchStrategy[bytes]:
    """A body with some bytes replaced, removed or put in."""
    edits = st.lists(st.tuples(st.integers(0, len(body)), st.integers(0, 3), st.binary(max_size=4)), max_size=4)

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        made = body
        for at, removed, added in edits:
            made = made[:at] + added + made[at + removed :]
        return made

    return edits.map(apply)


def otlp() -> ExportLogsServiceRequest:
    export = ExportLogsServiceRequest()
    resource_logs = export.resource_logs.add()
    resource_logs.resource.attributes.add(key="host.name", value=AnyValue(string_value="web-1"))
    scope_logs = resource_logs.scope_logs.add()
    scope_logs.scope.name = "lib"
    for number in range(2):
        record = scope_logs.log_records.add(time_unix_nano=1 << 60, severity_number=9, trace_id=bytes(16))
        record.body.string_value = f"record {number}"
        record.attributes.add(key="n", value=AnyValue(int_value=number))
    return export


def loki() -> Any:
    push = push_class()()
    stream = push.streams.add(labels='{app="shop"}')
    stream.entries.add(line=b"one").timestamp.seconds = 1
    stream.entries.add(line=b"two").metadata.add(name="n", value="1")
    return push


BODIES = {
    "otlp protobuf": otlp().SerializeToString(),
    "otlp json": json_format.MessageToJson(otlp(), indent=None).replace("AAAAAAAAAAAAAAAAAAAAAA==", "0" * 32).encode(),
    "loki protobuf": loki().SerializeToString(),
    "loki json": b'{"streams":[{"stream":{"app":"shop"},"values":[["1","one"],["2","two",{"n":"1"}]]}]}',
    "bulk": b'{"create":{"_index":"x"}}\n{"n":1}\n{"index":{}}\n{"n":2}\n',
}


@pytest.mark.parametrize("kind", READERS)
def test_the_body_of_a_shipper_is_taken_whole(kind: str) -> None:
    path, content_type, make = READERS[kind]
    values, outcome = taken(make(), request(path, content_type), BODIES[kind])
    assert (len(values), outcome.refused) == (2, {})


@pytest.mark.parametrize("kind", READERS)
@given(st.data())
def test_any_body_is_taken_or_refused(kind: str, data: st.DataObject) -> None:
    path, content_type, make = READERS[kind]
    body = data.draw(st.binary(max_size=60) | mutations(BODIES[kind]))
    reader, asked = make(), request(path, content_type)
    try:
        values, outcome = taken(reader, asked, body)
    except (BodyFault, Rejected) as error:
        assert str(error)
        assert reader.fault(asked, 400, str(error)).status == 400
        return
    answer = reader.accepted(asked, outcome)
    assert answer.status in (200, 204)
    if kind == "bulk":
        assert len(msgspec.json.decode(answer.body)["items"]) == len(values) + len(outcome.refused)


@pytest.mark.parametrize("time", ["abc", "-1", "1.5", " 1", "9" * 20, "9" * 5_000, "\N{ARABIC-INDIC DIGIT THREE}"])
def test_what_is_no_time_is_refused_in_words(time: str) -> None:
    """Not stored with another time, and not told in the words of a library."""
    said = "no time in ns since 1970"
    path, content_type, make = READERS["loki json"]
    with pytest.raises(BodyFault, match=said):
        taken(make(), request(path, content_type), BODIES["loki json"].replace(b'"1"', f'"{time}"'.encode()))
    path, content_type, make = READERS["otlp json"]
    body = BODIES["otlp json"].replace(f"{1 << 60}".encode(), time.encode(), 1)
    asked = HttpRequest("192.0.2.1", path, content_type, {}, 1 << 14)
    values, outcome = taken(make(), asked, body)
    assert len(values) == 1 and said in str(outcome.refused)


AMPLIFIERS = {
    "records": ("otlp protobuf", b"\x0a\x18\x12\x16" + b"\x12\0" * 11),
    "scopes": ("otlp protobuf", b"\x0a\x16" + b"\x12\0" * 11),
    "records of JSON": ("otlp json", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + b"0," * 11 + b"0]}]}]}"),
    "entries": ("loki protobuf", b"\x0a\x22\x0a\x0a" + b'{app="one"' + b"\x12\0" * 11),
    "entries of JSON": ("loki json", b'{"streams":[{"values":[' + b'["1",""],' * 11 + b'["1",""]]}]}'),
    "actions": ("bulk", b'{"index":{}}\n{}\n' * 11),
}


@pytest.mark.parametrize("what", AMPLIFIERS)
def test_many_small_records_are_refused_before_they_take_memory(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, body = AMPLIFIERS[what]
    for module in (elastic_bulk, loki_push, otlp_logs):
        for name in ("RECORDS_MAX", "VALUES_MAX", "GROUPS_MAX", "ITEMS_MAX"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 10)
    path, content_type, make = READERS[kind]
    body = body.replace(b'"one"', b'"on"}') if kind == "loki protobuf" else body
    with pytest.raises(BodyTooLarge):
        make().batches(request(path, content_type), body, RequestOutcome())


# ---- OTLP


def _array_of(values: list[AnyValue]) -> AnyValue:
    made = AnyValue()
    made.array_value.values.extend(values)
    return made


any_values: st.SearchStrategy[AnyValue] = st.recursive(
    st.one_of(
        st.just(AnyValue()),
        st.builds(AnyValue, string_value=st.text(max_size=5)),
        st.builds(AnyValue, int_value=st.integers(-(1 << 63), (1 << 63) - 1)),
        st.builds(AnyValue, double_value=st.floats()),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.builds(AnyValue, bytes_value=st.binary(max_size=5)),
    ),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(_array_of),
    max_leaves=5,
)


@given(any_values)
def test_values_are_mapped_as_protobuf_maps_them(value: AnyValue) -> None:
    assert json_format.ParseDict(_any_value(value), AnyValue()) == value or "NaN" in str(_any_value(value))


@given(
    st.builds(
        LogRecord,
        time_unix_nano=st.integers(0, (1 << 64) - 1),
        observed_time_unix_nano=st.integers(0, (1 << 64) - 1),
        severity_number=st.integers(0, 24),
        severity_text=st.text(max_size=5),
        body=any_values,
        dropped_attributes_count=st.integers(0, (1 << 32) - 1),
        flags=st.integers(0, (1 << 32) - 1),
        event_name=st.text(max_size=5),
    )
)
def test_records_are_mapped_as_protobuf_maps_them(record: LogRecord) -> None:
    encoded = msgspec.json.encode(_log_record(record))
    assert json_format.Parse(encoded, LogRecord()) == record or b"NaN" in encoded


# ---- Loki


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True), st.text(st.characters(codec="utf-8"), max_size=8)
    )
)
def test_labels_are_read_as_clients_write_them(labels: dict[str, str]) -> None:
    text = "{" + ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in labels.items()) + "}"
    assert parse_labels(text) == labels


@pytest.mark.parametrize("text", ["", "{", "a=1", "{a=1}", '{a="1" b="2"}', '{="1"}', '{a="1}', '{a="1"}}', "{,}"])
def test_labels_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BodyFault):
        parse_labels(text)

"""What the protocols of shippers send is in the topic, and their own clients take the answers."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import cramjam
import msgspec
import pytest
from elasticsearch import Elasticsearch
from elasticsearch.helpers import streaming_bulk
from google.protobuf import json_format
from opentelemetry._logs import LogRecord as SdkRecord
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from appliance.client.decoder import Message

from .http_box import Box, box, headers_of
from .loki_messages import push_class

TABLES = """
[inputs.web]
type = "http"
listen = ["127.0.0.1:0"]
topic = "web"
message_bytes_max = 4096
[inputs.apps]
type = "http"
listen = ["127.0.0.1:0"]
topic = "of-{app}"
topics_max = 2
"""
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
TIME_NS = 1_795_219_200_250_000_000
TIME = "2026-11-21T00:00:00.25Z"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with box(tmp_path_factory.mktemp("http"), TABLES) as found:
        yield found


@pytest.fixture
def sent(web: Box) -> Sent:
    return Sent(web)


class Sent:
    """What a test has sent to the input ``web``."""

    def __init__(self, web: Box) -> None:
        web.send("web", "first")
        self._web, self._before = web, len(web.messages("web"))

    def messages(self) -> list[Message]:
        return self._web.messages("web")[self._before :]

    def rows(self) -> list[tuple[Any, dict[str, str]]]:
        """Values that are JSON, and headers."""
        return [(msgspec.json.decode(message.value or b""), headers_of(message)) for message in self.messages()]


# ---- OTLP


def export_of(*records: LogRecord, resource: str = '{"attributes": []}') -> ExportLogsServiceRequest:
    export = ExportLogsServiceRequest()
    resource_logs = export.resource_logs.add()
    json_format.Parse(resource, resource_logs.resource)
    resource_logs.scope_logs.add().log_records.extend(records)
    return export


RESOURCE = """{"attributes": [
    {"key": "service.name", "value": {"stringValue": "shop"}}, {"key": "host.name", "value": {"stringValue": "web-1"}}
]}"""


def test_the_sdk_of_opentelemetry_sends_its_records(web: Box, sent: Sent) -> None:
    host, port = web.address("web")
    provider = LoggerProvider(Resource({"service.name": "shop", "host.name": "web-1"}))
    exporter = OTLPLogExporter(endpoint=f"http://{host}:{port}/v1/logs")
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    record = SdkRecord(
        timestamp=TIME_NS,
        severity_number=SeverityNumber.WARN,
        body="it is late",
        attributes={"order": 7, "ratio": 0.5, "flags": [True, False]},
    )
    provider.get_logger("test").emit(record)
    provider.shutdown()
    ((record, headers),) = sent.rows()
    assert record["body"] == {"stringValue": "it is late"}
    assert {"key": "order", "value": {"intValue": "7"}} in record["attributes"]
    assert (headers["host"], headers["app"], headers["severity"]) == ("web-1", "shop", "warning")
    assert headers["time"] == TIME
    resource = {row["key"]: row["value"] for row in msgspec.json.decode(headers["resource"])["attributes"]}
    assert resource["service.name"] == {"stringValue": "shop"}
    assert msgspec.json.decode(headers["scope"])["name"] == "test"


def test_a_protobuf_record_becomes_the_json_of_the_specification(web: Box, sent: Sent) -> None:
    record = LogRecord(time_unix_nano=TIME_NS, severity_number=17, trace_id=bytes(range(16)), span_id=bytes(8))
    body = """{"kvlistValue": {"values": [
        {"key": "a", "value": {"arrayValue": {"values": [{"intValue": "-5"}, {"doubleValue": 1.5}]}}},
        {"key": "no", "value": {"boolValue": false}},
        {"key": "b", "value": {"bytesValue": "AAE="}}, {"key": "nan", "value": {"doubleValue": "NaN"}},
        {"key": "none", "value": {}}
    ]}}"""
    json_format.Parse(body, record.body)
    request = export_of(record, resource=RESOURCE).SerializeToString()
    reply = web.send("web", gzip.compress(request), "/v1/logs", content_type=PROTOBUF, content_encoding="gzip")
    assert (reply.status, reply.headers["content-type"]) == (200, PROTOBUF)
    assert not ExportLogsServiceResponse.FromString(reply.body).HasField("partial_success")
    ((found, headers),) = sent.rows()
    wanted = json_format.MessageToDict(record)
    assert found == wanted | {"traceId": bytes(range(16)).hex(), "spanId": "00" * 8, "severityNumber": 17}
    assert {name: headers[name] for name in ("host", "app", "severity", "time")} == {
        "host": "web-1",
        "app": "shop",
        "severity": "err",
        "time": TIME,
    }


def test_a_json_record_is_kept_as_it_came(web: Box, sent: Sent) -> None:
    trace_id = "0F" * 16
    record = f'{{"timeUnixNano": "{TIME_NS}",  "severityText":"Warn", "traceId":"{trace_id}"}}'
    scope_logs = f'{{"scope":{{"name":"lib"}},"logRecords":[{record}]}}'
    body = f'{{"resourceLogs":[{{"resource":{RESOURCE},"scopeLogs":[{scope_logs}]}}]}}'
    reply = web.send("web", body, "/v1/logs", content_type=JSON)
    assert (reply.status, msgspec.json.decode(reply.body)) == (200, {})
    (message,) = sent.messages()
    assert message.value == record.encode()
    headers = headers_of(message)
    assert msgspec.json.decode(headers.pop("resource")) == msgspec.json.decode(RESOURCE)
    assert headers == {"host": "web-1", "app": "shop", "severity": "warning", "time": TIME, "scope": '{"name":"lib"}'}


def test_records_that_are_refused_are_a_partial_success(web: Box, sent: Sent) -> None:
    large, small = LogRecord(severity_text="x"), LogRecord(severity_text="y")
    large.body.string_value = "x" * 5_000
    reply = web.send("web", export_of(small, large, small).SerializeToString(), "/v1/logs", content_type=PROTOBUF)
    partial = ExportLogsServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, partial.rejected_log_records) == (200, 1)
    assert "message_bytes_max" in partial.error_message
    records = '[{"traceId":"no"}, {"timeUnixNano":"x"}, 7, {"attributes":[{"key":1}]}, {"body":{"stringValue":"good"}}]'
    body = f'{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":{records}}}]}}]}}'
    reply = web.send("web", body, "/v1/logs", content_type=JSON)
    assert (reply.status, msgspec.json.decode(reply.body)["partialSuccess"]["rejectedLogRecords"]) == (200, "4")
    assert len(sent.messages()) == 3


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_a_body_that_is_no_otlp_is_answered_with_a_status(web: Box, sent: Sent, content_type: str) -> None:
    for body in (
        b"\xff\xff",
        b'{"resourceLogs":7}',
        b'{"resourceLogs":[{"resource":{"attributes":7},"scopeLogs":[{}]}]}',
    ):
        reply = web.send("web", body, "/v1/logs", content_type=content_type)
        assert (reply.status, reply.headers["content-type"]) == (400, content_type)
        assert (msgspec.json.decode(reply.body)["code"] == 3) if content_type == JSON else reply.body[:2] == b"\x08\3"
    assert web.send("web", b"", "/v1/logs", content_type=PROTOBUF).status == 200
    assert web.send("web", b"x", "/v1/logs", content_type="text/plain").status == 415
    assert web.send("web", b"x", "/v1/traces", content_type=PROTOBUF).status == 404
    assert sent.messages() == []


# ---- Loki


def test_loki_json_gives_lines_and_labels(web: Box, sent: Sent) -> None:
    push = {
        "streams": [
            {
                "stream": {"job": "shop", "hostname": "web-1", "level": "error", "origin": "x", "env": "prod"},
                "values": [[str(TIME_NS), "line\tone"], [str(TIME_NS), "two", {"trace_id": "7", "time": "y"}]],
            }
        ]
    }
    reply = web.send("web", msgspec.json.encode(push), "/loki/api/v1/push", content_type=JSON)
    assert (reply.status, reply.body) == (204, b"")
    one, two = sent.messages()
    shared = {"host": "web-1", "app": "shop", "severity": "err", "time": TIME}
    labels = {"job": "shop", "hostname": "web-1", "level": "error", "label_origin": "x", "env": "prod"}
    assert (one.value, headers_of(one)) == (b"line\tone", shared | labels)
    assert (two.value, headers_of(two)) == (b"two", shared | labels | {"trace_id": "7", "label_time": "y"})


def test_loki_protobuf_is_snappy_whether_it_says_so_or_not(web: Box, sent: Sent) -> None:
    push = push_class()()
    stream = push.streams.add(labels='{app="shop", path="C:\\\\x \\"y\\"", n=`raw`}')
    entry = stream.entries.add(line=b"\xff" + b"x" * 5_000)
    entry.timestamp.seconds, entry.timestamp.nanos = divmod(TIME_NS, 10**9)
    entry.metadata.add(name="trace", value="7")
    body = bytes(cramjam.snappy.compress_raw(push.SerializeToString()))
    assert web.send("web", body, "/loki/api/v1/push", content_type=PROTOBUF).status == 204
    reply = web.send("web", body, "/loki/api/v1/push", content_type=PROTOBUF, content_encoding="snappy")
    assert reply.status == 204
    found = sent.messages()
    assert [len(message.value or b"") for message in found] == [4096, 905] * 2
    assert headers_of(found[1]) == {
        **{"host": "127.0.0.1", "app": "shop", "path": 'C:\\x "y"', "n": "raw", "time": TIME},
        **{"trace": "7", "part": "2"},
    }
    bomb = bytes(cramjam.snappy.compress_raw(bytes(1 << 25)))
    assert web.send("web", bomb, "/loki/api/v1/push", content_type=PROTOBUF).status == 413


@pytest.mark.parametrize(
    "body",
    [
        '{"streams":7}',
        '{"streams":[{"stream":{"a":1}}]}',
        '{"streams":[{"values":[["1"]]}]}',
        '{"streams":[{"values":[["x","y"]]}]}',
        '{"streams":[{"values":[["1","y","z"]]}]}',
        '{"streams":[{"values":[["1",{"a":"b"}]]}]}',
        "",
    ],
)
def test_a_body_that_is_no_push_is_refused(web: Box, sent: Sent, body: str) -> None:
    assert web.send("web", body, "/loki/api/v1/push", content_type=JSON).status == 400
    assert web.send("web", body, "/loki/api/v1/push", content_type=PROTOBUF).status in (400, 204)[: 1 + (not body)]
    assert sent.messages() == []


# ---- Elasticsearch


def test_the_client_of_elasticsearch_sends_documents(web: Box, sent: Sent) -> None:
    host, port = web.address("web")
    with Elasticsearch(f"http://{host}:{port}") as client:
        assert client.info()["version"]["number"]
        actions: list[dict[str, Any]] = [
            {"_index": "shop", "_op_type": "create", "_source": {"n": 1, "host": {"name": "web-1"}}},
            {"_index": "shop", "_id": "7", "_source": {"n": 2, "@timestamp": TIME, "log": {"level": "WARN"}}},
            {"_index": "shop", "_op_type": "delete", "_id": "8"},
            {"_index": "shop", "_op_type": "update", "_id": "9", "doc": {}},
            {"_index": "shop", "_source": {"n": 3, "service.name": "cart", "host": "web-2"}},
        ]
        answers = list(streaming_bulk(client, actions, raise_on_error=False))
    assert [is_taken for is_taken, _ in answers] == [True, True, False, False, True]
    assert answers[1][1]["index"]["_id"] == "7"
    rows = {row["n"]: headers for row, headers in sent.rows()}
    assert rows == {
        1: {"host": "web-1", "app": "shop", "index": "shop"},
        2: {"host": "127.0.0.1", "app": "shop", "index": "shop", "severity": "warning", "time": TIME},
        3: {"host": "web-2", "app": "cart", "index": "shop"},
    }


def test_a_bulk_answer_has_a_row_for_each_item(web: Box, sent: Sent) -> None:
    long = '{"text":"%s"}' % ("x" * 5_000)
    lines = [
        '{"create":{}}',
        '{"n": 1 }',
        '{"index":{"_index":"own"}}',
        "[7]",
        '{"index":{}}',
        long,
        '{"index":{}}',
        "{}",
    ]
    reply = web.send("web", "\r\n".join(lines) + "\r\n", "/logs-default/_bulk", content_type="application/x-ndjson")
    answer = msgspec.json.decode(reply.body)
    assert (reply.status, answer["errors"], reply.headers["x-elastic-product"]) == (200, True, "Elasticsearch")
    rows = [next(iter(item.items())) for item in answer["items"]]
    assert [(action, row["_index"], row["status"]) for action, row in rows] == [
        ("create", "logs-default", 201),
        ("index", "own", 400),
        ("index", "logs-default", 413),
        ("index", "logs-default", 201),
    ]
    assert [message.value for message in sent.messages()] == [b'{"n": 1 }', b"{}"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n",
        "{}\n{}\n",
        "no\n{}\n",
        '{"index":{}}\n',
        '{"other":{}}\n{}\n',
        '{"index":7}\n{}\n',
        '{"index":{}}\n{}\n[\n',
    ],
)
def test_a_bulk_body_that_is_wrong_is_refused_whole(web: Box, sent: Sent, body: str) -> None:
    reply = web.send("web", body, "/_bulk", content_type="application/x-ndjson")
    assert reply.status == 400
    assert msgspec.json.decode(reply.body)["error"]["reason"]
    assert sent.messages() == []


def test_what_clients_ask_first_is_answered(web: Box) -> None:
    for path in ("/", "/_license?human=false", "/_xpack"):
        reply = web.send("web", path=path, method="GET")
        assert (reply.status, reply.headers["x-elastic-product"]) == (200, "Elasticsearch")
    assert web.send("web", path="/", method="HEAD").status == 200
    assert web.send("web", b"{}", "/_index_template/x", method="PUT").status == 200
    assert web.send("web", b"{}", "/logs/_search").status == 404
    assert web.send("web", path="/ready", method="GET").status == 200


# ---- all of them


def test_records_of_too_many_topics_are_refused_one_by_one_where_the_protocol_can_say_it(web: Box) -> None:
    lines = "".join(f'{{"index":{{"_index":"app-{number % 3}"}}}}\n{{"n":{number}}}\n' for number in range(6))
    answer = msgspec.json.decode(web.send("apps", lines, "/_bulk").body)
    assert [item["index"]["status"] for item in answer["items"]] == [201, 201, 429] * 2
    assert [web.values(f"of-app-{number}") for number in range(2)] == [
        [b'{"n":0}', b'{"n":3}'],
        [b'{"n":1}', b'{"n":4}'],
    ]
    resource = '{"attributes":[{"key":"service.name","value":{"stringValue":"app-9"}}]}'
    reply = web.send(
        "apps", export_of(LogRecord(), resource=resource).SerializeToString(), "/v1/logs", content_type=PROTOBUF
    )
    assert (reply.status, "retry-after" in reply.headers) == (429, True)

"""appliance.kafka_apis.handlers: every advertised API answers, whatever valid values a request holds."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.errors import DiskFull, ProtocolFault
from appliance.kafka_apis import settings_api
from appliance.kafka_apis.appliance import OffsetSpan
from appliance.kafka_apis.handlers import AT_ONCE_BYTES_MAX, AT_ONCE_ROWS_MAX, _has_more_rows
from appliance.kafka_apis.refusals import ASKED_BY_HANDLERS, check_asked
from appliance.kafka_apis.topic_api import TopicApi
from appliance.security.acls import UNRESTRICTED, NotedAccess, Operation, ResourceType, Rights
from appliance.security.api_rights import Right
from appliance.wire.kafka import forwarded
from appliance.wire.kafka.apis import API_KEYS, APIS, METADATA, SERVED_BY_WORKERS, Api, Server
from appliance.wire.kafka.call import Answer, Call, Encoded
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import ORIGIN, Client, FakeCluster, run
from ..support.kafka_messages import EDGES, Edge, decode_response, message, random_values, request_frame

COLD = [
    (key, version)
    for key, api in APIS.items()
    if key not in SERVED_BY_WORKERS
    for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize("key, version", COLD, ids=lambda value: str(value))
def test_random_requests_are_answered_in_kind(key: int, version: int) -> None:
    """Goal: no valid frame of any API goes without an answer that its client can read.

    Method: random values in all fields, then the same edge of each field's kind in all of them; those that would wait
    (members of one group) have a short session, so that each join or sync is answered by the clock at the latest.
    """

    async def scenario() -> None:
        client = Client(FakeCluster(), session_ms_min=0, session_ms_max=0, rebalance_ms_max=1, id_wait_ms=1)
        for rng in (*map(random.Random, range(6)), *map(Edge, EDGES)):
            values = random_values(message(key, "Request")._struct, version, rng)
            frame = await client.apis.answer(request_frame(key, version, values, 5), ORIGIN)
            reply = decode_response(key, version, frame)
            assert reply.header.correlation_id == 5
            assert not list(_messages_of_success(reply.to_dict(json=False))), "the message of a success is null"
        client.apis.close()

    run(scenario())


def _messages_of_success(reply: object) -> Iterator[object]:
    """Error messages that stand beside error code 0, at any depth."""
    if isinstance(reply, dict):
        if reply.get("error_code") == 0 and reply.get("error_message") is not None:
            yield reply["error_message"]
        for value in reply.values():
            yield from _messages_of_success(value)
    elif isinstance(reply, list):
        for value in reply:
            yield from _messages_of_success(value)


def test_a_version_that_is_not_advertised_is_refused_in_kind() -> None:
    frame = struct.pack(">hhih", 12, 99, 5, -1)
    reply = run(Client(FakeCluster()).apis.answer(frame, ORIGIN))
    assert decode_response(12, APIS[12].version_max, reply).error_code == Code.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "frame", [b"", b"\0\3", struct.pack(">hhih", 999, 0, 5, -1), struct.pack(">hhih", 3, 9, 5, -1)]
)
def test_what_is_no_request_closes_the_connection(frame: bytes) -> None:
    with pytest.raises(ProtocolFault):
        run(Client(FakeCluster()).apis.answer(frame, ORIGIN))


def test_large_frames_are_decoded_beside_others_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread decodes one, others are answered; what its peer sends after it waits for it."""
    free = threading.Event()
    threads = []

    def decode(frame: bytes, elements_max: int) -> tuple[forwarded.Header, object]:
        threads.append(threading.current_thread() is threading.main_thread())
        if len(frame) > AT_ONCE_BYTES_MAX:
            assert free.wait(60)
        return decode_frame(frame, elements_max)

    decode_frame = forwarded.decode
    monkeypatch.setattr(forwarded, "decode", decode)
    order: list[str] = []

    async def scenario() -> None:
        apis = Client(FakeCluster()).apis
        no = {"allow_auto_topic_creation": False}
        small = request_frame(METADATA, 4, {"topics": [], **no})
        large = request_frame(METADATA, 4, {"topics": [{"name": "n" * 100}] * 200, **no})

        async def ask(frame: bytes, peer: str) -> None:
            await apis.answer(frame, ORIGIN._replace(peer=peer))
            order.append(peer if frame is small else f"{peer} large")

        asked = [asyncio.create_task(ask(frame, peer)) for frame, peer in ((large, "a"), (small, "a"), (small, "b"))]
        await asked[2]
        free.set()
        await asyncio.gather(*asked)
        await ask(small, "a")
        apis.close()

    run(scenario())
    assert order == ["b", "a large", "a", "a"] and sorted(threads) == [False, False, True, True]


def test_large_answers_are_encoded_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a small question may be large: where all partitions are, say."""
    free = threading.Event()

    def encode(answer: dict[str, Any], *reply_to: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            assert free.wait(60)
        return encode_frame(answer, *reply_to)

    encode_frame = forwarded.encode
    monkeypatch.setattr(forwarded, "encode", encode)

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", AT_ONCE_ROWS_MAX + 1)
        client = Client(cluster)
        large = asyncio.create_task(client.ask("DescribeLogDirs", topics=None))
        small = await client.ask("DescribeLogDirs", topics=[{"topic": "t", "partitions": [0]}])
        assert len(small.results[0].topics[0].partitions) == 1 and not large.done()
        free.set()
        assert len((await large).results[0].topics[0].partitions) == AT_ONCE_ROWS_MAX + 1
        client.apis.close()

    run(scenario())


def test_a_picture_that_is_missing_is_an_error_code() -> None:
    class Failing(FakeCluster):
        def disk_space(self) -> tuple[int, int]:
            raise DiskFull("cannot say")

        def extent(self, topic: str, partition: int) -> OffsetSpan:
            return OffsetSpan(0, 0)

    assert run(Client(Failing()).ask("DescribeLogDirs", topics=None)).error_code == DiskFull.code


def test_metadata_is_answered_from_its_own_encoder() -> None:
    cluster = FakeCluster()
    cluster.add("t")
    frame = run(Client(cluster).frame("Metadata", topics=None))
    assert [topic.name for topic in decode_response(METADATA, APIS[METADATA].version_max, frame).topics] == ["t"]


def to_ask(api: Api) -> list[Right]:
    return [right for right in api.rights if right.how in ASKED_BY_HANDLERS]


@pytest.mark.parametrize(
    "name", [api.name for api in APIS.values() if api.server is Server.COORDINATOR and to_ask(api)]
)
def test_what_serves_without_a_question_is_not_sent(name: str) -> None:
    api = APIS[API_KEYS[name]]
    serves = {"rows": [{"name": "secret", "error_code": 0}]}
    nested = {"rows": [{"name": "secret", "parts": [{"error_code": 3}, {"error_code": 0}]}]}
    empty_group = {"rows": [{"name": "secret", "state": "Empty", "members": []}]}
    harmless = (
        *({"rows": []}, {"error_code": 7}, {"rows": [{"error_code": 29, "parts": [{"index": 0}]}]}),
        {"rows": [{"name": "of the request", "parts": []}]},
        Encoded(b"", [{"name": "secret", "error_code": 29}], 0),
    )
    restricted = Rights().access("User:nobody", "10.0.0.1")
    for answer in (serves, nested, empty_group, Encoded(b"", [], 1)):
        with pytest.raises(ProtocolFault, match=name):
            check_asked(api, NotedAccess(restricted), answer)
        check_asked(api, NotedAccess(UNRESTRICTED), answer)
        for right in to_ask(api):
            noted = NotedAccess(restricted)
            assert noted.may(right.operation, right.resource, "secret") is False
            check_asked(api, noted, answer)
    for answer in harmless:
        check_asked(api, NotedAccess(restricted), answer)


def test_an_answer_that_is_one_row_is_not_sent_without_a_question() -> None:
    """The coordinator of one group, before version 4 of FindCoordinator."""
    api, restricted = APIS[API_KEYS["FindCoordinator"]], Rights().access("User:nobody", "10.0.0.1")
    with pytest.raises(ProtocolFault, match="FindCoordinator"):
        check_asked(api, NotedAccess(restricted), {"error_code": 0, "node_id": 1, "host": "logs1", "port": 9092})
    check_asked(api, NotedAccess(restricted), {"error_code": 30, "node_id": -1, "host": "", "port": -1})


def test_a_handler_that_encodes_and_forgets_to_ask_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a topic, whose rows are not shown to the audit log."""
    monkeypatch.setattr(settings_api, "_check_right", lambda *_: None)
    cluster = FakeCluster()
    cluster.add("t")
    resources = {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]}
    assert run(Client(cluster).ask("DescribeConfigs", **resources)).results
    cluster.authorizes = True
    with pytest.raises(ProtocolFault, match="DescribeConfigs has not asked"):
        run(Client(cluster).ask("DescribeConfigs", **resources))


def test_topics_are_asked_by_attributes_too() -> None:
    noted = NotedAccess(Rights().access("User:nobody", "10.0.0.1"))
    assert not (noted.readable["t"] or noted.writable["t"] or noted.describable["t"])
    assert noted.asked == {
        (operation, ResourceType.TOPIC) for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
    }


def hollow(value: Any, depth: int = 0) -> Any:
    """The values of a request whose rows have no rows."""
    if isinstance(value, dict):
        return {name: hollow(part, depth) for name, part in value.items()}
    if isinstance(value, list):
        return [] if depth else [hollow(part, depth + 1) for part in value]
    return value


@pytest.mark.parametrize("key", sorted({key for key, _ in COLD}), ids=lambda key: APIS[key].name)
def test_rows_without_rows_are_answered_whatever_their_client_may_do(key: int) -> None:
    """Goal: a client that names a topic and none of its partitions, and has no rights, keeps its connection."""

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.authorizes = True
        client = Client(cluster, session_ms_min=0, session_ms_max=0, rebalance_ms_max=1, id_wait_ms=1)
        for seed in range(4):
            version = APIS[key].version_max
            values = hollow(random_values(message(key, "Request")._struct, version, random.Random(seed)))
            frame = await client.apis.answer(request_frame(key, version, values, 5), ORIGIN)
            assert decode_response(key, version, frame).header.correlation_id == 5
        client.apis.close()

    run(scenario())


def test_a_handler_that_forgets_to_ask_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a client ends for it; a client who may do everything is answered."""

    async def forgetful(api: TopicApi, call: Call) -> Answer:
        rows = [{"partition_index": 0, "low_watermark": 7, "error_code": 0}]
        return {"topics": [{"name": "t", "partitions": rows}]}

    monkeypatch.setattr(TopicApi, "_delete_records", forgetful)
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 7}]}]
    cluster = FakeCluster()
    assert run(Client(cluster).ask("DeleteRecords", topics=topics)).topics
    cluster.authorizes = True
    with pytest.raises(ProtocolFault, match="DeleteRecords has not asked"):
        run(Client(cluster).ask("DeleteRecords", topics=topics))


@pytest.mark.parametrize("rows", range(9))
def test_answers_of_many_rows_are_told_from_small_ones_at_all_depths(rows: int) -> None:
    """Six elements: two topics, one with three partitions, and one number."""
    topics = [{"name": "a", "partitions": [{"index": number} for number in range(3)]}, {"name": "b", "partitions": []}]
    assert _has_more_rows({"error_code": 0, "topics": topics, "numbers": [7]}, rows) == (rows < 6)

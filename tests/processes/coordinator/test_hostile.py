"""A real coordinator, and every forwarded API of both listeners with names and values that nobody should send.

Goal: whatever one client sends, the coordinator answers the next one.  Method: every API, each of its text fields a
hostile name, each number an extreme, each blob hostile bytes; after each request an honest client reads its position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from appliance import config as configs
from appliance.errors import ZooKeeperAway
from appliance.wire import native
from appliance.wire.kafka.apis import APIS, CREATE_TOPICS, SERVED_BY_WORKERS
from appliance.wire.kafka.codes import Code

from ...support.coordinator_fixture import Rig
from ...support.kafka_messages import decode_response, message, request_frame
from ...support.zookeeper_fixture import ACCESS_KEYS, Ensemble, fresh_connect

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
ANSWER_S_MAX = 60
ASKED_MAX = 10
NAMES = {
    "dots": "..", "dot": ".", "empty": "", "slash": "/a//b/../c", "zero": "a\0b", "control": "\x1b[31m\x7f\x9f\n",
    "private": "\ue000\ufff0", "astral": "\U0001f600" * 60, "long": "n" * 32_000, "longer than a path": "p/" * 16_000,
    "percent": "%2F%", "claim": "claim-1",
}  # fmt: skip
NUMBERS = (0, -1, 2**63 - 1, -(2**63))
BLOBS = (b"", b"\0\0\x7f\xff\xff\xff", b"\0\0" + struct.pack(">i", 90_000) + b"\0\1a" * 30_000)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Rig]:
    keys = [f"zookeeper.connect={fresh_connect(standalone)}", "topics.auto_create=false", *ACCESS_KEYS]
    with Rig(tmp_path_factory.mktemp("hostile"), configs.load(overrides=keys)) as running:
        running.admin("create_topic", name="logs")
        running.until(lambda: running.zookeeper.get("state") == "connected")
        running.admin("commit", group="honest", offsets=[["logs", 0, 7]])
        yield running


def honest(rig: Rig) -> None:
    """An honest client reads its position whatever has happened; it asks again when ZooKeeper is slow."""
    for _ in range(ASKED_MAX):
        code, message, result = rig.native(native.ADMIN, "offsets", {"group": "honest"})
        if code != ZooKeeperAway.code:
            break
    assert (code, result) == (0, [["logs", 0, 7]]), message


def hostile_values(definition: Any, version: int, name: str, number: int, blob: bytes) -> dict[str, Any]:
    def value(field: Any) -> Any:
        if field.is_struct():
            return None
        if field.is_struct_array():
            return [hostile_values(field.array_of, version, name, number, blob)] * 2
        if field.is_array():
            return [simple(field.array_of)] * 2
        return simple(field)

    def simple(field: Any) -> Any:
        kind = field._type_str.removeprefix("[]")
        if kind == "string":
            return name
        if kind in ("bytes", "records"):
            return blob
        if kind == "bool":
            return number >= 0
        if kind == "bitfield":
            return None
        if kind == "uuid":
            return UUID(int=abs(number))
        if kind == "float64":
            return float(number)
        bits = int(kind.removeprefix("u").removeprefix("int")) - 1
        return max(0 if kind.startswith("u") else -(2**bits), min(number, 2**bits - 1))

    return {field.name: value(field) for field in definition.untagged_fields(version)}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("key", [key for key in APIS if key not in SERVED_BY_WORKERS], ids=lambda key: APIS[key].name)
def test_every_api_of_the_kafka_listener(rig: Rig, key: int, name: str) -> None:
    api = APIS[key]
    tokens = []
    for version in {api.version_min, api.version_max}:
        for number in NUMBERS if key != CREATE_TOPICS else (0, -1):
            blob = BLOBS[abs(number) % len(BLOBS)]
            values = hostile_values(message(key, "Request")._struct, version, name, number, blob)
            tokens.append(rig.post("kafka", request_frame(key, version, values, client_id=name)))
            honest(rig)
    rig.until(lambda: all(token in rig.replies for token in tokens), ANSWER_S_MAX)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_every_verb_of_the_native_listener(rig: Rig, name: str) -> None:
    for verb in ("create_topic", "ensure_topic", "delete_topic"):
        rig.native(native.ADMIN, verb, {"name": name})
    rig.native(native.ADMIN, "alter_topic", {"name": name, "settings": {name: name}})
    rig.native(native.ADMIN, "topics", {"names": [name]})
    for verb in ("group", "offsets", "delete_offsets"):
        rig.native(native.ADMIN, verb, {"group": name})
    for number in NUMBERS:
        rig.native(native.ADMIN, "commit", {"group": name, "offsets": [[name, number, abs(number)]]})
        rig.native(native.ADMIN, "commit", {"group": name, "offsets": [["logs", 0, max(0, number)]]})
        rig.native(native.ADMIN, "delete_offsets", {"group": name, "partitions": [[name, number]]})
    honest(rig)


def test_a_burst_of_bad_names_leaves_room_for_the_others(rig: Rig) -> None:
    """More than ``operations_max`` of them, in one breath: the poll loop went silent, and for ever."""
    values = {"group_id": "g1", "topics": [{"name": "..", "partition_indexes": [0]}]}
    tokens = []
    for _ in range(1_500):
        tokens.append(rig.post("kafka", request_frame(OFFSET_FETCH, 5, values)))
        rig.pump(0)
    honest(rig)
    rig.until(lambda: all(token in rig.replies for token in tokens), ANSWER_S_MAX)
    for token in tokens:
        reply = decode_response(OFFSET_FETCH, 5, rig.replies.pop(token) or b"")
        if reply.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:  # more than it takes at once: ask again
            assert (reply.error_code, reply.topics[0].partitions[0].committed_offset) == (0, -1)

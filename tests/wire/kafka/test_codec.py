"""appliance.wire.kafka.codec: what it answers itself, what it passes on, what it refuses, and frames of all kinds."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from time import thread_time

import pytest

from appliance.config import Config
from appliance.errors import ProtocolFault
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka.apis import ADVERTISED, APIS, PRODUCE, SERVED_BY_WORKERS
from appliance.wire.kafka.codec import KafkaCodec, KafkaLoginCodec
from appliance.wire.requests import Fetch, Forwarded, Local, Login, Offsets, Produce
from tests.support.kafka_messages import (
    decode_response,
    kio_response_again,
    message,
    mutated,
    random_values,
    request_frame,
)

from ...support.long import chosen_size

CODEC = KafkaCodec(WireLimits.from_config(Config()))
MUTATIONS = chosen_size("FUZZ_MUTATIONS", 4_000)
WORKER_VERSIONS = [
    (key, version)
    for key in sorted(SERVED_BY_WORKERS)
    for version in range(max(APIS[key].version_min, 3 if key == PRODUCE else 0), APIS[key].version_max + 1)
]


@pytest.mark.parametrize("version", range(5))
def test_api_versions(version: int) -> None:
    frame = request_frame(
        18, version, {"client_software_name": "x", "client_software_version": "1"} if version > 2 else {}
    )
    reply = CODEC.decode(memoryview(frame))
    assert isinstance(reply, Local) and not reply.close
    assert kio_response_again(18, version, reply.reply) == reply.reply
    response = decode_response(18, version, reply.reply)
    table = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert (response.error_code, table) == (0, ADVERTISED) == (0, CODEC.advertised)


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [("librdkafka", "2.6.1", "librdkafka 2.6.1"), ("a b", "1", "1"), ("\x1b[2J", "-", ""), ("", "", "")],
)
def test_the_software_of_a_client(name: str, version: str, said: str) -> None:
    frame = request_frame(18, 3, {"client_software_name": name, "client_software_version": version})
    assert CODEC.software(memoryview(frame)) == said
    assert CODEC.software(memoryview(request_frame(18, 2, {}))) == ""
    for size in range(len(frame)):
        with suppress(struct.error):  # too short for a header, which decode() finds before
            assert CODEC.software(memoryview(frame)[:size]) in (said, name, "")


@pytest.mark.parametrize(
    ("cluster", "node", "own_cluster", "error"),
    [
        (None, -1, "here", 0),
        ("here", 3, "here", 0),
        ("here", 4, "here", 129),
        ("there", 3, "here", 129),
        ("", 3, "here", 129),
        ("there", 4, "", 0),
        (None, 3, "here", 42),
        ("here", -1, "here", 42),
    ],
)
@pytest.mark.parametrize("kind", [KafkaCodec, KafkaLoginCodec])
def test_who_means_another_broker_or_cluster_is_told(
    kind: type[KafkaCodec], cluster: str | None, node: int, own_cluster: str, error: int
) -> None:
    codec = kind(WireLimits.from_config(Config()), identity=lambda: (own_cluster, 3))
    text = b"\0" if cluster is None else bytes([len(cluster) + 1]) + cluster.encode()
    software = b"\x05java\x06" + b"4.4.0"
    frame = struct.pack(">hhih", 18, 5, 77, 2) + b"me\0" + software + text + struct.pack(">i", node) + b"\0"
    assert codec.software(memoryview(frame)) == "java 4.4.0"
    reply = codec.decode(memoryview(frame))
    assert isinstance(reply, Local) and not reply.close
    response = decode_response(18, 5, reply.reply)
    assert (response.header.correlation_id, response.error_code) == (77, error)
    assert len(response.api_keys) == (0 if error else len(ADVERTISED))
    for size in range(len(frame) - 1):
        with suppress(ProtocolFault):
            codec.decode(memoryview(frame)[:size])


@pytest.mark.parametrize("version", [6, 99, -1, 32767])
def test_an_unknown_version_of_api_versions_gets_the_table_in_version_0(version: int) -> None:
    reply = CODEC.decode(memoryview(struct.pack(">hhih", 18, version, 77, -1) + b"whatever"))
    assert isinstance(reply, Local)
    response = decode_response(18, 0, reply.reply)
    assert (response.header.correlation_id, response.error_code) == (77, 35)
    assert len(response.api_keys) == len(ADVERTISED)


@pytest.mark.parametrize("key", [38, 39, 40, 41, 999, -1])
def test_apis_that_are_not_served_are_a_protocol_fault(key: int) -> None:
    with pytest.raises(ProtocolFault, match=f"API {key} version 3"):
        CODEC.decode(memoryview(struct.pack(">hhih", key, 3, 7, -1)))


def test_other_apis_are_forwarded() -> None:
    for key in ADVERTISED.keys() - SERVED_BY_WORKERS:
        assert isinstance(CODEC.decode(memoryview(struct.pack(">hhih", key, 99, 7, -1))), Forwarded)


def random_request(key: int, version: int, rng: random.Random) -> bytearray:
    values = random_values(message(key, "Request")._struct, version, rng)
    values.update(transactional_id=None, acks=1, session_id=0)
    return bytearray(request_frame(key, version, values))


def test_chopped_frames_are_refused_or_answered() -> None:
    """What comes last and is not needed (forgotten topics, rack, tagged fields) may be missing."""
    for key, version in WORKER_VERSIONS:
        frame = random_request(key, version, random.Random(5))
        for stop in range(min(len(frame), 400)):
            with suppress(ProtocolFault):
                request = CODEC.decode(memoryview(frame)[:stop])
                assert isinstance(request, Produce | Fetch | Offsets | Local | Login)


def test_mutated_frames_end_in_a_named_error_or_a_request() -> None:
    """FUZZ_MUTATIONS=100000 is the full size.  Positions of records never leave the frame."""
    rng = random.Random(17)
    frames = [random_request(key, version, rng) for key, version in WORKER_VERSIONS for _ in range(3)]
    slowest = 0.0
    kinds: dict[type, int] = {}
    for turn in range(MUTATIONS):
        frame = mutated(frames[turn % len(frames)], rng)
        started = thread_time()
        with suppress(ProtocolFault):
            request = CODEC.decode(memoryview(frame))
            kinds[type(request)] = kinds.get(type(request), 0) + 1
            if isinstance(request, Produce):
                assert all(0 < part.start <= part.stop <= len(frame) for part in request.parts)
        slowest = max(slowest, thread_time() - started)
    assert slowest < 0.5
    assert {Produce, Fetch, Offsets, Local, Login} <= kinds.keys()

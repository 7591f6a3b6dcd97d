"""appliance.wire.kafka.forwarded: every served API and version in both directions, against kio; hostile frames."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from contextlib import suppress
from time import thread_time

import pytest

from appliance.errors import ClientFault, ProtocolFault, UnsupportedVersion
from appliance.names import CLIENT_ID_CHARACTERS_MAX
from appliance.records.varints import unsigned
from appliance.wire.kafka import forwarded
from appliance.wire.kafka.apis import (
    API_KEYS,
    APIS,
    CONSUMER_GROUP_HEARTBEAT,
    JOIN_GROUP,
    METADATA,
    OFFSET_COMMIT,
    SERVED_BY_WORKERS,
)
from appliance.wire.kafka.walk import BOUNDS
from tests.support.kafka_messages import (
    SEEDS,
    build,
    decode_response,
    fill,
    kio_request_again,
    kio_response_again,
    message,
    mutated,
    random_values,
    request_frame,
)

from ...support.long import chosen_size
from ...support.spending import spent_by

LIST_GROUPS = API_KEYS["ListGroups"]
VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    if key not in SERVED_BY_WORKERS
    for version in range(api.version_min, api.version_max + 1)
]
NAMES = [f"{APIS[key].name}-{version}" for key, version in VERSIONS]
MUTATIONS = chosen_size("FUZZ_MUTATIONS", 4_000)


def test_the_clients_of_the_package_are_not_imported() -> None:
    """Goal: the coordinator starts soon.  Whoever wants them later gets them."""
    script = (
        "import sys; from appliance.wire.kafka import forwarded\n"
        "print('kafka' in sys.modules, 'kafka.net.connection' in sys.modules)\n"
        "from kafka import KafkaProducer; from kafka.protocol import admin\n"
        "print(admin is forwarded.admin)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=NAMES)
def test_requests_come_out_as_they_went_in(key: int, version: int) -> None:
    definition = message(key, "Request")._struct
    for seed in SEEDS:
        values = random_values(definition, version, random.Random(seed))
        frame = request_frame(key, version, values, correlation_id=seed, client_id="größe" if seed else None)
        assert kio_request_again(key, version, frame) == frame
        header, request = forwarded.decode(memoryview(frame))
        assert header == (key, version, seed, "größe" if seed else "")
        assert request == build(definition, version, values, message(key, "Request"))


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=NAMES)
def test_responses_are_what_others_read(key: int, version: int) -> None:
    definition = message(key, "Response")._struct
    for seed in SEEDS:
        values = random_values(definition, version, random.Random(seed))
        frame = forwarded.encode(values, seed, key, version)
        assert kio_response_again(key, version, frame) == frame
        response = decode_response(key, version, frame)
        assert response.header.correlation_id == seed
        assert response == build(definition, version, values, message(key, "Response"))


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=NAMES)
def test_an_empty_response_has_the_defaults_of_the_definition(key: int, version: int) -> None:
    frame = forwarded.encode({}, 1, key, version)
    assert kio_response_again(key, version, frame) == frame


def test_fields_of_other_versions_are_left_out_and_unknown_ones_are_refused() -> None:
    values = {"error_code": 0, "throttle_time_ms": 5, "groups": [{"group_id": "g", "group_state": "Stable"}]}
    old = decode_response(LIST_GROUPS, 0, forwarded.encode(values, 1, LIST_GROUPS, 0))
    new = decode_response(LIST_GROUPS, 4, forwarded.encode(values, 1, LIST_GROUPS, 4))
    assert (old.groups[0].group_id, new.groups[0].group_state) == ("g", "Stable")
    with pytest.raises(KeyError, match="group_stat"):
        forwarded.encode({"groups": [{"group_stat": "Stable"}]}, 1, LIST_GROUPS, 4)


def test_a_version_that_is_not_served_is_answered_where_a_code_exists() -> None:
    for version in (99, 9):
        frame = struct.pack(">hhih", JOIN_GROUP, version, 11, -1)
        with pytest.raises(UnsupportedVersion, match="JoinGroup version"):
            forwarded.decode(frame)
        reply = decode_response(JOIN_GROUP, 8, forwarded.encode_refusal(frame, 35))
        assert (reply.header.correlation_id, reply.error_code) == (11, 35)
    with pytest.raises(ProtocolFault, match="no error code"):
        forwarded.encode_refusal(struct.pack(">hhih", OFFSET_COMMIT, 99, 11, -1), 35)


@pytest.mark.parametrize("key", [0, 1, 18, 38, 999, -1])
def test_an_api_that_is_not_ours_is_a_protocol_fault(key: int) -> None:
    frame = struct.pack(">hhih", key, 0, 11, -1)
    with pytest.raises(ProtocolFault, match=f"API {key} "):
        forwarded.decode(frame)
    with pytest.raises(ProtocolFault, match=f"API {key} "):
        forwarded.encode_refusal(frame, 35)


HEADER_METADATA_0 = struct.pack(">hhih", METADATA, 0, 1, -1)
HEADER_METADATA_9 = struct.pack(">hhihx", METADATA, 9, 1, -1)
HOSTILE = {
    "nothing": b"",
    "half a header": HEADER_METADATA_0[:7],
    "client id longer than the frame": struct.pack(">hhih", METADATA, 0, 1, 30_000),
    "client id not UTF-8": struct.pack(">hhih", METADATA, 0, 1, 1) + b"\xff\0\0\0\0",
    "2 billion topics": HEADER_METADATA_0 + struct.pack(">i", 2**31 - 1) + b"\0" * 50,
    "4 billion topics, compact": HEADER_METADATA_9 + b"\xff\xff\xff\xff\x0f" + b"\0" * 50,
    "null where the definition has none": HEADER_METADATA_0 + struct.pack(">i", -1),
    "negative count": HEADER_METADATA_0 + struct.pack(">i", -2),
    "negative string, which moves backwards": HEADER_METADATA_0 + struct.pack(">ih", 1_000, -5) + b"\0" * 2_000,
    "string beyond the frame": HEADER_METADATA_0 + struct.pack(">ih", 1, 100) + b"abc",
    "endless varint": HEADER_METADATA_9 + b"\x80" * 1_000_000,
    "many tagged fields": HEADER_METADATA_9 + b"\1\0\0\0" + b"\xff\xff\x03" + b"\0" * 200_000,
    "tag beyond the frame": HEADER_METADATA_9 + b"\1\0\0\0\1\0\xff\x01",
    "a text of a megabyte": HEADER_METADATA_9 + b"\2" + unsigned(1_000_001) + b"t" * 1_000_000 + b"\0\0\0\0\0",
    "millions of empty strings": HEADER_METADATA_0 + struct.pack(">i", 4_000_000) + b"\0" * 8_000_000,
}


def test_hostile_frames_are_refused_quickly_and_in_little_memory() -> None:
    frames = [(frame,) for frame in HOSTILE.values()]
    for name, spent in zip(HOSTILE, spent_by(forwarded.decode, frames), strict=True):
        assert spent.error == ProtocolFault.__name__, name
        assert spent.peak_bytes < 1_000_000 and spent.cpu_s < 1.0, name


def test_the_largest_request_that_is_taken_stays_small() -> None:
    """40,000 topics of one letter: ELEMENTS_MAX bounds what a frame costs once decoded, not its bytes."""
    frame = HEADER_METADATA_0 + struct.pack(">i", forwarded.ELEMENTS_MAX) + b"\0\1a" * forwarded.ELEMENTS_MAX
    _, request = forwarded.decode(frame)
    assert len(request.topics) == forwarded.ELEMENTS_MAX
    (spent,) = spent_by(forwarded.decode, [(frame,)])
    assert spent.error == "" and spent.peak_bytes < 400 * forwarded.ELEMENTS_MAX


def bounded_request(key: int, version: int, field: str, size: int) -> bytes:
    """A request of a group's member with one field of so many bytes, where it has that."""
    text, data = "n" * size, b"d" * size
    offer = {"name": text if field == "name" else "range", "metadata": data if field == "metadata" else b""}
    values = {
        "group_id": "g", "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "generation_id": 1, "member_id": "m",
        "group_instance_id": text if field == "group_instance_id" else None, "protocol_name": "p",
        "protocol_type": text if field == "protocol_type" else "consumer", "protocols": [offer], "reason": None,
        "assignments": [{"member_id": "m", "assignment": data if field == "assignment" else b""}],
    }  # fmt: skip
    if key == CONSUMER_GROUP_HEARTBEAT:
        definition = message(key, "Request")._struct
        values = fill(definition, version, {field: text})
    return request_frame(key, version, values, correlation_id=9)


@pytest.mark.parametrize("place", BOUNDS, ids=str)
def test_fields_that_are_kept_are_bounded_and_refused_with_a_code(place: tuple[int, str]) -> None:
    """In every version that has the field: one byte more than allowed is answered, what is allowed is read."""
    (key, field), (bytes_max, error) = place, BOUNDS[place]
    refused = 0
    for version in range(APIS[key].version_min, APIS[key].version_max + 1):
        forwarded.decode(bounded_request(key, version, field, bytes_max))
        try:
            forwarded.decode(frame := bounded_request(key, version, field, bytes_max + 1))
        except error as fault:
            refused += 1
            reply = decode_response(key, version, forwarded.encode_refusal(frame, fault.code))
            assert (reply.header.correlation_id, reply.error_code) == (9, error.code)
    assert refused >= 2, "the field is in some version"


def test_a_client_id_is_cut_to_what_is_shown() -> None:
    header, _ = forwarded.decode(request_frame(METADATA, 0, {"topics": []}, client_id="c" * 30_000))
    assert header.client_id == "c" * CLIENT_ID_CHARACTERS_MAX


def test_elements_are_counted_over_all_arrays_of_a_frame() -> None:
    """OffsetFetch: one element for the topic, one for each partition."""
    frame = request_frame(9, 5, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(50))}]})
    forwarded.decode(frame, 51)
    with pytest.raises(ProtocolFault, match="more than 50 array elements"):
        forwarded.decode(frame, 50)


def test_chopped_frames_are_refused() -> None:
    """Every frame that ends too early, of every API and version."""
    for key, version in VERSIONS:
        values = random_values(message(key, "Request")._struct, version, random.Random(3))
        frame = request_frame(key, version, values)
        for stop in (*range(min(len(frame), 60)), len(frame) - 1):
            with pytest.raises(ProtocolFault):
                forwarded.decode(frame[:stop])


def test_mutated_frames_end_in_a_named_error_or_a_request() -> None:
    """FUZZ_MUTATIONS=100000 is the full size; nothing may take longer than its bytes justify."""
    rng = random.Random(11)
    frames = [
        bytearray(request_frame(key, version, random_values(message(key, "Request")._struct, version, rng)))
        for key, version in VERSIONS
    ]
    slowest = 0.0
    for turn in range(MUTATIONS):
        frame = mutated(frames[turn % len(frames)], rng)
        started = thread_time()
        with suppress(ProtocolFault, ClientFault):
            forwarded.decode(memoryview(frame))
        slowest = max(slowest, thread_time() - started)
    assert slowest < 0.5

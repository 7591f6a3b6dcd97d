"""appliance.wire.kafka.metadata: read as kafka-python reads it, and whatever is unusual left to the coordinator."""

from __future__ import annotations

from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from appliance.wire.kafka import metadata
from appliance.wire.kafka.apis import APIS, FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA

from ...support.kafka_messages import decode_response, request_frame

TOPICS_MAX = 50
names = st.from_regex(r"[a-zA-Z0-9_-]{1,30}", fullmatch=True)


def frame_of(request: object) -> memoryview:
    return memoryview(request.encode(header=True, framed=False))  # type: ignore[attr-defined]


@given(
    st.integers(0, APIS[METADATA].version_max),
    st.none() | st.lists(names | st.uuids(), max_size=5),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_metadata_is_read_as_it_was_written(
    version: int, wanted: list[str | UUID] | None, flags: tuple[bool, bool, bool]
) -> None:
    may_create, cluster_operations, topic_operations = flags
    if version < 12 and wanted is not None:  # ids may be asked for from 12 on
        wanted = [one if isinstance(one, str) else one.hex for one in wanted]
    topics = None
    if wanted is not None:
        topics = [
            {"name": one, "topic_id": UUID(int=0)} if isinstance(one, str) else {"name": None, "topic_id": one}
            for one in wanted
        ]
        topics = [MetadataRequest.MetadataRequestTopic(version=version, **one) for one in topics]  # type: ignore[arg-type]
    if version == 0 and wanted is None:
        topics, wanted = [], []
    request = MetadataRequest(
        version=version,
        topics=topics,
        allow_auto_topic_creation=may_create,
        include_cluster_authorized_operations=cluster_operations,
        include_topic_authorized_operations=topic_operations,
    )
    request.with_header(correlation_id=7, client_id="c")
    asked = metadata.decode(frame_of(request), TOPICS_MAX)
    assert asked == metadata.MetadataQuestion(
        version,
        7,
        None if version == 0 and not wanted else wanted,
        may_create or version < 4,
        cluster_operations and 8 <= version <= 10,
        topic_operations and version >= 8,
    )


@given(
    st.integers(0, APIS[FIND_COORDINATOR].version_max),
    st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=3),
)
def test_find_coordinator_is_read_and_answered(version: int, groups: list[str]) -> None:
    fields = {"coordinator_keys": groups} if version >= 4 else {"key": groups[0]}
    request = FindCoordinatorRequest(version=version, **fields)
    request.with_header(correlation_id=9, client_id="c")
    asked = metadata.decode(frame_of(request), TOPICS_MAX)
    groups = groups if version >= 4 else groups[:1]
    assert asked == metadata.CoordinatorQuestion(version, 9, groups)
    assert isinstance(asked, metadata.CoordinatorQuestion)
    reply = decode_response(FIND_COORDINATOR, version, metadata.encode_coordinator(asked, 3, "here", 9092))
    rows = reply.coordinators if version >= 4 else [reply]
    assert [(row.node_id, row.host, row.port, row.error_code, row.error_message or None) for row in rows] == [
        (3, "here", 9092, 0, None)
    ] * len(groups)
    if version >= 4:
        assert [row.key for row in rows] == groups


@given(
    st.binary(max_size=60)
    | st.builds(lambda key, rest: bytes([0, key, 0]) + rest, st.sampled_from([3, 10]), st.binary(max_size=60))
)
@example(b"")
def test_anything_else_is_left_to_the_coordinator(frame: bytes) -> None:
    asked = metadata.decode(memoryview(frame), TOPICS_MAX)
    assert asked is None or frame[:2] in (b"\0\3", b"\0\n")


def test_too_many_are_left_to_the_coordinator() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(version=9, name="t") for _ in range(TOPICS_MAX + 1)]
    request = MetadataRequest(version=9, topics=topics)
    request.with_header(correlation_id=7, client_id="c")
    assert metadata.decode(frame_of(request), TOPICS_MAX) is None


def test_whoever_asks_for_a_transaction_is_answered_by_the_coordinator() -> None:
    for version in range(1, APIS[FIND_COORDINATOR].version_max + 1):
        fields = {"coordinator_keys": ["t"]} if version >= 4 else {"key": "t"}
        request = FindCoordinatorRequest(version=version, key_type=1, **fields)
        request.with_header(correlation_id=9, client_id="c")
        assert metadata.decode(frame_of(request), TOPICS_MAX) is None


@given(st.integers(0, APIS[INIT_PRODUCER_ID].version_max), st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1))
def test_a_request_for_a_producer_id_is_read_and_answered(version: int, producer_id: int, epoch: int) -> None:
    """An id that the producer has had before, which it may send from version 3 on, changes nothing."""
    values = {"transactional_id": None, "transaction_timeout_ms": 2**31 - 1}
    values |= {"producer_id": producer_id, "producer_epoch": epoch}
    frame = memoryview(request_frame(INIT_PRODUCER_ID, version, values, correlation_id=7))
    asked = metadata.decode(frame, TOPICS_MAX)
    assert asked == metadata.ProducerQuestion(version, 7)
    reply = decode_response(INIT_PRODUCER_ID, version, metadata.encode_producer(asked, 2**62 + 5))
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (0, 2**62 + 5, 0)


@given(st.integers(0, APIS[INIT_PRODUCER_ID].version_max), st.data())
def test_a_transactional_id_and_half_a_request_are_left_to_the_coordinator(version: int, data: st.DataObject) -> None:
    values = {"transactional_id": data.draw(st.text("ab", max_size=5)), "transaction_timeout_ms": 1}
    values |= {"producer_id": -1, "producer_epoch": -1}
    assert metadata.decode(memoryview(request_frame(INIT_PRODUCER_ID, version, values)), TOPICS_MAX) is None
    whole = request_frame(INIT_PRODUCER_ID, version, {**values, "transactional_id": None})
    size = data.draw(st.integers(0, len(whole) - 1))
    assert metadata.decode(memoryview(whole[:size]), TOPICS_MAX) is None

"""appliance.wire.kafka.primitives: varints both ways, and the table of known topics."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ProtocolFault
from appliance.records.varints import unsigned
from appliance.wire.kafka import primitives
from appliance.wire.kafka.primitives import NO_TOPIC, read_topic, read_varint, skip_tags


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_varints_come_back_with_the_position_after_them(value: int, rest: bytes) -> None:
    encoded = unsigned(value)
    assert read_varint(memoryview(encoded + rest), 0) == (value, len(encoded))


@given(st.binary(max_size=40))
def test_tags_are_skipped_or_refused(data: bytes) -> None:
    try:
        assert 0 < skip_tags(memoryview(data), 0) <= len(data)
    except (ProtocolFault, IndexError):
        pass


def test_the_table_of_known_topics_is_bounded() -> None:
    for index in range(3 * primitives.TOPICS_KNOWN_MAX // 2):
        name = b"topic-%06d" % index
        frame = memoryview(b"\0\x0c" + name + b"\0\0\0\1" + bytes(12))
        for _ in range(2):
            assert read_topic(frame, 0, False, 12)[0] == name.decode()
    assert len(primitives.topics_known) <= primitives.TOPICS_KNOWN_MAX


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"\xff\xfe", b"n" * 250, b"n" * 32_767])
@pytest.mark.parametrize("flexible", [False, True])
def test_what_is_no_topic_name_is_read_and_not_remembered(name: bytes, flexible: bool) -> None:
    """The reply needs it, so its bytes stand in the group; nobody can look it up."""
    before = dict(primitives.topics_known)
    prefix = unsigned(len(name) + 1) + name + b"\2" if flexible else struct.pack(">h", len(name)) + name + b"\0\0\0\1"
    assert read_topic(memoryview(prefix + bytes(12)), 0, flexible, 12) == (NO_TOPIC, (prefix, 1), len(prefix))
    assert primitives.topics_known == before


def test_a_name_of_megabytes_is_refused() -> None:
    frame = memoryview(unsigned(7_000_001) + bytes(7_000_000) + b"\2" + bytes(12))
    with pytest.raises(ProtocolFault, match="7000000 bytes"):
        read_topic(frame, 0, True, 12)


def test_a_known_topic_is_checked_against_each_frame() -> None:
    """The partitions that were there the first time may be missing the second time."""
    prefix = b"\0\4logs\0\0\0\3"
    assert read_topic(memoryview(prefix + bytes(36)), 0, False, 12)[1] == (prefix, 3)
    with pytest.raises(ProtocolFault, match="3 partitions"):
        read_topic(memoryview(prefix + bytes(35)), 0, False, 12)

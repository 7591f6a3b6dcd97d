"""appliance.kafka_settings: what Kafka's settings say is accepted where it is so, and refused with the reason else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import TOPIC_KEYS, TopicSettings
from appliance.errors import InvalidSetting
from appliance.kafka_settings import ACCEPTED, TEXT_CHARACTERS_MAX, Kind

EACH = pytest.mark.parametrize("name", sorted(ACCEPTED))


@EACH
def test_defaults_hold_and_change_nothing(name: str) -> None:
    default = ACCEPTED[name].default
    assert ACCEPTED[name].parse(default) == default
    assert TopicSettings.parse({name: default}, TopicSettings()) == TopicSettings()
    assert TopicSettings.texts({name: default, "retention.ms": "1h"}, TopicSettings()) == {
        name: default,
        "retention.ms": "3600000",
    }
    assert name not in TOPIC_KEYS


@EACH
@given(
    text=st.one_of(st.text(max_size=30), st.integers().map(str), st.floats().map(str), st.sampled_from(["true", ""]))
)
def test_any_text_is_a_value_or_refused_with_a_reason(name: str, text: str) -> None:
    accepted = ACCEPTED[name]
    try:
        parsed = accepted.parse(text)
    except ValueError as error:
        assert "must" in str(error) and (accepted.values is not None or accepted.about in str(error))
        with pytest.raises(InvalidSetting, match="must"):
            TopicSettings.parse({name: text}, TopicSettings())
    else:
        assert accepted.parse(parsed) == parsed


@pytest.mark.parametrize(
    "name, holds, does_not",
    [
        ("min.insync.replicas", ["1", " 1 "], ["0", "2", ""]),
        ("unclean.leader.election.enable", ["false", "FALSE"], ["true", "no"]),
        ("compression.type", ["producer"], ["gzip", "uncompressed", "zstd"]),
        ("preallocate", ["false"], ["true"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", ""]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("local.retention.ms", ["-2", "-1", "5"], ["-3"]),
        ("leader.replication.throttled.replicas", ["", "*", "0:1", "0:1, 2:1"], ["x", "0:1,", "0"]),
        ("message.timestamp.after.max.ms", ["3600000"], ["-1"]),
        ("message.downconversion.enable", ["true", "false"], ["maybe"]),
        ("segment.index.bytes", ["10485760"], ["3", str(2**31)]),
    ],
)
def test_what_holds_and_what_does_not(name: str, holds: list[str], does_not: list[str]) -> None:
    for text in holds:
        ACCEPTED[name].parse(text)
    for text in does_not:
        with pytest.raises(ValueError, match="must"):
            ACCEPTED[name].parse(text)


def test_texts_are_bounded() -> None:
    for accepted in ACCEPTED.values():
        with pytest.raises(ValueError, match="must"):
            accepted.parse("0:1," * TEXT_CHARACTERS_MAX)
    assert {accepted.kind for accepted in ACCEPTED.values()} >= {Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.LIST}

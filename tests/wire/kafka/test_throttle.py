"""The time stands where kafka-python reads it, in every version of every API."""

from __future__ import annotations

import random

import pytest

from appliance.wire.kafka.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from appliance.wire.kafka.throttle import with_throttle

from ...support.kafka_messages import decode_response, message, random_values, response_frame

BEFORE_QUOTAS = {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}
REPLIES = [
    (key, version)
    for key, api in APIS.items()
    if key not in BEFORE_QUOTAS
    for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize(("api_key", "version"), REPLIES)
def test_every_reply_tells_the_time_where_it_has_the_field(api_key: int, version: int) -> None:
    definition = message(api_key, "Response")._struct
    values = random_values(definition, version, random.Random(api_key * 100 + version))
    has_field = "throttle_time_ms" in values
    if has_field:
        values["throttle_time_ms"] = 0
    frame = response_frame(api_key, version, values)
    told = with_throttle(frame, api_key, version, 1_234)
    if not has_field:
        assert told == frame
        return
    assert decode_response(api_key, version, told).throttle_time_ms == 1_234
    assert told == response_frame(api_key, version, values | {"throttle_time_ms": 1_234}), "nothing else has changed"


def test_joined_replies_tell_it_each() -> None:
    values = {"responses": [], "throttle_time_ms": 0}
    for version in (3, 9):
        frame = response_frame(0, version, values)
        told = with_throttle(frame * 3, 0, version, 77)
        assert told == with_throttle(frame, 0, version, 77) * 3 != frame * 3


def test_replies_before_any_quota_are_left_alone() -> None:
    for api_key, version in ((API_VERSIONS, 4), (SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2)):
        assert with_throttle(b"x" * 20, api_key, version, 5) == b"x" * 20

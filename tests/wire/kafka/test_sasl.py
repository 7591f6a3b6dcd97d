"""appliance.wire.kafka.sasl: messages of logins are those of Kafka; raw tokens come and go with SaslHandshake 0."""

from __future__ import annotations

import struct

import pytest

from appliance.config import Config
from appliance.errors import ProtocolFault
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka.apis import APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from appliance.wire.kafka.codec import KafkaCodec, KafkaLoginCodec
from appliance.wire.kafka.sasl import MESSAGE_BYTES_MAX
from appliance.wire.requests import Forwarded, Local, Login, LoginReply

from ...support.kafka_messages import decode_response, kio_response_again, request_frame

LIMITS = WireLimits.from_config(Config())
VERSIONS = {key: range(APIS[key].version_max + 1) for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE)}


def login(codec: KafkaCodec, key: int, version: int, **values: object) -> Login:
    request = codec.decode(memoryview(request_frame(key, version, dict(values), 9)))
    assert isinstance(request, Login)
    return request


@pytest.mark.parametrize("version", VERSIONS[SASL_HANDSHAKE])
def test_a_handshake_chooses_a_mechanism(version: int) -> None:
    codec = KafkaCodec(LIMITS)
    request = login(codec, SASL_HANDSHAKE, version, mechanism="SCRAM-SHA-256")
    assert (request.mechanism, request.message) == ("SCRAM-SHA-256", None)
    reply = codec.encode_login(request, LoginReply(33, "no", b"", ("PLAIN", "SCRAM-SHA-512")))
    assert kio_response_again(SASL_HANDSHAKE, version, reply) == reply
    response = decode_response(SASL_HANDSHAKE, version, reply)
    assert (response.error_code, response.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-512"])
    assert response.header.correlation_id == 9


@pytest.mark.parametrize("version", VERSIONS[SASL_AUTHENTICATE])
@pytest.mark.parametrize("message", [b"", b"n,,n=user", b"\0" * 300])
def test_a_message_is_passed_on_as_it_is(version: int, message: bytes) -> None:
    codec = KafkaCodec(LIMITS)
    request = login(codec, SASL_AUTHENTICATE, version, auth_bytes=message)
    assert (request.mechanism, request.message) == (None, message)
    for given in (LoginReply(0, "", message, (), 5_000), LoginReply(58, "wrong password or unknown user")):
        reply = codec.encode_login(request, given)
        assert kio_response_again(SASL_AUTHENTICATE, version, reply) == reply
        response = decode_response(SASL_AUTHENTICATE, version, reply)
        assert (response.error_code, response.error_message) == (given.error, given.text or None)
        assert response.auth_bytes == given.message
        assert version == 0 or response.session_lifetime_ms == given.lifetime_ms


@pytest.mark.parametrize("key", VERSIONS)
@pytest.mark.parametrize("version", [-1, 7])
def test_an_unknown_version_gets_a_code(key: int, version: int) -> None:
    reply = KafkaCodec(LIMITS).decode(memoryview(struct.pack(">hhih", key, version, 7, -1) + b"\0\0"))
    assert isinstance(reply, Local) and decode_response(key, 0, reply.reply).error_code == 35


def test_a_message_that_is_too_large_or_cut_is_refused() -> None:
    codec = KafkaCodec(LIMITS)
    whole = request_frame(SASL_AUTHENTICATE, 1, {"auth_bytes": b"x" * MESSAGE_BYTES_MAX})
    assert isinstance(codec.decode(memoryview(whole)), Login)
    for frame in (
        request_frame(SASL_AUTHENTICATE, 1, {"auth_bytes": b"x" * (MESSAGE_BYTES_MAX + 1)}),
        whole[:-1],
        struct.pack(">hhihi", SASL_AUTHENTICATE, 1, 7, -1, -1),
    ):
        with pytest.raises(ProtocolFault):
            codec.decode(memoryview(frame))


def test_after_the_oldest_handshake_tokens_are_raw_until_the_login_is_over() -> None:
    codec = KafkaLoginCodec(LIMITS)
    assert codec.first_bytes_max < LIMITS.frame_bytes_max
    chosen = login(codec, SASL_HANDSHAKE, 0, mechanism="SCRAM-SHA-256")
    assert decode_response(SASL_HANDSHAKE, 0, codec.encode_login(chosen, LoginReply(0, "", b"", ("PLAIN",))))
    for message, over in ((b"n,,n=user", False), (b"c=biws", True)):
        request = codec.decode(memoryview(message))
        assert isinstance(request, Login) and request.message == message
        assert codec.encode_login(request, LoginReply(0, "", b"r=", over=over)) == b"\0\0\0\2r="
    assert isinstance(codec.decode(memoryview(struct.pack(">hhih", 3, 1, 7, -1))), Forwarded)


def test_a_raw_login_that_fails_gets_no_answer() -> None:
    codec = KafkaLoginCodec(LIMITS)
    codec.encode_login(login(codec, SASL_HANDSHAKE, 0, mechanism="PLAIN"), LoginReply(0))
    request = codec.decode(memoryview(b"\0user\0wrong"))
    assert isinstance(request, Login) and codec.encode_login(request, LoginReply(58, "no")) == b""


@pytest.mark.parametrize(("version", "error"), [(0, 33), (1, 0)])
def test_tokens_are_not_raw_after_any_other_handshake(version: int, error: int) -> None:
    codec = KafkaLoginCodec(LIMITS)
    codec.encode_login(login(codec, SASL_HANDSHAKE, version, mechanism="PLAIN"), LoginReply(error))
    assert login(codec, SASL_AUTHENTICATE, 1, auth_bytes=b"x").message == b"x"

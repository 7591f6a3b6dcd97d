"""Decodes and encodes SaslHandshake (0 to 1) and SaslAuthenticate (0 to 2), and the raw tokens of old clients::

    SaslHandshake      string mechanism                  →  i16 error  [string mechanism]
    SaslAuthenticate   bytes message                     →  i16 error  string? text  bytes message  i64 lifetime ms (1+)
    raw token          u32 size  message                 →  u32 size  message, or the end of the connection

From SaslAuthenticate 2 on, strings and bytes have compact lengths, and tagged fields follow.  Raw tokens come in place
of SaslAuthenticate after SaslHandshake 0 (clients before Kafka 1.0), until the login is over; the codec of a connection
that waits for a login knows that (``codec.py``).
"""

from __future__ import annotations

import struct
from typing import Final

from ...errors import ProtocolFault, UnsupportedVersion
from ..requests import Local, Login, LoginReply
from .apis import APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from .primitives import I16, I32, SIZE, read_varint, skip_tags
from .reply import ReplyEncoder

MESSAGE_BYTES_MAX: Final = 16 * 1024
"""Largest message of a login."""
_I64: Final = struct.Struct(">q")


def decode(frame: memoryview, position: int, key: int, correlation_id: int, version: int) -> Login | Local:
    """Decode a request whose own fields, after the header without its tagged fields, begin at ``position``.

    Raises:
        ProtocolFault, IndexError, struct.error: it is malformed.
    """
    context = key, correlation_id, version
    if not 0 <= version <= APIS[key].version_max:
        refusal = LoginReply(UnsupportedVersion.code, "unknown version")
        return Local(_encode((key, correlation_id, 0), refusal), free=True)
    if key == SASL_HANDSHAKE:
        (size,) = I16.unpack_from(frame, position)
        return Login(context, _bytes(frame, position + 2, size).decode("utf-8", "replace"), None)
    if version >= APIS[key].flexible_from:
        position = skip_tags(frame, position)
        size, position = read_varint(frame, position)
        return Login(context, None, _bytes(frame, position, size - 1))
    (size,) = I32.unpack_from(frame, position)
    return Login(context, None, _bytes(frame, position + 4, size))


def _bytes(frame: memoryview, start: int, size: int) -> bytes:
    if not 0 <= size <= min(len(frame) - start, MESSAGE_BYTES_MAX):
        raise ProtocolFault(f"{size} bytes at byte {start} of a frame of {len(frame)}")
    return bytes(frame[start : start + size])


def encode(request: Login, reply: LoginReply) -> bytes:
    return _encode(request.context, reply)


def _encode(context: tuple[int, int, int], reply: LoginReply) -> bytes:
    key, correlation_id, version = context
    code = I16.pack(reply.error)
    if key == SASL_HANDSHAKE:
        form = ReplyEncoder(False)
        names = [form.string(mechanism) for mechanism in reply.mechanisms]
        return form.frame(correlation_id, [code, form.count(len(names)), *names])
    form = ReplyEncoder(version >= APIS[SASL_AUTHENTICATE].flexible_from)
    parts = [code, form.message(reply.text), form.count(len(reply.message)), reply.message]
    if version >= 1:
        parts.append(_I64.pack(reply.lifetime_ms))
    return form.frame(correlation_id, [*parts, form.tags])


def encode_raw(reply: LoginReply) -> bytes:
    """A raw token; nothing for an error, which only the end of the connection can tell."""
    return b"" if reply.error else SIZE.pack(len(reply.message)) + reply.message

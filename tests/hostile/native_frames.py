"""Native requests that are wrong in every way, generated from the types that they are decoded as.

msgspec tells the types and their bounds: a value is chosen within them, at their edges, beyond them, or of another
type.  Names are those of ``kafka_frames``.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import msgpack
import msgspec
from msgspec import inspect

from appliance.wire import native
from appliance.wire import native_admin as admin

from .kafka_frames import NAMES, ODD_NAMES, Writer

VERBS: dict[str, Any] = {verb.name: verb.arguments for verb in admin.VERBS.values()}
REQUESTS = (native._Produce, native._Fetch, native._Offsets, native.MetadataRequest, native.AdminRequest, native._Hello)
OTHERS: tuple[Any, ...] = (None, True, 1.5, b"x", "x", [], {}, [[]], {"": {}}, -1, 2**64 - 1, 2**63, 2**32, 2**31)
INFO = {request: inspect.type_info(request) for request in (*REQUESTS, *VERBS.values())}


def value(kind: Any, rng: Random, wrong: float) -> Any:
    """A value of a type as msgspec describes it, with the probability ``wrong`` another one."""
    if rng.random() < wrong:
        return rng.choice(OTHERS)
    match kind:
        case inspect.IntType(ge=low, le=high):
            low, high = -(2**63) if low is None else low, 2**63 - 1 if high is None else high
            edges = [edge for edge in (0, 1, 1, 2, 500, -1, -2, -3, 2**63 - 1) if low <= edge <= high]
            return rng.choice((*edges, low, high))
        case inspect.StrType():
            return rng.choice(NAMES) if rng.random() < 0.7 else rng.choice(ODD_NAMES)
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.LiteralType(values=values):
            return rng.choice(values)
        case inspect.ListType(item_type=item):
            count = rng.choice((0, 1, 1, 2, 3, 30, rng.choice((30, 300, 3_000))))
            return (
                [value(item, rng, wrong / 10)] * count
                if count > 30
                else [value(item, rng, wrong) for _ in range(count)]
            )
        case inspect.TupleType(item_types=items):
            return [value(item, rng, wrong) for item in items]
        case inspect.DictType(key_type=key, value_type=item):
            settings = rng.choice(("retention.ms", "segment.bytes", "flush.messages", "index.interval.bytes", "x"))
            name = settings if rng.random() < 0.7 else str(value(key, rng, 0))
            return {name: value(item, rng, wrong)} if rng.random() < 0.7 else {}
        case inspect.UnionType(types=types):
            return value(rng.choice(types), rng, wrong)
        case inspect.StructType(cls=cls, fields=fields):
            given = {field.encode_name: value(field.type, rng, wrong) for field in fields}
            if not cls.__struct_config__.array_like:
                return {name: item for name, item in given.items() if rng.random() < 0.9}
            return [cls.__struct_config__.tag, *given.values()]
        case _:
            return None


def header(rng: Random) -> Any:
    request = rng.choice(REQUESTS)
    wrong = rng.choice((0, 0, 0.05, 0.3))
    out = value(INFO[request], rng, wrong)
    if not isinstance(out, list):
        return out
    if request is native.AdminRequest:
        verb = rng.choice(tuple(VERBS))
        name = verb if rng.random() < 0.95 else "x" * 300
        return [*out[:2], name, value(INFO[VERBS[verb]], rng, wrong)]
    if request is native._Hello:
        return [*out[:2], *rng.choice(((native.MAGIC, native.VERSION), (native.MAGIC, 99), ("other", 1))), "x"]
    return out


def bomb(rng: Random) -> bytes:
    """A header that announces, or nests, more than it has."""
    count = rng.choice((2**32 - 1, 2**24, 100_000))
    prefix = rng.choice((b"\x93\x09\x01\xdd", b"\x93\x02\x01\xdd", b"\x94\x04\x01\xa6status\xdd", b"\xdd", b"\xdf"))
    filling = rng.choice((b"\x80", b"\x90", b"\xc0", b"\x91", b"\x81")) * rng.choice((0, 100, 100_000, 500_000))
    return prefix + count.to_bytes(4, "big") + filling


def native_frame(rng: Random) -> bytes:
    """One request with its size prefix."""
    packed = bomb(rng) if rng.random() < 0.05 else msgpack.packb(header(rng))
    payload = b""
    if rng.random() < 0.5:
        payload = Writer(rng, 0, False, "none")._records()
    size = len(packed)
    if rng.random() < 0.1:
        size = rng.choice((0, 1, size - 1, size + 1, 2**31, 2**32 - 1)) % 2**32
    frame = bytearray(struct.pack(">I", size) + packed + payload)
    if rng.random() < 0.2:
        frame[rng.randrange(min(len(frame), 60))] = rng.randrange(256)
    if rng.random() < 0.1:
        del frame[rng.randrange(len(frame) + 1) :]
    return struct.pack(">I", len(frame)) + frame


HELLO = native.encode_frame([native.HELLO, 0, native.MAGIC, native.VERSION, "hostile"])
assert msgspec.__version__

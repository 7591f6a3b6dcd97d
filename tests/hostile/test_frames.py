"""Hostile frames at the decoders alone: a request, or a named error; any other exception would end a worker.

HOSTILE_FRAMES=100000 is the full size.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from appliance.config import Config
from appliance.errors import ClientFault, ProtocolFault
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka import forwarded
from appliance.wire.kafka.apis import APIS, SERVED_BY_WORKERS
from appliance.wire.kafka.codec import KafkaCodec
from appliance.wire.native import NativeCodec, decode_forwarded
from appliance.wire.requests import Codec, Fetch, Forwarded, Local, Login, Offsets, Produce, decode_frames

from .kafka_frames import FLAWS, VERSIONS, kafka_frame
from .native_frames import native_frame

FRAMES = int(os.environ.get("HOSTILE_FRAMES", "2000"))
LIMITS = WireLimits.from_config(Config())


def decoded(codec: Codec, frame: bytes) -> str:
    """What the worker, and for what it passes on the coordinator, make of a frame (twice, as they come in a burst)."""
    memory = memoryview(frame + frame)
    bounds = [(4, len(frame)), (len(frame) + 4, len(memory))]
    kind = ""
    try:
        for request, start, part in decode_frames(codec, memory, bounds):
            kind = type(request).__name__
            if isinstance(request, Produce):
                assert all(start <= start + p.start <= start + p.stop <= len(memory) for p in request.parts)
            if isinstance(request, Fetch | Offsets):
                assert len(request.parts) <= LIMITS.parts_max
            if isinstance(request, Forwarded) and isinstance(codec, KafkaCodec):
                forwarded.decode(part)
            elif isinstance(request, Forwarded):
                decode_forwarded(part)
    except ProtocolFault:
        return "ProtocolFault"
    except ClientFault:
        return "ClientFault"
    return kind


def test_kafka_frames() -> None:
    rng = Random(3)
    kinds = Counter(decoded(KafkaCodec(LIMITS), kafka_frame(rng)) for _ in range(FRAMES))
    requests = (Produce, Fetch, Offsets, Forwarded, Login, Local)
    expected = {kind.__name__ for kind in (*requests, ProtocolFault, ClientFault)}
    assert kinds.keys() == expected, "every way out is taken"
    assert kinds["ProtocolFault"] < 0.7 * FRAMES, "most get further than the border"


@pytest.mark.parametrize("greeted", [True, False])
def test_native_frames(greeted: bool) -> None:
    rng = Random(5)
    kinds = Counter(decoded(NativeCodec(0, LIMITS, greeted), native_frame(rng)) for _ in range(FRAMES))
    served = {kind.__name__ for kind in (Produce, Fetch, Offsets, Forwarded)} if greeted else {Local.__name__}
    assert kinds.keys() == served | {"ProtocolFault"}


def test_every_version_of_every_api_is_generated() -> None:
    assert {key for key, _ in VERSIONS} == APIS.keys() and len(FLAWS) == 8
    assert {(key, APIS[key].version_max) for key in SERVED_BY_WORKERS} <= set(VERSIONS)
    assert kafka_frame(Random(9)) == kafka_frame(Random(9)), "a seed says it all"
    assert native_frame(Random(9)) == native_frame(Random(9))

"""Makes the codec of a connection, by the protocol of its listener."""

from __future__ import annotations

from ..config import Config
from .bounds import Limits
from .kafka.codec import KafkaCodec
from .native import NativeCodec
from .requests import Codec


def codec_of(protocol: str, config: Config, greeted: bool = False) -> Codec:
    """Make a codec for one connection.  ``protocol``: "native" or "kafka"; ``greeted``: its hello has been answered."""
    limits = Limits.of(config)
    if protocol == "native":
        return NativeCodec(config.broker.id, limits, greeted)
    return KafkaCodec(limits)

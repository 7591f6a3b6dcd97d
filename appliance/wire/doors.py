"""The codec of each door, by its name."""

from __future__ import annotations

from ..config import Config
from .bounds import Limits
from .kafka.hot import KafkaCodec
from .native import NativeCodec
from .requests import Codec


def codec_of(door: str, config: Config, greeted: bool = False) -> Codec:
    """A codec for one connection of ``door`` ("native" or "kafka"); ``greeted``: its hello has been answered."""
    limits = Limits.of(config)
    if door == "native":
        return NativeCodec(config.broker.id, limits, greeted)
    return KafkaCodec(limits)

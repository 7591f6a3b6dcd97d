"""The codec of each door, by its name."""

from __future__ import annotations

from ..config import Config
from .kafka.hot import KafkaCodec
from .native import NativeCodec
from .requests import Codec


def codec_of(door: str, config: Config, greeted: bool = False) -> Codec:
    """A codec for one connection of ``door`` ("native" or "kafka"); ``greeted``: its hello has been answered."""
    if door == "native":
        return NativeCodec(config.broker.id, config.network.frame_bytes_max, greeted)
    return KafkaCodec()

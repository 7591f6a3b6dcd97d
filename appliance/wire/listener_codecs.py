"""Makes the codec of a connection, by the protocol of its listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..config import Config
from .bounds import Limits
from .kafka.codec import NO_NAMES, KafkaCodec, KafkaLoginCodec
from .native import NativeCodec
from .requests import Codec


def codec_of(
    protocol: str,
    config: Config,
    greeted: bool = False,
    mechanisms: Sequence[str] = (),
    topic_names: Mapping[bytes, str] = NO_NAMES,
) -> Codec:
    """Make a codec for one connection.

    Args:
        protocol: "native" or "kafka".
        greeted: its hello has been answered.
        mechanisms: those of the login that the client begins with; none: it need not log in.
        topic_names: names by topic id.
    """
    limits = Limits.of(config)
    if protocol == "native":
        return NativeCodec(config.broker.id, limits, greeted, mechanisms)
    return (KafkaLoginCodec if mechanisms else KafkaCodec)(limits, topic_names)

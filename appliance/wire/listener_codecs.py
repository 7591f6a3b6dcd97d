"""Makes the codec of a connection, by the protocol of its listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..config import Config
from .bounds import WireLimits
from .kafka.codec import NOBODY, Identity, KafkaCodec, KafkaLoginCodec
from .kafka.new_leaders import NOT_KNOWN, Leaders
from .kafka.primitives import NO_NAMES
from .native import NativeCodec
from .requests import Codec


def codec_of(
    protocol: str,
    config: Config,
    greeted: bool = False,
    mechanisms: Sequence[str] = (),
    topic_names: Mapping[bytes, str] = NO_NAMES,
    identity: Identity = NOBODY,
    leaders: Leaders = NOT_KNOWN,
) -> Codec:
    """Make a codec for one connection.

    Args:
        protocol: "native" or "kafka".
        greeted: its hello has been answered.
        mechanisms: those of the login that the client begins with; none: it need not log in.
        topic_names: names by topic id.
        identity: the ids of the cluster and of this broker.
        leaders: who leads the partitions that are stored elsewhere.
    """
    limits = WireLimits.from_config(config)
    if protocol == "native":
        return NativeCodec(config.broker.id, limits, greeted, mechanisms)
    return (KafkaLoginCodec if mechanisms else KafkaCodec)(limits, topic_names, identity, leaders)

"""The broker's own configuration under Kafka's names, as DescribeConfigs of a broker shows it.

Everything here is read-only: it belongs to the configuration file.  One line per setting: a key of ``Config``, or a
value that is so because of how the appliance is made.  The broker-wide defaults of topics' settings
(``log.retention.ms``...) follow from the tables of topic settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..addresses import parse_listeners
from ..config import KEYS, TOPIC_KEYS, Config, TopicSettings
from ..config_keys import Key, text_of
from ..groups.assignors import ASSIGNORS
from ..groups.group_settings import GROUP_KEYS
from ..groups.messages import Limits
from ..kafka_settings import ACCEPTED, INT_MAX, Kind
from ..names import NOTE_BYTES_MAX

MINUTE_MS: Final = 60_000
BROKER_NAMES: Final = {
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "max.message.bytes": "message.max.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "index.interval.bytes": "log.index.interval.bytes",
    "cleanup.policy": "log.cleanup.policy",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
} | {name: accepted.broker_name for name, accepted in ACCEPTED.items() if accepted.broker_name}
"""What Kafka calls the broker-wide default of a topic's setting."""


class BrokerSetting(NamedTuple):
    """``default``: what holds where the configuration file says nothing; None when it has no default."""

    name: str
    kind: Kind
    value: str | None
    default: str | None
    about: str


_KEYS: Final = (  # Kafka's name, ours
    ("allow.everyone.if.no.acl.found", "security.allow_everyone_if_no_acl"),
    ("authorizer.class.name", "security.authorizer"),
    ("auto.create.topics.enable", "topics.auto_create"),
    ("connections.max.idle.ms", "network.idle_ms"),
    ("group.consumer.heartbeat.interval.ms", "groups.consumer_heartbeat_ms"),
    ("group.consumer.migration.policy", "groups.migration"),
    ("group.consumer.session.timeout.ms", "groups.consumer_session_ms"),
    ("log.retention.check.interval.ms", "disk.check_ms"),
    ("max.connections", "network.connections_max"),
    ("num.network.threads", "network.workers"),
    ("num.partitions", "topics.partitions"),
    ("socket.request.max.bytes", "network.frame_bytes_max"),
    ("super.users", "security.super_users"),
    ("transaction.max.timeout.ms", "transactions.max.timeout.ms"),
    ("transactional.id.expiration.ms", "transactions.id.expiration.ms"),
)
_LIMITS: Final = Limits()
_FIXED: Final = (
    ("default.replication.factor", Kind.INT, "1", "each partition is stored once"),
    ("delete.topic.enable", Kind.BOOLEAN, "true", "topics can be deleted"),
    ("group.consumer.assignors", Kind.LIST, ",".join(ASSIGNORS), "who assigns partitions in the consumer protocol"),
    *(
        (
            f"group.consumer.{bound}.{name.removeprefix('consumer.')}",
            Kind.INT,
            str(value),
            f"{what} that a group may set",
        )
        for name, key in GROUP_KEYS.items()
        for bound, value, what in (("min", key.least, "least"), ("max", key.most, "most"))
    ),
    ("group.consumer.max.size", Kind.INT, str(_LIMITS.members_max), "most members of a group of that protocol"),
    ("group.initial.rebalance.delay.ms", Kind.INT, str(_LIMITS.initial_delay_ms), "a new group waits for more members"),
    ("group.max.session.timeout.ms", Kind.INT, str(_LIMITS.session_ms_max), "longest session of a group's member"),
    ("group.max.size", Kind.INT, str(_LIMITS.members_max), "most members of a group"),
    ("group.min.session.timeout.ms", Kind.INT, str(_LIMITS.session_ms_min), "shortest session of a group's member"),
    ("offset.metadata.max.bytes", Kind.INT, str(NOTE_BYTES_MAX), "largest note stored with a committed offset"),
)


def kind_of(key: Key) -> Kind:
    """Kafka's type of a setting that is a key of ours."""
    if key.kind is bool:
        return Kind.BOOLEAN
    if key.kind is float:
        return Kind.DOUBLE
    if key.kind is str:
        return Kind.LIST if any("," in str(choice) for choice in key.choices) else Kind.STRING
    return Kind.INT if key.most is not None and key.most <= INT_MAX else Kind.LONG


def broker_settings(config: Config, data_dir: str, listening: str, advertised: str) -> Iterator[BrokerSetting]:
    """All settings of the broker, in no order.

    ``listening``: the Kafka listeners as text; ``advertised``: where clients are sent that ask.
    """
    yield BrokerSetting("listeners", Kind.STRING, _with_protocol(listening), None, "where Kafka clients connect to")
    yield BrokerSetting(
        "advertised.listeners", Kind.STRING, _with_protocol(advertised), None, KEYS["kafka.advertised"].about
    )
    for name in ("broker.id", "node.id"):
        yield BrokerSetting(name, Kind.INT, str(config.broker.id), "0", KEYS["broker.id"].about)
    for name in ("log.dir", "log.dirs"):
        yield BrokerSetting(name, Kind.STRING, data_dir, None, "the data directory")
    key = KEYS["offsets.retention.ms"]
    minutes, default = (str(value // MINUTE_MS) for value in (config.offsets.retention_ms, int(key.default)))
    yield BrokerSetting("offsets.retention.minutes", Kind.INT, minutes, default, key.about)
    for name, ours in _KEYS:
        key = KEYS[ours]
        yield BrokerSetting(name, kind_of(key), text_of(config.value(ours)), text_of(key.default), key.about)
    for name, kind, value, about in _FIXED:
        yield BrokerSetting(name, kind, value, value, about)
    values, defaults = config.topics.defaults.as_kafka(), TopicSettings().as_kafka()
    for topic_name, name in BROKER_NAMES.items():
        if topic_name in ACCEPTED:
            accepted = ACCEPTED[topic_name]
            yield BrokerSetting(name, accepted.kind, accepted.default, accepted.default, accepted.about)
        else:
            key = TOPIC_KEYS[topic_name]
            yield BrokerSetting(name, kind_of(key), values[topic_name], defaults[topic_name], key.about)


def _with_protocol(listeners: str) -> str | None:
    """As in Kafka: every listener with its protocol."""
    parsed = parse_listeners("kafka", listeners)
    return ",".join(f"{listener.security}://{listener.address}" for listener in parsed) or None

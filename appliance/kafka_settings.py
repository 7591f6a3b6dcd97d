"""Lists the topic settings of Kafka that have no effect here: they hold anyway, or they are hints.

Clients and tools give them when they create a topic, and copy them from cluster to cluster.  So they are accepted,
stored and shown as in Kafka.  A value that does not hold is refused with the reason.  The settings with an effect are
those of ``config.TopicSettings``.

A new setting is one line of :data:`ACCEPTED`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

TEXT_CHARACTERS_MAX: Final = 1000
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

OURS: Final = frozenset({"flush.bytes", "message.validate"})
"""Settings of topics that Kafka does not have.  Kafka's tools see them only if they ask for them by name: they copy all
others to a Kafka, which refuses names that it does not know.  What is not shown is not taken back by AlterConfigs.
"""
KAFKAS_WORD: Final[dict[tuple[str, str | None], str | None]] = {("flush.messages", "0"): str(LONG_MAX)}
"""Values that Kafka says otherwise: it refuses a flush after 0 messages, which is never here."""


class Kind(IntEnum):
    """Kafka's numbers for the type of a setting (``ConfigDef.Type``, as DescribeConfigs carries it)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Accepted(NamedTuple):
    """An accepted setting.

    ``values``: bounds of a number, the pattern of a text, or None when only ``default`` holds.  ``about``: why it
    holds, or why it has no effect.  ``broker_name``: Kafka's name of the broker-wide default, "" for none.
    ``current``: Kafka 4 still has it; other settings are shown only for topics that set them.
    """

    name: str
    kind: Kind
    default: str
    values: tuple[float, float] | str | None
    about: str
    broker_name: str = ""
    current: bool = True

    def parse(self, value: object) -> str:
        """Check a value and return its text.

        Raises:
            ValueError: the value does not hold; the message says what does, and why.
        """
        text = str(value).strip()
        if len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError(f"must have at most {TEXT_CHARACTERS_MAX} characters")
        if self.kind in (Kind.BOOLEAN, Kind.LIST):
            text = text.lower() if self.kind is Kind.BOOLEAN else ",".join(part.strip() for part in text.split(","))
        if self.values is None and text != self.default:
            raise ValueError(f"must be {self.default}: {self.about}")
        if isinstance(self.values, str) and not re.fullmatch(self.values, text, re.ASCII):
            raise ValueError(f"must match {self.values}")
        if isinstance(self.values, tuple):
            self._check_number(text, *self.values)
        return text

    def _check_number(self, text: str, least: float, most: float) -> None:
        whole = self.kind is not Kind.DOUBLE
        if not re.fullmatch(r"-?\d{1,20}" if whole else r"-?\d{1,20}(\.\d{1,20})?", text, re.ASCII):
            raise ValueError("must be a whole number" if whole else "must be a number")
        if not least <= (int(text) if whole else float(text)) <= most:
            raise ValueError(f"must be {least} to {most}")


_ONE_COPY: Final = "each partition is stored once"
_TIERS: Final = "all of a log is local"
_AS_THEY_CAME: Final = "batches are stored as they came, so producers choose their compression"
_ANY_TIME: Final = "no message is refused for its timestamp"
_BOOLEAN: Final = "true|false"
_REPLICAS: Final = r"|\*|\d+:\d+(,\d+:\d+)*"

ACCEPTED: Final = {
    setting.name: setting
    for setting in (
        Accepted("compression.gzip.level", Kind.INT, "-1", "-1|[1-9]", _AS_THEY_CAME, "compression.gzip.level"),
        Accepted("compression.lz4.level", Kind.INT, "9", (1, 17), _AS_THEY_CAME, "compression.lz4.level"),
        Accepted("compression.type", Kind.STRING, "producer", None, _AS_THEY_CAME, "compression.type"),
        Accepted("compression.zstd.level", Kind.INT, "3", (-131_072, 22), _AS_THEY_CAME, "compression.zstd.level"),
        Accepted("file.delete.delay.ms", Kind.LONG, "60000", (0, LONG_MAX),
                 "a hint: files are deleted at once, except those being read", "log.segment.delete.delay.ms"),
        Accepted("follower.replication.throttled.replicas", Kind.LIST, "", _REPLICAS, _ONE_COPY),
        Accepted("leader.replication.throttled.replicas", Kind.LIST, "", _REPLICAS, _ONE_COPY),
        Accepted("local.retention.bytes", Kind.LONG, "-2", (-2, LONG_MAX), _TIERS, "log.local.retention.bytes"),
        Accepted("local.retention.ms", Kind.LONG, "-2", (-2, LONG_MAX), _TIERS, "log.local.retention.ms"),
        Accepted("message.timestamp.after.max.ms", Kind.LONG, str(LONG_MAX), (0, LONG_MAX), _ANY_TIME,
                 "log.message.timestamp.after.max.ms"),
        Accepted("message.timestamp.before.max.ms", Kind.LONG, str(LONG_MAX), (0, LONG_MAX), _ANY_TIME,
                 "log.message.timestamp.before.max.ms"),
        Accepted("min.insync.replicas", Kind.INT, "1", None, _ONE_COPY, "min.insync.replicas"),
        Accepted("preallocate", Kind.BOOLEAN, "false", None, "files grow as they are written", "log.preallocate"),
        Accepted("remote.log.copy.disable", Kind.BOOLEAN, "false", None, _TIERS),
        Accepted("remote.log.delete.on.disable", Kind.BOOLEAN, "false", None, _TIERS),
        Accepted("remote.storage.enable", Kind.BOOLEAN, "false", None, _TIERS),
        Accepted("segment.index.bytes", Kind.INT, "10485760", (4, INT_MAX), "a hint: an index grows with its segment",
                 "log.index.size.max.bytes"),
        Accepted("segment.jitter.ms", Kind.LONG, "0", (0, LONG_MAX), "a hint: segments are rolled as they come"),
        Accepted("unclean.leader.election.enable", Kind.BOOLEAN, "false", None, _ONE_COPY,
                 "unclean.leader.election.enable"),
        # Kafka 4 no longer has these, but older tools still give them.
        Accepted("message.downconversion.enable", Kind.BOOLEAN, "true", _BOOLEAN,
                 "there is one format, and no client gets an older one", current=False),
        Accepted("message.format.version", Kind.STRING, "3.0-IV1", r"\d[\w.-]*", "there is one format", current=False),
        Accepted("message.timestamp.difference.max.ms", Kind.LONG, str(LONG_MAX), (0, LONG_MAX), _ANY_TIME,
                 current=False),
    )
}  # fmt: skip

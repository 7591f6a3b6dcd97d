"""Encodes replies that show settings by hand: thousands of topics at a time, most of which have the same settings.

A topic has some thirty settings, so 1,000 topics take more than half a second through kafka-python.  Here the settings
of topics that set the same are encoded once.  Layouts ("n+" from version n on; in flexible versions strings and arrays
are compact, and an empty tag section T stands behind each struct)::

    DescribeConfigs 1 to 4, flexible from 4
    i32 correlation id   T   i32 throttle ms
    [ i16 error   nullable string message   i8 resource type   string resource name
      [ string name   nullable string value   bool read-only   i8 source   bool sensitive
        [ string name   nullable string value   i8 source   T ]   3+ i8 type   3+ nullable string documentation   T ]
      T ]
    T

    CreateTopics 2 to 7, flexible from 5
    i32 correlation id   T   i32 throttle ms
    [ string name   7+ uuid topic id   i16 error   nullable string message   5+ i32 partitions   5+ i16 replicas
      5+ nullable [ string name   nullable string value   bool read-only   i8 source   bool sensitive   T ]   T ]
    T
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from ..config import TOPIC_KEYS, TopicSettings
from ..kafka_settings import ACCEPTED, KAFKAS_WORD, OURS, Kind
from ..wire.kafka.apis import APIS, CREATE_TOPICS, DESCRIBE_CONFIGS
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import NO_ID
from ..wire.kafka.reply import ReplyEncoder
from .broker_settings import BROKER_NAMES, kind_of

ENCODINGS_MAX: Final = 256
"""Combinations of own settings, version and options that are kept encoded, a few KiB each."""
SortedSettings = tuple[tuple[str, str], ...]
"""What a topic sets itself, sorted."""

_RESOURCE = struct.Struct(">b")
_ROW = struct.Struct(">?b?")
_PLACED = struct.Struct(">ih")
_I16 = struct.Struct(">h")
_NO_THROTTLE: Final = b"\0\0\0\0"
_HIDDEN_TAG: Final = bytes((1, 0, 2)) + _I16.pack(Code.TOPIC_AUTHORIZATION_FAILED)
"""One tagged field, topic_config_error_code, of two bytes."""


class SettingSource(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


class Synonym(NamedTuple):
    """A value that holds, or would hold if the ones before it were not set."""

    name: str
    value: str | None
    source: SettingSource


class Setting(NamedTuple):
    """One setting as it is shown: the first of ``synonyms`` holds, under the resource's name for it."""

    name: str
    kind: Kind | None
    about: str
    read_only: bool
    synonyms: tuple[Synonym, ...]


class ReplyOptions(NamedTuple):
    """What DescribeConfigs asks for beside the values."""

    version: int
    synonyms: bool
    documentation: bool


class Described(NamedTuple):
    """One resource of a reply to DescribeConfigs; ``settings`` is encoded."""

    kind: int
    name: str
    error: int
    message: str
    settings: bytes


HIDDEN: Final = b"hidden"
"""In place of the settings of a topic that the client may not see."""


class Created(NamedTuple):
    """One topic of a reply to CreateTopics; ``settings`` is encoded, b"" on error, HIDDEN if they are not shown."""

    name: str
    error: int = 0
    message: str = ""
    partitions: int = -1
    replicas: int = -1
    id: UUID = NO_ID
    settings: bytes = b""


def topic_settings(own: SortedSettings, base: TopicSettings) -> list[Setting]:
    """All settings of a topic by name, in Kafka's words: those that do something here, and those that are so anyway."""
    own_values, configured, built_in = dict(own), base.as_kafka(), TopicSettings().as_kafka()
    shown = []
    for name, key in TOPIC_KEYS.items():
        broker_name = BROKER_NAMES.get(name, name)
        synonyms: tuple[Synonym, ...] = (Synonym(broker_name, built_in[name], SettingSource.DEFAULT),)
        if configured[name] != built_in[name]:
            synonyms = (Synonym(broker_name, configured[name], SettingSource.STATIC_BROKER), *synonyms)
        shown.append(Setting(name, kind_of(key), key.about, False, synonyms))
    for name, accepted in ACCEPTED.items():
        if accepted.current or name in own_values:
            synonyms = (Synonym(accepted.broker_name or name, accepted.default, SettingSource.DEFAULT),)
            shown.append(Setting(name, accepted.kind, accepted.about, False, synonyms))
    for place, setting in enumerate(shown):
        if setting.name in own_values:
            first = Synonym(setting.name, own_values[setting.name], SettingSource.TOPIC)
            shown[place] = setting._replace(synonyms=(first, *setting.synonyms))
    return sorted(_in_kafkas_words(setting) for setting in shown)


def _in_kafkas_words(setting: Setting) -> Setting:
    name = setting.name
    return setting._replace(
        synonyms=tuple(
            synonym._replace(value=KAFKAS_WORD.get((name, synonym.value), synonym.value))
            for synonym in setting.synonyms
        )
    )


def kafkas_settings(own: SortedSettings, base: TopicSettings) -> list[Setting]:
    """The settings of a topic that Kafka has, too."""
    return [setting for setting in topic_settings(own, base) if setting.name not in OURS]


@lru_cache(ENCODINGS_MAX)
def encode_topic(own: SortedSettings, base: TopicSettings, options: ReplyOptions) -> bytes:
    """The settings of a topic for DescribeConfigs that asks for all."""
    return encode_settings(kafkas_settings(own, base), options)


def encode_settings(settings: Sequence[Setting], options: ReplyOptions) -> bytes:
    """The array of settings for DescribeConfigs."""
    r = ReplyEncoder(options.version >= APIS[DESCRIBE_CONFIGS].flexible_from)
    parts = [r.count(len(settings))]
    for name, kind, about, read_only, synonyms in settings:
        _, value, source = synonyms[0]
        shown = synonyms if options.synonyms else ()
        parts += [r.string(name), r.string(value), _ROW.pack(read_only, source, False), r.count(len(shown))]
        for synonym in shown:
            parts += [r.string(synonym.name), r.string(synonym.value), _RESOURCE.pack(synonym.source), r.tags]
        if options.version >= 3:
            parts += [_RESOURCE.pack(kind or 0), r.string(about if options.documentation else None)]
        parts.append(r.tags)
    return b"".join(parts)


def encode_described(correlation_id: int, version: int, results: Sequence[Described]) -> bytes:
    """The reply frame to DescribeConfigs."""
    r = ReplyEncoder(version >= APIS[DESCRIBE_CONFIGS].flexible_from)
    parts = [_NO_THROTTLE, r.count(len(results))]
    for kind, name, error, message, settings in results:
        parts += [_I16.pack(error), r.message(message), _RESOURCE.pack(kind), r.string(name)]
        parts += [settings or r.count(0), r.tags]
    return r.frame(correlation_id, [*parts, r.tags])


@lru_cache(ENCODINGS_MAX)
def encode_new_topic(own: SortedSettings, base: TopicSettings) -> bytes:
    """The settings of a topic for CreateTopics, which shows them from version 5 on."""
    r, settings = ReplyEncoder(flexible=True), kafkas_settings(own, base)
    parts = [r.count(len(settings))]
    for setting in settings:
        _, value, source = setting.synonyms[0]
        parts += [r.string(setting.name), r.string(value), _ROW.pack(setting.read_only, source, False), r.tags]
    return b"".join(parts)


def encode_created(correlation_id: int, version: int, topics: Sequence[Created]) -> bytes:
    """The reply frame to CreateTopics."""
    r = ReplyEncoder(version >= APIS[CREATE_TOPICS].flexible_from)
    parts = [_NO_THROTTLE, r.count(len(topics))]
    for topic in topics:
        parts += [r.string(topic.name), topic.id.bytes if version >= 7 else b"", _I16.pack(topic.error)]
        parts.append(r.message(topic.message))
        hidden = topic.settings == HIDDEN
        if version >= 5:
            settings = r.count(0) if hidden else topic.settings or r.count(0)
            parts += [_PLACED.pack(topic.partitions, topic.replicas), settings]
        parts.append(_HIDDEN_TAG if hidden and version >= 5 else r.tags)
    return r.frame(correlation_id, [*parts, r.tags])

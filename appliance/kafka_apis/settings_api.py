"""Shows and changes the settings of topics and of the broker.  Each resource of a request gets its own answer.

What a topic may set is ``config.TopicSettings``, which does something, and ``kafka_settings``, which is so anyway; both
are shown as Kafka shows them.  The broker's settings are read-only here: they belong to its configuration file.  Groups
may set what ``groups.group_settings`` has, there or not; client metrics have no settings, and the one logger that a
broker shows has the level of the log.

As in Kafka, a setting that is not set can be taken back, whatever its name: tools take back what they might have set.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final

from ..addresses import Listener
from ..catalog import Topic
from ..config import KEYS, TOPIC_KEYS, TopicSettings
from ..errors import (
    ApplianceError,
    ClusterNotPermitted,
    GroupNotPermitted,
    InvalidRequest,
    InvalidSetting,
    TopicNotPermitted,
    UnknownPartition,
    UnsupportedVersion,
)
from ..groups.group_settings import HEARTBEAT, SESSION
from ..kafka_settings import ACCEPTED, OURS, Kind
from ..names import check_group, check_topic
from ..security.acls import CLUSTER_NAME, Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Encoded, Handler, ReplyRow
from ..wire.kafka.codes import Code
from .appliance import Appliance
from .broker_settings import broker_settings, kind_of
from .settings_reply import (
    Described,
    ReplyOptions,
    Setting,
    SettingSource,
    Synonym,
    encode_described,
    encode_settings,
    encode_topic,
    topic_settings,
)


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""
AT_ONCE: Final = 64
"""Resources of one request that are described before others get a turn."""
ROOT_LOGGER: Final = "root"
OF_GROUPS: Final = {f"group.{name}": name for name in (HEARTBEAT, SESSION)}
"""The broker's name of a setting, and that of a group."""
CLIENT_METRICS_ONLY: Final = 0
"""The version of ListConfigResources that lists client metrics alone, of which there are none."""


class SettingsApi:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "DescribeConfigs": self._describe,
            "AlterConfigs": self._replace,
            "IncrementalAlterConfigs": self._alter,
            "ListConfigResources": self._list,
        }

    # -- showing --------------------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Answer:
        request = call.request
        options = ReplyOptions(call.version, bool(request.include_synonyms), bool(request.include_documentation))
        resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
        results = []
        for place, ((kind, name), resource) in enumerate(resources.items()):
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                _check_right(call, Operation.DESCRIBE_CONFIGS, kind, name)
                keys = frozenset(resource.configuration_keys or ())
                settings = self._settings(kind, name, keys, options, call.listener)
                results.append(Described(kind, name, Code.NONE, "", settings))
            except ApplianceError as error:
                results.append(Described(kind, name, error.code, str(error), b""))
        rows = [
            {"resource_name": described.name, "error_code": described.error} for described in results if described.error
        ]
        return Encoded(encode_described(call.correlation_id, call.version, results), rows, len(results) - len(rows))

    def _settings(self, kind: int, name: str, keys: frozenset[str], options: ReplyOptions, listener: Listener) -> bytes:
        """The encoded settings of a resource, those named ``keys`` or all."""
        if kind == Resource.TOPIC:
            own, base = (
                tuple(sorted(self._topic(name).settings.items())),
                self._appliance.topic_store.defaults.settings_of(name),
            )
            if not keys:
                return encode_topic(own, base, options)
            settings = topic_settings(own, base)
        elif kind == Resource.BROKER:
            self._check_broker(name, or_all=True)
            settings = self._broker_settings(listener) if name else []  # "": what is set for all brokers, which is none
        elif kind == Resource.BROKER_LOGGER:
            self._check_broker(name)
            level = Synonym(ROOT_LOGGER, self._appliance.config.log.level.upper(), SettingSource.BROKER_LOGGER)
            settings = [Setting(ROOT_LOGGER, None, KEYS["log.level"].about, True, (level,))]
        elif kind == Resource.GROUP:
            settings = self._group_settings(name, listener)
        elif kind == Resource.CLIENT_METRICS:
            settings = []
        else:
            raise InvalidRequest(f"resource type {kind}: nothing of that type has settings")
        return encode_settings([setting for setting in settings if not keys or setting.name in keys], options)

    def _group_settings(self, group: str, listener: Listener) -> list[Setting]:
        _check_group(group)
        own = self._appliance.group_settings.own.get(group, {})
        settings = []
        for setting in self._broker_settings(listener):
            if name := OF_GROUPS.get(setting.name):
                first = (Synonym(name, str(own[name]), SettingSource.GROUP),) if name in own else ()
                synonyms = (*first, *setting.synonyms)
                settings.append(setting._replace(name=name, read_only=False, synonyms=synonyms))
        return settings

    def _topic(self, name: str) -> Topic:
        topic = self._appliance.topics().get(name)
        if topic is None:
            check_topic(name)
            raise UnknownPartition(f"there is no topic {name!r}")
        return topic

    def _check_broker(self, name: str, or_all: bool = False) -> None:
        here = str(self._appliance.broker_id)
        if name != here and not (or_all and not name):
            raise InvalidRequest(f"this is broker {here}, and broker {name!r} has to be asked itself")

    def _broker_settings(self, listener: Listener) -> list[Setting]:
        cluster = self._appliance
        advertised = cluster.config.kafka.advertised or str(listener)
        shown = []
        for setting in broker_settings(cluster.config, cluster.data_dir, cluster.listening, advertised):
            name, kind, value, default, about = setting
            source = SettingSource.DEFAULT if value == default else SettingSource.STATIC_BROKER
            synonyms: tuple[Synonym, ...] = (Synonym(name, value, source),)
            if value != default and default is not None:
                synonyms = (*synonyms, Synonym(name, default, SettingSource.DEFAULT))
            shown.append(Setting(name, kind, about, True, synonyms))
        return sorted(shown)

    async def _list(self, call: Call) -> Answer:
        """What has settings that can be described; version 0 asks for client metrics."""
        kinds = set(call.request.resource_types or Resource)
        if call.version == CLIENT_METRICS_ONLY:
            kinds = {Resource.CLIENT_METRICS}
        unknown = kinds - set(Resource)
        if unknown:
            return {"error_code": UnsupportedVersion.code, "config_resources": []}
        here = str(self._appliance.broker_id)
        named = [(here, kind) for kind in (Resource.BROKER, Resource.BROKER_LOGGER)]
        named += [(name, Resource.TOPIC) for name in sorted(self._appliance.topics())]
        named += [(name, Resource.GROUP) for name in sorted(self._appliance.group_settings.own)]
        rows = [{"resource_name": name, "resource_type": kind} for name, kind in named if kind in kinds]
        return {"error_code": Code.NONE, "config_resources": rows}

    # -- changing -------------------------------------------------------------------------------------

    async def _replace(self, call: Call) -> Answer:
        """AlterConfigs: settings that are not given return to their defaults, except ours, which tools do not see."""
        return await self._change_all(call, replace=True)

    async def _alter(self, call: Call) -> Answer:
        return await self._change_all(call, replace=False)

    async def _change_all(self, call: Call, *, replace: bool) -> Answer:
        """Each resource by itself; one that is given twice is refused, and answered once."""
        resources = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
        counts = Counter((resource.resource_type, resource.resource_name) for resource in call.request.resources)
        rows = []
        for key, resource in resources.items():
            if counts[key] > 1:
                fault = {"error_code": Code.INVALID_REQUEST, "error_message": "each resource can be changed once"}
                rows.append(_answer(resource) | fault)
            else:
                rows.append(await self._change(resource, call, replace=replace))
        return {"responses": rows}

    async def _change(self, resource: Any, call: Call, *, replace: bool) -> ReplyRow:
        row = _answer(resource)
        try:
            _check_right(call, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
            if resource.resource_type == Resource.TOPIC:
                await self._change_topic(resource, call.request.validate_only, replace)
            elif resource.resource_type == Resource.GROUP:
                await self._change_group(resource, call.request.validate_only, replace)
            else:
                self._change_nothing(resource, replace)
        except ApplianceError as error:
            row |= {"error_code": error.code, "error_message": str(error)}
        return row

    async def _change_topic(self, resource: Any, validate_only: bool, replace: bool) -> None:
        topic = self._topic(resource.resource_name)
        changes: dict[str, str | None] = {}
        if replace:
            changes |= dict.fromkeys(topic.settings.keys() - OURS)
            changes |= _values(resource.configs)
        else:
            base = self._appliance.topic_store.defaults.settings_of(topic.name)
            changes |= _operations(resource.configs, partial(_edited, topic, base))
        changes = {name: value for name, value in changes.items() if value is not None or name in topic.settings}
        added = {name: value for name, value in changes.items() if value is not None}
        if validate_only:
            self._appliance.topic_store.check_settings(added)
        elif changes:
            await self._appliance.topic_store.alter(topic.name, changes)

    async def _change_group(self, resource: Any, validate_only: bool, replace: bool) -> None:
        group = resource.resource_name
        _check_group(group)
        own = self._appliance.group_settings.own.get(group, {})
        if replace:
            changes = dict.fromkeys(own) | _values(resource.configs)
        else:
            changes = _operations(resource.configs, _not_edited)
        changes = {name: value for name, value in changes.items() if value is not None or name in own}
        if validate_only:
            self._appliance.group_settings.settings_after(group, changes)
        elif changes:
            await self._appliance.group_settings.alter(group, changes)

    def _change_nothing(self, resource: Any, replace: bool) -> None:
        """Of anything but topics and groups nothing can be set, so that everything can be taken back."""
        if resource.resource_type in (Resource.BROKER, Resource.BROKER_LOGGER):
            self._check_broker(resource.resource_name, or_all=resource.resource_type == Resource.BROKER)
        if resource.resource_type not in set(Resource):
            raise InvalidRequest(f"resource type {resource.resource_type}: nothing of that type has settings")
        if replace or any(config.config_operation != DELETE for config in resource.configs):
            raise InvalidRequest(
                "only settings of topics and groups can be changed; the broker's are in its configuration file"
            )


def _check_right(call: Call, operation: Operation, kind: int, name: str) -> None:
    """Raises NotPermitted; everything but topics and groups belongs to the cluster."""
    if kind == Resource.TOPIC:
        if not call.may(operation, ResourceType.TOPIC, name):
            raise TopicNotPermitted(f"not permitted on topic {name!r}")
    elif kind == Resource.GROUP:
        if not call.may(operation, ResourceType.GROUP, name):
            raise GroupNotPermitted(f"not permitted on group {name!r}")
    elif not call.may(operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise ClusterNotPermitted("not permitted on the cluster")


def _check_group(name: str) -> None:
    """As in Kafka, there are no defaults of all groups under the name ""."""
    if not name:
        raise InvalidRequest("name the group: settings of all groups are in the broker's configuration file")
    check_group(name)


def _answer(resource: Any) -> ReplyRow:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _values(configs: Sequence[Any]) -> dict[str, str]:
    values: dict[str, str] = {}
    for config in configs:
        if config.value is None:
            raise InvalidRequest(f"{config.name}: a value is missing; leave the setting out to get its default")
        if config.name in values:
            raise InvalidRequest(f"{config.name} is given twice")
        values[config.name] = config.value
    return values


def _operations(configs: Sequence[Any], edited: Callable[[str, str, int], str]) -> dict[str, str | None]:
    """``edited``: makes the value of a list, from a setting's name, what is added or taken out, and which of both."""
    changes: dict[str, str | None] = {}
    for config in configs:
        name, value, operation = config.name, config.value, config.config_operation
        if name in changes:
            raise InvalidRequest(f"{name} is given twice")
        if operation == DELETE:
            changes[name] = None
        elif value is None:
            raise InvalidRequest(f"{name}: a value is missing")
        elif operation == SET:
            changes[name] = value
        elif operation in (APPEND, SUBTRACT):
            changes[name] = edited(name, value, operation)
        else:
            raise InvalidRequest(f"{name}: operation {operation} is not one of set, delete, append and subtract")
    return changes


def _not_edited(name: str, value: str, operation: int) -> str:
    raise InvalidSetting(f"{name}: set a value or delete the setting; it is not a list to edit")


def _edited(topic: Topic, base: TopicSettings, name: str, value: str, operation: int) -> str:
    """A list with elements added or taken out."""
    key, accepted = TOPIC_KEYS.get(name), ACCEPTED.get(name)
    if key is not None and kind_of(key) is Kind.LIST:
        default = base.as_kafka()[name]
    elif accepted is not None and accepted.kind is Kind.LIST:
        default = accepted.default
    else:
        return _not_edited(name, value, operation)
    present = [part for part in topic.settings.get(name, default).split(",") if part]
    parts = [part.strip() for part in value.split(",")]
    if operation == APPEND:
        return ",".join(dict.fromkeys([*present, *parts]))
    return ",".join(part for part in present if part not in parts)

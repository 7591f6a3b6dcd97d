"""Keeps what groups set themselves: in ZooKeeper, and in memory for the groups of this broker.

Other brokers' changes come by a watch.  While ZooKeeper is away a change is refused (ZooKeeperAway), and what was read
last holds.  After a start nothing is known until ZooKeeper was read; sessions that a member was promised meanwhile are
made longer then, and never shorter (``ConsumerGroups.set_own``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ...errors import InvalidSetting, ZooKeeperAway
from ...groups.group_settings import CONFIGURED_MAX, OwnSettings, altered
from ...groups.messages import Limits
from ...zookeeper import group_settings_nodes
from .registry_session import RegistrySession

log = logging.getLogger(__name__)


class ConfiguredGroups:
    """``own``: what each group sets that sets anything.  ``limits``: those of groups that set nothing.

    ``on_change`` is called with ``own`` when it has changed.
    """

    def __init__(
        self,
        registry: RegistrySession,
        limits: Limits,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_change: Callable[[Mapping[str, OwnSettings]], None],
    ) -> None:
        self.own: Mapping[str, OwnSettings] = {}
        self.limits = limits
        self._registry, self._spawn, self._on_change = registry, spawn, on_change
        self._lock = asyncio.Lock()
        self._stale = registry.enabled
        """Whether ZooKeeper has to be read again."""

    def settings_after(self, group: str, changes: Mapping[str, str | int | None]) -> OwnSettings:
        """What a group would set itself after these changes.  Raises InvalidSetting."""
        return altered(self.own.get(group, {}), changes, self.limits)

    async def alter(self, group: str, changes: Mapping[str, str | int | None]) -> None:
        """Set, or with None take back, settings of a group; when it returns, that is stored, and holds here.

        Raises:
            InvalidSetting: see ``groups.group_settings.altered``.
            InvalidRequest: too many groups have settings, or the appliance runs without ZooKeeper.
            ZooKeeperAway: try again; it may have been made.
        """
        async with self._lock:
            stored = group_settings_nodes.alter_settings(
                group, lambda before: _texts(altered(self._read(group, before), changes, self.limits)), CONFIGURED_MAX
            )
            self._adopt(await self._registry.ask(stored))

    def on_changed(self) -> None:
        """Another broker, or a person, has changed something in ZooKeeper."""
        self._stale = True
        self._spawn(self.synchronise())

    async def synchronise(self) -> None:
        """Read all from ZooKeeper, after changes may have been missed.

        Raises:
            ApplianceError: what was read last stays.
        """
        if not self._registry.enabled:
            return
        async with self._lock:
            self._stale = True
            self._adopt(await self._registry.ask(group_settings_nodes.read_settings()))
            self._stale = False

    async def repeat(self) -> None:
        """Do again what has failed."""
        if self._stale:
            try:
                await self.synchronise()
            except ZooKeeperAway as error:
                log.info("%s", error)

    def _adopt(self, stored: Mapping[str, Mapping[str, str]]) -> None:
        read = {group: self._read(group, settings) for group, settings in stored.items()}
        own = {group: settings for group, settings in read.items() if settings}
        if own != self.own:
            self.own = own
            self._on_change(own)

    def _read(self, group: str, stored: Mapping[str, str]) -> OwnSettings:
        """What somebody has stored; nothing, if it cannot hold: a person has, or the appliance's own values changed."""
        try:
            return altered({}, stored, self.limits)
        except InvalidSetting as error:
            log.error("the settings of group %r do not hold: %s", group, error)
            return {}


def _texts(own: OwnSettings) -> dict[str, str]:
    return {name: str(value) for name, value in sorted(own.items())}

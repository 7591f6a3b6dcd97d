"""Keeps the users, roles, access rules and quotas: in ZooKeeper, in a file, and with every worker::

                      with ZooKeeper                                 without it (zookeeper.nodes = 0)
    the registry      the nodes of ``zookeeper/security_nodes``      the file
    a change          one transaction there, then the file           the file
    the file          the last state seen: logins work while         the registry
                      ZooKeeper is away

The file is ``security.json`` in the data directory, readable for its owner only, and replaced as a whole.  Other
brokers' changes come by a watch.  A ZooKeeper that never had any state, or has lost it, gets that of the file.

The first broker of a cluster stores a secret there, which all others take.  In ZooKeeper it is as safe as the ensemble:
where that has a login, only who has it reads the node.

While ZooKeeper is away a change is refused (ZooKeeperAway), and a state that cannot be read leaves the last one in
force.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from ...errors import ApplianceError, ZooKeeperAway
from ...security import security_file
from ...security.security_state import SecurityState
from ...zookeeper import security_nodes
from .registry_session import RegistrySession

SECRET_BYTES: Final = 32

SecurityChange = Callable[[SecurityState], SecurityState]
"""Makes a state with the change; called again when others change something meanwhile, so it accepts its own result."""

log = logging.getLogger(__name__)


class SecurityRegistry:
    """``state``: the present one.  ``on_change`` is called when it has changed."""

    def __init__(
        self,
        data_dir: Path,
        registry: RegistrySession,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_change: Callable[[], None],
    ) -> None:
        """Raises StorageFault: the file exists and cannot be read."""
        self._on_change = on_change
        self.revision = 0
        """Grows with every change."""
        self._path = data_dir / security_file.FILE_NAME
        self._registry, self._spawn = registry, spawn
        self._lock = asyncio.Lock()
        self._stale = registry.enabled
        """Whether ZooKeeper has to be read again."""
        self._unstored = False
        self.state = security_file.load(self._path)
        if not self.state.secret:
            self.state = msgspec.structs.replace(self.state, secret=os.urandom(SECRET_BYTES))
            self._store()

    async def alter(self, change: SecurityChange) -> SecurityState:
        """Change the state; when it returns, the change is stored.

        Raises:
            ZooKeeperAway: try again; it may have been made.
            DiskFull, StorageFault: without ZooKeeper, nothing is changed.
            Whatever ``change`` raises.
        """
        async with self._lock:
            if self._registry.enabled:
                self._adopt(await self._registry.ask(security_nodes.alter_state(change)))
            else:
                after = msgspec.structs.replace(change(self.state), secret=self.state.secret)
                self._write(after)
                self._adopt(after)
            return self.state

    def on_changed(self) -> None:
        """Another broker, or a person, has changed something in ZooKeeper."""
        self._stale = True
        self._spawn(self.synchronise())

    async def synchronise(self) -> None:
        """Take the state from ZooKeeper, after changes may have been missed; repeat what was left undone.

        Raises:
            ApplianceError: the last state stays.
        """
        if self._unstored:
            self._store()
        if not self._registry.enabled:
            return
        async with self._lock:
            self._stale = True
            state, stored = await self._registry.ask(security_nodes.read_state())
            mine = self.state
            if not stored and (mine.users or mine.accounts or mine.acls or mine.quotas or mine.roles):
                log.warning("users, access rules and quotas are not in ZooKeeper: storing those of %s", self._path)
                state = await self._registry.ask(security_nodes.alter_state(lambda theirs: _joined(theirs, mine)))
            if not state.secret:
                secret = await self._registry.ask(security_nodes.share_secret(mine.secret))
                state = msgspec.structs.replace(state, secret=secret)
            self._adopt(state)
            self._stale = False

    async def repeat(self) -> None:
        """Do again what has failed."""
        if self._stale or self._unstored:
            try:
                await self.synchronise()
            except ZooKeeperAway as error:
                log.info("%s", error)

    def _adopt(self, state: SecurityState) -> None:
        state = msgspec.structs.replace(state, secret=state.secret or self.state.secret)
        if state == self.state:
            return
        self.state = state
        self.revision += 1
        if self._registry.enabled:
            self._store()
        self._on_change()

    # ---- the file

    def _store(self) -> None:
        """Store the state that holds already: a full disk does not undo it."""
        self._unstored = True
        try:
            self._write(self.state)
        except ApplianceError as error:
            log.error("%s", error)

    def _write(self, state: SecurityState) -> None:
        security_file.store(self._path, state)
        self._unstored = False


def _joined(theirs: SecurityState, mine: SecurityState) -> SecurityState:
    return SecurityState(
        mine.users | theirs.users,
        tuple(sorted({*mine.acls, *theirs.acls})),
        tuple(sorted({*mine.quotas, *theirs.quotas})),
        theirs.secret,
        mine.accounts | theirs.accounts,
        mine.roles | theirs.roles,
    )

"""appliance.processes.coordinator.security_registry: what was seen last holds, on the disk too, for its owner only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.errors import StorageFault, ZooKeeperAway
from appliance.processes.coordinator.security_registry import SecurityRegistry
from appliance.security.scram import make_verifier
from appliance.security.security_file import FILE_NAME
from appliance.zookeeper.operations import Operation

from ...support.zookeeper_fixture import Tree

ALICE = {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", b"secret", 4096)}


class Registry:
    """In place of RegistrySession: ZooKeeper as a dictionary, or away, or off."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.tree, self.enabled, self.away = tree, tree is not None, False

    async def ask(self, operation: Operation[Any]) -> Any:
        if self.away or self.tree is None:
            operation.close()
            raise ZooKeeperAway("away")
        return self.tree.run(operation)


def registry_in(data_dir: Path, registry: Registry, on_change: Callable[[], None] = lambda: None) -> SecurityRegistry:
    def spawn(work: Coroutine[Any, Any, None]) -> None:
        asyncio.get_running_loop().create_task(work)

    return SecurityRegistry(data_dir, registry, spawn, on_change)  # type: ignore[arg-type]


def add(user: str) -> Any:
    return lambda state: msgspec.structs.replace(state, users={**state.users, user: ALICE})


def test_without_zookeeper_the_file_is_the_registry(tmp_path: Path) -> None:
    async def scenario() -> None:
        changes: list[int] = []
        first = registry_in(tmp_path, Registry(), lambda: changes.append(first.revision))
        await first.alter(add("alice"))
        assert changes == [1] and first.state.users == {"alice": ALICE}
        again = registry_in(tmp_path, Registry())
        assert again.state == first.state and again.state.secret

    asyncio.run(scenario())


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_its_owner_reads_the_file(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        asyncio.run(registry_in(tmp_path, Registry()).alter(add("alice")))
    finally:
        os.umask(before)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_users_are_there_while_zookeeper_is_away_and_changes_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = Registry(Tree())
        first = registry_in(tmp_path, session)
        await first.synchronise()
        await first.alter(add("alice"))
        session.away = True
        again = registry_in(tmp_path, session)
        assert again.state.users.keys() == {"alice"}
        with pytest.raises(ZooKeeperAway):
            await again.alter(add("bob"))
        assert again.state.users.keys() == {"alice"}

    asyncio.run(scenario())


def test_a_change_by_another_broker_arrives_and_a_zookeeper_that_lost_all_gets_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = Registry(Tree())
        (tmp_path / "other").mkdir()
        mine, other = registry_in(tmp_path, session), registry_in(tmp_path / "other", session)
        await mine.synchronise()
        await other.alter(add("alice"))
        await mine.synchronise()
        assert mine.state.users.keys() == {"alice"}
        session.tree = Tree()
        await mine.synchronise()
        await other.synchronise()
        assert other.state.users.keys() == {"alice"}

    asyncio.run(scenario())


def test_brokers_share_the_secret_of_the_first_one_whatever_zookeeper_loses(tmp_path: Path) -> None:
    """A newcomer whose ZooKeeper has lost all stores its secret, and still takes the users of those who have them."""

    async def scenario() -> None:
        session = Registry(Tree())
        for name in ("other", "new"):
            (tmp_path / name).mkdir()
        mine, other = registry_in(tmp_path, session), registry_in(tmp_path / "other", session)
        assert mine.state.secret != other.state.secret
        await mine.synchronise()
        await other.synchronise()
        assert mine.state.secret == other.state.secret == registry_in(tmp_path, session).state.secret
        await mine.alter(add("alice"))
        session.tree = Tree()
        new = registry_in(tmp_path / "new", session)
        for registry in (new, mine, other, new):
            await registry.synchronise()
        assert new.state.users.keys() == mine.state.users.keys() == {"alice"}
        assert mine.state.secret == other.state.secret == new.state.secret

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_is_named_without_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"state": {"users": {"alice": "SECRET"}}}')
    with pytest.raises(StorageFault, match=r"security\.json") as raised:
        registry_in(tmp_path, Registry())
    assert "SECRET" not in str(raised.value)

"""appliance.inputs.process: what goes on when something else of an input stands still."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from appliance.input_settings import Syslog
from appliance.inputs import process as module
from appliance.inputs.positions import PositionStore, Source, Span
from appliance.processes.messages import InputStats
from appliance.shared.heartbeats import Heart

from ..support.server import wait_for

NOTHING: Any = None
MINUTES = 3


class Ledger:
    """Has a topic that cannot be written until ``can_publish``; a minute ends with each that is told."""

    def __init__(self) -> None:
        self.now, self.published, self.begun = 0, 0, 0
        self.troubles: list[str] = []
        self.can_publish = asyncio.Event()

    def minute(self) -> int:
        return self.now

    async def publish(self) -> None:
        self.begun += 1
        await self.can_publish.wait()
        self.published += 1

    def stats(self) -> InputStats:
        return InputStats()

    def note_trouble(self, number: int, source: str, reason: str) -> None:
        self.troubles.append(reason)


def test_what_processes_have_left_that_are_no_more_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is still open is tried again."""
    (tmp_path / module.DIRECTORY).mkdir()
    settings = msgspec.convert({"topic": "net", "listen": ["udp://127.0.0.1:1"], "processes": 2}, Syslog)
    stores = {number: PositionStore(module.store_path(tmp_path, f"net.{number}")) for number in (2, 3, 4)}
    stores[3].close()
    read: list[str] = []

    class Left:
        def __init__(self, store: PositionStore) -> None:
            read.append(store.path.name)

        async def recover(self) -> None:
            pass

        async def publish(self, everything: bool) -> None:
            pass

        note_ends = recover

    arguments = SimpleNamespace(name="net", member="net", settings=settings, data_dir=tmp_path)
    process: Any = module._InputProcess(cast(Any, arguments), NOTHING, NOTHING)
    process._ledger_of = Left
    for _ in range(3):
        asyncio.run(process._account_for_others())
    stores[4].close()
    for _ in range(3):
        asyncio.run(process._account_for_others())
    assert read == ["net.3.sqlite", "net.4.sqlite"]
    stores[2].close()


def test_positions_are_committed_while_the_ledger_cannot_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One publication at a time waits, and status says so; the next minute is published when it can be."""
    monkeypatch.setattr(module, "COMMIT_S", 0.01)
    store = PositionStore(tmp_path / "positions")
    (number,) = store.add_sources([("app.log", 0, 1, b"x")])
    told = 0

    async def nothing() -> None:
        pass

    def tell(stats: InputStats) -> None:
        nonlocal told
        told += 1

    async def note() -> None:
        process: Any = module._InputProcess(cast(Any, SimpleNamespace(name="disk")), store, NOTHING)
        process._account_for_others, process._tell = nothing, tell
        ledger = Ledger()
        noting = asyncio.create_task(process._note(ledger))
        await asyncio.sleep(0)  # it has seen the first minute
        async with asyncio.timeout(60):
            for ledger.now in range(1, MINUTES + 1):
                source, span = (
                    Source(number, "app.log", ledger.now, 1, b"x", False),
                    Span(number, "t", 0, ledger.now, 1, ledger.now - 1, ledger.now, 1, 1, 1, ledger.now),
                )
                store.note(source, span)
                before = told
                while store.sources()[0].position < ledger.now or told < before + 2:
                    await asyncio.sleep(0.01)
            assert ledger.begun == 1 and len(ledger.troubles) == MINUTES - 1
            ledger.can_publish.set()
            while ledger.published < 1:
                await asyncio.sleep(0.01)
            ledger.now += 1
            while ledger.published < 2:
                await asyncio.sleep(0.01)
        noting.cancel()
        await asyncio.wait({noting})

    asyncio.run(note())
    store.close()


def test_an_input_that_takes_long_to_be_made_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a high load what it imports takes longer than ``liveness.timeout_ms``; killed, it would begin anew."""
    cells = [0, 0]
    arguments = cast(Any, SimpleNamespace(heart=Heart(cells, 0, 200), settings=None, name="x"))
    monkeypatch.setattr(module, "make_input", lambda *_: wait_for(lambda: cells[0] >= 3, "beats"))
    asyncio.run(module._InputProcess(arguments, NOTHING, NOTHING)._make(cast(Any, None), cast(Any, None)))
    assert cells[0] >= 3


def test_an_input_that_waits_for_its_store_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Store:
        def __init__(self, path: Path) -> None:
            wait_for(lambda: cells[0] >= 3, "beats")
            raise InterruptedError

    cells = [0, 0]
    channel, other = socket.socketpair()
    arguments = SimpleNamespace(heart=Heart(cells, 0, 200), data_dir=tmp_path, member="x", channel=channel)
    monkeypatch.setattr(module, "PositionStore", Store)
    with channel, other, pytest.raises(InterruptedError):
        asyncio.run(module._serve(cast(Any, arguments)))
    assert cells[0] >= 3

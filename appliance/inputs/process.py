"""The process of one input: takes logs in, and sends them to topics, until the supervisor stops it.

::

    state       what it does                                      leaves it by
    recovering  reads from the log what a killed process of       everything is taken into account
                this input has sent and not noted
    taking      takes logs in; every COMMIT_S it notes what is    Stop, an error that no retry mends (the
                flushed, and tells the supervisor; every minute   process ends, and is started again)
                it publishes the ledger
    stopping    takes nothing more; waits until what it has       the deadline, or nothing is left
                taken is flushed, notes it, publishes the rest

What an input has answered for is in the log, flushed; so it may be killed in every state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Final

from ..client import Admin
from ..errors import ApplianceError, ConfigFault, StorageFault
from ..input_settings import Files, Http, InputSettings, Journal, Syslog
from ..processes.messages import TO_SIDE_PROCESS, InputStats, Stop
from ..processes.supervisor.inputs import InputArguments
from .ledger import Ledger
from .machinery import Input, Machinery
from .outlet import Outlet, make_producer
from .positions import PositionStore

logger = logging.getLogger(__name__)

COMMIT_S: Final = 1.0
RETRY_S: Final = 1.0
DIRECTORY: Final = "inputs"
"""In the data directory: a database of positions for each input."""


def run(arguments: InputArguments) -> None:
    """Run the process until Stop comes or the supervisor is gone."""
    asyncio.new_event_loop().run_until_complete(_InputProcess(arguments).run())


def make_input(settings: InputSettings, machinery: Machinery) -> Input:
    """An input of the type of its settings; it imports what only that type needs."""
    match settings:
        case Files():
            from .files import files_input

            return files_input(settings, machinery)
        case Http():
            from .http import http_input

            return http_input(settings, machinery)
        case Journal():
            from .journal import journal_input

            return journal_input(settings, machinery)
        case Syslog():
            from .syslog import syslog_input

            return syslog_input(settings, machinery)


def store_path(data_dir: Path, name: str) -> Path:
    return data_dir / DIRECTORY / f"{name}.sqlite"


class _InputProcess:
    def __init__(self, arguments: InputArguments) -> None:
        self._arguments = arguments
        self._stopping = asyncio.Event()
        self._told: InputStats | None = None

    async def run(self) -> None:
        arguments = self._arguments
        asyncio.get_running_loop().add_reader(arguments.channel.fileno(), self._receive)
        beating = asyncio.create_task(arguments.heart.beat_in_loop())
        path = store_path(arguments.data_dir, arguments.name)
        path.parent.mkdir(0o700, exist_ok=True)
        with contextlib.closing(PositionStore(path)) as store:
            self._store = store
            producer = make_producer(arguments.address, f"input-{arguments.name}")
            ledger = Ledger(
                arguments.name, socket.gethostname(), arguments.config.ledger.topic, store, producer, arguments.address
            )
            outlet = Outlet(producer, Admin(arguments.address))
            machinery = Machinery(arguments.name, arguments.config, store, outlet, ledger, arguments.sockets)
            try:
                await self._recover(ledger)
                source = await self._make(machinery, ledger)
                if source is not None:
                    await self._take(source, ledger)
            finally:
                beating.cancel()
        os._exit(0)  # threads of the client may wait for an appliance that is gone

    def _receive(self) -> None:
        channel = self._arguments.channel
        if Stop() in [message for message, _ in channel.receive(TO_SIDE_PROCESS)] or channel.closed:
            self._stopping.set()
            asyncio.get_running_loop().remove_reader(channel.fileno())

    async def _recover(self, ledger: Ledger) -> None:
        while not self._stopping.is_set():
            try:
                await ledger.recover()
            except ApplianceError as error:
                ledger.trouble(0, self._arguments.name, str(error))
                await self._pause(RETRY_S)
            else:
                return

    async def _make(self, machinery: Machinery, ledger: Ledger) -> Input | None:
        """Make the input as soon as what it needs can be used, such as its files; None: Stop came before."""
        while not self._stopping.is_set():
            try:
                return make_input(self._arguments.settings, machinery)
            except ConfigFault as error:
                ledger.trouble(0, self._arguments.name, str(error))
                self._tell(ledger.stats())
                await self._pause(RETRY_S)
        return None

    async def _take(self, source: Input, ledger: Ledger) -> None:
        """Run the input until Stop comes; then let what it has taken be flushed, noted and published."""
        running = asyncio.create_task(source.run())
        noting = asyncio.create_task(self._note(ledger))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({running, noting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, noting, stopping):
                task.cancel()
        for task in (running, noting):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await source.drain()
        self._store.commit()
        with contextlib.suppress(ApplianceError):  # it is published after the next start
            await ledger.publish(everything=True)
        await ledger.note_ends()

    async def _note(self, ledger: Ledger) -> None:
        minute = ledger.minute()
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                self._store.commit()
                if ledger.minute() != minute:
                    await ledger.publish()
                    minute = ledger.minute()
            except StorageFault as error:
                ledger.trouble(0, self._arguments.name, str(error))
            except ApplianceError as error:
                ledger.trouble(0, self._arguments.name, f"the ledger cannot be published: {error}")
            self._tell(ledger.stats())

    def _tell(self, stats: InputStats) -> None:
        if stats != self._told and not self._arguments.channel.pending:
            self._arguments.channel.send(stats)
            self._told = stats

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

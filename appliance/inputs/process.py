"""The process of one input: takes logs in, and sends them to topics, until the supervisor stops it.

::

    state       what it does                                      leaves it by
    recovering  reads from the log what a killed process of       everything is taken into account, and nothing
                this input has sent and not noted                 more of it comes (:mod:`.recovery`)
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

from ..client import Admin, Producer
from ..errors import ApplianceError, ConfigFault, StorageFault
from ..input_settings import Files, Http, InputSettings, Journal, Syslog
from ..processes.messages import TO_STOPPABLE, InputStats
from ..processes.supervisor.inputs import InputArguments, members
from .guard import Guard
from .ledger import Ledger
from .machinery import Input, Machinery
from .outlet import Outlet, make_producer
from .positions import PositionStore

logger = logging.getLogger(__name__)

COMMIT_S: Final = 1.0
RETRY_S: Final = 1.0
PUBLISHED_S: Final = 1.0
"""How long an ordered end waits for what is being published, before it publishes all anew."""
DIRECTORY: Final = "inputs"
"""In the data directory: a database of positions for each process of an input."""


def run(arguments: InputArguments) -> None:
    """Run the process until Stop comes or the supervisor is gone."""
    asyncio.new_event_loop().run_until_complete(_serve(arguments))


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


def store_path(data_dir: Path, member: str) -> Path:
    return data_dir / DIRECTORY / f"{member}.sqlite"


async def _serve(arguments: InputArguments) -> None:
    path = store_path(arguments.data_dir, arguments.member)
    path.parent.mkdir(0o700, exist_ok=True)
    with arguments.heart.working():  # an earlier process may have the store still
        store = PositionStore(path)
    with contextlib.closing(store):
        with arguments.heart.working():
            producer = make_producer(arguments.address, f"input-{arguments.member}")
        await _InputProcess(arguments, store, producer).run()
    os._exit(0)  # threads of the client may wait for an appliance that is gone


class _InputProcess:
    def __init__(self, arguments: InputArguments, store: PositionStore, producer: Producer) -> None:
        self._arguments, self._store, self._producer = arguments, store, producer
        self._stopping = asyncio.Event()
        self._told: InputStats | None = None
        self._accounted: set[Path] = set()  # stores of processes that are no more

    async def run(self) -> None:
        arguments = self._arguments
        asyncio.get_running_loop().add_reader(arguments.channel.fileno(), self._receive)
        beating = asyncio.create_task(arguments.heart.beat_in_loop())
        with arguments.heart.working():
            outlet = Outlet(self._producer, Admin(arguments.address))
        ledger = self._ledger_of(self._store)
        guard = Guard.of_config(arguments.config, arguments.data_dir)
        machinery = Machinery(
            arguments.name, arguments.config, self._store, outlet, ledger, arguments.sockets, guard, arguments.heart
        )
        try:
            await self._recover(ledger)
            made = await self._make(machinery, ledger)
            if made is not None:
                await self._take(made, ledger)
        finally:
            beating.cancel()

    def _ledger_of(self, store: PositionStore) -> Ledger:
        of = self._arguments
        return Ledger(of.name, socket.gethostname(), of.config.ledger.topic, store, self._producer, of.address)

    def _receive(self) -> None:
        channel = self._arguments.channel
        if channel.receive(TO_STOPPABLE) or channel.closed:
            self._stopping.set()
            asyncio.get_running_loop().remove_reader(channel.fileno())

    async def _recover(self, ledger: Ledger) -> None:
        while not self._stopping.is_set():
            try:
                await ledger.recover()
            except ApplianceError as error:
                ledger.note_trouble(0, self._arguments.name, str(error))
                await self._pause(RETRY_S)
            else:
                return

    async def _make(self, machinery: Machinery, ledger: Ledger) -> Input | None:
        """Make the input as soon as what it needs can be used, such as its files; None: Stop came before."""
        while not self._stopping.is_set():
            try:
                with self._arguments.heart.working():  # it imports what its type needs, and reads positions
                    return make_input(self._arguments.settings, machinery)
            except ConfigFault as error:
                ledger.note_trouble(0, self._arguments.name, str(error))
                self._tell(ledger.stats())
                await self._pause(RETRY_S)
        return None

    async def _take(self, input_: Input, ledger: Ledger) -> None:
        """Run the input until Stop comes; then let what it has taken be flushed, noted and published."""
        running = asyncio.create_task(input_.run())
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
        await input_.drain()
        self._store.commit()
        with contextlib.suppress(ApplianceError):  # it is published after the next start
            await ledger.publish(everything=True)
        await ledger.note_ends()

    async def _account_for_others(self) -> None:
        """Publish what killed processes of this input have left that is not to have so many any more; each store once:
        as long as this process lives, none of them begins again.
        """
        of = self._arguments
        own_stores = {store_path(of.data_dir, member) for member in members(of.name, of.settings)}
        for path in sorted((of.data_dir / DIRECTORY).glob(f"{of.name}.[0-9]*.sqlite")) if of.member == of.name else ():
            if path in own_stores or path in self._accounted:
                continue
            with contextlib.suppress(ApplianceError), contextlib.closing(PositionStore(path, wait_s=0)) as store:
                ledger = self._ledger_of(store)  # that of one that still runs is locked: it does this itself
                await ledger.recover()
                await ledger.publish(everything=True)
                await ledger.note_ends()
                self._accounted.add(path)

    async def _note(self, ledger: Ledger) -> None:
        """Commit and tell every COMMIT_S, whether the ledger can be published or not; publish one minute at a time."""
        minute = ledger.minute()
        publishing = asyncio.create_task(self._account_for_others())
        try:
            while True:
                await asyncio.sleep(COMMIT_S)
                try:
                    self._store.commit()
                except StorageFault as error:
                    ledger.note_trouble(0, self._arguments.name, str(error))
                if publishing.done():
                    publishing.result()
                if ledger.minute() != minute:
                    minute = ledger.minute()
                    if publishing.done():
                        publishing = asyncio.create_task(self._publish(ledger))
                    else:
                        ledger.note_trouble(0, self._arguments.name, "the ledger waits: its topic cannot be written")
                self._tell(ledger.stats())
        finally:
            await asyncio.wait({publishing}, timeout=PUBLISHED_S)
            publishing.cancel()

    async def _publish(self, ledger: Ledger) -> None:
        """Publish the minutes that are over, as soon as it can be done."""
        while True:
            try:
                self._store.commit()  # nothing of these minutes may come between
                await ledger.publish()
                await self._account_for_others()
            except StorageFault as error:
                ledger.note_trouble(0, self._arguments.name, str(error))
            except ApplianceError as error:
                ledger.note_trouble(0, self._arguments.name, f"the ledger cannot be published: {error}")
            else:
                return
            await asyncio.sleep(RETRY_S)

    def _tell(self, stats: InputStats) -> None:
        if stats != self._told and not self._arguments.channel.pending:
            self._arguments.channel.send(stats)
            self._told = stats

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

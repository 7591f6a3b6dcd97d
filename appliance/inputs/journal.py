"""Follows the journal of systemd: ``journalctl --output=export --follow`` as a child, each entry once.

The child isolates this process from libsystemd, and understands the journals of the systemd that it came with.

::

    state        what it does                                     leaves it by
    looking      learns the topic; which files cannot be read     the child was begun
    following    reads entries, and sends them in blocks          the child ends, a block cannot be sent, or files
                                                                  can be read that could not
    waiting      waits for what is on its way, and a delay that   the delay is over: looking
                 grows from RESTART_S while nothing is taken

The position is the number of entries that were taken; the cursor of the last one is the identity of the source, so the
log has it in each ``origin``.  All blocks of a source go to one partition, one after the other, like those of a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Final

from ..die_with import DieWith
from ..errors import ApplianceError, ConfigFault
from ..input_settings import Journal
from ..records.encode import put_header_first
from .in_order import InOrder
from .journal_blocks import START, TAIL_BYTES_MAX, JournalBlock, JournalReader, cursor_of
from .journal_export import ExportReader
from .machinery import Machinery, is_readable
from .outlet import ORIGIN_BYTES, Placed
from .positions import ORIGIN, BlockOrigin, Source, Span

PROGRAM: Final = "journalctl"
NO_PROGRAM: Final = f"{PROGRAM} is not installed, the program of systemd that reads journals"
RIGHTS: Final = "let the service's user read it, as a member of the group systemd-journal"
ROOTS: Final = (Path("/var/log/journal"), Path("/run/log/journal"))
"""Where journald keeps journals, those of each host in a directory named by the host's id."""
MACHINE_ID: Final = Path("/etc/machine-id")
READ_BYTES: Final = 256 * 1024
ENTRY_BYTES_MIN: Final = 1_000
RESTART_S: Final = 1.0
RESTART_S_MAX: Final = 30.0
RECHECK_S: Final = 10.0
"""How soon to look again at files that cannot be read."""
SAID_BYTES_MAX: Final = 2_000
"""Bytes kept of what the child writes to standard error: the last ones."""


class _Child:
    """``journalctl``, from its start to the end of the ``with``."""

    def __init__(self, program: str, settings: Journal, *options: str) -> None:
        where = [f"--directory={settings.directory}"] if settings.directory else []
        fixed = ("--quiet", "--no-pager", "--output=export")
        self._argv = [program, *fixed, *where, *options, "--", *settings.matches]
        self._said = b""

    async def __aenter__(self) -> _Child:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=READ_BYTES,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            preexec_fn=DieWith(os.getpid()),
        )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await self._process.wait()
        self._listening.cancel()

    async def _listen(self) -> None:
        """Keep what it says on standard error, the last of it."""
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(SAID_BYTES_MAX):
            self._said = (self._said + data)[-SAID_BYTES_MAX:]

    async def read(self) -> bytes:
        """What it has written; b"": it has ended."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(READ_BYTES)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def reason(self) -> str:
        """Why it has ended, "" if all is well."""
        status = await self._process.wait()
        await self._listening
        said = " ".join(self._said.decode("utf-8", "replace").split())
        return f"{PROGRAM}: {said or f'exit status {status}'}" if status or said else ""


class _JournalInput:
    def __init__(self, settings: Journal, machinery: Machinery, program: str) -> None:
        self._settings, self._program = settings, program
        self._store, self._outlet, self._ledger = machinery.store, machinery.outlet, machinery.ledger
        self._name = settings.directory or "journal"
        self._source = next((row for row in self._store.sources() if row.name == self._name and row.identity), None)
        self._in_order = InOrder(self._take, self._fail)
        self._child: _Child | None = None
        self._fault = ""
        """Why no more can be sent, since the child was begun."""

    async def run(self) -> None:
        """Follow the journal, with a new child when one ends, after a delay that grows while nothing is taken."""
        delay_s = RESTART_S
        while True:
            before = self._source.position if self._source else 0
            self._fault = ""
            try:
                reason = await self._follow(self._source or await self._begin())
            except (ApplianceError, OSError) as error:
                reason = str(error)
            await self.drain()
            if reason := self._fault or reason:
                self._ledger.note_trouble(self._source.number if self._source else 0, self._name, reason)
            if self._source and self._source.position > before:
                delay_s = RESTART_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_S_MAX)

    async def drain(self) -> None:
        """Wait until everything that was read is flushed and noted, or has failed."""
        await self._in_order.drain()

    async def _begin(self) -> Source:
        """Note durably where the journal is begun, before anything of it is sent.

        Raises:
            ApplianceError: the end of the journal cannot be found.
        """
        cursor = START
        if self._settings.start == "end":
            reader = ExportReader(self._settings.message_bytes_max)
            async with _Child(self._program, self._settings, "--lines=1") as child:
                while data := await child.read():
                    for entry in reader.feed(data):
                        cursor = cursor_of(entry)
                if reason := await child.reason():
                    raise ConfigFault(reason)
        (number,) = self._store.add_sources([(self._name, 0, 1, cursor.encode())])
        self._source = Source(number, self._name, 0, 1, cursor.encode(), False)
        return self._source

    # ---- reading

    async def _follow(self, source: Source) -> str:
        """Read until the child ends, and return why it did, "" if it should begin anew.

        Raises:
            ApplianceError: the topic cannot be used, or the child writes no export.
        """
        topic = self._settings.topic
        block_bytes_max = await self._outlet.learn(topic) - ORIGIN_BYTES
        partition = self._outlet.partition_of(topic, self._name.encode("utf-8", "surrogateescape"))
        await self._ledger.begin_partition(topic, partition)
        entry_bytes_max = min(self._settings.message_bytes_max, block_bytes_max - TAIL_BYTES_MAX)
        if entry_bytes_max < ENTRY_BYTES_MIN:
            raise ConfigFault(f"topic {topic}: takes {block_bytes_max} bytes, too few for an entry")
        unread = self._look_for_files()
        cursor = source.identity.decode()
        reader = JournalReader(
            cursor,
            source.position,
            block_bytes_max=block_bytes_max,
            entry_bytes_max=entry_bytes_max,
            has_all=not unread and not self._settings.matches,
        )
        where = [] if cursor == START else [f"--cursor={cursor}"]
        async with _Child(self._program, self._settings, "--follow", "--no-tail", *where) as child:
            self._child = child
            while True:
                await self._outlet.room()
                try:
                    async with asyncio.timeout(RECHECK_S if unread else None):
                        data = await child.read()
                except TimeoutError:
                    if self._look_for_files() != unread:
                        return ""
                    continue
                if not data:
                    return await child.reason()
                self._ledger.goes_on(source.number)
                for block in reader.feed(data):
                    self._send(topic, partition, block)
                if self._in_order.has_failed:
                    return ""

    def _look_for_files(self) -> list[str]:
        """The files of the journal that cannot be read; tell of them."""
        directories = journal_directories(self._settings.directory)
        files = journal_files(directories)
        unread = [path for path in files if not is_readable(path)]
        if unread:
            more = f", and {len(unread) - 1} more files" if unread[1:] else ""
            self._ledger.note_unread(f"{unread[0]}: cannot be read{more}: {RIGHTS}")
        elif not files:
            unread = [str(directory) for directory in directories]
            self._ledger.note_unread(f"{' and '.join(unread)}: no files of a journal")
        else:
            self._ledger.note_unread("")
        self._ledger.note_sources(1)
        return unread

    # ---- sending

    def _send(self, topic: str, partition: int, block: JournalBlock) -> None:
        assert self._source is not None
        origin = BlockOrigin(self._store.id, self._source.number, *block.units, block.cursor)
        tails = [put_header_first(block.tails[0], ORIGIN, origin.encode()), *block.tails[1:]]
        try:
            future = self._outlet.send(topic, partition, block.values, tails)
        except ApplianceError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        self._in_order.add_block(block, future)

    def _take(self, block: JournalBlock, placed: Placed) -> None:
        """A block is flushed, and so is all before it."""
        assert self._source is not None
        number = self._source.number
        for gap in block.gaps:
            self._ledger.note_gap(number, self._name, *gap, is_one_of_many=True)
        if block.cut:
            self._ledger.note_refused(number, self._name, "fields beyond message_bytes_max", block.cut)
        self._source = Source(number, self._name, block.stop, block.stop + 1, block.cursor.encode(), False)
        span = Span(number, *placed, *block.units, sum(map(len, block.values)), self._ledger.minute())
        self._ledger.note(span)
        self._store.note(self._source, span)

    def _fail(self, error: BaseException) -> None:
        """Read again what is not flushed, by another child."""
        self._fault = str(error)
        if self._child is not None:
            self._child.kill()


def journal_directories(directory: str) -> list[Path]:
    """Those whose files are read: of a table of the configuration, "" for the journal of this host."""
    if directory:
        return [Path(directory)]
    try:
        machine_id = MACHINE_ID.read_text().strip()
    except OSError:
        return list(ROOTS)
    return [root / machine_id for root in ROOTS]


def journal_files(directories: list[Path]) -> list[str]:
    """The files of journals in directories, and in those that are in them, and the directories that cannot be read."""
    paths: list[str] = []
    for directory in directories:
        try:
            inner = [directory, *(Path(entry.path) for entry in os.scandir(directory) if entry.is_dir())]
            paths += [
                entry.path
                for directory in inner
                for entry in os.scandir(directory)
                if entry.name.endswith((".journal", ".journal~"))
            ]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            paths.append(str(error.filename))
    return paths


def journal_input(settings: Journal, machinery: Machinery) -> _JournalInput:
    """An input of the settings of a table of the configuration.

    Raises:
        ConfigFault: there is no journalctl.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ConfigFault(NO_PROGRAM)
    return _JournalInput(settings, machinery, program)

"""Keeps durably how far an input has read each of its sources, and what its ledger has not published yet.

A SQLite database in the data directory, one for each input.  It is a cache of what the log says, not a second truth:
the first message of every block that an input sends has a header ``origin`` (:class:`BlockOrigin`), and the store knows
for each partition up to which offset it has taken origins into account.  After a process was killed, the input reads
the log from there on (:mod:`.recovery`), so it neither reads anything twice nor leaves anything out, however old the
last commit is.

What must be durable, and when:

=============================  =====================================================================================
a source has a number          before its first block is sent: origins name it
a partition has an offset      before the first block is sent to it: recovery reads from there
positions, offsets, spans      together, in one transaction, at any later time: without it there is more to recover
gaps and refusals              with the positions behind them: who has passed a gap does not see it again
=============================  =====================================================================================
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ..errors import StorageFault

ORIGIN: Final = "origin"
"""The header of the first message of a block."""
FORMAT: Final = 4
ENDED_MAX: Final = 10_000
"""Files that are over, and are known when they, or copies of them, are seen again: the last ones."""

_SCHEMA: Final = """
create table store (
    id text not null, format integer not null, looked text not null, in_order integer not null default 1);
create table source (
    number integer primary key autoincrement, name text not null, position integer not null, line integer not null,
    identity blob not null, ended integer not null default 0);
create table partition (topic text, number integer, offset integer not null, primary key (topic, number));
create table span (
    source integer not null, topic text not null, partition integer not null, offset integer not null,
    messages integer not null, start integer not null, stop integer not null, first_line integer not null,
    lines integer not null, bytes integer not null, minute integer not null);
create table told (
    source integer not null, name text not null, minute integer not null, kind text not null, at text not null,
    what blob not null, primary key (source, name, minute, kind, at));
"""
_LOOKED: Final = "update store set looked = ?"
_SET_OFFSET: Final = "update partition set offset = ?3 where topic = ?1 and number = ?2"
"""Not the larger one: of a topic that was made again, offsets begin anew."""


class BlockOrigin(NamedTuple):
    """Where a block comes from: the units [start, stop) of a source, bytes of a file or messages of a listener.

    ``identity``: that of the source at ``stop`` (:class:`Source`), without spaces; "" for a sender.
    """

    store: str
    source: int
    start: int
    stop: int
    first_line: int
    lines: int
    identity: str = ""

    def encode(self) -> bytes:
        return " ".join(map(str, self)).encode()

    @property
    def is_of_file(self) -> bool:
        """Whether its units are bytes: the identity of a file has commas, and a cursor of the journal has none."""
        return "," in self.identity

    @classmethod
    def read(cls, headers: Sequence[tuple[str, bytes | None]]) -> BlockOrigin | None:
        """The origin in the headers of a message; None: it is not the first one of a block of ours."""
        name, header = headers[0] if headers else ("", None)
        return cls.decode(header) if name == ORIGIN and header is not None else None

    @classmethod
    def decode(cls, header: bytes) -> BlockOrigin | None:
        """None: it is not ours."""
        words = header.decode("ascii", "replace").split(" ")
        if len(words) != len(cls._fields) or not all(word.isdecimal() and len(word) < 20 for word in words[1:6]):
            return None
        source, start, stop, first_line, lines = map(int, words[1:6])
        return cls(words[0], source, start, stop, first_line, lines, words[6])


class FoundBlock(NamedTuple):
    """A block that is in the log, of this or another input; ``value_bytes``: of the values of its messages."""

    origin: BlockOrigin
    topic: str
    partition: int
    offset: int
    messages: int
    value_bytes: int


class Source(NamedTuple):
    """A row of a source.

    ``identity``: what the input needs to know a file again, empty for a sender; ``ended``: nothing follows.
    """

    number: int
    name: str
    position: int
    line: int
    identity: bytes
    ended: bool


class Span(NamedTuple):
    """A block that is flushed: its origin, without the store's id, and its place."""

    source: int
    topic: str
    partition: int
    offset: int
    messages: int
    start: int
    stop: int
    first_line: int
    lines: int
    bytes: int
    """Of a file those from ``start`` to ``stop``, line breaks included; else those of the values of its messages."""
    minute: int
    """When it was flushed, in minutes since 1970."""


class Told(NamedTuple):
    """What the ledger has to say of a source and minute besides spans; another one with its first five replaces it."""

    source: int
    name: str
    minute: int
    kind: str
    at: str
    what: bytes


_ADD_TOLD: Final = f"insert or replace into told values ({', '.join('?' * len(Told._fields))})"


class Looked(NamedTuple):
    """What an input of files has looked for: files that changed before ``since_ns`` (ns since 1970; 0: it never has).

    ``waiting``: device, inode and time of birth of files that it has seen, and that may have to be read.
    """

    since_ns: int
    waiting: tuple[tuple[int, int, int], ...]


_ADD_SPAN: Final = f"insert into span values ({', '.join('?' * len(Span._fields))})"


class PositionStore:
    """The positions and unpublished rows of one input, in a database that one process has open.

    Raises:
        StorageFault: the file is no such database, or cannot be written; the message has its name.
    """

    def __init__(self, path: Path, wait_s: float = 5.0) -> None:
        """``wait_s``: for a process that has it open and ends."""
        self.path = path
        self._noted: dict[int, Source] = {}
        self._noted_spans: list[Span] = []
        self._noted_told: dict[tuple[int, str, int, str, str], Told] = {}
        try:
            self._db = sqlite3.connect(path, wait_s, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            # A power loss may take the last commits, and leaves a sound database: then there is more to recover.
            self._db.execute("pragma synchronous = normal")
            self._db.execute("pragma locking_mode = exclusive")
            with self._transaction():
                if not self._db.execute("select count(*) from sqlite_master").fetchone()[0]:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        self._db.execute(statement)
                    self._db.execute(
                        "insert into store (id, format, looked) values (?, ?, '[0, []]')",
                        (uuid.uuid4().hex[:12], FORMAT),
                    )
                self.id, version = self._db.execute("select id, format from store").fetchone()
        except sqlite3.Error as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StorageFault(f"{path}: another process has it open, and goes on from there") from error
            raise StorageFault(
                f"{path}: {error}: positions of an input; move it away to read everything anew"
            ) from error
        if version != FORMAT:
            raise StorageFault(f"{path}: format {version}, this release knows {FORMAT}: use the release that wrote it")
        looked, in_order = self._db.execute("select looked, in_order from store").fetchone()
        self.looked = msgspec.json.decode(looked, type=Looked)
        """It is stored with whatever else is."""
        self.ended_in_order = bool(in_order)
        """Whether the last process to use it has, with nothing on its way."""

    def close(self) -> None:
        self._db.close()

    def begin(self) -> None:
        """Note durably, before the first block is sent, that there may be some on their way."""
        with self._transaction(is_durable=True):
            self._db.execute("update store set in_order = 0")

    def end_in_order(self) -> None:
        """Note that no block is on its way."""
        with self._transaction():
            self._db.execute("update store set in_order = 1")

    def _transaction(self, *, is_durable: bool = False) -> _Transaction:
        """``is_durable``: no power loss takes it, nor what was committed before it."""
        return _Transaction(self._db, self.path, is_durable)

    # ---- sources

    def sources(self) -> list[Source]:
        """All that have not ended, in the order in which they began."""
        return self._sources("not ended order by number")

    def ended(self) -> list[Source]:
        """Files that are over, in the order in which they began."""
        return self._sources("ended order by number")

    def _sources(self, which: str) -> list[Source]:
        rows = self._db.execute(f"select number, name, position, line, identity, ended from source where {which}")
        return [
            Source(number, _named(name), position, line, identity, bool(ended))
            for number, name, position, line, identity, ended in rows
        ]

    def names(self) -> dict[int, str]:
        """The names of all sources, by number."""
        return {number: _named(name) for number, name in self._db.execute("select number, name from source")}

    def add_sources(self, rows: Iterable[tuple[str, int, int, bytes]], *, ended: bool = False) -> list[int]:
        """Number sources (name, position, line, identity), durably; return their numbers."""
        with self._transaction(is_durable=True):
            self._db.execute(_LOOKED, (msgspec.json.encode(self.looked).decode(),))
            return [
                self._db.execute(
                    "insert into source (name, position, line, identity, ended) values (?, ?, ?, ?, ?)"
                    " returning number",
                    (_stored(name), *rest, ended),
                ).fetchone()[0]
                for name, *rest in rows
            ]

    def commit_look(self) -> None:
        """Store ``looked`` when there may be nothing else to commit."""
        with self._transaction():
            self._db.execute(_LOOKED, (msgspec.json.encode(self.looked).decode(),))

    # ---- partitions

    def offset_of(self, topic: str, partition: int) -> int | None:
        """Up to where origins of a partition are taken into account; None: it is not known yet."""
        row = self._db.execute(
            "select offset from partition where topic = ? and number = ?", (topic, partition)
        ).fetchone()
        return None if row is None else int(row[0])

    def partitions(self) -> list[tuple[str, int, int]]:
        return list(self._db.execute("select topic, number, offset from partition"))

    def add_partition(self, topic: str, partition: int, offset: int) -> None:
        """Note durably from which offset on a partition is read to recover."""
        with self._transaction(is_durable=True):
            self._db.execute("insert or replace into partition values (?, ?, ?)", (topic, partition, offset))

    def set_offsets(self, rows: Iterable[tuple[str, int, int]]) -> None:
        """Origins before these offsets (topic, partition, offset) are taken into account."""
        with self._transaction():
            self._db.executemany(_SET_OFFSET, rows)

    # ---- what is flushed

    def note(self, source: Source, span: Span | None = None) -> None:
        """Note how far a source is read and flushed, for the next :meth:`commit`."""
        self._noted[source.number] = source
        if span is not None:
            self._noted_spans.append(span)

    def note_told(self, told: Told) -> None:
        """Note a gap or refusals, for the next :meth:`commit`."""
        self._noted_told[told[:5]] = told

    def told(self) -> list[Told]:
        """What earlier processes have told, and the ledger has not published."""
        rows = [Told(*row) for row in self._db.execute("select * from told order by rowid")]
        return [row._replace(name=_named(row.name)) for row in rows]

    def commit(self) -> None:
        """Store what was noted, and the offsets after it, at once.  Raises StorageFault: it stays noted."""
        if not self._noted and not self._noted_told:
            return
        offsets = [(span.topic, span.partition, span.offset + span.messages) for span in self._noted_spans]
        with self._transaction():
            self._db.executemany(
                "insert or replace into source (number, name, position, line, identity, ended)"
                " values (?, ?, ?, ?, ?, ?)",  # of an old one the store may have none
                [
                    (row.number, _stored(row.name), row.position, row.line, row.identity, row.ended)
                    for row in self._noted.values()
                ],
            )
            self._db.executemany(_ADD_SPAN, self._noted_spans)
            self._db.executemany(
                _ADD_TOLD, [(told.source, _stored(told.name), *told[2:]) for told in self._noted_told.values()]
            )
            self._db.executemany(_SET_OFFSET, offsets)
            self._db.execute(_LOOKED, (msgspec.json.encode(self.looked).decode(),))
        self._noted.clear()
        self._noted_spans.clear()
        self._noted_told.clear()

    def spans(self, before_minute: int) -> list[Span]:
        """Those that the ledger has not published, of the minutes before this one, in the order of their sources."""
        rows = self._db.execute("select * from span where minute < ? order by source, minute, start", (before_minute,))
        return [Span(*row) for row in rows]

    def drop_spans(self, before_minute: int) -> None:
        """The ledger has published them; forget the sources that have ended and have none left, but the last files."""
        self._noted_told = {key: told for key, told in self._noted_told.items() if told.minute >= before_minute}
        with self._transaction():
            self._db.execute("delete from span where minute < ?", (before_minute,))
            self._db.execute("delete from told where minute < ?", (before_minute,))
            self._db.execute(
                "delete from source where ended and number not in (select source from span) and (identity = x'' or"
                " number not in (select number from source where ended order by number desc limit ?))",
                (ENDED_MAX,),
            )

    # ---- after a kill

    def recover(self, blocks: Iterable[FoundBlock], minute: int) -> list[Span]:
        """Take into account what the log has behind the offsets of the store.

        ``blocks``: in the order of each log.  Those that the store has already may be among them.
        """
        noted = set(self._db.execute("select source, topic, partition, offset from span"))
        mine = [
            block
            for block in blocks
            if block.origin.store == self.id and (block.origin.source, *block[1:4]) not in noted
        ]
        spans = [
            Span(
                *(origin.source, topic, partition, offset, messages, *origin[2:6]),
                origin.stop - origin.start if origin.is_of_file else value_bytes,
                minute,
            )
            for origin, topic, partition, offset, messages, value_bytes in mine
        ]
        with self._transaction():
            for span, (origin, *_) in zip(spans, mine, strict=True):
                self._db.execute(
                    # The blocks of a file are a chain: what was sent again by another one is in the log twice.  A
                    # listener has none: what it does not answer is not missing.
                    "update source set position = max(position, ?), line = max(line, ?), identity = ?"
                    " where number = ? and (position = ? or identity = x'')",
                    (span.stop, span.first_line + span.lines, origin.identity.encode(), span.source, span.start),
                )
            self._db.executemany(_ADD_SPAN, spans)
            self._db.executemany(
                _SET_OFFSET,
                [(span.topic, span.partition, span.offset + span.messages) for span in spans],
            )
        return spans


class _Transaction:
    """Commits at its end, or rolls back."""

    def __init__(self, db: sqlite3.Connection, path: Path, is_durable: bool) -> None:
        self._db, self._path, self._is_durable = db, path, is_durable

    def __enter__(self) -> None:
        if self._is_durable:
            self._db.execute("pragma synchronous = full")
        self._db.execute("begin immediate")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self._end(kind is None, error)
        finally:
            if self._is_durable:
                self._db.execute("pragma synchronous = normal")

    def _end(self, is_good: bool, error: BaseException | None) -> None:
        if is_good:
            try:
                self._db.execute("commit")
            except sqlite3.Error as failed:
                self._rollback()
                raise StorageFault(f"{self._path}: {failed}") from failed
            return
        self._rollback()
        if isinstance(error, sqlite3.Error):
            raise StorageFault(f"{self._path}: {error}") from error

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")


def _stored(name: str) -> str | bytes:
    """A name as SQLite takes it: that of a file may have bytes that are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def _named(stored: str | bytes) -> str:
    return os.fsdecode(stored) if isinstance(stored, bytes) else stored


def merged(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Group the spans of one source and minute that follow each other, for one row of the ledger."""
    group: list[Span] = []
    for span in spans:
        if group and (span.source, span.minute) != (group[-1].source, group[-1].minute):
            yield group
            group = []
        group.append(span)
    if group:
        yield group

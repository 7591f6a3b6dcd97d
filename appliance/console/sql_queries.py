"""Runs SQL for visitors: one query at a time, in a process of its own that is ended after QUERY_MS_MAX.

The process (:mod:`appliance.sql.bounded_query`) says which topics a query names, and gets those that the visitor may
read.  The rules are those of a search, and so are the lines of the audit log, with the query.  A topic that the visitor
may not see does not exist for the query; one that may be seen and not read, or that has masked fields, ends it when it
is used: which value a field has would show in a comparison, whatever hides it in the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from .. import extras
from ..die_with import DieWith
from ..errors import (
    BufferFull,
    InvalidRequest,
    MessageTooLarge,
    RequestTimedOut,
    TopicNotPermitted,
    Unavailable,
    UnknownPartition,
    from_code,
)
from ..security.acls import Operation, ResourceType
from ..security.audit_log import Audit
from .value_decoding import MessageViews
from .visitors import Visitor

QUERY_CHARACTERS_MAX: Final = 10_000
QUERY_MS_MAX: Final = 30_000
RUNNING_MAX: Final = 1
WAITING_MAX: Final = 4
LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longer than any line that the process writes: the bound of what is kept of a faulty one."""
PACKAGES: Final = ("duckdb", "pyarrow", "numpy")
SPILLED: Final = "appliance-console-sql-"
"""Begins the names of directories with what DuckDB puts on the disk; the pid of their console follows."""


class SqlQuery(Struct, frozen=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARACTERS_MAX)]


class _Answer(Struct, frozen=True):
    """See :mod:`appliance.sql.bounded_query`."""

    topics: list[str] | None = None
    columns: list[str] = []
    rows: list[list[Any]] = []
    complete: bool = True
    error: str = ""
    code: int = 0


class SqlQueries:
    """The queries of all visitors."""

    def __init__(self, views: MessageViews, query_ms_max: int = QUERY_MS_MAX) -> None:
        self._views, self._query_ms_max = views, query_ms_max
        self._turn = asyncio.Semaphore(RUNNING_MAX)
        _remove_abandoned()
        self._waiting = 0

    async def run(self, query: SqlQuery, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
        """The columns and rows of a result, and whether these are all.

        Raises:
            Unavailable: DuckDB is not installed, or the process has ended.
            BufferFull: too many queries wait.
            RequestTimedOut, InvalidRequest, NotPermitted, ApplianceError: see the message.
        """
        if absent := extras.missing(*PACKAGES):
            raise Unavailable(f"SQL needs {', '.join(absent)} on the host of the appliance: {extras.install('sql')}")
        if self._waiting >= WAITING_MAX:
            raise BufferFull("too many queries wait: try again")
        self._waiting += 1
        try:
            async with self._turn, asyncio.timeout(self._query_ms_max / 1000):
                return await self._ask(query, address, visitor, audit)
        except TimeoutError:
            raise RequestTimedOut(
                f"the query took more than {self._query_ms_max / 1000:g} s: ask for less, as by timestamp > now() -"
                " interval 5 minutes, or ask `appliance sql QUERY` in a shell, which has no such bound"
            ) from None
        finally:
            self._waiting -= 1

    async def _ask(self, query: SqlQuery, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
        refused: list[str] = []
        async with _process() as process:
            await _say(process, {"address": address, "query": query.query})
            answer = await _answer(process)
            if answer.topics is not None:
                readable = self._readable(answer.topics, query, visitor, audit, refused.append)
                await _say(process, readable)
                answer = await _answer(process)
        if not answer.error:
            return {"columns": answer.columns, "rows": answer.rows, "complete": answer.complete}
        fault = from_code(answer.code, answer.error) if answer.code > 0 else InvalidRequest(answer.error)
        if isinstance(fault, UnknownPartition):
            for topic in refused:
                if repr(topic).lower() in answer.error.lower():
                    self._refuse(topic, visitor, audit)
        raise fault

    def _readable(
        self, topics: list[str], query: SqlQuery, visitor: Visitor, audit: Audit, refuse: Callable[[str], None]
    ) -> list[str]:
        """Those that the query may use, each with its line of the audit log; ``refuse``: called with those that it may
        only know of."""
        readable = []
        for topic in topics:
            if not visitor.access.describable[topic]:
                continue
            if not visitor.access.readable[topic] or self._views.view_of_topic(topic).mask is not None:
                refuse(topic)
                continue
            readable.append(topic)
            audit.read(visitor.access.principal, visitor.peer, "console", topic=topic, sql=query.query)
        return readable

    def _refuse(self, topic: str, visitor: Visitor, audit: Audit) -> None:
        visitor.check_right(Operation.READ, ResourceType.TOPIC, topic, audit=audit, what="sql")
        raise TopicNotPermitted(f"topic {topic!r} has fields that console.masks hides: the console runs no SQL over it")


@contextlib.asynccontextmanager
async def _process() -> Any:
    """The process, which is ended at the end, and what it has put on the disk is deleted."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    spill = await asyncio.to_thread(tempfile.mkdtemp, prefix=f"{SPILLED}{os.getpid()}-")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "appliance.sql.bounded_query"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        limit=LINE_BYTES_MAX,
        cwd=spill,
        env={**kept, "LC_ALL": "C.UTF-8", "TMPDIR": spill},
        preexec_fn=DieWith(os.getpid()),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, spill)


def _remove_abandoned() -> None:
    """Remove what consoles of this user that were killed have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{SPILLED}*-*"):
        pid = path.name.removeprefix(SPILLED).partition("-")[0]
        with contextlib.suppress(OSError):  # it is gone by now
            of_us = path.lstat().st_uid == os.geteuid() and path.is_dir() and not path.is_symlink()
            if of_us and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path)


async def _say(process: Process, value: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it has ended: so does the answer
        process.stdin.write(msgspec.json.encode(value) + b"\n")
        await process.stdin.drain()


async def _answer(process: Process) -> _Answer:
    """Raises Unavailable: the process has ended without one."""
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        return msgspec.json.decode(line, type=_Answer)
    except msgspec.DecodeError:
        raise Unavailable("the process of the query has ended, as for lack of memory: ask for less") from None
    except ValueError:
        raise MessageTooLarge("the result is too large") from None

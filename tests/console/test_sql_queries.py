"""SQL for visitors: who may ask what, what a hostile query gets, and what bounds each."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import extras
from appliance.client import Admin, Producer
from appliance.clock import now_ms
from appliance.console import sql_queries
from appliance.console.sql_queries import SPILLED, WAITING_MAX, SqlQueries, SqlQuery
from appliance.console.value_decoding import MessageViews
from appliance.console.visitors import Visitor
from appliance.errors import (
    ApplianceError,
    BufferFull,
    NotPermitted,
    RequestTimedOut,
    Unavailable,
    UnknownPartition,
)
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType, Rights
from appliance.security.audit_log import Audit
from appliance.security.field_masks import FieldMasks
from appliance.sql.bounded_query import ROWS_MAX, TEXT_CHARACTERS_MAX

from ..support.server import Server

PREFIX = "asked-"
UNHURRIED_MS = 240_000
"""Where the bound is not the subject: the process of a query gives way to all others of a busy machine."""


@pytest.fixture(scope="module")
def topics(appliance: Server) -> Iterator[None]:
    """Topics of which the visitor may read the first, and the third if its fields were not masked."""
    with Admin(appliance.native) as admin, Producer(appliance.native) as producer:
        for name in ("open", "closed", "masked", "hidden"):
            admin.create_topic(PREFIX + name, 1)
            for number in range(3):
                producer.send(PREFIX + name, f'{{"n": {number}, "card": "4711"}}'.encode()).result(60)
        yield
        for name in ("open", "closed", "masked", "hidden"):
            admin.delete_topic(PREFIX + name)


def rule(name: str, operation: Operation) -> Acl:
    where = ResourceType.TOPIC, PREFIX + name, PatternType.LITERAL
    return Acl(*where, "User:a", "*", operation, Permission.ALLOW)


RULES = [
    *(rule(name, Operation.READ) for name in ("open", "masked")),
    rule("closed", Operation.DESCRIBE),
]
VISITOR = Visitor(Rights(RULES).access("User:a", "10.0.0.7"), "10.0.0.7:5")


def made(query_ms_max: int = UNHURRIED_MS) -> SqlQueries:
    return SqlQueries(MessageViews("", FieldMasks(f"{PREFIX}masked: card")), query_ms_max)


def ask(appliance: Server, query: str, query_ms_max: int = UNHURRIED_MS) -> dict[str, Any]:
    local = appliance.state["listeners"]["local"]
    return asyncio.run(made(query_ms_max).run(SqlQuery(query), local, VISITOR, Audit(now_ms, lambda: None)))


@pytest.mark.usefixtures("topics")
def test_a_topic_that_may_be_read(appliance: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    query = f'select n, card, headers from "{PREFIX}open" order by n desc limit 2'
    rows = [[2, "4711", None], [1, "4711", None]]
    assert ask(appliance, query) == {"columns": ["n", "card", "headers"], "rows": rows, "complete": True}
    # not caplog.text nor record.message: a record of another thread may stand in the list before it is formatted
    (line,) = [text for text in (record.getMessage() for record in caplog.records) if text.startswith("read:")]
    assert f"who=User:a from=10.0.0.7:5 what=console topic={PREFIX}open" in line and "order by n desc" in line


def faults(appliance: Server, *queries: str) -> list[Any]:
    """What queries end with, each of a console of its own, at the same time."""

    async def play() -> list[Any]:
        audit, local = Audit(now_ms, lambda: None), appliance.state["listeners"]["local"]
        asked = [made().run(SqlQuery(query), local, VISITOR, audit) for query in queries]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(play())


@pytest.mark.usefixtures("topics")
def test_other_topics(appliance: Server) -> None:
    """One that may not be seen is like one that is not there; and one that is only a word is one."""
    names = ("closed", "masked", "hidden")
    queries = [f'select count(*) from "{PREFIX}{name}"' for name in names]
    closed, masked, hidden, word = faults(appliance, *queries, f"select '{PREFIX}closed' x")
    assert isinstance(closed, NotPermitted) and "not permitted: Read on topic" in str(closed)
    assert isinstance(masked, NotPermitted) and "console.masks hides" in str(masked)
    assert isinstance(hidden, UnknownPartition) and str(hidden) == f"no topic '{PREFIX}hidden': topics: none"
    assert word["rows"] == [[f"{PREFIX}closed"]]


def test_what_hostile_queries_get(appliance: Server, tmp_path: Path) -> None:
    """DuckDB's own bounds have more in tests/sql."""
    file = tmp_path / "written"
    queries = {
        f"copy (select 1) to '{file}'": "only a query runs here",
        "copy (select 1) to (current_setting('temp_directory') || '/x')": "only a query runs here",
        "explain analyze select 1": "only a query runs here",
        "select 'infinity'::timestamp": "ask for its column as a text",
        "select * from read_csv('/etc/passwd')": "disabled",
        f"attach '{file}' as other": "only a query runs here",
        "install httpfs": "only a query runs here",
        "select repeat('x', 2000000000)": "memory",
    }
    for query, fault in zip(queries, faults(appliance, *queries), strict=True):
        assert isinstance(fault, ApplianceError) and queries[query] in str(fault).lower(), (query, fault)
    assert not file.exists()


def test_results_are_bounded(appliance: Server) -> None:
    many = ask(appliance, "select range n, repeat('y', 3000) y from range(1000000000)")
    assert 0 < len(many["rows"]) <= ROWS_MAX and not many["complete"]
    assert len(many["rows"][0][1]) == TEXT_CHARACTERS_MAX + 1


def test_a_query_without_an_end_is_ended(appliance: Server) -> None:
    with pytest.raises(RequestTimedOut) as raised:
        ask(appliance, "select count(*) from range(100000000) a, range(100000000) b", 3_000)
    assert "took more than 3 s" in str(raised.value)


def test_one_query_runs_and_few_wait(appliance: Server) -> None:
    async def play() -> list[Any]:
        queries, local = made(), appliance.state["listeners"]["local"]
        audit = Audit(now_ms, lambda: None)
        texts = [*["select 9007199254740993::bigint"] * WAITING_MAX, "select 2"]
        asked = [queries.run(SqlQuery(text), local, VISITOR, audit) for text in texts]
        return await asyncio.gather(*asked, return_exceptions=True)

    *answered, refused = asyncio.run(play())
    assert isinstance(refused, BufferFull)
    assert all(answer["rows"] == [["9007199254740993"]] for answer in answered), "as a text: JavaScript would round it"


def test_what_a_killed_console_has_left_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But neither what another one uses, nor what is not of this user, nor what only has such a name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    names = {"left": f"{ended.pid}-x", "used": f"{os.getpid()}-x", "link": f"{ended.pid}-l", "other": "of-mine"}
    left, used, link, other = (tmp_path / f"{SPILLED}{name}" for name in names.values())
    for path in (left, used, other):
        path.mkdir()
        (path / "spilled").write_bytes(b"x")
    link.symlink_to(used)
    kept = [link, used, other]
    if os.geteuid() == 0:
        theirs = tmp_path / f"{SPILLED}{ended.pid}-theirs"
        theirs.mkdir()
        os.chown(theirs, 54_321, 54_321)
        kept.append(theirs)
    made()
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_an_installation_without_the_extra_says_what_to_install(
    appliance: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_queries, "PACKAGES", ("duckdb", "a_package_that_is_not_there"))
    with pytest.raises(Unavailable) as raised:
        ask(appliance, "select 1")
    assert "SQL needs a_package_that_is_not_there" in str(raised.value) and extras.install("sql") in str(raised.value)

"""``appliance sql``: results in each form, on a terminal, in a pipe and in a file, until a signal ends it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from appliance.client import Producer

from ..support.command_line import run, succeeding
from ..support.pipelines import access
from ..support.server import Server


@pytest.fixture
def filled(appliance: Server, topic: str) -> Iterator[str]:
    succeeding("topics", "create", topic, "--connect", appliance.native)
    with Producer(appliance.native) as producer:
        for number in range(3):
            producer.send(topic, access(number, 200 + number))
    yield topic


def test_each_form_has_all_rows(appliance: Server, filled: str, tmp_path: Path) -> None:
    query = f"""select status, [1, status] l, {{'a': null}} s, 1.5::decimal(9, 1) d, map(['k'], [timestamp]) m,
                repeat('x"' || chr(10), 2) t from "{filled}" order by offset"""
    at = ("--connect", appliance.native)
    lines = [json.loads(line) for line in succeeding("sql", query, "--json", *at).out.splitlines()]
    assert [(row["status"], row["l"], row["s"], row["d"]) for row in lines] == [
        (200 + number, [1, 200 + number], {"a": None}, 1.5) for number in range(3)
    ]
    assert {row["t"] for row in lines} == {'x"\nx"\n'}
    assert all(list(row["m"]) == ["k"] and row["m"]["k"].startswith("20") for row in lines)
    rows = list(csv.DictReader(io.StringIO(succeeding("sql", query, "--format", "csv", *at).out)))
    assert [(row["status"], row["l"], row["t"]) for row in rows] == [
        (str(row["status"]), json.dumps(row["l"]), row["t"]) for row in lines
    ]
    fields = succeeding("sql", query, *at).out.splitlines()
    assert fields[0] == "status\tl\ts\td\tm\tt" and len(fields) == 4
    for name in ("a.json", "a.csv", "a.parquet"):
        said = succeeding("sql", query, "--output", str(tmp_path / name), *at)
        assert "3 rows" in said.err and not said.out
    assert [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()] == lines
    assert pq.read_table(tmp_path / "a.parquet").column("status").to_pylist() == [200, 201, 202]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json", "a.parquet"]


def test_a_failed_query_leaves_a_file_as_it_was(appliance: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("before")
    said = run("sql", "select error('no') from range(3)", "--output", str(file), "--connect", appliance.native)
    assert said.status == 65 and "no" in said.err
    assert file.read_text() == "before" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "words, status, says",
    [
        (["select 1", "--format", "parquet"], 2, "--output FILE"),
        (["select 1", "--output", "rows.txt"], 2, "give --format"),
        (["select 1", "--json", "--format", "csv"], 2, "give one of them"),
        (["select 1", "--memory", "much"], 2, "512MiB"),
        (["select 1", "--memory", "1MiB"], 78, "at least 64 MiB"),
        (["select 1", "--parser", "web=nix"], 2, "logfmt"),
        (["select * from weblogs"], 66, "topics list"),
        (["selec 1"], 65, "syntax error"),
    ],
)
def test_what_is_wrong_is_told(appliance: Server, words: list[str], status: int, says: str) -> None:
    said = run("sql", *words, "--connect", appliance.native)
    assert said.status == status and says in said.err


def test_a_query_comes_from_standard_input(appliance: Server, filled: str) -> None:
    query = f'select count(*) as n from "{filled}"'.encode()
    assert run("sql", "-", "--connect", appliance.native, stdin=query).out == "n\n3\n"


def test_a_parser_is_named_or_none(appliance: Server, filled: str) -> None:
    at = ("--connect", appliance.native)
    columns = [
        succeeding("sql", f'describe "{filled}"', *named, *at).out.count("\n")
        for named in ((), ("--parser", f"{filled}="))
    ]
    assert columns[0] > columns[1] == 7
    other = succeeding("sql", f'select distinct parser from "{filled}"', "--parser", f"{filled}=plain", *at)
    assert other.out == "parser\nplain\n"


def test_it_follows_until_ctrl_c(appliance: Server, filled: str) -> None:
    words = [sys.executable, "-m", "appliance", "sql", "--json", "--connect", appliance.native]
    following = [*words, "--follow", "0.1", f'select count(*) as n from "{filled}"']
    with subprocess.Popen(following, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == [b'{"n": 3}\n'] * 2
        with Producer(appliance.native) as producer:
            producer.send(filled, b"one more")
        while child.stdout.readline() == b'{"n": 3}\n':
            pass
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


def test_a_signal_ends_a_query_at_once(appliance: Server, tmp_path: Path) -> None:
    endless = "select range from range(1000000000000) where range < 20000"
    words = [sys.executable, "-m", "appliance", "sql", endless, "--json", "--connect", appliance.native]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as child:
        assert child.stdout is not None
        for _ in range(10_000):
            child.stdout.readline()
        assert any(tmp_path.iterdir()), "the directory into which it spills"
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    assert not any(tmp_path.iterdir())


def test_it_may_what_consume_may(make_appliance: Callable[..., Server]) -> None:
    """Method: a user who may read one topic, describe another one, and knows nothing of a third."""
    server = make_appliance(**{"security.authorizer": "acl"})
    for topic in ("may", "described", "hidden"):
        succeeding("topics", "create", topic, "--data", str(server.data_dir))
        assert run("produce", topic, "--data", str(server.data_dir), stdin=b"line\n").status == 0
    for operation, topic in (("Read", "may"), ("Describe", "described")):
        given = ("--principal", "User:ANONYMOUS", "--operation", operation, "--topic", topic)
        succeeding("acl", "add", *given, "--data", str(server.data_dir))
    found = {}
    for topic in ("may", "described", "hidden"):
        at = ("--connect", server.native)
        asked = run("sql", f"select value from {topic}", *at)
        consumed = run("consume", topic, "--from", "earliest", "--max", "1", "--timeout", "5", *at)
        found[topic] = asked.status, consumed.status, "line" in asked.out, "line" in consumed.out
    assert found["may"] == (0, 0, True, True)
    assert found["described"] == (77, 77, False, False)
    assert found["hidden"][0] in (66, 77) and found["hidden"][2:] == (False, False)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = run("sql", "select 1")
    assert said.status == 78 and "[sql]" in said.err

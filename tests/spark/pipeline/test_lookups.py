"""Columns that are looked up: in files, Delta tables, answers of queries, and databases of networks; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mmdb_writer
import netaddr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from appliance import extras
from appliance.errors import BadValue
from appliance.spark.pipeline import lookups
from appliance.spark.pipeline.events import Transform
from appliance.spark.pipeline.settings import parse
from appliance.spark.pipeline.startup import check_from

from .test_events import batch

HOSTS = pa.table(
    {"host": ["a", "b", "c"], "rack": [7, None, 9], "tags": [["x"], None, []], "gone": [False, True, False]}
)


def looked_up(base: Path, lines: list[bytes], *given: dict[str, Any]) -> list[dict[str, Any]]:
    least = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["own"]}],
        "parser": {"own": {"kind": "logfmt", "columns": {"client": "string", "code": "int"}}},
        "output": {"path": "out"},
        "lookup": [*given],
    }
    settings = parse(least, base)
    check_from(settings, {})
    return Transform(settings).run(batch(lines)).rows.to_pylist() if lines else []


LINES = [b"host=a", b"host=b", b"host=d", b"?"]


@pytest.mark.parametrize("kind", ["hosts.parquet", "hosts"])
def test_tables_are_looked_up(tmp_path: Path, kind: str) -> None:
    if kind == "hosts":
        write_deltalake(str(tmp_path / kind), HOSTS)
    else:
        pq.write_table(HOSTS, tmp_path / kind)
    rows = looked_up(tmp_path, LINES, {"file": kind, "key": "host"})
    assert [row["rack"] for row in rows] == ["7", None, None, None]
    assert [row["tags"] for row in rows] == ['["x"]', None, None, None]
    assert [row["gone"] for row in rows] == ["false", "true", None, None]
    (row, *_) = looked_up(tmp_path, LINES, {"file": kind, "key": "host", "columns": {"place": "rack"}})
    assert row["place"] == "7" and "tags" not in row


def test_the_answer_of_a_query_is_looked_up(tmp_path: Path) -> None:
    """Also by a number, which is a text there; and a second look-up by what the first one has found."""
    pq.write_table(HOSTS, tmp_path / "hosts.parquet")
    (tmp_path / "racks.csv").write_text("rack,room\n7,north\n8,south\n")
    of_hosts = {"file": "hosts.parquet", "key": "host", "sql": "select host, rack from file where not gone -- now"}
    rows = looked_up(tmp_path, LINES, of_hosts, {"file": "racks.csv", "key": "rack"})
    assert [(row["rack"], row["room"]) for row in rows] == [("7", "north"), *[(None, None)] * 3]
    of_codes = {
        "file": "hosts.parquet",
        "key": "code",
        "sql": "select rack as code, max(host) as who from file group by 1",
    }
    rows = looked_up(tmp_path, [b"code=9", b"code=1", b"host=a"], of_codes)
    assert [row["who"] for row in rows] == ["c", None, None]


def test_a_csv_file_says_what_it_says(tmp_path: Path) -> None:
    """No types are guessed, which would change texts, and none of them stands for nothing."""
    told = ["00123", "1.10", "1e3", "NA", "null", "nan", "2026-11-20", "TRUE", "9" * 30]
    (tmp_path / "told.csv").write_text("client,told,sure\n" + "".join(f"{text},{text},\n" for text in told))
    rows = looked_up(tmp_path, [f"client={text}".encode() for text in told], {"file": "told.csv", "key": "client"})
    assert [(row["told"], row["sure"]) for row in rows] == [(text, None) for text in told]
    (row,) = looked_up(
        tmp_path,
        [b"client=00123"],
        {"file": "told.csv", "key": "client", "sql": "select client, told::int + 1 as next from file limit 1"},
    )
    assert row["next"] == "124"


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    made = mmdb_writer.MMDBWriter(6, "Test", ipv4_compatible=True)
    city = {"city": {"names": {"en": "Berlin"}}, "location": {"latitude": 52.5}, "subdivisions": [{"iso_code": "BE"}]}
    made.insert_network(netaddr.IPSet(["10.0.0.0/24"]), {"country": {"iso_code": "DE"}, **city})
    made.insert_network(netaddr.IPSet(["2001:db8::/32"]), {"country": {"iso_code": "FR"}})
    made.to_db_file(str(tmp_path / "city.mmdb"))
    return tmp_path


FIELDS = {
    "country": "country.iso_code",
    "city": "city.names.en",
    "lat": "location.latitude",
    "land": "subdivisions.0.iso_code",
}


def test_addresses_are_looked_up(networks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "KNOWN_MAX", 3)
    clients = [b"10.0.0.7", b"::FFFF:10.0.0.7", b"10.0.1.7", b"2001:db8::1", b"nobody", b"10.0.0.8", b"10.0.0.7"]
    lines = [b"client=" + client for client in clients]
    berlin, nowhere = ["DE", "Berlin", "52.5", "BE"], [None] * 4
    rows = looked_up(networks, [*lines, b"host=a", b"?"], {"file": "city.mmdb", "key": "client", "columns": FIELDS})
    found = [[row[name] for name in FIELDS] for row in rows]
    assert found == [berlin, berlin, nowhere, ["FR", None, None, None], nowhere, berlin, berlin, nowhere, nowhere]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"file": "city.mmdb"}, "say which of its fields become columns: columns = { country ="),
        ({"file": "city.mmdb", "columns": ["country"]}, "say which of its fields"),
        ({"file": "city.mmdb", "columns": {"host": "city"}}, "events have a column 'host' already: columns = { other"),
        ({"file": "city.mmdb", "columns": FIELDS, "sql": "select 1"}, "a database of networks is none"),
        ({"file": "city.mmdb", "columns": FIELDS, "key": "ip"}, "key 'ip' must be a column of the file and of the ev"),
        ({"file": "none.mmdb", "columns": FIELDS}, "none.mmdb: .*No such file"),
        ({"file": "other.mmdb", "columns": FIELDS}, "other.mmdb: .*Is this a valid MaxMind DB file"),
        ({"file": "empty", "key": "host"}, "the directory .*empty is no Delta table"),
        ({"file": "h.csv", "sql": "select hots from file", "key": "host"}, 'sql: Binder Error: .*"hots"'),
        ({"file": "h.csv", "sql": "-- none", "key": "host"}, "sql is no query"),
        (
            {"file": "h.csv", "sql": "from read_csv('/etc/passwd')", "key": "host"},
            "file system operations are disabled",
        ),
        ({"file": "h.csv", "sql": "select 'a' as host, 1 as n from file", "key": "host"}, "key 'host' is not unique"),
        ({"file": "h.csv", "key": "host", "columns": {"line": "n"}}, "column 'line' is the pipeline's own"),
        ({"file": "h.csv", "key": "host", "columns": {"unexpected": "n"}}, "'unexpected' is the pipeline's own"),
        ({"file": "twice.csv", "key": "host"}, "the file has several columns 'n'"),
        ({"file": "latin.csv", "key": "host"}, "latin.csv: .*invalid UTF8"),
        ({"file": "newer", "key": "host"}, "lookup .*newer: .*reader version"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_by_a_check(networks: Path, given: dict[str, Any], says: str) -> None:
    (networks / "other.mmdb").write_bytes(b"not networks")
    (networks / "empty").mkdir()
    (networks / "twice.csv").write_text("host,n,n\na,1,2\n")
    (networks / "latin.csv").write_bytes(b"host,n\na,\xfc\n")
    write_deltalake(str(networks / "newer"), HOSTS.select(["host", "rack"]))
    (entry,) = (networks / "newer/_delta_log").glob("*.json")
    entry.write_text(entry.read_text().replace('"minReaderVersion":1', '"minReaderVersion":99'))
    (networks / "h.csv").write_text("host,n\na,1\nb,2\n")
    with pytest.raises(BadValue, match=says):
        looked_up(networks, [], {"key": "client"} | given)


def test_packages_that_are_missing_are_named(networks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (networks / "h.csv").write_text("host,n\na,1\n")
    monkeypatch.setattr(extras, "missing", lambda *names: [*names])
    with pytest.raises(BadValue, match=r"needs maxminddb, here and where tasks run: `pip install '\.\[geoip\]'`"):
        looked_up(networks, [], {"file": "city.mmdb", "key": "client", "columns": FIELDS})
    with pytest.raises(BadValue, match=r"sql needs duckdb, here and where tasks run: `pip install '\.\[sql\]'`"):
        looked_up(networks, [], {"file": "h.csv", "key": "host", "sql": "from file"})

"""The same table for readers of Iceberg: the rows of each version, once, whoever is killed between the two commits."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from appliance import extras
from appliance.errors import ApplianceError, BadValue, Unavailable
from appliance.spark.pipeline import iceberg_table
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.forget import remove_old_files, remove_rows
from appliance.spark.pipeline.iceberg_table import VERSION, IcebergKeeper, IcebergTable, follow_iceberg
from appliance.spark.pipeline.reparse import reparse
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import accept_from, check_from
from appliance.spark.pipeline.tables import claim

from ...support.pipelines import access, fill, rows
from ...support.pipelines import settings as settings_of
from ...support.ready import free_port
from ...support.server import wait_for
from ...support.topics import Topics
from .test_pipeline_sink import micro_batch, records

LINES = [b"time=2026-11-19T10:00:00Z a=1 host=h", b"a=2", b"?"]


def made(base: Path, a: str = "int", *, name: str = "p", **tables: Any) -> Settings:
    given: dict[str, Any] = {
        "pipeline": {"name": name},
        "source": [{"topics": ["t", "u"], "parsers": ["own"]}],
        "parser": {"own": {"kind": "logfmt", "columns": {"a": a}, "rest": "more"}},
        "output": {"path": f"out-{name}"},
        "iceberg": {"catalogue": "catalogue.db", "table": "logs.events"},
    }
    return parse(given | tables, base)


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of Iceberg's own server of a REST catalogue, where ICEBERG_REST is a directory with its jars."""
    if not (jars := os.environ.get("ICEBERG_REST")):
        pytest.skip("no REST catalogue: CONTRIBUTING.md says how to get its jars for ICEBERG_REST")
    base, port = tmp_path_factory.mktemp("rest"), free_port()
    own = {"CATALOG_REST_PORT": str(port), "CATALOG_URI": f"jdbc:sqlite:{base}/rest.db"}
    own |= {"CATALOG_WAREHOUSE": f"file://{base}/warehouse"}
    command = ["java", "-cp", f"{jars}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    with (base / "said").open("wb") as said:
        server = subprocess.Popen(command, env=os.environ | own, stdout=said, stderr=said)
    try:
        wait_for(lambda: accepts(port) or server.poll() is not None, "the REST catalogue")
        assert server.poll() is None, (base / "said").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def accepts(port: int) -> bool:
    with socket.socket() as stream:
        return stream.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=["a file", "a server"])
def catalogue(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of a table of its own in either kind of catalogue."""
    if request.param == "a file":
        return {"catalogue": "catalogue.db", "table": "logs.events"}
    return {"catalogue": request.getfixturevalue("rest_server"), "table": f"logs.t{uuid.uuid4().hex}"}


def opened_catalogue(settings: Settings) -> Any:
    """As a reader of Iceberg opens it."""
    file = settings.iceberg.file
    uri = settings.iceberg.catalogue if file is None else f"sqlite:///{file}"
    return load_catalog("default", type="rest" if file is None else "sql", uri=uri)


def table(settings: Settings) -> Any:
    return opened_catalogue(settings).load_table(settings.iceberg.table)


def same(settings: Settings) -> int:
    """Check that readers of both see the same rows.  Returns the number of snapshots."""
    opened = table(settings)
    theirs, ours = opened.scan().to_arrow(), rows(settings)
    assert set(theirs.column_names) == set(ours.column_names)
    order = sorted(ours.column_names)
    assert sorted(map(repr, theirs.select(order).to_pylist())) == sorted(map(repr, ours.select(order).to_pylist()))
    assert opened.current_snapshot().summary[VERSION] == str(DeltaTable(f"{settings.output.path}/events").version())
    return len(opened.snapshots())


@pytest.mark.parametrize("partition_by", [["topic", "date"], []])
def test_both_have_the_same_rows_whatever_is_done(
    tmp_path: Path, partition_by: list[str], catalogue: dict[str, str]
) -> None:
    output: dict[str, Any] = {"output": {"path": "out", "partition_by": partition_by}, "iceberg": catalogue}
    settings = made(tmp_path, **output)
    follow_iceberg(settings)  # before there is a table
    micro_batch(settings, 0, [[records(LINES, "t")], [records(LINES, "u")]])
    follow_iceberg(settings)
    assert same(settings) == 1
    follow_iceberg(settings)
    assert same(settings) == 1, "nothing has changed"
    micro_batch(settings, 1, [[records(LINES, "t", 3)]])
    micro_batch(settings, 2, [[records(LINES, "t", 6)]])
    follow_iceberg(settings)
    assert same(settings) == 2, "several versions are one step"
    compact(DeltaEvents(settings.output), settings.output, settled=True, vacuum=False)
    follow_iceberg(settings)
    same(settings)
    lenient = made(tmp_path, source=[{"topics": ["t", "u"], "parsers": ["own", "plain"]}], **output)
    reparse(lenient)
    follow_iceberg(lenient)
    same(settings)
    remove_rows(settings, "a = 1")
    follow_iceberg(settings)
    assert same(settings) > 3
    remove_old_files(settings)
    follow_iceberg(settings)
    same(settings)
    before = DeltaTable(f"{settings.output.path}/events").version()
    micro_batch(settings, 3, [[records(LINES, "u", 3)]])
    follow_iceberg(settings)
    DeltaTable(f"{settings.output.path}/events").restore(before)
    follow_iceberg(settings)
    same(settings)


def test_lists_of_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot for each commit, and yet a reader of any that is there finds its lists."""
    monkeypatch.setattr(iceberg_table, "SNAPSHOTS_MAX", 3)
    settings = made(tmp_path)
    for number in range(12):
        micro_batch(settings, number, [[records(LINES, "t", 3 * number)]])
        follow_iceberg(settings)
        compact(DeltaEvents(settings.output), settings.output, settled=True, vacuum=False)
        follow_iceberg(settings)
        assert same(settings) <= 6
    opened = table(settings)
    for snapshot in opened.snapshots():
        assert len(opened.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) in (30, 33, 36)
    lists = {path.name for path in (tmp_path / "out-p/iceberg").rglob("*.avro")}
    there = {Path(each.manifest_list).name for each in opened.snapshots()}
    there |= {Path(one.manifest_path).name for each in opened.snapshots() for one in each.manifests(opened.io)}
    assert there <= lists and len(lists) <= len(there) + 12, "those of the snapshots that went last are still there"


def test_columns_come_and_types_change(tmp_path: Path) -> None:
    settings = made(tmp_path)
    micro_batch(settings, 0, [[records(LINES, "t")]])
    follow_iceberg(settings)
    more = {"kind": "logfmt", "columns": {"a": "int", "b": "string"}, "rest": "more"}
    added = made(tmp_path, parser={"own": more})
    micro_batch(added, 1, [[records([b"a=3 b=x"], "t", 3)]])
    follow_iceberg(added)
    same(added)
    wider = made(tmp_path, "string")
    accept_from(wider, claim(wider), {})
    follow_iceberg(wider)
    same(wider)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_between_the_two_commits_leaves_nothing_out_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, catalogue: dict[str, str]
) -> None:
    """Before or after each step that the catalogue takes: making the table, and each snapshot."""
    settings = made(tmp_path, iceberg=catalogue)
    kind = SqlCatalog if settings.iceberg.file else RestCatalog
    commit: Callable[..., Any] = kind.commit_table
    micro_batch(settings, 0, [[records(LINES, "t")]])
    for number in range(1, 4):
        left = [number]

        def killed(self: Any, *given: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0]:
                return commit(self, *given)
            if after:
                commit(self, *given)
            raise KeyboardInterrupt

        monkeypatch.setattr(kind, "commit_table", killed)
        try:
            follow_iceberg(settings)
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(kind, "commit_table", commit)
        follow_iceberg(settings)
        same(settings)
        micro_batch(settings, number, [[records(LINES, "t", 3 * number)]])
    follow_iceberg(settings)
    same(settings)
    told = [snapshot.summary[VERSION] for snapshot in table(settings).snapshots()]
    assert len(set(told)) == len(told), "each version has one snapshot"


def test_a_table_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    ours, other = made(tmp_path), made(tmp_path, name="q")
    for each in (ours, other):
        micro_batch(each, 0, [[records(LINES, "t")]])
    follow_iceberg(ours)
    with pytest.raises(ApplianceError, match=r"logs\.events is not of this pipeline: choose another iceberg\.table"):
        follow_iceberg(other)
    same(ours)


def test_what_cannot_be_is_refused_by_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = made(tmp_path)
    assert not check_from(settings, {}).with_effect("refused")
    monkeypatch.setattr(extras, "missing", lambda *names: [*names])
    (finding,) = check_from(settings, {}).with_effect("refused")
    assert finding.subject == "iceberg" and "needs pyiceberg: `pip install '.[iceberg]'`" in finding.text


def test_a_catalogue_that_is_none_is_refused_and_harms_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not one")
    for name in ("notes.txt", "."):
        wrong = made(tmp_path, iceberg={"catalogue": name, "table": "logs.events"})
        (finding,) = check_from(wrong, {}).with_effect("refused")
        assert "is no file of SQLite: name one that is not there yet" in finding.text
        keeper = IcebergKeeper(wrong, "identity")
        keeper.look()
        assert keeper.remark.startswith("the Iceberg table is behind: ")
    assert (tmp_path / "notes.txt").read_text() == "not one"


def test_a_catalogue_that_is_away_or_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer is given up, and another host is asked with TLS only."""
    monkeypatch.setattr(iceberg_table, "REQUEST_S_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = made(tmp_path, iceberg={"catalogue": url})
        micro_batch(settings, 0, [[records(LINES, "t")]])
        with pytest.raises(Unavailable, match=r"the catalogue http.* timed out.*_DEFAULT__CREDENTIAL"):
            follow_iceberg(settings)
    keeper = IcebergKeeper(settings, "identity")
    keeper.look()
    assert keeper.remark.startswith(f"the Iceberg table is behind: the catalogue {url}: ")
    for wrong, why in (("http://lake.example.net", "take https://"), ("https://u:p@h/c", "without a user")):
        with pytest.raises(BadValue, match=f"iceberg.catalogue .*{why}"):
            made(tmp_path, iceberg={"catalogue": wrong})


def test_a_run_keeps_both(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    """And what is wrong with one harms the other in nothing."""
    fill(topics, topics.create(topic), [access(number) for number in range(500)])
    given = {"iceberg": {"catalogue": "catalogue.db", "table": "logs.events"}}
    settings = settings_of(tmp_path, topics, topic, input={"trigger_bytes": "10KB"}, **given)
    assert "Iceberg" not in run(settings, once=True, session=spark).remark
    same(settings)
    table(settings).catalog.drop_table("logs.events")
    table_of_another = IcebergTable(settings, "another")
    table_of_another.follow()
    fill(topics, topic, [access(number) for number in range(10)])
    result = run(settings, once=True, session=spark)
    assert (result.rows, len(rows(settings))) == (10, 510)
    assert "the Iceberg table is behind: Iceberg table logs.events is not of this pipeline" in result.remark
    assert pa.table(table(settings).scan().to_arrow()).num_rows == 500

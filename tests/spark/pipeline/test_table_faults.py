"""What the libraries of tables raise comes out of a command as one sentence and a remedy, not as a trace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from appliance.errors import ApplianceError, BadValue, DiskFull, FileNotPermitted, StorageFault, Unavailable
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.settings import parse
from appliance.table_faults import table_fault

from ...support.command_line import run as command
from ...support.remedies import commands_in, fault_of
from .view_pipelines import COUNTS, Pipeline, line


@pytest.fixture
def table(tmp_path: Path) -> str:
    where = str(tmp_path / "table")
    write_deltalake(where, pa.table({"a": [1, 2], "date": ["x", "y"]}), partition_by=["date"])
    return where


def another_writer(where: str) -> None:
    table = DeltaTable(where)
    write_deltalake(where, pa.table({"a": [3], "date": ["x"]}), mode="overwrite")
    write_deltalake(table, pa.table({"a": [4], "date": ["x"]}), mode="overwrite")


def lost_file(where: str) -> None:
    for file in Path(where).glob("date=x/*"):
        file.unlink()
    write_deltalake(where, pa.table({"a": [1], "date": ["x"]}), mode="overwrite", predicate="date = 'x' and a = 1")


def lost_file_in_arrow(where: str) -> None:
    table = DeltaTable(where)
    for file in Path(where).glob("date=x/*"):
        file.unlink()
    table.to_pyarrow_dataset().to_table()


def spoiled_file(where: str) -> None:
    for file in Path(where).glob("date=x/*"):
        file.write_bytes(b"PAR1 and no more")
    DeltaTable(where).to_pyarrow_dataset().to_table()


def spoiled_log(where: str) -> None:
    for entry in Path(where, "_delta_log").glob("*.json"):
        entry.write_text("no json")
    DeltaTable(where)


def no_table(where: str) -> None:
    DeltaTable(f"{where}/none")


def full_disk(_: str) -> None:
    # Opened here: whoever of the libraries is given a name removes the file, or puts another one in its place.
    with pa.OSFile("/dev/full", "wb") as file:
        file.write(b"x")


def wrong_query_of_duckdb(_: str) -> None:
    duckdb.sql("select no_such_column from range(3)")


def store_that_is_away(_: str) -> None:
    fs.S3FileSystem(
        access_key="k", secret_key="s", region="r", scheme="http", endpoint_override="127.0.0.1:1", connect_timeout=1,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    ).get_file_info("b/k")  # fmt: skip


@pytest.mark.parametrize(
    "act, kind",
    [
        (another_writer, Unavailable),
        (lost_file, StorageFault),
        (lost_file_in_arrow, StorageFault),
        (spoiled_file, StorageFault),
        (spoiled_log, StorageFault),
        (no_table, StorageFault),
        (full_disk, DiskFull),
        (wrong_query_of_duckdb, BadValue),
        (store_that_is_away, Unavailable),
    ],
)
def test_each_kind_is_an_error_with_its_remedy(
    table: str, act: Callable[[str], None], kind: type[ApplianceError]
) -> None:
    with pytest.raises(Exception) as raised:
        act(table)
    assert not isinstance(raised.value, ApplianceError)
    told = table_fault(raised.value, table)
    assert type(told) is kind and told.remedy and str(told).startswith(f"{table}: "), repr(told)
    assert not {"\n", "\x1b", "<unknown>", "↳"} & set(str(told)) and "<unknown>" not in str(told)
    assert not [one for one in commands_in(told.remedy) if fault_of(one)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_file_is_no_damage(table: str) -> None:
    Path(table, "_delta_log").chmod(0)
    with pytest.raises(FileNotPermitted):
        OutputFiles(parse({"pipeline": {"name": "p"}, "output": {"path": table}}, Path(table)).output).delta_table("")


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x"), KeyError("x"), OSError(28, "No space left", "/f"), BadValue("x")),
        *(TimeoutError("timed out"), ConnectionRefusedError(111, "refused"), URLError("x"), shutil.Error("x")),
    ],
)
def test_what_is_none_of_theirs_stays(error: Exception) -> None:
    assert table_fault(error) is None


CONFIG = (
    '[pipeline]\nname = "p"\n[[source]]\ntopics = ["t"]\nparsers = ["logfmt"]\n[output]\npath = "out"\n'
    '[views]\npath = "views"\n'
)
COMMANDS: dict[str, list[str]] = {
    "views": [],
    "report": [],
    "reparse": [],
    "expire": ["--before", "-1d", "--dry-run"],
    "forget": ["--where", "host = 'a'", "--dry-run"],
    "verify": [],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_over_a_damaged_log_names_it_and_what_to_do(tmp_path: Path, name: str) -> None:
    spark: Any = None  # events are written without
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write(line(1))
    pipeline.define("counts", COUNTS)
    config = tmp_path / "p.toml"
    config.write_text(CONFIG)
    for entry in (pipeline.out / "events/_delta_log").glob("*.json"):
        entry.write_text("no json")
    said = command("pipeline", name, str(config), *COMMANDS[name])
    assert said.status == StorageFault.exit_status, said
    first, second = said.err.splitlines()
    assert first.startswith(f"appliance: {pipeline.out}/events: Kernel error") and "restore it from a copy" in second


def test_a_command_over_a_missing_file_names_it(tmp_path: Path) -> None:
    """Arrow gives its name in the text only."""
    spark: Any = None
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write(line(1))
    pipeline.define("counts", COUNTS)
    config = tmp_path / "p.toml"
    config.write_text(CONFIG)
    (file,) = (pipeline.out / "events").glob("**/*.parquet")
    file.unlink()
    said = command("pipeline", "reparse", str(config), "--all")
    assert said.status != 0 and file.name in said.err and "None:" not in said.err, said

"""The files of views and of their parts are compared with their logs, and a rebuild mends what is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from appliance.errors import StorageFault
from appliance.spark.pipeline.view_check import CheckedView, check_views
from appliance.spark.pipeline.view_refresh import Refresher

from .view_pipelines import COUNTS, MERGED, Pipeline, line


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    made = Pipeline(spark, tmp_path)
    made.write(line(1), line(2, "b"), line(70), line(1500))
    return made


def found(pipeline: Pipeline) -> dict[str, CheckedView]:
    return {checked.table: checked for checked in check_views(pipeline.settings)}


def files(pipeline: Pipeline, table: str) -> list[Path]:
    return sorted((pipeline.out / "views" / table).glob("date=*/*.parquet"))


def test_sound_views_are_told_with_their_version_and_rows(pipeline: Pipeline) -> None:
    assert found(pipeline) == {}
    merged = pipeline.define("merged", MERGED)
    assert [checked.state for checked in found(pipeline).values()] == ["new", "new"], "nothing is wrong yet"
    pipeline.refresh(merged)
    for checked in found(pipeline).values():
        assert checked[1:] == ("current", 2, 2, 4, ""), checked
    pipeline.write(line(3))
    assert {checked.state for checked in found(pipeline).values()} == {"behind"}


def lose(file: Path) -> None:
    file.unlink()


def spoil(file: Path) -> None:
    file.write_bytes(b"PAR1 and no more")


def cut_rows(file: Path) -> None:
    with pq.ParquetFile(file) as opened:
        rows = opened.read()
    pq.write_table(rows.slice(0, len(rows) - 1), file)


def move_day(file: Path) -> None:
    """Those of another day, as many."""
    others = [other for other in file.parent.parent.glob("date=*/*.parquet") if other != file]
    with pq.ParquetFile(others[0]) as opened:
        rows = opened.read()
    with pq.ParquetFile(file) as opened:
        count = opened.metadata.num_rows
    pq.write_table(rows.take([0] * count), file)


@pytest.mark.parametrize("table", ["merged", "merged/_parts"])
@pytest.mark.parametrize(
    "damage, says",
    [
        (lose, "is gone"),
        (spoil, "cannot be read"),
        (cut_rows, r"has 2 rows, and its log says 3"),
        (move_day, r"rows that are not of 2026-11-20"),
    ],
)
def test_a_damaged_file_is_named_with_its_remedy(
    pipeline: Pipeline, table: str, damage: Callable[[Path], None], says: str
) -> None:
    merged = pipeline.define("merged", MERGED)
    pipeline.refresh(merged)
    file = files(pipeline, table)[0]
    damage(file)
    checked = found(pipeline)[table]
    assert checked.state == "damaged" and f"{file} " in checked.fault
    assert says.split("rows")[-1] in checked.fault and checked.fault.endswith(
        "`appliance pipeline rebuild CONFIG.toml merged` makes it anew"
    )
    (sound,) = (other for name, other in found(pipeline).items() if name != table)
    assert not sound.fault
    Refresher(pipeline.spark, pipeline.settings).rebuild(merged)
    assert not any(checked.fault for checked in found(pipeline).values())
    assert pipeline.stored(merged) == pipeline.counted()


def test_parts_that_are_gone_are_named(pipeline: Pipeline) -> None:
    merged = pipeline.define("merged", MERGED)
    pipeline.refresh(merged)
    shutil.rmtree(pipeline.out / "views/merged/_parts")
    assert "it is gone: `appliance pipeline rebuild" in found(pipeline)["merged/_parts"].fault
    Refresher(pipeline.spark, pipeline.settings).rebuild(merged)
    assert not any(checked.fault for checked in found(pipeline).values())


@pytest.mark.parametrize("table", ["merged", "merged/_parts"])
def test_a_log_that_cannot_be_read_is_an_error_and_a_rebuild_makes_it_anew(pipeline: Pipeline, table: str) -> None:
    merged = pipeline.define("merged", MERGED)
    pipeline.refresh(merged)
    pipeline.write(line(3))
    for entry in (pipeline.out / "views" / table / "_delta_log").glob("*.json"):
        entry.write_text("no json")
    with pytest.raises(StorageFault, match=f"views/{table}: ") as raised:
        pipeline.refresh(merged)
    assert raised.value.remedy == "`appliance pipeline rebuild CONFIG.toml merged` makes it anew"
    assert found(pipeline)[table].state == "damaged"
    Refresher(pipeline.spark, pipeline.settings).rebuild(merged)
    assert pipeline.stored(merged) == pipeline.counted()
    assert {checked.state for checked in found(pipeline).values()} == {"current"}


@pytest.mark.parametrize("text, table", [(COUNTS, "merged"), (MERGED, "merged/_parts")])
def test_a_refresh_that_needs_a_lost_file_says_so(pipeline: Pipeline, text: str, table: str) -> None:
    merged = pipeline.define("merged", text)
    pipeline.refresh(merged)
    pipeline.write(line(3))
    for file in files(pipeline, table):
        file.unlink()
    with pytest.raises(StorageFault, match=f"views/{table}: ") as raised:
        pipeline.refresh(merged)
    assert raised.value.remedy == "`appliance pipeline rebuild CONFIG.toml merged` makes it anew"

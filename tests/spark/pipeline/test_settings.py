"""Configuration of a pipeline: what is given arrives, what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.errors import BadValue, UnknownKey
from appliance.spark.pipeline import settings as module
from appliance.spark.pipeline.settings import decode, load, parse

EXAMPLE = Path(module.__file__).with_name("example.toml")


def given(**tables: Any) -> dict[str, Any]:
    least = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["plain"]}],
        "output": {"path": "out"},
    }
    return least | tables


def test_the_example_is_right(tmp_path: Path) -> None:
    made = load(EXAMPLE)
    assert made.topics == ["access", "system", "app", "audit"]
    assert made.input.trigger_bytes == 256 << 20
    assert made.spark == {"spark.master": "local[*]"}
    assert decode(made.encode()) == made


def test_paths_are_beside_the_file_and_defaults_complete_it(tmp_path: Path) -> None:
    made = parse(given(lookup=[{"file": "a.csv", "key": "host"}]), tmp_path)
    assert (made.output.path, made.state_dir) == (f"{tmp_path}/out", tmp_path / "p.state")
    assert made.lookup[0].file == f"{tmp_path}/a.csv"
    assert made.group == "pipeline-p"
    assert parse(given(pipeline={"name": "p", "group": "-"}), tmp_path).group == ""


def test_settings_of_spark_are_dotted_texts(tmp_path: Path) -> None:
    nested = {"spark.master": "local[2]", "sql": {"shuffle": {"partitions": 4}}, "ui.enabled": False}
    assert parse(given(spark=nested), tmp_path).spark == {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"outputs": {}}, "unknown key outputs: did you mean output"),
        ({"output": {"path": "x", "sort": ["time"]}}, "unknown key output.sort: did you mean sort_by"),
        ({"source": [{"topics": ["t"], "parser": ["json"]}]}, r"source\[0\].parser: did you mean parsers"),
        ({"source": [{"topics": ["t"], "parsers": ["jsn"]}]}, "no parser 'jsn': did you mean json"),
        ({"parser": {"x": {"kind": "json", "tiem": "t"}}}, "parser.x.tiem: did you mean time"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path, tables: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownKey, match=says):
        parse(given(**tables), tmp_path)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"pipeline": {"name": "a/b"}}, "name"),
        ({"input": {"trigger_bytes": "lots"}}, "input.trigger_bytes = 'lots': a whole number"),
        ({"input": {"trigger_ms": "5 fortnights"}}, "a whole number, with one of ms s"),
        ({"output": {}}, "path"),
        ({"source": []}, "source: must not be empty"),
        ({"source": [{"topics": ["t", "t"], "parsers": ["plain"]}]}, "two sources"),
        ({"audit": {"topic": "t"}}, "feed itself"),
        ({"parser": {"x": {"kind": "regex"}}}, "parser.x: a pattern"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, tables: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        parse(given(**tables), tmp_path)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("pipeline = [")
    with pytest.raises(BadValue, match=f"{path}: not TOML"):
        load(path)

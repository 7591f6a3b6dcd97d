"""What is missing in the table, or there twice, is found by comparing it with the topics; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from appliance.errors import BadValue
from appliance.spark.pipeline import verify as module
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.verify import Compared, verify

from ...support.command_line import run as command
from ...support.pipelines import access, fill, places, rows, settings
from ...support.topics import Topics
from .test_pipeline_source import run

VIEW_ROWS = pa.table(
    {"start": pa.array([0], pa.timestamp("us", "UTC")), "n": [1], "date": ["1970-01-01"]},
)


def written(topics: Topics, topic: str, base: Path, **more: Any) -> Settings:
    topics.create(topic, 2)
    fill(topics, topic, [*(access(number) for number in range(300)), b"rejected"], each=50)
    fill(topics, topic, [access(number) for number in range(100)], partition=1, each=50)
    made = settings(base, topics, topic, **more)
    assert list(run(made, 12_000)) != []
    return made


def found(made: Settings) -> list[tuple[int, int, int, int, int]]:
    return [(each.messages, each.rows, each.missing, each.twice, each.unknown) for each in verify(made)]


def test_every_line_is_a_row(topics: Topics, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is read in several spans, and where the log goes on behind what was read."""
    made = written(topics, topic, tmp_path)
    fill(topics, topic, [access(1)])
    assert found(made) == [(301, 301, 0, 0, 0), (100, 100, 0, 0, 0)]
    monkeypatch.setattr(module, "SPAN_ROWS", 60)
    monkeypatch.setattr(module, "FETCH_BYTES", 1)
    assert found(made) == [(301, 301, 0, 0, 0), (100, 100, 0, 0, 0)]
    assert all(each.equal for each in verify(made))


def test_what_differs_is_counted(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = written(topics, topic, tmp_path)
    table = str(tmp_path / "out/events")
    some = rows(made).filter(rows(made).column("path").to_numpy(zero_copy_only=False) == "/7")
    assert len(some) == 2
    write_deltalake(table, some, mode="append")
    DeltaTable(table).delete("path in ('/250', '/251') or rejected is not null")
    DeltaTable(table).update({"received": "received + interval '1 hour'"}, predicate="path = '/20' and partition = 1")
    assert found(made) == [(301, 299, 3, 1, 0), (100, 101, 1, 1, 1)]
    assert not any(each.equal for each in verify(made))
    config = tmp_path / "p.toml"
    config.write_text(
        f'[pipeline]\nname = "{topic}"\nbootstrap = "{topics.server.native}"\n[[source]]\ntopics = ["{topic}"]\n'
        'parsers = ["access"]\n[output]\npath = "out"\n'
    )
    told = command("pipeline", "verify", str(config), "--json")
    assert told.status == 1 and [(row["missing"], row["twice"]) for row in told.json["partitions"]] == [(3, 1), (1, 1)]


def test_a_damaged_view_is_told_beside_equal_partitions(topics: Topics, topic: str, tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "views/v.sql").write_text("-- window: 1h\nselect start, count(*) as n from events group by all")
    written(topics, topic, tmp_path)
    write_deltalake(str(tmp_path / "out/views/v"), VIEW_ROWS, partition_by=["date"])
    config = tmp_path / "p.toml"
    config.write_text(
        f'[pipeline]\nname = "{topic}"\nbootstrap = "{topics.server.native}"\n[[source]]\ntopics = ["{topic}"]\n'
        'parsers = ["access"]\n[output]\npath = "out"\n[views]\npath = "views"\n'
    )
    told = command("pipeline", "verify", str(config), "--json")
    assert told.status == 0 and [row["fault"] for row in told.json["views"]] == [""], told
    (file,) = (tmp_path / "out/views/v").glob("date=*/*.parquet")
    file.unlink()
    told = command("pipeline", "verify", str(config))
    assert told.status == 1 and f"{file} is gone: `appliance pipeline rebuild CONFIG.toml v`" in told.out, told


def test_rows_that_are_lost_at_the_head_are_missing(topics: Topics, topic: str, tmp_path: Path) -> None:
    """From the first message on, as from where a pipeline has begun that reads from the end."""
    made = written(topics, topic, tmp_path)
    DeltaTable(str(tmp_path / "out/events")).delete("path in ('/0', '/1', '/2') and partition = 0")
    assert found(made)[0] == (301, 298, 3, 0, 0)
    late = settings(tmp_path, topics, topic, output={"path": "late"}, input={"starting": "latest"})
    assert list(run(late)) == []
    fill(topics, topic, [access(number) for number in range(500, 510)])
    assert list(run(late)) == [0] and found(late)[0] == (10, 10, 0, 0, 0)
    DeltaTable(str(tmp_path / "late/events")).delete("path in ('/500', '/501')")
    assert found(late)[0] == (10, 8, 2, 0, 0)


def test_events_of_several_lines_are_counted_by_lines(topics: Topics, topic: str, tmp_path: Path) -> None:
    source = {"topics": [topic], "parsers": ["plain"], "multiline": {"start": r"GET /\d*[05] "}}
    made = written(topics, topic, tmp_path, source=[source])
    (first, second) = verify(made)
    assert (first.messages, first.missing, first.twice) == (301, 0, 0) and first.rows < 70
    assert (second.messages, second.missing) == (100, 0)
    first_offset = min(offset for partition, offset in places(rows(made)) if partition == 1)
    DeltaTable(str(tmp_path / "out/events")).delete(f'partition = 1 and "offset" > {first_offset}')
    assert [each.missing for each in verify(made)] == [0, 95]


def test_only_what_can_be_compared_is(
    topics: Topics, topic: str, tmp_path: Path, make_topic_again: Callable[[str], None]
) -> None:
    made = written(topics, topic, tmp_path)
    ends = {each.partition: each.end for each in verify(made)}
    topics.cluster.refresh([topic])
    arguments = {"name": topic, "partition": 1, "offset": ends[1]}
    topics.cluster.admin("delete_records", arguments, broker_id=topics.cluster.leader(topic, 1))
    assert list(verify(made))[1] == Compared(topic, 1, ends[1], ends[1], 0, 0, 0, 0, 0)
    make_topic_again(topic)
    assert [(each.messages, each.left_out) for each in verify(made)] == [(0, "the topic was created again")] * 2
    topics.cluster.admin("delete_topic", {"name": topic})
    assert {each.left_out for each in verify(made)} == {"no topic of the sources, or there is no such topic"}


@pytest.fixture
def make_topic_again(topics: Topics) -> Callable[[str], None]:
    def make(topic: str) -> None:
        topics.cluster.admin("delete_topic", {"name": topic})
        topics.create(topic, 2)

    return make


def test_there_is_nothing_before_the_first_run(topics: Topics, topic: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"there is no table .*`appliance pipeline run CONFIG.toml` makes it"):
        list(verify(settings(tmp_path, topics, topic)))

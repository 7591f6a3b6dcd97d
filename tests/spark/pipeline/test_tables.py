"""Stores: a micro-batch is seen whole or not at all, once, wherever the driver is stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from appliance.errors import BadValue
from appliance.spark.pipeline.batch_record import BatchRecord
from appliance.spark.pipeline.delta_store import DeltaStore
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.table_files import NewFile, split
from appliance.spark.pipeline.tables import OWNER, EventFiles, claim, open_store

SCHEMA = pa.schema([("topic", pa.string()), ("date", pa.string()), ("n", pa.int64())])
Make = Callable[[], DeltaStore]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["plain"]}],
        "output": {"path": "out"},
    }
    return parse(given, tmp_path)


@pytest.fixture
def make(settings: Settings) -> Make:
    """A store as a new driver opens it."""

    def made() -> DeltaStore:
        store = open_store(settings, claim(settings), SCHEMA)
        if store.recorded() is None:
            store.commit(BatchRecord(-1), [])
        return store

    return made


def write(store: DeltaStore, settings: Settings, batch: int, numbers: list[int]) -> list[NewFile]:
    """What a task does; every third event is of another day."""
    files = EventFiles(store, settings.output, batch, 0)
    days = ["2026-11-21" if number % 3 == 0 else "2026-11-20" for number in numbers]
    files.add(pa.table([["a/b c"] * len(numbers), days, numbers], schema=SCHEMA))
    files.flush()
    return files.files


def seen(settings: Settings) -> list[int]:
    found = DeltaTable(f"{settings.output.path}/events").to_pyarrow_table()
    assert set(found.column("topic").to_pylist()) <= {"a/b c"}
    return sorted(found.column("n").to_pylist())


def test_files_are_seen_when_they_are_committed(settings: Settings, make: Make) -> None:
    store = make()
    files = write(store, settings, 0, [1, 2, 3])
    assert len(files) == 2, "one for each partition"
    assert seen(settings) == []
    store.commit(BatchRecord(0), files)
    assert seen(settings) == [1, 2, 3]
    store.commit(BatchRecord(1), write(store, settings, 1, [4]))
    assert seen(settings) == [1, 2, 3, 4]


def test_a_repeated_micro_batch_adds_nothing(settings: Settings, make: Make) -> None:
    first = make()
    first.commit(BatchRecord(0), write(first, settings, 0, [1, 2, 3]))
    again = make()
    again.commit(BatchRecord(0), write(again, settings, 0, [1, 2, 3]))
    assert seen(settings) == [1, 2, 3]


def test_a_failed_attempt_is_not_seen(settings: Settings, make: Make) -> None:
    store = make()
    write(store, settings, 0, [1, 2, 3])
    store.commit(BatchRecord(0), write(store, settings, 0, [1, 2, 3]))
    assert seen(settings) == [1, 2, 3]


def test_an_output_has_one_owner(settings: Settings, make: Make) -> None:
    make()
    other = msgspec.structs.replace(settings, pipeline=msgspec.structs.replace(settings.pipeline, name="another"))
    with pytest.raises(BadValue, match="is the output of pipeline 'p', not of 'another'"):
        claim(other)
    (Path(settings.output.path) / "events").mkdir(exist_ok=True)
    (Path(settings.output.path) / OWNER).unlink()
    with pytest.raises(BadValue, match="has tables and no"):
        claim(settings)


def test_tables_in_parquet_are_refused(settings: Settings) -> None:
    claim(settings)
    (Path(settings.output.path) / "_commits").mkdir()
    with pytest.raises(BadValue, match="has tables in Parquet, which are not written any more"):
        claim(settings)


def test_tables_are_split_by_values() -> None:
    table = pa.table({"a": ["x", None, "x", "y"], "b": ["1", "1", "2", "1"], "n": [0, 1, 2, 3]})
    parts = [(tuple(partition.values()), rows.column("n").to_pylist()) for partition, rows in split(table, ["a", "b"])]
    assert sorted(parts, key=str) == [(("x", "1"), [0]), (("x", "2"), [2]), (("y", "1"), [3]), ((None, "1"), [1])]
    assert [rows.num_rows for _, rows in split(table, [])] == [4]
    assert list(split(table.slice(0, 0), ["a"])) == []


def test_a_snapshot_has_the_rows_of_its_record(settings: Settings, make: Make) -> None:
    assert open_store(settings).snapshot() == (None, None)

    def rows() -> tuple[int | None, int]:
        record, stored = open_store(settings).snapshot()
        return record and record.batch, stored.count_rows()

    store = make()
    store.commit(BatchRecord(0), write(store, settings, 0, [1, 2, 3]))
    assert rows() == (0, 3)
    files = write(store, settings, 1, [4, 5, 6])
    assert rows() == (0, 3)
    store.commit(BatchRecord(1), files)
    assert rows() == (1, 6)

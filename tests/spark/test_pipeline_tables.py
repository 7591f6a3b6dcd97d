"""Stores: a micro-batch is seen whole or not at all, once, wherever the driver is stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pytest

from appliance.durable_files import System
from appliance.errors import BadValue, Unavailable
from appliance.spark.pipeline import parquet_store, table_files
from appliance.spark.pipeline.batch_record import BatchRecord
from appliance.spark.pipeline.parquet_store import ParquetStore
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.table_files import Change, NewFile, split
from appliance.spark.pipeline.tables import OWNER, EventFiles, Store, claim, open_store
from appliance.spark.pipeline.times import MICROS

SCHEMA = pa.schema([("topic", pa.string()), ("date", pa.string()), ("n", pa.int64())])
Make = Callable[[], Store]


@pytest.fixture(params=["parquet", "delta"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["plain"]}],
        "output": {"path": "out", "format": request.param},
    }
    return parse(given, tmp_path)


@pytest.fixture
def make(settings: Settings) -> Make:
    """A store as a new driver opens it."""

    def made() -> Store:
        store = open_store(settings, claim(settings), SCHEMA)
        store.prepare()
        return store

    return made


def write(store: Store, settings: Settings, batch: int, numbers: list[int]) -> list[NewFile]:
    """What a task does; every third event is of another day."""
    files = EventFiles(store, settings.output, batch, 0)
    days = ["2026-11-21" if number % 3 == 0 else "2026-11-20" for number in numbers]
    files.add(pa.table([["a/b c"] * len(numbers), days, numbers], schema=SCHEMA))
    files.flush()
    return files.files


TOTALS = pa.schema([("date", pa.string()), ("start", MICROS), ("end", MICROS), ("n", pa.int64())])


def part_rows(day: str, number: int) -> pa.Table:
    noon = datetime.fromisoformat(f"{day}T12:00Z")
    return pa.table([[day], [noon], [noon + timedelta(minutes=1)], [number]], schema=TOTALS)


def change(store: Store, days: dict[str, int | None]) -> Change:
    """A row for each of these dates in place of what there is; None: no row."""
    contents = []
    for day, number in days.items():
        (part,) = store.parts("counts", [day]) or [None]
        contents.append((part, part_rows(day, number or 0).slice(0, 0 if number is None else 1)))
    return Change(tuple(contents), TOTALS)


def seen(settings: Settings) -> list[int]:
    path = Path(settings.output.path) / "events"
    if settings.output.format == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(path)).to_pyarrow_table()
    elif not path.exists():
        return []
    else:
        found = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table()
        assert set(found.column("topic").to_pylist()) <= {"a/b c"}
    return sorted(found.column("n").to_pylist())


def totals(store: Store, name: str = "counts") -> dict[str, int]:
    found = store.read(name)
    return (
        {} if found is None else dict(zip(found.column("date").to_pylist(), found.column("n").to_pylist(), strict=True))
    )


def test_files_are_seen_when_they_are_committed(settings: Settings, make: Make) -> None:
    store = make()
    files = write(store, settings, 0, [1, 2, 3])
    assert len(files) == 2, "one for each partition"
    if settings.output.format == "parquet":
        assert seen(settings) == []
    store.change(BatchRecord(0), "counts", change(store, {"2026-11-20": 2, "2026-11-21": 1}))
    store.commit(BatchRecord(0), files)
    assert seen(settings) == [1, 2, 3] and store.done(0) and not store.done(1)
    assert totals(store) == {"2026-11-20": 2, "2026-11-21": 1}
    parts = store.parts("counts", ["2026-11-21", "2026-11-22"])
    assert [(part.date, part.rows) for part in parts] == [("2026-11-21", 1)]
    assert parts[0].last - parts[0].first == 60_000_000
    found = store.read("counts", parts)
    assert found is not None and found.column("n").to_pylist() == [1]
    store.change(BatchRecord(1), "counts", change(store, {"2026-11-21": 5}))
    store.commit(BatchRecord(1), write(store, settings, 1, [4]))
    assert seen(settings) == [1, 2, 3, 4]
    assert totals(store) == {"2026-11-20": 2, "2026-11-21": 5}


def test_a_repeated_micro_batch_adds_nothing(settings: Settings, make: Make) -> None:
    first = make()
    first.change(BatchRecord(0), "counts", change(first, {"2026-11-20": 1}))
    first.commit(BatchRecord(0), write(first, settings, 0, [1, 2, 3]))
    again = make()
    again.change(BatchRecord(0), "counts", change(again, {"2026-11-20": 9}))
    again.commit(BatchRecord(0), write(again, settings, 0, [1, 2, 3]))
    assert seen(settings) == [1, 2, 3] and totals(again) == {"2026-11-20": 1}


def test_a_failed_attempt_is_not_seen(settings: Settings, make: Make) -> None:
    store = make()
    write(store, settings, 0, [1, 2, 3])
    store.commit(BatchRecord(0), write(store, settings, 0, [1, 2, 3]))
    assert seen(settings) == [1, 2, 3]


def test_a_date_that_loses_its_rows_is_empty(settings: Settings, make: Make) -> None:
    store = make()
    store.change(BatchRecord(0), "counts", change(store, {"2026-11-20": 1, "2026-11-21": 1}))
    store.commit(BatchRecord(0), [])
    store.change(BatchRecord(1), "counts", change(store, {"2026-11-20": 2, "2026-11-21": None}))
    store.commit(BatchRecord(1), [])
    assert totals(store) == {"2026-11-20": 2}


class Stopped(Exception):
    """The driver was killed here."""


@pytest.mark.parametrize("settings", ["parquet"], indirect=True)
def test_a_driver_killed_at_any_step_of_a_commit(
    settings: Settings, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops before each change of the file system in turn; the next driver repeats the micro-batch."""
    step, batch, expected = 0, 0, 0
    finished = False
    while not finished:
        store = make()
        assert isinstance(store, ParquetStore)
        files = write(store, settings, batch, [batch * 10 + 1, batch * 10 + 2, batch * 10 + 3])
        with monkeypatch.context() as patch:
            finished = not _commit_until(patch, step, store, batch, files)
        assert store.done(batch) or len(seen(settings)) == expected, "nothing of it is seen before the commit"
        again = make()
        again.change(BatchRecord(batch), "counts", change(again, {"2026-11-20": batch}))
        repeated = write(again, settings, batch, [batch * 10 + 1, batch * 10 + 2, batch * 10 + 3])
        again.commit(BatchRecord(batch), repeated)
        expected += 3
        assert len(seen(settings)) == expected == len(set(seen(settings))), f"stopped at step {step}"
        assert totals(again) == {"2026-11-20": batch}
        step, batch = step + 1, batch + 1
    assert step > 8, "there were steps to stop at"


def _commit_until(patch: pytest.MonkeyPatch, step: int, store: ParquetStore, batch: int, files: list[NewFile]) -> bool:
    """Whether it was stopped."""
    left = iter(range(step))

    def counted(real: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Stopped
            return real(*arguments, **options)

        return run

    patch.setattr(table_files.os, "fsync", counted(table_files.os.fsync))
    patch.setattr(table_files.os, "link", counted(table_files.os.link))
    patch.setattr("appliance.durable_files.SYSTEM", System(fsync=table_files.os.fsync))
    patch.setattr(Path, "replace", counted(Path.replace))
    patch.setattr(parquet_store.shutil, "rmtree", counted(parquet_store.shutil.rmtree))
    try:
        store.change(BatchRecord(batch), "counts", change(store, {"2026-11-20": batch}))
        store.commit(BatchRecord(batch), files)
    except Stopped:
        return True
    return False


def test_a_driver_that_is_believed_dead_changes_nothing(settings: Settings, make: Make) -> None:
    old = make()
    files = write(old, settings, 0, [1, 2])
    new = make()
    new.commit(BatchRecord(0), write(new, settings, 0, [1, 2]))
    old.commit(BatchRecord(0), files)
    assert seen(settings) == [1, 2]
    if settings.output.format == "parquet":
        late = write(old, settings, 1, [3])
        make()
        with pytest.raises(FileNotFoundError):
            old.commit(BatchRecord(1), late)
        assert seen(settings) == [1, 2]


def test_an_output_has_one_owner(settings: Settings, make: Make) -> None:
    make()
    other = msgspec.structs.replace(settings, pipeline=msgspec.structs.replace(settings.pipeline, name="another"))
    with pytest.raises(BadValue, match="is the output of pipeline 'p', not of 'another'"):
        claim(other)
    (Path(settings.output.path) / "events").mkdir(exist_ok=True)
    (Path(settings.output.path) / OWNER).unlink()
    with pytest.raises(BadValue, match="has tables and no"):
        claim(settings)


def test_tables_are_split_by_values() -> None:
    table = pa.table({"a": ["x", None, "x", "y"], "b": ["1", "1", "2", "1"], "n": [0, 1, 2, 3]})
    parts = [(tuple(partition.values()), rows.column("n").to_pylist()) for partition, rows in split(table, ["a", "b"])]
    assert sorted(parts, key=str) == [(("x", "1"), [0]), (("x", "2"), [2]), (("y", "1"), [3]), ((None, "1"), [1])]
    assert [rows.num_rows for _, rows in split(table, [])] == [4]
    assert list(split(table.slice(0, 0), ["a"])) == []


def test_a_snapshot_has_the_rows_of_its_record(settings: Settings, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a micro-batch is moved into Parquet tables, and after a driver died in the middle of that."""
    assert open_store(settings).snapshot() == (None, {})

    def rows() -> tuple[int | None, int]:
        record, tables = open_store(settings).snapshot()
        return record and record.batch, tables["events"].count_rows()

    store = make()
    store.change(BatchRecord(0), "counts", change(store, {"2026-11-20": 2}))
    store.commit(BatchRecord(0), write(store, settings, 0, [1, 2, 3]))
    assert rows() == (0, 3)
    assert open_store(settings).snapshot()[1]["counts"].to_table().column("n").to_pylist() == [2]
    files = write(store, settings, 1, [4, 5, 6])
    assert rows() == (0, 3)
    if settings.output.format == "parquet":
        monkeypatch.setattr(parquet_store, "SNAPSHOT_PAUSE_S", 0.0)
        with monkeypatch.context() as patch, pytest.raises(TypeError):
            patch.setattr(ParquetStore, "_carry_out", None)
            store.commit(BatchRecord(1), files)
        with pytest.raises(Unavailable, match="not in the tables yet"):
            rows()
        make()
    else:
        store.commit(BatchRecord(1), files)
    assert rows() == (1, 6)

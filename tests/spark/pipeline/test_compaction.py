"""Compaction: fewer files with the same rows, for readers that read meanwhile, and wherever it is stopped."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline import compaction
from appliance.spark.pipeline.batch_record import BatchRecord
from appliance.spark.pipeline.compaction import FILES_MIN, Compactor, DeltaEvents, EventFile, compact, due
from appliance.spark.pipeline.delta_store import DeltaStore
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.tables import claim, open_store

from .test_tables import SCHEMA, Make, seen, write

MIB = 1 << 20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    output = {"path": "out", "sort_by": ["n"], "settle_ms": "1h"}
    source = [{"topics": ["t"], "parsers": ["plain"]}]
    return parse({"pipeline": {"name": "p"}, "source": source, "output": output}, tmp_path)


@pytest.fixture
def make(settings: Settings) -> Make:
    """A store as a new driver opens it."""

    def made() -> DeltaStore:
        store = open_store(settings, claim(settings), SCHEMA)
        if store.recorded() is None:
            store.commit(BatchRecord(-1), [])
        return store

    return made


def fill(make: Make, settings: Settings, batches: int) -> None:
    """Three rows of two dates in each micro-batch."""
    for batch in range(batches):
        store = make()
        store.commit(BatchRecord(batch), write(store, settings, batch, [batch * 3 + number for number in range(3)]))


def files(settings: Settings) -> list[str]:
    return [each.path for each in DeltaEvents(settings.output).event_files()]


# ---- which files


def listed(sizes: list[int], partition: str = "p", changed_ms: int = 0) -> list[EventFile]:
    return [EventFile(partition, f"{index:03d}", size, changed_ms) for index, size in enumerate(sizes)]


def test_few_small_files_wait_for_more() -> None:
    assert list(due(listed([1000] * (FILES_MIN - 1)), MIB, 0, 1)) == []
    assert [len(each) for each in due(listed([1000] * FILES_MIN), MIB, 0, 1)] == [FILES_MIN]
    assert [len(each) for each in due(listed([1000, 90_000, 400_000]), MIB, 3_600_000, 3_600_000)] == [3]
    assert list(due(listed([MIB, MIB * 2 // 3]), MIB, 3_600_000, 3_600_000)) == [], "they are large enough"


@given(st.lists(st.integers(1, 3 * MIB), max_size=80), st.booleans())
def test_groups_are_within_the_target_and_disjoint(sizes: list[int], settled: bool) -> None:
    groups = list(due(listed(sizes), MIB, 10, 10 if settled else 100))
    assert all(len(group) >= 2 and sum(each.bytes for each in group) <= MIB for group in groups)
    assert all(count == 1 for count in Counter(each.path for group in groups for each in group).values())


def test_a_row_is_written_again_once_for_each_tier() -> None:
    """A day of micro-batches of 8 KB: few files at any time, and few bytes written again."""
    sizes: list[int] = []
    written = most = 0
    for _ in range(8640):
        sizes.append(8192)
        for group in due(listed(sizes), 128 * MIB, 0, 1):
            for each in group:
                sizes.remove(each.bytes)
            sizes.append(sum(each.bytes for each in group))
            written += sizes[-1]
        most = max(most, len(sizes))
    assert most <= 3 * FILES_MIN and written <= 4 * 8640 * 8192


# ---- the rows


def test_files_are_put_together_and_rows_stay(settings: Settings, make: Make) -> None:
    fill(make, settings, 40)
    before = seen(settings)
    assert len(files(settings)) == 80
    found = compact(DeltaEvents(settings.output), settings.output)
    assert (found.files_before, found.files_after) == (80, len(files(settings)))
    assert found.files_after < 20 and seen(settings) == before == list(range(120))
    settled = compact(DeltaEvents(settings.output), settings.output, settled=True)
    assert settled.files_after == 2 and seen(settings) == before
    for path in files(settings):
        rows = pq.ParquetFile(Path(settings.output.path) / "events" / path).read().column("n").to_pylist()
        assert rows == sorted(rows)
    again = make()
    again.commit(BatchRecord(40), write(again, settings, 40, [1000, 1001]))
    assert seen(settings) == [*before, 1000, 1001]
    again.commit(BatchRecord(40), write(again, settings, 40, [1000, 1001]))
    assert len(seen(settings)) == 122, "a repetition adds nothing"


def test_readers_see_each_row_once_meanwhile(settings: Settings, make: Make) -> None:
    fill(make, settings, 20)
    expected = list(range(60))
    found: list[list[int]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found.append(seen(settings))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            compact(DeltaEvents(settings.output), settings.output, settled=True)
        while len(found) < 3:
            assert reader.is_alive()
    finally:
        stop.set()
        reader.join()
    assert found and all(rows == expected for rows in found)


def test_an_older_version_of_delta_can_still_be_read(settings: Settings, make: Make) -> None:
    from deltalake import DeltaTable

    fill(make, settings, 4)
    path = f"{settings.output.path}/events"
    version = DeltaTable(path).version()
    compact(DeltaEvents(settings.output), settings.output, settled=True)
    assert DeltaTable(path, version=version).to_pyarrow_table().num_rows == 12
    assert DeltaTable(path).version() > version
    entries = (Path(path) / "_delta_log").glob("*.json")
    last = [json.loads(line) for line in max(entries).read_text().splitlines()]
    changes = [entry[kind]["dataChange"] for entry in last for kind in ("add", "remove") if kind in entry]
    assert changes and not any(changes), "streams that follow the table are told that no row is new"


def test_entries_of_delta_have_statistics(settings: Settings, make: Make) -> None:
    from deltalake import DeltaTable

    fill(make, settings, 3)
    table = DeltaTable(f"{settings.output.path}/events")
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {(row["min.n"], row["max.n"], row["null_count.n"]) for row in rows} >= {(0, 0, 0), (1, 2, 0)}
    assert sum(row["num_records"] for row in rows) == 9


@pytest.mark.parametrize("days", [10, -10])
def test_nothing_old_is_removed_soon_after_the_clock_has_jumped(
    make: Make, settings: Settings, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """What a micro-batch has written and not committed yet would look ten days old."""
    fill(make, settings, 2)
    vacuums_s: list[float] = []
    steady_s, wall_s = [1_000.0], [1_800_000_000.0]
    monkeypatch.setattr(compaction.time, "monotonic", lambda: steady_s[0])
    monkeypatch.setattr(compaction.time, "clock_gettime", lambda clock: steady_s[0])
    monkeypatch.setattr(compaction.time, "time", lambda: wall_s[0] + steady_s[0])
    compactor = Compactor(settings.output)
    monkeypatch.setattr(compactor._store, "vacuum", lambda _: vacuums_s.append(steady_s[0]) or 0)
    compactor._pass()
    steady_s[0] += compaction.VACUUM_EVERY_S
    wall_s[0] += days * 86_400
    compactor._pass()
    steady_s[0] += compaction.VACUUM_EVERY_S
    compactor._pass()
    assert vacuums_s == [1_000.0, 1_000.0 + 2 * compaction.VACUUM_EVERY_S]


def test_vacuum_leaves_files_of_a_micro_batch_that_is_not_committed_yet(make: Make, settings: Settings) -> None:
    """Also if no reader of an older version is to be waited for; what an attempt has left long ago goes."""
    fill(make, settings, 1)
    store = make()
    written = write(store, settings, 1, [7])
    left = write(store, settings, 1, [8])
    table = Path(settings.output.path)
    os.utime(table / left[0].path, (0, 0))
    impatient = msgspec.structs.replace(settings.output, keep_ms=0)
    assert DeltaEvents(impatient).vacuum() == 1 and not (table / left[0].path).exists()
    store.commit(BatchRecord(1), written)
    assert 7 in seen(settings)


def test_old_files_go_though_compaction_fails(make: Make, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    fill(make, settings, 2)
    compactor = Compactor(settings.output)
    stray = Path(settings.output.path) / "events/left.parquet"
    stray.write_bytes(b"")
    os.utime(stray, (1, 1))
    (Path(settings.output.path) / "events" / files(settings)[0]).write_bytes(b"no Parquet")
    compactor._settings = msgspec.structs.replace(settings.output, settle_ms=0)
    compactor._pass()
    assert "compaction: " in caplog.text and not stray.exists()

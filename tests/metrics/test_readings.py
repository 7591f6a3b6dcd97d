"""How tables in shared memory are read again and again: what is kept of them, and what is not there any more."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from appliance.metrics.readings import TablesReader, open_table
from appliance.names import TopicPartition
from appliance.shared import memory
from appliance.shared.table import ROWS, TABLE_BYTES, SegmentTable

from ..support.measures import FRAMES, kept_by_appliance


def test_who_reads_ten_thousand_tables_keeps_no_copies_of_them(tmp_path: Path) -> None:
    """Less than a fifth of a table's own head for each, and the same object as long as nothing has changed."""
    instance, tables = memory.instance_of(tmp_path), {}
    try:
        for number in range(50):
            tables[f"a-topic-{number:04}-0"], mapped = memory.create(instance, "table", TABLE_BYTES)
            with mapped, memoryview(mapped).cast("Q") as cells:
                SegmentTable(cells).publish([0], 0, 1_000 + number, 10)
        reader = TablesReader()
        tracemalloc.start(FRAMES)
        try:
            first = dict(reader.read(tables, os.getpid()))
            kept = kept_by_appliance() / len(tables)
        finally:
            tracemalloc.stop()
        assert kept < 8 * ROWS / 5, f"{kept:.0f} bytes for each; its head has {8 * ROWS}"
        assert first[TopicPartition("a-topic-0007", 0)].high_watermark == 1_007
        again = dict(reader.read(tables, os.getpid()))
        assert all(again[key] is counts for key, counts in first.items())

        state = {"tables": tables, "pid": os.getpid()}
        mapped = memory.attach(tables["a-topic-0007-0"])
        with mapped, memoryview(mapped).cast("Q") as cells:
            SegmentTable(cells).publish([0], 0, 2_000, 20)
        memory.unlink(tables.pop("a-topic-0008-0"))
        changed = dict(reader.read(tables | {"a-topic-0008-0": "/appliance.gone"}, os.getpid()))
        differ = {key.topic for key, counts in first.items() if changed.get(key) is not counts}
        assert differ == {"a-topic-0007", "a-topic-0008"} and len(changed) == 49
        with open_table(state, TopicPartition("a-topic-0007", 0)) as table:
            assert table.snapshot().high_watermark == 2_000
    finally:
        for name in tables.values():
            memory.unlink(name)


@pytest.mark.parametrize("name", ["/appliance.gone", "/../../etc/hostname", "/"])
def test_only_objects_of_shared_memory_are_read(name: str) -> None:
    """Names come from a file: whoever wrote it gets nothing else read."""
    assert list(TablesReader().read({"web-0": name}, os.getpid())) == []

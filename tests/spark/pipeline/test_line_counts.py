"""Counts of lines: those of the table's files as they are now, and each file is read once; without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from appliance.errors import BadValue
from appliance.spark.pipeline import line_counts as counting
from appliance.spark.pipeline.compaction import DeltaEvents, EventFile, compact
from appliance.spark.pipeline.line_counts import REMEMBERED, LineCounts, line_counts
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.settings import Settings, parse

from ...support.pipelines import rows
from .test_pipeline_sink import micro_batch, records

LINES = [b"a=1", b"a=x", b"?", b"a=y host=h"]


@pytest.fixture(params=[["topic", "date"], [], ["parser"]], ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["own"]}, {"topics": ["u"], "parsers": ["plain"]}],
        "parser": {"own": {"kind": "logfmt", "columns": {"a": "int"}}},
        "output": {"path": "out", "partition_by": request.param},
    }
    return parse(given, tmp_path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, from then on."""
    found: list[str] = []
    of_file = counting._of_file

    def noted(files: OutputFiles, file: EventFile) -> LineCounts:
        found.append(file.path)
        return of_file(files, file)

    monkeypatch.setattr(counting, "_of_file", noted)
    return found


def expected(settings: Settings) -> LineCounts:
    found = LineCounts({}, {}, {}, {})
    parsed, rejected, errors = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    for row in rows(settings).to_pylist():
        if row["rejected"] is None:
            parsed[row["topic"], row["parser"]] += 1
            errors.update(filter(None, [row["column_errors"]]))
        else:
            rejected[row["rejected"]] += 1
    for (topic, parser), count in parsed.items():
        found.parsed.setdefault(topic, {})[parser] = count
    return LineCounts(found.parsed, dict(rejected), dict(errors))


def test_each_file_is_read_once(settings: Settings, read: list[str]) -> None:
    """Whatever becomes of the table: what it costs is what has changed."""
    assert line_counts(settings) == LineCounts()
    micro_batch(settings, 0, [[records(LINES, "t")], [records(LINES, "u")]])
    assert line_counts(settings) == expected(settings)
    first = len(read)
    assert line_counts(settings) == expected(settings) and len(read) == first > 0
    micro_batch(settings, 1, [[records(LINES, "t", 4)]])
    assert line_counts(settings) == expected(settings)
    assert len(set(read)) == len(read) == len(DeltaTable(f"{settings.output.path}/events").file_uris())
    read.clear()
    DeltaTable(f"{settings.output.path}/events").delete("topic = 'u'")
    compact(DeltaEvents(settings.output), settings.output, settled=True, vacuum=False)
    found = line_counts(settings)
    assert found == expected(settings) and "u" not in found.parsed
    assert len(read) <= len(DeltaTable(f"{settings.output.path}/events").file_uris())


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"x": {}}', b"[1]"])
def test_what_is_remembered_may_be_lost(tmp_path: Path, content: bytes | None) -> None:
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["plain"]}], "output": {"path": "out"}}
    settings = parse(given, tmp_path)
    micro_batch(settings, 0, [[records(LINES, "t")]])
    line_counts(settings)
    kept = settings.state_dir / REMEMBERED
    whole = kept.read_bytes()
    if content is None:
        kept.unlink()
    else:
        kept.write_bytes(content)
    assert line_counts(settings).parsed == {"t": {"plain": 4}}
    assert kept.read_bytes() == whole
    kept.unlink()
    kept.mkdir()  # nobody may write it
    assert line_counts(settings).parsed == {"t": {"plain": 4}}
    for file in (tmp_path / "out/events").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(BadValue, match=r"has no file .*parquet any more: ask again, or restore it"):
        line_counts(settings)

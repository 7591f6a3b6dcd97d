"""From the byte of a file to the row of the table: counts that agree, or a difference with a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from appliance.spark.pipeline.batch_record import BatchRecord, TopicRead
from appliance.spark.pipeline.input_audit import Block, Rows, audit
from appliance.spark.pipeline.settings import parse
from appliance.spark.pipeline.tables import claim, open_store

from ...support.command_line import run as command
from ...support.pipelines import access, rows, settings
from ...support.topics import Topics
from .test_pipeline_source import run


def ship(topics: Topics, topic: str, file: Path, lines: list[bytes], base: Path) -> None:
    with file.open("ab") as log:
        log.write(b"".join(line + b"\n" for line in lines))
    arguments = ["--topic", topic, "--positions", str(base / "positions"), "--connect", topics.server.native]
    told = command("ship", str(file), *arguments)
    assert told.status == 0, told.err


def audited(topics: Topics, topic: str, file: Path, base: Path) -> dict[str, Any]:
    config = base / "p.toml"
    config.write_text(
        f'[pipeline]\nname = "{topic}"\nbootstrap = "{topics.server.native}"\n[[source]]\ntopics = ["{topic}"]\n'
        'parsers = ["access"]\n[output]\npath = "out"\n'
    )
    arguments = ["--pipeline", str(config), "--connect", topics.server.native, "--json"]
    told = command("inputs", "ledger", str(file), *arguments)
    assert told.status == 0, told.err
    (row,) = json.loads(told.out)
    named: dict[str, Any] = row
    return named


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("lines", "messages", "unread", "rows", "rejected", "missing", "twice"))


def test_every_line_of_a_file_is_a_row_or_in_a_difference_that_is_named(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic)
    file = tmp_path / "access.log"
    lines = [*(access(number) for number in range(200)), b"no access line"]
    ship(topics, topic, file, lines, tmp_path)
    made = settings(tmp_path, topics, topic)
    assert list(run(made, 12_000)) != []
    row = audited(topics, topic, file, tmp_path)
    assert row["bytes"] == file.stat().st_size and row["gaps"] == 0
    assert counts(row) == (201, 201, 0, 201, 1, 0, 0)
    ship(topics, topic, file, [access(number) for number in range(30)], tmp_path)
    assert counts(audited(topics, topic, file, tmp_path)) == (231, 231, 30, 201, 1, 0, 0)
    table = str(tmp_path / "out/events")
    once_more = rows(made).filter(pc.field("path") == "/10").slice(0, 1)  # not one of those that are deleted below
    write_deltalake(table, once_more, mode="append")
    assert counts(audited(topics, topic, file, tmp_path))[3:] == (202, 1, 0, 1)
    DeltaTable(table).delete("path in ('/50', '/51', '/52')")
    row = audited(topics, topic, file, tmp_path)
    assert row["rows"] == 199 and row["missing"] - row["twice"] == 2


SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("rejected", pa.string())]
)


def test_messages_from_before_the_pipeline_began_are_not_missing(tmp_path: Path) -> None:
    """It began at the end of the log, at offset 100, and has read up to 120."""
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["access"]}]}
    made = parse(given | {"output": {"path": "out", "partition_by": ["topic"]}}, tmp_path)
    store = open_store(made, claim(made), SCHEMA)
    begun = {"t": {0: 100}}
    store.commit(BatchRecord(-1, "", {"t": TopicRead("id", {0: (100, 100)})}, since=begun), [])
    store.amend(BatchRecord(0, "run", {"t": TopicRead("id", {0: (100, 120)})}, since=begun))
    there = [{"topic": "t", "partition": 0, "offset": offset, "rejected": None} for offset in range(100, 119)]
    write_deltalake(str(tmp_path / "out/events"), pa.Table.from_pylist(there, SCHEMA), mode="append")
    blocks = {
        "before": [Block("t", 0, 0, 50)],
        "partly": [Block("t", 0, 90, 20)],
        "behind": [Block("t", 0, 110, 20)],
        "all": [Block("t", 0, 90, 40)],
        "elsewhere": [Block("t", 1, 90, 40)],
    }
    assert audit(made, blocks) == {
        "before": Rows(before=50),
        "partly": Rows(before=10, rows=10),
        "behind": Rows(unread=10, rows=9, missing=1),
        "all": Rows(before=10, unread=10, rows=19, missing=1),
        "elsewhere": Rows(unread=40),
    }

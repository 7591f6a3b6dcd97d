"""An output in an object store: the whole store of tables against a server that speaks S3, and what is refused."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from appliance.errors import BadValue
from appliance.spark.pipeline.compaction import DeltaEvents, compact, write_together
from appliance.spark.pipeline.output_files import OutputFiles, with_dictionaries
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.tables import owner_of

from ...support.pipelines import access
from ...support.pipelines import settings as pipeline_of
from ...support.ready import free_port
from ...support.server import wait_for
from ...support.topics import Topics
from .test_pipeline_sink import micro_batch, records

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def test_only_columns_that_repeat_get_dictionaries(tmp_path: Path) -> None:
    made = parse({"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["plain"]}],
                  "output": {"path": "out"}}, tmp_path)  # fmt: skip
    few, many = [number % 7 for number in range(9000)], list(range(9000))
    rows = pa.table(
        {"few": few, "many": many, "none": pa.nulls(9000, pa.string()), "ends": [number // 8000 for number in many]}
    )
    files = OutputFiles(made.output)
    _, footer = files.write_table("one", rows)
    assert with_dictionaries(footer) == ["few", "none", "ends"]
    assert files.open_table("one").read().equals(rows)
    _, footer = write_together(files, ["one", "one"], "two", made.output)
    assert with_dictionaries(footer) == ["few", "none", "ends"]
    assert files.open_table("two").read().equals(pa.concat_tables([rows, rows]))
    _, footer = files.write_table("empty", rows.slice(0, 0))
    assert footer.num_rows == 0


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The options of a bucket ``lake`` on moto's server."""
    pytest.importorskip("moto", reason="no server that speaks S3: pip install 'moto[server]'")
    import boto3

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            assert server.poll() is None
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        wait_for(answers, "the S3 server", 60)
        endpoint = f"http://127.0.0.1:{port}"
        boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
        ).create_bucket(Bucket="lake")
        yield KEYS | {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    finally:
        server.terminate()
        server.wait()


def made(tmp_path: Path, topics: Topics, topic: str, s3: dict[str, str]) -> Settings:
    output = {"path": f"s3://lake/{topic}", "storage": s3}
    return pipeline_of(tmp_path, topics, topic, output=output)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tables_in_an_object_store(topics: Topics, topic: str, tmp_path: Path, s3: dict[str, str]) -> None:
    """Micro-batches, one of them repeated, then compaction; read by delta-rs alone."""
    from deltalake import DeltaTable

    settings = made(tmp_path, topics, topic, s3)
    assert owner_of(settings) is None
    for batch in (0, 1, 1, 2):
        lines = [access(batch * 100 + number) for number in range(100)]
        micro_batch(settings, batch, [[records(lines, topic, batch * 100)]])
    assert owner_of(settings) is not None

    def table(name: str) -> DeltaTable:
        return DeltaTable(f"s3://lake/{topic}/{name}", storage_options=s3)

    events = table("events").to_pyarrow_table()
    assert sorted(events.column("offset").to_pylist()) == list(range(300))
    assert summary(settings).parsed == {"access": 300}
    assert len(table("events").file_uris()) == 3
    found = compact(DeltaEvents(settings.output), settings.output, settled=True)
    assert (found.files_before, found.files_after) == (3, 1)
    assert sorted(table("events").to_pyarrow_table().column("offset").to_pylist()) == list(range(300))
    assert not list(tmp_path.rglob("*.parquet")), "nothing is on this host's disk"


def test_options_of_a_store_are_refused_for_a_file_system(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["plain"]}]
    output = {"path": "out", "storage": {"AWS_REGION": "x"}}
    with pytest.raises(BadValue, match="is for a URL"):
        parse({"pipeline": {"name": "p"}, "source": source, "output": output}, tmp_path)


def test_a_url_stays_as_it_is(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["plain"]}]
    given = {"path": "s3://lake/x"}
    settings = parse({"pipeline": {"name": "p"}, "source": source, "output": given}, tmp_path)
    assert settings.output.path == "s3://lake/x" and settings.state_dir == tmp_path / "p.state"


def test_files_are_read_and_written_by_name(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["plain"]}]
    output = {"path": "out"}
    files = OutputFiles(parse({"pipeline": {"name": "p"}, "source": source, "output": output}, tmp_path).output)
    assert files.read("a.json") is None
    files.write("a.json", json.dumps({"a": 1}))
    assert json.loads(files.read("a.json") or b"") == {"a": 1} and files.uri("a.json") == f"{tmp_path}/out/a.json"

"""``appliance config set``: one key changes, nothing else, and nothing at all when it would be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.config_commands import toml_value
from appliance.cli.config_file import differences, with_key
from appliance.config import KEYS, Config, load

from ..support.command_line import run, succeeding
from ..support.server import Server

TEXT = """# the configuration of logs1
[log]
level = "info"   # not "debug": see below

[topics]
retention.ms = 604_800_000 # a week
"retention.bytes" = "1GiB"
[inputs.web]
type = "http"
topic = "web"   # "web" # is it
listen = [ "127.0.0.1:0" ]
"""


def changed(file: Path, *words: str) -> list[tuple[str, object, object]]:
    rows = succeeding("config", "set", *words, "--config", str(file), "--json").json
    return [(row["key"], row["before"], row["now"]) for row in rows]


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("log.level", "debug", 'level = "info"   # not', 'level = "debug"   # not'),
        ("topics.retention.ms", "14d", "604_800_000 # a week", "1209600000 # a week"),
        ("topics.retention.bytes", "-1", '"retention.bytes" = "1GiB"', '"retention.bytes" = -1'),
        ("topics.auto_create", "false", "[topics]\n", "[topics]\nauto_create = false\n"),
        ("inputs.web.topic", "other", 'topic = "web"   # "web"', 'topic = "other"   # "web"'),
        ("metrics.listen", "127.0.0.1:9", '0" ]\n', '0" ]\n\n[metrics]\nlisten = "127.0.0.1:9"\n'),
    ],
)
def test_one_key_changes(tmp_path: Path, key: str, value: str, old: str, new: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TEXT)
    file.chmod(0o640)
    ((name, _, _),) = changed(file, key, value, "--dry-run")
    assert name == key and file.read_text() == TEXT
    assert len(changed(file, key, value)) == 1 and TEXT.count(old) == 1
    assert file.read_text() == TEXT.replace(old, new)
    assert file.stat().st_mode & 0o777 == 0o640
    assert changed(file, key, value) == []


def test_nothing_is_written_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TEXT)
    for words, says in (
        (("log.level", "loud"), "log.level"),
        (("log.levle", "info"), "log.level"),
        (("topics.max.message.bytes", "1TiB"), "topics.max.message.bytes"),
        (("network.frame_bytes_max", "1GiB"), "arena_bytes"),
    ):
        said = run("config", "set", *words, "--config", str(file))
        assert said.status == 78 and says in said.err, said
    file.write_text('[kafka]\nlisten = """\n127.0.0.1:9092"""\n')
    before = file.read_text()
    assert run("config", "set", "kafka.listen", "", "--config", str(file)).status == 78
    assert file.read_text() == before


def test_a_file_is_made(tmp_path: Path) -> None:
    changed(tmp_path / "new.toml", "log.level", "debug")
    assert (tmp_path / "new.toml").read_text() == '[log]\nlevel = "debug"\n'


@given(st.lists(st.tuples(st.sampled_from(["log.format", "broker.host", "topics.flush.ms"]), st.integers(1, 99))))
def test_any_sequence_of_changes_is_what_the_last_ones_say(changes: list[tuple[str, int]]) -> None:
    text, wanted = TEXT, {}
    for key, number in changes:
        value = ["text", "json"][number % 2] if key == "log.format" else number if key.endswith("ms") else f"h{number}"
        text, wanted[key] = with_key(text, key, toml_value(value)), value
    for key, value in wanted.items():
        assert text.count(f"{key.partition('.')[2]} = {toml_value(value)}") == 1
    assert all(line in text for line in TEXT.splitlines())


def test_a_running_one_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[network]\nworkers = 1\n")
    with Server(tmp_path / "data", file) as server:
        at = ("--config", str(file), "--data", str(server.data_dir))
        said = succeeding("config", "set", "topics.retention.ms", "1d", *at)
        assert said.out.splitlines()[1] == "topics.retention.ms\t604800000\t86400000\tyes"
        assert "at the next restart" in succeeding("config", "set", "metrics.hosts", "a", *at).out
        rows = succeeding("config", "set", "metrics.hosts", "b", "--json", *at).json
        assert rows == [{"key": "metrics.hosts", "before": "a", "now": "b", "taken": False}]
        rows = succeeding("config", "set", "topics.retention.ms", "2d", "--json", *at).json
        assert [row["taken"] for row in rows] == [True]
        alone = succeeding("config", "set", "topics.flush.ms", "2s", "--config", str(file), "--json").json
        assert [row["taken"] for row in alone] == [None]
    said = run("config", "set", "topics.flush.ms", "3s", *at)
    assert said.status == 75 and "nobody was asked" in said.out, "the file has it, and that is said"
    assert differences(Config(), load(file))["topics.flush.ms"][1] == 3_000
    file.write_text(file.read_text().replace("flush.ms", "# flush.ms"))
    assert differences(Config(), load(file)).keys() == {"network.workers", "topics.retention.ms", "metrics.hosts"}
    assert all(name in KEYS for name in differences(Config(), load(file)))

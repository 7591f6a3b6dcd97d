"""appliance.config: every key documented, every wrong one refused with the nearest right one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.config import KEYS, TOPIC_KEYS, Config, TopicSettings, load
from appliance.config_keys import MIB
from appliance.errors import BadValue, InvalidSetting, UnknownKey
from appliance.shared import table


def test_without_file_and_overrides_everything_is_the_default() -> None:
    assert load() == Config()
    assert all(load().value(name) == key.default for name, key in KEYS.items())


def test_every_default_is_a_value_that_would_be_accepted() -> None:
    for key in KEYS.values():
        assert key.parse(key.default) == key.default, key.name
        assert key.about and len(key.about) < 90, key.name


def test_as_many_workers_may_be_configured_as_a_segment_table_has_cells_for() -> None:
    assert KEYS["network.workers"].most == table.WORKERS_MAX


def test_file_then_overrides(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        '[network]\nworkers = 3\narena_bytes = "64MiB"\n[topics]\nretention.ms = "2d"\nauto_create = false\n'
    )
    config = load(path, ["network.workers=5", "log.format=json"])
    assert (config.network.workers, config.network.arena_bytes) == (5, 64 * MIB)
    assert (config.topics.retention_ms, config.topics.auto_create) == (2 * 86_400_000, False)
    assert config.topics.defaults.retention_ms == 2 * 86_400_000
    assert config.log.format == "json"
    assert config.disk == Config().disk


@pytest.mark.parametrize(
    "wrong, nearest",
    [
        ("netwrk.workers=1", "network.workers"),
        ("network.worker=1", "network.workers"),
        ("retention.ms=1", "topics.retention.ms"),
        ("topics.retention_ms=1", "topics.retention.ms"),
        ("heap_mb=1", "zookeeper.heap_mb"),
    ],
)
def test_unknown_key_offers_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(UnknownKey, match=f"did you mean '{nearest}'"):
        load(None, [wrong])


def test_unknown_key_like_nothing_says_where_the_list_is() -> None:
    with pytest.raises(UnknownKey, match="config show"):
        load(None, ["qqqq=1"])


@pytest.mark.parametrize(
    "wrong, says",
    [
        ("network.workers=x", "network.workers = 'x': must be a whole number"),
        ("network.workers=-1", "at least 0"),
        ("network.workers=1.5", "whole number"),
        ("network.workers=65", "at most 64"),
        ("topics.retention.ms=7 parsecs", "5s"),
        ("topics.segment.bytes=1 GHz", "1MiB"),
        ("topics.auto_create=yes", "true or false"),
        ("zookeeper.nodes=2", "one of 0, 1, 3"),
        ("log.level=loud", "one of debug, info"),
        ("native.listen=nowhere", "host:port"),
        ("native.listen=a:70000", "host:port"),
        ("native.listen=TLS://a:1", "one of PLAINTEXT, SSL"),
        ("kafka.listen=unix:/s", "only these use Unix sockets"),
        ("kafka.advertised=SSL://a:1,SSL://b:1", "one address for each protocol"),
        ("kafka.advertised=SSL://a:1", "protocol of a listener of kafka.listen"),
        ("kafka.listen=SSL://127.0.0.1:1", "tls.certificate and tls.key"),
        ("kafka.listen=10.0.0.1:9092", "security.allow_insecure = true"),
        ("native.listen=[::]:9092", "tls.client_auth"),
        ("tls.client_auth=required", "tls.ca"),
        ("tls.client_auth=maybe", "one of none, requested, required"),
        ("kafka.advertised=a:1,b:2", "one address"),
        ("network.frame_bytes_max=16MiB", "half of network.arena_bytes"),
        ("topics.max.message.bytes=8MiB", "network.frame_bytes_max"),
        ("topics.partitions=10001", "at most 10000"),
        ("network.workers", "key=value"),
        ("=1", "key=value"),
    ],
)
def test_bad_value_names_key_value_and_what_would_be_right(wrong: str, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        load(None, [wrong])


@pytest.mark.parametrize(
    "text, says",
    [
        ("[network\n", "not TOML"),
        (
            "[metrics]\n#listen = 1\n[disk]\n[ metrics ] # mine\nlisten = 1\n",
            r"line 4: \[metrics\] is in line 1 already",
        ),
        ("[disk]\nbytes_max = 1\n\nbytes_max = 2\n", "line 4: bytes_max has a value in line 2 already"),
        ("disk.bytes_max = 1\n[disk]\nbytes_max = 2\n", r"Cannot declare \[disk\] twice"),
        ("[disk]\nbytes_max = 1\nbytes_max.x = 2\n", "not TOML: .*line 3"),
        ("[disk]\nfree_bytes_min = much\n", "not TOML: .*line 2, column 18.*: 'free_bytes_min = much'"),
        ("[network]\nworkers = true\n", "whole number"),
        ("[native]\nlisten = 9091\n", "text in quotes"),
        ("[network]\nworkers = [1]\n", "whole number"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(BadValue, match=says) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadValue, match="not UTF-8"):
        load(tmp_path / "b.toml")


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(UnknownKey) as caught:
        load(None, ["nope.a=1", "network.workers=x"])
    assert len(str(caught.value).splitlines()) == 2


def test_topic_settings_parse_and_back() -> None:
    base = Config().topics.defaults
    settings = TopicSettings.parse({"retention.bytes": "10GiB", "flush.messages": 0}, base)
    assert (settings.retention_bytes, settings.flush_messages) == (10 << 30, 0)
    assert settings.segment_bytes == base.segment_bytes
    assert TopicSettings.parse(settings.as_kafka(), TopicSettings()) == settings
    assert set(settings.as_kafka()) == set(TOPIC_KEYS)


def test_kafkas_defaults_of_flushing_leave_it_to_the_system() -> None:
    """Otherwise a topic that is copied with all its settings would show its messages late, or never."""
    never = {"flush.messages": str(2**63 - 1), "flush.ms": str(2**63 - 1)}
    assert TopicSettings.parse(never, TopicSettings()).flush_messages == 0
    assert TopicSettings.texts(never, TopicSettings()) == never, "they are shown as they were given"
    assert TopicSettings.parse({"flush.messages": 2**63 - 1}, TopicSettings()).flush_messages == 2**63 - 1


def test_topic_settings_refuse_with_a_code_that_clients_know() -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'retention\.ms'"):
        TopicSettings.parse({"retention.m": "1"}, TopicSettings())
    with pytest.raises(InvalidSetting, match=r"cleanup\.policy = 'compress': must be one of delete, compact,"):
        TopicSettings.parse({"cleanup.policy": "compress"}, TopicSettings())


@pytest.mark.parametrize(
    "name, holds, does_not",
    [
        (
            "cleanup.policy",
            ["delete", " delete ", "compact", "compact, delete"],
            ["", "none", "compact,compact", "DELETE"],
        ),
        ("delete.retention.ms", ["0", "86400000", "1d", str(2**63 - 1)], ["-1", "soon", str(2**63)]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.1", "nan", "inf", "-0.1", "half", "\u0661"]),
        ("max.compaction.lag.ms", ["1"], ["0"]),
    ],
)
def test_how_topics_may_be_compacted(name: str, holds: list[str], does_not: list[str]) -> None:
    for value in holds:
        TopicSettings.parse({name: value}, TopicSettings())
    for value in does_not:
        with pytest.raises(InvalidSetting, match=re.escape(name)):
            TopicSettings.parse({name: value}, TopicSettings())


def test_the_ensembles_heap_follows_from_the_positions_that_groups_may_have() -> None:
    assert (load().committed_max, load().heap_mb) == (100_000, 130)
    few = load(None, ["topics.partitions_max=100"])
    assert (few.committed_max, few.heap_mb) == (1_000, 33)
    assert load(None, ["offsets.committed_max=1048576"]).heap_mb == 32 + 1_024
    assert load(None, ["zookeeper.heap_mb=48"]).heap_mb == 48
    with pytest.raises(BadValue, match="must be 0, or at least 16"):
        load(None, ["zookeeper.heap_mb=15"])
    assert load(None, ["offsets.retention.ms=1d"]).offsets.retention_ms == 86_400_000


def test_a_session_lasts_longer_than_the_time_between_heartbeats() -> None:
    assert load(None, ["groups.consumer_session_ms=6000"]).groups.consumer_heartbeat_ms == 5_000
    with pytest.raises(BadValue, match=r"groups\.consumer_heartbeat_ms = 5000: not below"):
        load(None, ["groups.consumer_session_ms=5000"])

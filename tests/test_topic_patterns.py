"""Settings by pattern: what they give a topic, where that is shown, and which patterns are refused."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.config_file import with_key
from appliance.client import Admin
from appliance.config import BUILT_IN, OF_CONFIGURATION, OF_TOPIC, Config, load
from appliance.errors import BadValue, ConfigFault, UnknownKey
from appliance.processes.supervisor.reloads import Reloads
from appliance.topic_patterns import _matcher

from .support.command_line import run
from .support.server import Server

HOUR, DAY = 3_600_000, 86_400_000


def of(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "a.toml"
    path.write_text(text)
    return load(path, overrides)


@given(st.text("ab.*", min_size=1, max_size=8).filter(lambda text: "*" in text), st.text("ab.", max_size=10))
def test_a_star_is_any_number_of_characters(pattern: str, name: str) -> None:
    assert bool(_matcher(pattern)(name)) == fnmatch.fnmatchcase(name, pattern)


def test_the_pattern_that_says_most_wins_each_key_by_itself(tmp_path: Path) -> None:
    config = of(
        tmp_path,
        '[topics]\nsegment.ms = "3h"\n[topics."web-shop-*"]\nretention.ms = "1h"\n'
        '[topics."web-*"]\nretention.ms = "1d"\npartitions = 4\n[topics.\'*\']\nretention.bytes = "1GiB"\n',
    )
    defaults = config.topic_defaults
    found = {name: defaults.settings_of(name) for name in ("web-shop-1", "web-1", "app")}
    assert [one.retention_ms for one in found.values()] == [HOUR, DAY, 7 * DAY]
    assert {one.retention_bytes for one in found.values()} == {1 << 30}
    assert {one.segment_ms for one in found.values()} == {3 * HOUR}
    assert [config.partitions_of(name) for name in found] == [4, 4, 1]
    sources = defaults.sources("web-shop-1", {"flush.ms": "5"})
    shown = [sources[name] for name in ("flush.ms", "retention.ms", "retention.bytes", "segment.ms", "flush.bytes")]
    assert shown == [OF_TOPIC, "pattern web-shop-*", "pattern *", OF_CONFIGURATION, BUILT_IN]
    assert defaults.held_by("web-1", {"retention.ms": "7"}).retention_ms == 7, "what a topic sets comes first"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ('[topics."web-*"]\nretention.mss = 1\n', UnknownKey, r":2: .*did you mean .retention\.ms"),
        ('[topics."web-*"]\n\n"retention.ms" = "x"\n', BadValue, r":3: .*must be a whole number"),
        ('[topics."web-*"]\nauto_create = true\n', UnknownKey, ":2: unknown key"),
        ('[topics."web-*"]\npartitions = 0\n', BadValue, ":2: .*at least 1"),
        ('[topics."web/*"]\npartitions = 2\n', BadValue, r':2: \[topics\."web/\*"\]: a pattern has letters'),
        ('[topics."web-[ab]"]\npartitions = 2\n', BadValue, ":2: .*a pattern has letters"),
        ('[topics.""]\npartitions = 2\n', BadValue, ":2: .*a pattern has letters"),
        ('[topics."web.log"]\npartitions = 2\n', BadValue, ":2: .*topics create web.log"),
        (f'[topics."{"a" * 249}*"]\npartitions = 2\n', BadValue, ":2: .*more than 249"),
        ('[topics."web-*"]\npartitions = 10000\n[topics]\npartitions_max = 9\n', BadValue, "partitions_max"),
        ('[topics."web-*"]\nmax.message.bytes = "1GiB"\n', BadValue, r'topics\."web-\*"\.max\.message\.bytes'),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_line(
    tmp_path: Path, text: str, error: type[ConfigFault], says: str
) -> None:
    with pytest.raises(error, match=says):
        of(tmp_path, text)


def test_a_pattern_without_quotes_is_told_how_to_write_it() -> None:
    with pytest.raises(UnknownKey, match=re.escape('as topics."web-*".retention.ms')):
        load(None, ["topics.web-*.retention.ms=1d"])
    assert load(None, ['topics."web-*".retention.ms=1d']).topic_defaults.settings_of("web-1").retention_ms == DAY


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    config = of(tmp_path, '[topics."a.*"]\npartitions = 3\nretention.ms = "1h"\ncleanup.policy = "compact"\n')
    shown = run("config", "show", "--config", str(tmp_path / "a.toml"))
    assert of(tmp_path, shown.out) == config


def test_a_key_of_a_pattern_is_set_in_its_table() -> None:
    key, text = 'topics."web-*".retention.ms', "[topics]\npartitions = 2\n"
    made = with_key(text, key, '"1d"')
    assert made == text.rstrip() + '\n\n[topics."web-*"]\nretention.ms = "1d"\n'
    assert with_key(made, key, '"2d"') == made.replace("1d", "2d")
    assert with_key(made, 'topics."web-*".partitions', "4").endswith(
        '[topics."web-*"]\npartitions = 4\nretention.ms = "1d"\n'
    )


def test_a_reload_takes_patterns_and_says_what_changed() -> None:
    reloads = Reloads(load(None, []))
    in_force = reloads.note_config(load(None, ['topics."web-*".retention.ms=1h']))
    assert in_force.topic_defaults.settings_of("web-1").retention_ms == HOUR
    assert reloads.last["changed"] == [['topics."web-*".retention.ms', "", HOUR]]
    assert reloads.last["needs_restart"] == []
    assert reloads.note_config(load(None, [])).topic_patterns == {}
    assert reloads.last["changed"] == [['topics."web-*".retention.ms', HOUR, ""]]


def test_topics_take_what_matches_them_and_say_so(tmp_path: Path, make_appliance: Callable[..., Server]) -> None:
    """Those that are made, those that producing makes, and after a reload those that were there."""
    config = tmp_path / "a.toml"
    config.write_text('[topics."web-*"]\npartitions = 3\nretention.ms = "1h"\n')
    with Server(tmp_path / "data", config, **{"zookeeper.nodes": 0}) as server:
        at = ("--data", str(server.data_dir))
        assert "with 3 partitions" in run("topics", "create", "web-made", *at).out
        assert run("topics", "create", "web-own", "--partitions", "1", "--setting", "retention.ms=5m", *at).status == 0
        with Admin(server.native) as admin:
            admin.ensure_topic("web-demand")
        shown = {row["name"]: row for name in ("web-made", "web-own", "web-demand")
                 for row in [run("topics", "describe", name, *at, "--json").json]}  # fmt: skip
        assert {name: (len(row["partitions"]), row["settings"]["retention.ms"], row["sources"]["retention.ms"])
                for name, row in shown.items()} == {
            "web-made": (3, str(HOUR), "pattern web-*"),
            "web-own": (1, "300000", "topic"),
            "web-demand": (3, str(HOUR), "pattern web-*"),
        }  # fmt: skip
        assert "pattern web-*" in run("topics", "describe", "web-made", *at).out
        config.write_text('[topics."web-*"]\nretention.ms = "2h"\n')
        assert 'topics."web-*".retention.ms: 3600000 -> 7200000' in run("reload", *at).out
        row = run("topics", "describe", "web-made", *at, "--json").json
        assert (len(row["partitions"]), row["settings"]["retention.ms"]) == (3, str(2 * HOUR))

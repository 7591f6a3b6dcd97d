"""What a reload changes, and what waits for a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.config import KEYS, load
from appliance.processes.supervisor.reloads import RELOADED, Reloads

from ...support.command_line import run
from ...support.server import Server, wait_for


def test_every_beginning_is_that_of_a_key() -> None:
    for beginning in RELOADED:
        assert any(key.startswith(beginning) for key in KEYS), beginning


def test_changes_are_told_once_and_waiting_ones_as_long_as_they_wait() -> None:
    reloads = Reloads(load(None, []))
    in_force = reloads.note_config(load(None, ["topics.retention.ms=1h", "kafka.listen=127.0.0.1:1"]))
    assert (in_force.topics.retention_ms, in_force.kafka.listen) == (3_600_000, "127.0.0.1:9092")
    assert reloads.last["changed"] == [["topics.retention.ms", 604_800_000, 3_600_000]]
    assert reloads.last["needs_restart"] == [["kafka.listen", "127.0.0.1:9092", "127.0.0.1:1"]]
    reloads.note_config(load(None, ["topics.retention.ms=1h", "kafka.listen=127.0.0.1:1"]))
    assert reloads.last["changed"] == []
    assert len(reloads.last["needs_restart"]) == 1
    reloads.fail("bad")
    assert (reloads.last["error"], reloads.last["count"]) == ("bad", 3)
    reloads.note_config(load(None, []))
    assert reloads.last["needs_restart"] == []
    assert reloads.last["changed"] == [["topics.retention.ms", 3_600_000, 604_800_000]]


@pytest.fixture
def server(tmp_path: Path, make_appliance: Callable[..., Server]) -> Server:
    made = Server(tmp_path / "data", tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text("")
    return made


def test_the_command_says_what_a_reload_does(server: Server, tmp_path: Path) -> None:
    """Good, needing a restart, bad, and nobody there: each with its exit status."""
    config, at = tmp_path / "a.toml", ("--data", str(server.data_dir))
    with server:
        wait_for((server.data_dir / "scrub.json").exists, "the first round of the scrubber")
        begun_s = json.loads((server.data_dir / "scrub.json").read_text())["begun_s"]
        wanted = ('[topics]\n"retention.ms" = "1h"', '[log]\nlevel = "debug"', "[scrub]\nevery_ms = 1000")
        config.write_text("\n".join([*wanted, "[liveness]\ntimeout_ms = 20000\n"]))
        done = run("reload", *at)
        assert done.status == 0
        assert "topics.retention.ms: 604800000 -> 3600000" in done.out
        assert "log.level: info -> debug" in done.out
        assert "scrub.every_ms: 604800000 -> 1000" in done.out.splitlines(), "it takes effect at once"
        wait_for(lambda: json.loads((server.data_dir / "scrub.json").read_text())["begun_s"] > begun_s + 1, "a round")
        assert "needs a restart: liveness.timeout_ms: 10000 -> 20000" in done.out
        assert run("status", *at, "--json").json["reload"]["needs_restart"] == [["liveness.timeout_ms", 10000, 20000]]
        config.write_text("[topics]\nretention = 1\n")
        done = run("reload", *at)
        assert done.status == 78
        assert "topics.retention" in done.err
        assert "needs a restart" in run("status", *at).out
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.state["reload"]["count"] == 3, "a reload by signal")
    assert run("reload", *at).status == 75


def test_a_url_that_is_a_secret_is_not_shown() -> None:
    reloads = Reloads(load(None, ["alerts.webhook=https://hooks.example/OLDSECRET"]))
    reloads.note_config(load(None, ["alerts.webhook=https://hooks.example/NEWSECRET"]))
    assert reloads.last["changed"] == [["alerts.webhook", "***", "***"]]
    reloads.note_config(load(None, ["alerts.webhook=/etc/appliance/webhook"]))
    assert reloads.last["changed"] == [["alerts.webhook", "***", "/etc/appliance/webhook"]]

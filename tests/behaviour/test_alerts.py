"""Alerts of a real appliance: a condition begins and ends, once each, whatever dies in between."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.health.alerts import ALERTS_FILE

from ..support.command_line import succeeding
from ..support.server import Server, wait_for
from ..support.webhook import Receiver, receiver

__all__ = ["receiver"]


def test_a_condition_is_told_once_when_it_begins_and_when_it_ends(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "appliance.toml"

    def reload_with(alerts: str, warn_bytes: int) -> None:
        disk = f"[disk]\nfree_bytes_min = 0\nfree_bytes_warn = {warn_bytes}\n"
        file.write_text(f"[alerts]\n{alerts}\nlook_ms = 100\n{disk}")

    def told() -> list[tuple[str, str]]:
        return [(body["condition"], body["event"]) for _, body in receiver.got if body["condition"] == "DiskLow"]

    hook = f'webhook = "{receiver.url}"'
    reload_with("", 0)
    with Server(tmp_path / "data", file, **{"network.workers": 1}) as server:
        reload_with(hook, 1 << 60)
        succeeding("reload", "--data", str(server.data_dir))
        wait_for(lambda: ("DiskLow", "begins") in told(), "a reload to turn alerts on, and the condition to be told")
        state = server.data_dir / ALERTS_FILE
        wait_for(lambda: not json.loads(state.read_text())["waiting"], "the receipt to be noted")
        alerts_pid = server.pid_of("alerts")
        server.kill(alerts_pid)
        wait_for(lambda: server.processes("alerts") and server.pid_of("alerts") != alerts_pid, "another process")
        receiver.answers = [500]
        reload_with(hook, 0)
        succeeding("reload", "--data", str(server.data_dir))
        wait_for(lambda: ("DiskLow", "ends") in told(), "the end to be told")
        wait_for(lambda: not json.loads(state.read_text())["waiting"], "all receipts to be noted")
        assert list(dict.fromkeys(told())) == [("DiskLow", "begins"), ("DiskLow", "ends")]
        assert receiver.got[-1][1]["appliance"]["data"] == str(server.data_dir)
        ids = [body["id"] for _, body in receiver.got]
        assert len(ids) == len(set(ids)) + 1, "one came again, since it was refused"

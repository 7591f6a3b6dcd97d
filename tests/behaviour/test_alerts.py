"""Alerts of a real appliance: a condition begins and ends, once each, whatever dies in between."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.health.undelivered import ALERTS_FILE

from ..support.command_line import run, succeeding
from ..support.remedies import Remedy
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


def test_who_cannot_be_told_is_named_until_they_are(tmp_path: Path, receiver: Receiver) -> None:
    """Method: a webhook refuses, and mail has no program; the remedy is another answer, and a receiver fewer."""
    file = tmp_path / "appliance.toml"
    disk = f"[disk]\nfree_bytes_min = 0\nfree_bytes_warn = {1 << 60}\n"
    hook = f'webhook = "{receiver.url}"\nlook_ms = 100\ndigest = "00:00"\n'
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / ALERTS_FILE).write_text('{"digest_at": 1.0}')  # the last digest was long ago
    file.write_text(f'[alerts]\n{hook}mail_to = "root"\nsendmail = "/nowhere/sendmail"\n{disk}')
    receiver.answers = [500, 500]

    def undelivered() -> list[dict[str, str]]:
        found: list[dict[str, str]] = run("doctor", "--json", "--data", str(server.data_dir)).json
        return [row for row in found if row["condition"] == "AlertsUndelivered"]

    with Server(tmp_path / "data", file, **{"network.workers": 1, "zookeeper.nodes": 0}) as server:
        found = wait_for(lambda: len(rows := undelivered()) == 2 and rows, "both receivers to be named")
        whys = {row["what"].split(",")[0]: row["why"] for row in found}
        assert whys["alerts do not reach alerts.webhook"] == "answered with 500"
        assert "/nowhere/sendmail: No such file" in whys["alerts do not reach those in alerts.mail_to"]
        for row in found:
            with Remedy(row) as remedy:
                remedy.run_all()
        file.write_text(f"[alerts]\n{hook}{disk}")
        succeeding("reload", "--data", str(server.data_dir))
        wait_for(lambda: not undelivered(), "the receiver to answer, and the other to be forgotten")
        assert ("DiskLow", "begins") in {(body["condition"], body["event"]) for _, body in receiver.got}
        digests = {body["id"]: body for _, body in receiver.got if body["event"] == "digest"}
        (digest,) = digests.values()
        assert "digest: nothing was wrong; 0 messages (0 B) came in" in digest["text"]
        assert digest["since"] == 1.0 and digest["findings"][-1]["what"].startswith("the disk has ")

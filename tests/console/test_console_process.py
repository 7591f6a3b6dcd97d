"""What the console's process loads: its memory is bounded, and most of it is code; and what a reload changes there."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from appliance.client import Admin, Producer

from ..support.command_line import run
from ..support.server import Server, wait_for


def test_it_loads_nothing_of_the_coordinator() -> None:
    """The packages for ZooKeeper and for Kafka's cold requests, with the coordinator's own, take 10 MB."""
    code = "import sys, appliance.console.console_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    others = ("kazoo", "kafka", "appliance.groups.", "appliance.kafka_apis.", "appliance.processes.coordinator")
    assert [name for name in loaded.stdout.split() if name.startswith(others)] == []


def test_a_reload_changes_what_the_page_shows_and_to_whom(
    tmp_path: Path, make_appliance: Callable[..., Server]
) -> None:
    """A mask holds at once, and so does what is decided about visitors who are not logged in."""
    config = tmp_path / "a.toml"
    config.write_text("[console]\nanonymous = true\n")
    settings = {"console.listen": "127.0.0.1:0", "zookeeper.nodes": 0}
    settings["kafka.listen"] = "127.0.0.1:0, SASL_PLAINTEXT://127.0.0.1:0"
    with Server(tmp_path / "data", config, **settings) as server:
        with Admin(server.native) as admin, Producer(server.native) as producer:
            admin.create_topic("payments")
            producer.send("payments", b'{"card": "4111"}').result()

        def seen() -> str:
            page = f"http://{server.state['listeners']['console']}/api/messages?topics=payments"
            try:
                with urllib.request.urlopen(page, timeout=60) as answer:
                    return str(answer.read())
            except urllib.error.HTTPError as error:
                return str(error.code)

        assert "4111" in seen()
        config.write_text('[console]\nanonymous = true\nmasks = "*: card"\n')
        done = run("reload", "--data", str(server.data_dir))
        assert done.status == 0 and "console.masks" in done.out and "needs a restart" not in done.out
        wait_for(lambda: "4111" not in seen(), "the mask")
        assert "***" in seen()
        config.write_text("[console]\n")
        assert run("reload", "--data", str(server.data_dir)).status == 0
        wait_for(lambda: seen() in ("401", "403"), "a login is asked for")

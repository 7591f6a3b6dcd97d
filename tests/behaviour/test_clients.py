"""``appliance clients``: who is connected, by which name, from where, and how much each moves."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest

from appliance.client import Admin, Producer

from ..support.command_line import run, succeeding
from ..support.server import Server, wait_for

BYTES = 200_000


@pytest.fixture
def server(make_appliance: Callable[..., Server]) -> Server:
    return make_appliance(**{"network.workers": 2})


def test_clients_of_both_listeners_are_shown(server: Server) -> None:
    with Producer(server.native, client_name="ours") as ours:
        ours.send("t", b"x").result(30)
        theirs = confluent_kafka.Producer({"bootstrap.servers": server.kafka, "client.id": "theirs"})
        theirs.produce("t", bytes(BYTES))
        assert theirs.flush(30) == 0
        at = ("--json", "--data", str(server.data_dir))

        def moved() -> list[dict[str, object]]:
            rows = succeeding("clients", "theirs", *at).json["clients"]
            return rows if sum(row["bytes_in"] for row in rows) >= BYTES else []

        row, *more = wait_for(moved, "the bytes to be counted")
        assert not more, "one row for all its connections"
        assert (row["user"], row["host"], row["listener"]) == ("User:ANONYMOUS", "127.0.0.1", f"kafka {server.kafka}")
        assert str(row["software"]).startswith("confluent-kafka-python ")
        native = wait_for(lambda: succeeding("clients", "ours", *at).json["clients"], "the native client to be counted")
        assert native[0]["listener"] == f"native {server.native}"
        shown = succeeding("clients", "kafka ", "--data", str(server.data_dir)).out
        assert "theirs" in shown and "ours" not in shown
        with Admin(server.native) as admin:
            assert {one["client_id"] for one in admin.clients()["clients"]} >= {"theirs", "ours"}
        at_address = succeeding("clients", "theirs", "--json", "--connect", server.native).json
        assert at_address["clients"][0]["software"] == row["software"] and at_address["others"] == 0
        assert len(succeeding("clients", "-n", "1", *at).json["clients"]) == 1


def test_nobody_is_connected_to_a_stopped_one(server: Server) -> None:
    server.stop()
    said = run("clients", "--data", str(server.data_dir))
    assert said.status == 75 and f"no appliance serves {server.data_dir}" in said.err

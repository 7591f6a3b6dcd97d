"""appliance.cli.quotas_commands, against a real appliance; what is set there is what Kafka's API shows, and holds."""

from __future__ import annotations

import json

import pytest

from ..support.command_line import run, succeeding
from ..support.server import Server


def test_quotas_are_set_listed_and_deleted(appliance: Server) -> None:
    at = ("--data", str(appliance.data_dir))
    first = succeeding("quotas", "set", "--user", "u", "--in", "1MiB", "--requests", "2.5", "--json", *at).json
    assert first == [{"user": "u", "client_id": None, "limits": {"producer_byte_rate": 1048576.0, "request_rate": 2.5}}]
    both = ("--user", "u", "--client-id", "c")
    succeeding("quotas", "set", *both, "--out", "2000", *at)
    succeeding("quotas", "set", "--default-user", "--out", "50MiB", *at)
    changed = succeeding("quotas", "set", "--user", "u", "--requests", "3", "--json", *at).json
    assert changed[0]["limits"] == {"producer_byte_rate": 1048576.0, "request_rate": 3.0}, "the others stay"
    shown = succeeding("quotas", "list", *at).out
    assert "(default)" in shown and "50.0 MiB/s" in shown and "1.0 MiB/s" in shown and "(any)" in shown
    assert len(succeeding("quotas", "list", "--json", *at).json) == 3
    assert len(succeeding("quotas", "list", "c", "--json", *at).json) == 1
    assert run("quotas", "delete", "--user", "u", *at).status == 2, "nobody can be asked"
    assert len(succeeding("quotas", "delete", "--user", "u", "--dry-run", "--json", *at).json) == 1
    assert len(succeeding("quotas", "delete", "--user", "u", "--yes", "--json", *at).json) == 1
    left = succeeding("quotas", "list", "--json", *at).json
    assert sorted(json.dumps([row["user"], row["client_id"]]) for row in left) == ['["", null]', '["u", "c"]']
    for whose in (both, ("--default-user",)):
        succeeding("quotas", "delete", *whose, "--yes", *at)
    assert succeeding("quotas", "list", "--json", *at).json == []
    assert succeeding("quotas", "delete", "--user", "u", "--yes", "--json", *at).json == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--in", "1MiB"], "say whose"),
        (["--user", "u"], "say how much"),
        (["--user", "", "--in", "1MiB"], "not empty"),
        (["--user", "u", "--default-user", "--in", "1MiB"], "not both"),
        (["--user", "u", "--in", "fast"], "number of bytes"),
        (["--user", "u", "--in", "0"], "above 0"),
        (["--user", "u", "--in", "1k"], "number of bytes"),
        (["--user", "u", "--out", "-1"], "number of bytes"),
        (["--user", "u", "--in", "1e400"], "number of bytes"),
        (["--user", "u", "--requests", "-1"], "must be a number"),
        (["--user", "u" * 300, "--requests", "1"], "255 characters"),
    ],
)
def test_wrong_quotas_are_refused(appliance: Server, words: list[str], why: str) -> None:
    said = run("quotas", "set", *words, "--data", str(appliance.data_dir))
    assert said.status == (65 if "255" in why else 2) and why in " ".join(said.err.replace("│", " ").split())

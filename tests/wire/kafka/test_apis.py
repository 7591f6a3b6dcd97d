"""appliance.wire.kafka.apis: the one table of what is served, and what says the same elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.wire.kafka.apis import ADVERTISED, APIS, SERVED_BY_WORKERS

from ...support.kafka_messages import message

PAGE = (Path(__file__).parents[2] / "clients" / "README.md").read_text()


def test_the_page_for_clients_lists_what_is_served() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+)-(\d+) \| (worker|coordinator) \|", PAGE, re.MULTILINE)
    listed = {int(key): (name, int(least), int(most), by == "worker") for name, key, least, most, by in rows}
    assert listed == {
        key: (api.name, api.version_min, api.version_max, key in SERVED_BY_WORKERS) for key, api in APIS.items()
    }
    assert list(listed) == sorted(listed), "in the order of their keys"
    assert {key: row[1:3] for key, row in listed.items()} == ADVERTISED


def test_the_table_agrees_with_the_definitions() -> None:
    for key, api in APIS.items():
        for kind in ("Request", "Response"):
            definition = message(key, kind)
            assert key == definition.API_KEY
            assert api.version_max <= definition.max_version
            flexible = [
                version for version in range(definition.max_version + 1) if definition.flexible_version_q(version)
            ]
            assert (flexible or [99])[0] == api.flexible_from, api.name

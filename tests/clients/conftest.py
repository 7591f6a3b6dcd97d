"""One appliance for all tests of this directory, with a one-node ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server

HERE = Path(__file__).parent
BUILDING_S_MAX = 900
"""Of a test: whichever is first builds a client in Go, or fetches packages, which is slow where many others compute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILDING_S_MAX))


class Broker(Server):
    """An appliance that keeps its addresses when it is started again, as clients expect."""

    def __init__(self, data_dir: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(data_dir, None, **settings)

    def __enter__(self) -> Broker:
        return self.start()

    def start(self) -> Broker:
        super().start()
        self.settings |= {f"{protocol}.listen": self.state["listeners"][protocol] for protocol in ("kafka", "native")}
        return self


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"zookeeper.nodes": 1, "groups.consumer_heartbeat_ms": 200, "groups.consumer_session_ms": 3_000}
    with Broker(tmp_path_factory.mktemp("clients") / "data", settings) as running:
        running.wait_for_zookeeper()
        yield running

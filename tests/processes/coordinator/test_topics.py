"""appliance.processes.coordinator.topics: changes of topics that are refused or were made before."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.catalog import Topic
from appliance.zookeeper.paths import TopicInfo

from ...support.coordinator_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_catalog_that_cannot_be_stored_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.errors import DiskFull

    def full(path: Path, content: bytes) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr("appliance.catalog.replace_data_file", full)
    with pytest.raises(DiskFull):
        bench.run(bench.topics.create("more"))
    with pytest.raises(DiskFull):
        bench.run(bench.topics.delete("logs"))
    assert list(bench.broker.topics()) == ["logs"] and not bench.topics.catalog.removals and not bench.sent


def test_a_topic_that_is_registered_already_is_adopted(bench: Bench) -> None:
    """By a broker that was first, or by ourselves, when ZooKeeper's answer to the creation was lost."""
    registered = TopicInfo({0: [8]}, {"retention.ms": "5"}, "a" * 32)
    bench.run(bench.registry.ask(bench.registry.topics.create_topic("later", registered)))
    later = Topic("later", {0: [8]}, {"retention.ms": "5"}, "a" * 32)
    assert bench.run(bench.topics.ensure("later")) == (later, False)

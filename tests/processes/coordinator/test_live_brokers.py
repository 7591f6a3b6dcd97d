"""appliance.processes.coordinator.live_brokers: who coordinates what, by the brokers that live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.groups.group_coordinator import coordinator_of
from appliance.processes.coordinator import live_brokers
from appliance.processes.coordinator.live_brokers import LiveBrokers


def registry(*broker_ids: int) -> Any:
    brokers = {broker_id: SimpleNamespace(kafka="127.0.0.1:1") for broker_id in broker_ids}
    return SimpleNamespace(brokers=brokers, revision=1)


def test_a_coordinator_is_looked_for_once_until_a_broker_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a request costs the same whatever the number of brokers; who has gone coordinates nothing any more."""
    looked: list[str] = []

    def look(name: str, brokers: Any) -> Any:
        looked.append(name)
        return coordinator_of(name, brokers)

    monkeypatch.setattr(live_brokers, "coordinator_of", look)
    live_brokers._coordinator.cache_clear()
    registered, config = registry(*range(1, 101)), SimpleNamespace(broker=SimpleNamespace(id=1))
    brokers = LiveBrokers(config, registered, lambda: b"")  # type: ignore[arg-type]
    names = [f"group-{number}" for number in range(20)]
    before = [brokers.coordinator(name) for name in names]
    for _ in range(10):
        assert [brokers.coordinator(name) for name in names] == before
    assert looked == names
    gone = before[0]
    del registered.brokers[gone]
    registered.revision += 1
    after = [brokers.coordinator(name) for name in names]
    assert gone not in after and all(new == old for new, old in zip(after, before, strict=True) if old != gone)


def test_who_does_not_listen_for_kafka_leaves_it_to_others_that_do() -> None:
    config = SimpleNamespace(broker=SimpleNamespace(id=1))
    brokers = LiveBrokers(config, registry(1, 2), lambda: b"")  # type: ignore[arg-type]
    own = next(name for name in map(str, range(100)) if brokers.coordinates(name))
    brokers.listening["native"] = "127.0.0.1:2"
    assert brokers.coordinator(own) == 2
    brokers.listening["kafka"] = "127.0.0.1:3"
    assert brokers.coordinates(own)

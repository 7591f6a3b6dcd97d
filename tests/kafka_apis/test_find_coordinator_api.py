"""appliance.kafka_apis.find_coordinator_api: of groups and of transactional ids, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, LISTENER, Client, FakeCluster, run

VERSIONS = range(APIS[KEY["FindCoordinator"]].version_max + 1)


async def find(client: Client, version: int, key: str, key_type: int = 0) -> Any:
    if version >= 4:
        (coordinator,) = (await client.ask("FindCoordinator", coordinator_keys=[key], key_type=key_type)).coordinators
        return coordinator
    more = {"key_type": key_type} if version >= 1 else {}
    return await client.ask("FindCoordinator", version, key=key, **more)


@pytest.mark.parametrize("version", VERSIONS)
def test_groups(version: int) -> None:
    client = Client(FakeCluster())
    coordinator = run(find(client, version, "g"))
    assert (coordinator.error_code, coordinator.node_id, coordinator.host, coordinator.port) == (0, 1, "here", 9092)
    assert run(find(client, version, "")).error_code == 0, "as in Kafka: joining it is what is refused"
    assert run(find(client, version, "g" * 256)).error_code == Code.INVALID_GROUP_ID
    if version >= 1:
        assert run(find(client, version, "x", 2)).error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_transactional_ids(version: int) -> None:
    cluster = FakeCluster()
    client = Client(cluster)
    coordinator = run(find(client, version, "tx", 1))
    assert (coordinator.error_code, coordinator.node_id, coordinator.host, coordinator.port) == (0, 1, "here", 9092)
    assert run(find(client, version, "t" * 10_000, 1)).error_code == Code.INVALID_REQUEST
    cluster.leased = False
    assert run(find(client, version, "tx", 1)).error_code == Code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_where_there_can_be_no_transactions(version: int) -> None:
    cluster = FakeCluster()
    cluster.transactions.serves = False
    refused = run(find(Client(cluster), version, "tx", 1))
    repeats = version == 2  # librdkafka asks so, and repeats the request at any other code
    expected = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if repeats else Code.UNSUPPORTED_VERSION
    assert refused.error_code == expected
    assert "transactions need ZooKeeper" in refused.error_message


def test_the_listener_decides_what_a_client_is_told() -> None:
    coordinator = run(find(Client(FakeCluster()), 3, "g"))
    assert (coordinator.node_id, coordinator.host, coordinator.port) == (1, "here", 9092), f"asked through {LISTENER}"

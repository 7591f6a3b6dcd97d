"""Quotas over the Kafka protocol: as Kafka's tools set, show and remove them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import Client, FakeCluster, run


def entry(entity: dict[str, str | None], *, remove: bool = False, **limits: float) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": rate, "remove": remove} for key, rate in limits.items()],
    }


def ask(client: Client, *, strict: bool = False, **wanted: Any) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """``wanted``: entity type (``client_id``) → name, None for the default, ... for any."""
    components = [
        {
            "entity_type": kind.replace("_", "-"),
            "match_type": 2 if name is ... else 1 if name is None else 0,
            "match": name if isinstance(name, str) else None,
        }
        for kind, name in wanted.items()
    ]
    reply = run(client.ask("DescribeClientQuotas", components=components, strict=strict))
    assert reply.error_code == 0, reply.error_message
    return [
        (
            {part.entity_type: part.entity_name for part in row.entity},
            {value.key: value.value for value in row.values},
        )
        for row in reply.entries
    ]


def alter(client: Client, *entries: dict[str, Any], validate_only: bool = False) -> list[int]:
    reply = run(client.ask("AlterClientQuotas", entries=list(entries), validate_only=validate_only))
    return [row.error_code for row in reply.entries]


def test_quotas_are_set_shown_and_removed() -> None:
    client = Client(FakeCluster())
    assert alter(
        client,
        entry({"user": "ann"}, producer_byte_rate=1024.0, consumer_byte_rate=2048.0),
        entry({"user": "ann", "client-id": "app"}, request_rate=10.0),
        entry({"user": None}, producer_byte_rate=1.0),
        entry({"client-id": "app"}, producer_byte_rate=2.0),
    ) == [0, 0, 0, 0]
    ann = ({"user": "ann"}, {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0})
    both = ({"client-id": "app", "user": "ann"}, {"request_rate": 10.0})
    default = ({"user": None}, {"producer_byte_rate": 1.0})
    app = ({"client-id": "app"}, {"producer_byte_rate": 2.0})
    assert ask(client, user="ann") == [both, ann]
    assert ask(client, user="ann", strict=True) == [ann]
    assert ask(client, user=None) == [default]
    assert ask(client, user=..., client_id=...) == [both]
    assert ask(client, client_id=..., strict=True) == [app]
    assert len(ask(client)) == 4
    assert ask(client, ip=...) == []
    assert alter(client, entry({"user": "ann"}, remove=True, producer_byte_rate=0.0)) == [0]
    assert ask(client, user="ann", strict=True) == [({"user": "ann"}, {"consumer_byte_rate": 2048.0})]
    assert alter(client, entry({"user": "ann"}, remove=True, consumer_byte_rate=0.0)) == [0]
    assert ask(client, user="ann", strict=True) == []


def test_each_entity_is_refused_by_itself() -> None:
    client = Client(FakeCluster())
    wrong = [
        entry({"ip": "10.0.0.1"}, connection_creation_rate=1.0),
        entry({"user": "ann"}, request_percentage=50.0),
        entry({"user": "ann"}, producer_byte_rate=-1.0),
        entry({"user": ""}, producer_byte_rate=1.0),
        entry({"user": "ann"}, producer_byte_rate=1.0) | {"ops": [{"key": "request_rate", "value": 1.0}] * 2},
    ]
    assert alter(client, *wrong, entry({"user": "bob"}, producer_byte_rate=1.0)) == [Code.INVALID_REQUEST] * 5 + [0]
    assert len(ask(client)) == 1


def test_validate_only_changes_nothing() -> None:
    client = Client(FakeCluster())
    good, bad = entry({"user": "ann"}, request_rate=1.0), entry({"user": "ann"}, speed=1.0)
    assert alter(client, good, bad, validate_only=True) == [0, Code.INVALID_REQUEST]
    assert ask(client) == []


@pytest.mark.parametrize(
    "component",
    [
        {"entity_type": "planet", "match_type": 2, "match": None},
        {"entity_type": "user", "match_type": 0, "match": None},
        {"entity_type": "user", "match_type": 7, "match": None},
    ],
)
def test_a_filter_without_a_meaning_is_refused(component: dict[str, Any]) -> None:
    reply = run(Client(FakeCluster()).ask("DescribeClientQuotas", components=[component]))
    assert reply.error_code == Code.INVALID_REQUEST

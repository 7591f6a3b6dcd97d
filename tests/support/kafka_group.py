"""A group of the forwarded Kafka APIs in tests: one that is stable, and what is sent to it."""

from __future__ import annotations

from typing import Any

from .kafka_apis_fixture import ASSIGNMENT, Client, FakeCluster

Stable = tuple[FakeCluster, Client, str]


async def stable(version: int | None = None, *, upgrades: bool = True, **join: Any) -> Stable:
    """A group "g" of one member that owns t-0 and t-1; ``upgrades``: as in ``Limits``."""
    cluster = FakeCluster()
    cluster.add("t", 2)
    client = Client(cluster, upgrades=upgrades)
    joined = await client.join(version=version, **join)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = await client.ask(
        "SyncGroup",
        min(version, 5) if version is not None else None,
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": ASSIGNMENT}],
    )
    assert (synced.error_code, bytes(synced.assignment)) == (0, ASSIGNMENT)
    return cluster, client, joined.member_id


def commit(member_id: str = "", generation: int = -1, *rows: tuple[str, int, int, str | None]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, partition, offset, note in rows or (("t", 0, 500, "note"),):
        each = {"partition_index": partition, "committed_offset": offset, "committed_metadata": note}
        topics.setdefault(topic, []).append(each)
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


def codes(reply: Any) -> list[int]:
    return [each.error_code for topic in reply.topics for each in topic.partitions]

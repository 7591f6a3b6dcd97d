"""Describes what a group has read of each partition, who reads it, and why it stands still: rows of the verb ``group``.

``wire/native_admin.py`` specifies the rows, :mod:`appliance.groups.standstill` has the words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ...clock import wall_s
from ...connected_clients import shown
from ...errors import BrokerAway, NoDirectory
from ...groups.standstill import GroupReader, MemberHeard, PartitionStanding, explain
from ...groups.store import Commit, RegisteredGroup, RegisteredMember
from ...names import TopicPartition
from ...retention import lost_bytes
from ...status import read_clients
from .measurements import Measured

ClientRates = Mapping[tuple[str, str], float]
"""Bytes per second that go to the connections of a client now, by what it calls itself and its address."""


class GroupStanding:
    """One group at one moment.

    ``committed``: its offsets; ``committed_ms``: when; ``heard``: its members, as far as they are known here;
    ``state``: as the verb says it; ``topics``: those that there are.
    """

    def __init__(
        self,
        group: RegisteredGroup,
        state: str,
        committed: Mapping[TopicPartition, Commit],
        committed_ms: Mapping[TopicPartition, int],
        heard: Mapping[str, MemberHeard],
        topics: Collection[str],
    ) -> None:
        self._group, self._state, self._topics = group, state, topics
        self._committed, self._committed_ms, self._heard = committed, committed_ms, heard
        self._owners = {part: member for member in group.members for part in member.partitions}
        self._now_s = wall_s()

    @property
    def parts(self) -> set[TopicPartition]:
        """The partitions that it has read of, or reads."""
        return {*self._committed, *self._owners}

    def members(self) -> list[dict[str, Any]]:
        return [
            {
                "id": member.id,
                "client": member.client_id,
                "host": _address(member),
                "partitions": member.partitions,
                "silent_s": round(self._heard[member.id].silent_s, 1) if member.id in self._heard else None,
            }
            for member in self._group.members
        ]

    async def rows(
        self,
        parts: Collection[TopicPartition],
        measured: Mapping[TopicPartition, Measured],
        rates: Callable[[], ClientRates],
    ) -> list[dict[str, Any]]:
        """
        Args:
            parts: those to describe.
            rates: reads a file, which only a partition needs that stands still.
        """
        standings = {part: self._standing(part, measured.get(part)) for part in sorted(parts)}
        if any(standing.stalls for standing in standings.values()):
            known = await asyncio.to_thread(rates)
            standings = {part: self._with_rate(part, standing, known) for part, standing in standings.items()}
        return [self._row(part, standing, measured.get(part)) for part, standing in standings.items()]

    def _standing(self, part: TopicPartition, measured: Measured | None) -> PartitionStanding:
        committed, owner = self._committed.get(part), self._owners.get(part)
        at_ms = self._committed_ms.get(part) if committed is not None else None
        lag = None if measured is None or measured.lag is None else measured.lag[0]
        reader = None
        if owner is not None:
            name = owner.client_id or owner.id
            reader = GroupReader(name, _address(owner), self._since_s(self._group.owned_ms.get(part)), None)
            reader = reader._replace(heard=self._heard.get(owner.id))
        return PartitionStanding(
            part.topic in self._topics,
            committed.offset if committed is not None else None,
            measured.start if measured is not None else None,
            measured.end if measured is not None else None,
            lag,
            self._since_s(at_ms),
            reader,
            self._state,
            len(self._group.members),
            sum(not member.topics or part.topic in member.topics for member in self._group.members),
            tuple(
                f"{member.client_id or member.id} at {_address(member)}"
                for member in self._group.members
                if member.id in self._heard and self._heard[member.id].awaited
            ),
        )

    def _since_s(self, at_ms: int | None) -> float | None:
        return None if at_ms is None else max(0.0, self._now_s - at_ms / 1000)

    def _with_rate(self, part: TopicPartition, standing: PartitionStanding, rates: ClientRates) -> PartitionStanding:
        owner, reader = self._owners.get(part), standing.reader
        if owner is None or reader is None:
            return standing
        return standing._replace(reader=reader._replace(fetched_s=rates.get((shown(owner.client_id), _address(owner)))))

    def _row(self, part: TopicPartition, standing: PartitionStanding, measured: Measured | None) -> dict[str, Any]:
        committed, owner = self._committed.get(part), self._owners.get(part)
        lag = (None, None, None) if measured is None or measured.lag is None else measured.lag
        return {
            "topic": part.topic,
            "partition": part.partition,
            "offset": standing.offset,
            "owner": owner.id if owner is not None else "",
            "note": committed.metadata if committed is not None else "",
            "end": standing.end,
            "lost_bytes": None if measured is None else lost_bytes(standing.offset, measured.start),
            "committed_ms": self._committed_ms.get(part) if committed is not None else None,
            "owned_ms": self._group.owned_ms.get(part) if owner is not None else None,
            "why": explain(standing),
        } | dict(zip(("lag_messages", "lag_bytes", "lag_seconds"), lag, strict=True))


def client_rates(data_dir: Path) -> ClientRates:
    """What the workers have counted last."""
    try:
        rows = read_clients(data_dir)["clients"]
    except (BrokerAway, NoDirectory):
        return {}
    rates: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["client_id"], row["host"]
        rates[key] = rates.get(key, 0.0) + row["out_s"]
    return rates


def _address(member: RegisteredMember) -> str:
    """Kafka's clients are shown a slash before it."""
    return member.host.removeprefix("/")

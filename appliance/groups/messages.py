"""The input and output values of the state machine of a group, and their bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..wire.kafka.codes import Code

Token = Any
"""Any value that the caller gets back with the reply; None is not a token."""

MEMBER_BYTES: Final = 1024
"""Memory of a member besides the bytes that it sends, rounded up; a given id that has not joined counts as one."""
SESSION_MS_MAX: Final = 30 * 60_000
PART_BYTES: Final = 512
"""Memory of a partition that is assigned to a member of the consumer protocol, rounded up."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the group coordinator, for the groups of each of Kafka's two protocols by itself.

    A join or an assignment beyond one is answered GROUP_MAX_SIZE_REACHED.

    ``groups_max`` live groups; ``members_max`` per group; ``protocols_max`` and ``metadata_bytes_max`` per
    member (all protocols together); ``bytes_max`` for everything that members sent, in all groups together;
    ``waits_max`` requests that wait for other members (half of what one worker may have unanswered), beyond which
    they are answered COORDINATOR_LOAD_IN_PROGRESS.

    ``initial_delay_ms`` and ``newcomer_delay_ms``: for how long a new group of the classic protocol waits for more
    members, after its first and after each further one.

    ``consumer_``: what members of the consumer protocol (KIP-848) do not choose themselves.  ``upgrades``: a group of
    the classic protocol becomes one of the consumer protocol when such a member joins, and with ``downgrades`` back
    again when the last one has gone.
    """

    groups_max: int = 10_000
    members_max: int = 1_000
    protocols_max: int = 32
    metadata_bytes_max: int = 1024 * 1024
    bytes_max: int = 128 * 1024 * 1024
    waits_max: int = 4_096
    session_ms_min: int = 1_000
    session_ms_max: int = SESSION_MS_MAX
    rebalance_ms_max: int = 60 * 60_000
    initial_delay_ms: int = 20
    newcomer_delay_ms: int = 100
    id_wait_ms: int = 3_000
    consumer_session_ms: int = 45_000
    consumer_heartbeat_ms: int = 5_000
    upgrades: bool = True
    downgrades: bool = True

    def refuse(self, join: Join) -> Code:
        """Why a JoinGroup is not accepted, whatever its group is; NONE: it is."""
        if not self.session_ms_min <= join.session_ms <= self.session_ms_max:
            return Code.INVALID_SESSION_TIMEOUT
        if len(join.protocols) > self.protocols_max or metadata_bytes(join.protocols) > self.metadata_bytes_max:
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE

    def bounded(self, join: Join) -> Join:
        """``join`` with a time for a rebalance that holds."""
        rebalance_ms = join.rebalance_ms if join.rebalance_ms > 0 else join.session_ms
        return join._replace(rebalance_ms=min(rebalance_ms, self.rebalance_ms_max))


class Metadata(NamedTuple):
    """One protocol that a member offers, in order of preference, with its subscription."""

    protocol: str
    data: bytes


class Join(NamedTuple):
    """A JoinGroup request.  ``id_wanted``: the client can take an id first and join with it (version 4 on)."""

    member_id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Metadata, ...]
    id_wanted: bool

    @property
    def size(self) -> int:
        """Bytes kept for this request, at most."""
        names = 2 * len(self.client_id) + 2 * len(self.instance or "") + len(self.member_id)
        return MEMBER_BYTES + names + metadata_bytes(self.protocols)

    def new_member_id(self, unique: str) -> str:
        return f"{self.client_id if self.instance is None else self.instance}-{unique}"


class Sync(NamedTuple):
    """A SyncGroup request.  ``protocol_type`` and ``protocol``: from version 5 on, else None.

    ``assignments`` (member id, assignment): from the leader only.
    """

    member_id: str
    instance: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Joined(NamedTuple):
    """The reply to JoinGroup.  ``members`` (id, instance, metadata of the chosen protocol): for the leader only."""

    error: Code
    member_id: str
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class Synced(NamedTuple):
    error: Code
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""


MemberReply = Joined | Synced


def metadata_bytes(protocols: Iterable[Metadata]) -> int:
    return sum(len(offer.protocol) + len(offer.data) for offer in protocols)

"""The interface of the forwarded Kafka APIs to the appliance.

The handlers read the state that :class:`Appliance` offers and ask it, or one of its stores, for changes.  The
coordinator process implements it over topics, partitions and the registry in ZooKeeper, the tests with dictionaries.

Plain methods answer from memory: they give the last known state also while ZooKeeper is away.  ``async`` ones may wait
for others (the supervisor, ZooKeeper).  Their implementer keeps the deadline: without ZooKeeper they raise
``ZooKeeperAway`` within a few seconds, so that no client's request hangs.  Both raise nothing but
:class:`~appliance.errors.ApplianceError`.

Offsets are logical byte offsets.  Names and values of settings are Kafka's, as ``TopicSettings.as_kafka`` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..broker.metadata_answers import Directory
from ..config import Config, TopicDefaults
from ..groups.group_settings import OwnSettings
from ..groups.messages import Limits
from ..security.security_state import SecurityState


class OffsetSpan(NamedTuple):
    """What is in a partition stored here: offsets [start, end).

    ``end`` is the log end offset: it covers what acks=1 has acknowledged, whether it is flushed or not.
    """

    start: int
    end: int


class ProducerInLog(NamedTuple):
    """An idempotent producer of a partition: of its last batch the epoch, last sequence and largest timestamp.

    ``coordinator_epoch``: of the last marker; -1: none.  ``open_from``: where its open transaction begins; -1: none.
    """

    id: int
    epoch: int
    last_sequence: int
    timestamp_ms: int
    coordinator_epoch: int = -1
    open_from: int = -1


class SecurityStore(Protocol):
    """Users, access rules, quotas."""

    @property
    def state(self) -> SecurityState:
        """The present state, also while ZooKeeper is away."""

    async def alter(self, change: Callable[[SecurityState], SecurityState], /) -> object:
        """Change it; ``change`` accepts a state that has the change already.  Raises what ``change`` raises, too."""


class GroupSettingsStore(Protocol):
    """What groups set themselves."""

    @property
    def own(self) -> Mapping[str, OwnSettings]:
        """What each group sets itself that sets anything, there or not, also while ZooKeeper is away."""

    @property
    def limits(self) -> Limits:
        """What holds for groups that set nothing."""

    def settings_after(self, group: str, changes: Mapping[str, str | int | None]) -> OwnSettings:
        """What a group would set itself after these changes.  Raises InvalidSetting, as ``alter`` would for these."""
        ...

    async def alter(self, group: str, changes: Mapping[str, str | int | None]) -> None:
        """Set, or with None take back, single settings; the others stay."""


class TopicStore(Protocol):
    """Makes and changes topics.  :meth:`Appliance.delete_topic` deletes them, since it asks who has not read one."""

    @property
    def defaults(self) -> TopicDefaults:
        """What holds for topics, there or not, that set nothing themselves."""

    @property
    def auto_create(self) -> bool:
        """Are topics made that a client asks for and that do not exist?"""

    async def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> object:
        """Returns when the topic can be produced to; ``partitions`` None: as many as configured."""

    def check_creation(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> object:
        """Raises what ``create`` would raise at once, and changes nothing."""

    def check_settings(self, settings: Mapping[str, str]) -> object:
        """Raises what ``alter`` would raise for these."""

    async def alter(self, name: str, settings: Mapping[str, str | None], partitions: int | None = None) -> object:
        """Set, or with None take back, single settings; the others stay.

        ``partitions`` is the new total, larger than the present one.
        """


class Appliance(Directory, Protocol):
    # -- the appliance and its peers ------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """What this appliance runs with now."""

    @property
    def listening(self) -> str:
        """The Kafka listeners as text, "host:port,SSL://host:port,..."; "" before they serve."""

    @property
    def data_dir(self) -> str:
        """Absolute path, the one log directory that DescribeLogDirs shows."""

    def disk_space(self) -> tuple[int, int]:
        """Bytes in all and bytes usable of the file system under ``data_dir``."""

    # -- users, access rules, quotas ------------------------------------------------------------------

    @property
    def authorizes(self) -> bool:
        """Whether access rules are enforced."""

    @property
    def security(self) -> SecurityStore: ...

    @property
    def group_settings(self) -> GroupSettingsStore: ...

    # -- topics ---------------------------------------------------------------------------------------

    @property
    def topic_store(self) -> TopicStore: ...

    def extent(self, topic: str, partition: int) -> OffsetSpan:
        """Raises UnknownPartition (also when stored elsewhere), Unavailable, StorageFault (offline)."""

    async def producers(self, topic: str, partition: int) -> Sequence[ProducerInLog]:
        """The idempotent producers that a partition remembers.

        Raises:
            Unavailable: try again.
            StorageFault: it is offline.
            UnknownPartition: it is stored elsewhere, or nowhere.
        """

    async def delete_topic(self, name: str) -> None: ...

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Give up what lies before ``offset``, which is in the partition's extent; the new start, once it holds."""

"""The interface of the forwarded Kafka APIs to the appliance.

The handlers read the state that :class:`Appliance` offers and ask it for changes.  The coordinator process implements
it over topics, partitions and the registry in ZooKeeper, the tests with dictionaries.

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
from ..config import Config, TopicSettings
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
    def security(self) -> SecurityState:
        """The present state, also while ZooKeeper is away."""

    async def alter_security(self, change: Callable[[SecurityState], SecurityState]) -> None:
        """Change it; ``change`` accepts a state that has the change already.  Raises what ``change`` raises, too."""

    # -- settings of groups ---------------------------------------------------------------------------

    @property
    def group_settings(self) -> Mapping[str, OwnSettings]:
        """What each group sets itself that sets anything, there or not, also while ZooKeeper is away."""

    @property
    def group_limits(self) -> Limits:
        """What holds for groups that set nothing."""

    def check_group_settings(self, group: str, changes: Mapping[str, str | int | None]) -> None:
        """Raises InvalidSetting, as ``alter_group`` would for these."""

    async def alter_group(self, group: str, changes: Mapping[str, str | int | None]) -> None:
        """Set, or with None take back, single settings; the others stay."""

    # -- topics ---------------------------------------------------------------------------------------

    def default_settings(self, topic: str) -> TopicSettings:
        """What holds for a topic of this name, there or not, that sets nothing itself."""
        ...

    def extent(self, topic: str, partition: int) -> OffsetSpan:
        """Raises UnknownPartition (also when stored elsewhere), Unavailable, StorageFault (offline)."""

    async def producers(self, topic: str, partition: int) -> Sequence[ProducerInLog]:
        """The idempotent producers that a partition remembers.

        Raises:
            Unavailable: try again.
            StorageFault: it is offline.
            UnknownPartition: it is stored elsewhere, or nowhere.
        """

    @property
    def auto_create(self) -> bool:
        """Are topics made that a client asks for and that do not exist?"""

    async def create_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Returns when the topic can be produced to; ``partitions`` None: as many as configured."""

    def check_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Raises what ``create_topic`` would raise at once, and changes nothing."""

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raises what ``alter_topic`` would raise for these."""

    async def delete_topic(self, name: str) -> None: ...

    async def alter_topic(self, name: str, settings: Mapping[str, str | None]) -> None:
        """Set, or with None take back, single settings; the others stay."""

    async def add_partitions(self, name: str, count: int) -> None:
        """``count`` is the new total, larger than the present one."""

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Give up what lies before ``offset``, which is in the partition's extent; the new start, once it holds."""

"""A group of consumers under load: processes that read a topic, and what they must have read in the end.

Whatever dies, of a group that commits by itself and whose members print all that they get:

* every message is read at least once, and none that is not in the log;
* within a partition a member never goes back, nor does it leave anything out that nobody else has read, as long as its
  session lives: a member that lost its partitions may read again what it had not committed;
* what is read again had not been committed when it was: committed offsets only grow, and in the end they are the log's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType

from appliance.client import Admin
from appliance.errors import Unavailable

from ..support.group_readers import Member, MemberProcess
from ..support.native_peer import Peer
from ..support.server import wait_for
from .load import Load, leader, numbers, read_all

Reader = Member | MemberProcess
QUIET_S_MAX = 60


class Group:
    """The members of a group on one topic, the living and the dead."""

    def __init__(self, address: str, name: str, topic: str, partitions: int) -> None:
        self.address, self.name, self.topic, self.partitions = address, name, topic, partitions
        self.members: list[Reader] = []
        self._admin = Admin(address)
        self._committed: dict[int, int] = {}

    # ---- members

    def start(self, count: int = 1) -> list[MemberProcess]:
        started = [MemberProcess(self.address, self.name, self.topic) for _ in range(count)]
        self.members += started
        return started

    def wait_reading(self, *members: Reader) -> None:
        """Until each of them has read something more."""
        before = [len(member.seen) for member in members]
        wait_for(
            lambda: all(len(member.seen) > count for member, count in zip(members, before, strict=True)),
            "all members read",
            QUIET_S_MAX,
        )

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.__exit__(None, None, None)
        self._admin.close()

    # ---- what is committed

    def committed(self) -> dict[int, int]:
        """The group's offsets now; each of them has grown, if anything, since the last call."""
        found = {partition: offset for (_, partition), offset in self._admin.offsets(self.name).items()}
        for partition, offset in self._committed.items():
            assert found[partition] >= offset, f"the group has gone back on partition {partition}"
        self._committed = found
        return found

    def wait_committing(self) -> dict[int, int]:
        """Until positions on all partitions have grown, which somebody then reads; what is committed."""
        before = self._try_committed()

        def grown() -> dict[int, int]:
            now = self._try_committed()
            moved = all(now.get(partition, 0) > before.get(partition, 0) for partition in range(self.partitions))
            return now if moved else {}

        committed: dict[int, int] = wait_for(grown, "positions on all partitions are committed", QUIET_S_MAX)
        return committed

    def wait_caught_up(self) -> None:
        """Until all that is in the log is read and committed; nobody produces any more."""
        ends = self._ends()
        wait_for(lambda: self._try_committed() == ends, f"the offsets {ends} are committed", QUIET_S_MAX)

    def _try_committed(self) -> dict[int, int]:
        try:
            return self.committed()
        except Unavailable:  # what was killed last is not back yet
            return {}

    def _ends(self) -> dict[int, int]:
        ends = {}
        for partition in range(self.partitions):
            with Peer(leader(self.address, self.topic, partition)) as peer:
                ends[partition] = peer.end(self.topic, partition)
        return ends

    # ---- what must hold

    def check(self, load: Load, may_go_back: Iterable[Reader] = ()) -> None:
        """Stop all members, and compare what they have read with the log."""
        for member in self.members:
            if isinstance(member, MemberProcess) and member.process.poll() is None:
                assert member.stop() == 0
        assert not load.failed, load.failed[:3]
        lenient = list(may_go_back)
        for partition in range(self.partitions):
            log = numbers(read_all(self.address, self.topic, partition))
            assert log == sorted(set(log)) and set(log) >= set(load.acknowledged[partition])
            read: set[int] = set()
            for member in self.members:
                seen = [entry for entry in member.seen if entry.partition == partition and entry.value != b"last"]
                offsets = [entry.offset for entry in seen]
                assert member in lenient or offsets == sorted(set(offsets)), f"a member went back on {partition}"
                read |= {int(entry.value) for entry in seen}
            missing = set(log) - read
            assert not missing, f"{len(missing)} of {len(log)} messages were never delivered, such as {min(missing)}"
            assert read <= set(log)


def twice(members: Iterable[Reader]) -> set[tuple[int, int]]:
    """Partition and offset of what was delivered more than once."""
    counts = Counter((entry.partition, entry.offset) for member in members for entry in list(member.seen))
    return {place for place, count in counts.items() if count > 1}

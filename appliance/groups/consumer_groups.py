"""Keeps all groups of the consumer protocol (KIP-848) of this appliance, their deadlines, and the memory they take.

:class:`ConsumerGroups` is for them what :class:`~.membership.ClassicGroups` is for groups of the classic protocol, and
as free of I/O.  The rules of a single group are in :mod:`.consumer_group`.

A group exists here while it has members.  After the coordinator has died, the next one restores them
(:mod:`.snapshots`); a member that is not among them is answered UNKNOWN_MEMBER_ID, gives up what it owns, and joins
again with epoch 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..errors import OutOfResources
from ..wire.kafka.codes import Code
from . import classic_members
from .alarms import Alarms
from .assignors import IdAndNumber
from .consumer_group import JOIN, Beat, Beaten, ConsumerGroup, TopicsView
from .group_settings import OwnSettings, limits_with
from .messages import Join, Joined, Limits, Sync, Synced
from .snapshots import ConsumerSnapshot


class ConsumerGroups:
    """All groups.  ``emptied(name, now_ms)`` is called when a group's last member has gone."""

    def __init__(self, limits: Limits, emptied: Callable[[str, int], None]) -> None:
        self._limits = limits
        self._own_limits: dict[str, Limits] = {}
        """Of the groups that set something themselves."""
        self._emptied = emptied
        self._groups: dict[str, ConsumerGroup] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._alarms = Alarms()
        self._changed: set[str] = set()
        self._unsaved: set[str] = set()
        self._classic: set[str] = set()

    def get(self, name: str) -> ConsumerGroup | None:
        """The group; do not change it."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        return list(self._groups)

    def limits_of(self, name: str) -> Limits:
        return self._own_limits.get(name, self._limits)

    def set_own(self, own: Mapping[str, OwnSettings], now_ms: int) -> None:
        """Let the groups have these settings, and all others none.

        A member learns of a shorter session with the answer to its next heartbeat, and until then has the longer one.
        """
        before = self._own_limits
        self._own_limits = {name: limits_with(settings, self._limits) for name, settings in own.items()}
        for name in before.keys() | self._own_limits.keys():
            group = self._groups.get(name)
            if group is not None and group.limits != self.limits_of(name):
                group.limits = self.limits_of(name)
                group.lengthen(now_ms)
                self._set_alarm(group)

    def next_deadline_ms(self) -> int | None:
        """When to call :meth:`tick` at the latest; calling it earlier does no harm."""
        return self._alarms.next_ms()

    def take_changed(self) -> set[str]:
        """Names of groups whose members or owned partitions have changed; a name without a group has no members."""
        changed, self._changed = self._changed, set()
        return changed

    def take_unsaved(self) -> set[str]:
        """Names of groups whose snapshot has changed; a name without a group has no members."""
        unsaved, self._unsaved = self._unsaved, set()
        return unsaved

    def take_classic(self) -> set[str]:
        """Names of groups that can be groups of the classic protocol again."""
        classic, self._classic = self._classic, set()
        return classic

    def hand_over(self, name: str) -> None:
        """Forget a group: it is of the classic protocol from now on."""
        self.dissolve(name)
        self._unsaved.discard(name)

    def restore(self, name: str, snapshot: ConsumerSnapshot, now_ms: int) -> None:
        """Make a group that is not here from its snapshot.

        Raises:
            OutOfResources: there is no room for it.
        """
        group = ConsumerGroup(name, self.limits_of(name))
        group.restore(snapshot, now_ms)
        if len(self._groups) >= self._limits.groups_max or self._size + group.size > self._limits.bytes_max:
            raise OutOfResources(f"there is no room for the {len(snapshot.members)} members of group {name!r}")
        self._set_alarm(group)
        self._on_changed(group, now_ms)

    def beat(self, name: str, beat: Beat, view: TopicsView, now_ms: int) -> Beaten:
        """Answer a heartbeat; one with epoch 0 makes the group, if there is none."""
        group = self._groups.get(name)
        if group is None and beat.epoch != JOIN:
            return Beaten(Code.UNKNOWN_MEMBER_ID, f"there is no member {beat.member_id!r}: join with epoch 0")
        limits = self._limits
        says_more = beat.topics is not None or beat.matching is not None
        if says_more and (
            beat.size > limits.metadata_bytes_max
            or self._size + beat.size > limits.bytes_max
            or (group is None and len(self._groups) >= limits.groups_max)
        ):
            return Beaten(Code.GROUP_MAX_SIZE_REACHED, "there is no room for what all members of groups have sent")
        if group is None:
            group = ConsumerGroup(name, self.limits_of(name))
        answer = group.beat(beat, view, now_ms)
        self._on_answered(group, answer.member_id, now_ms)
        return answer

    def join(self, name: str, join: Join, new_id: Callable[[], str], view: TopicsView, now_ms: int) -> Joined:
        """Answer a JoinGroup in a group that is here; ``new_id``: see :class:`~.membership.ClassicGroups`."""
        error = self._limits.refuse(join)
        if not error and self._size + join.size > self._limits.bytes_max:
            error = Code.GROUP_MAX_SIZE_REACHED
        if error:
            return Joined(error, join.member_id)
        group = self._groups[name]
        answer = classic_members.join(group, self._limits.bounded(join), new_id, view, now_ms)
        self._on_answered(group, answer.member_id, now_ms)
        return answer

    def sync(self, name: str, sync: Sync, now_ms: int) -> Synced:
        """Answer a SyncGroup in a group that is here."""
        return classic_members.sync(self._groups[name], sync, now_ms)

    def heartbeat(self, name: str, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        """Answer a Heartbeat in a group that is here."""
        group = self._groups[name]
        code = classic_members.heartbeat(group, member_id, instance, generation, now_ms)
        self._on_answered(group, member_id, now_ms)
        return code

    def commit_code(self, name: str, member_id: str, epoch: int, part: IdAndNumber | None = None) -> Code:
        """See :meth:`ConsumerGroup.commit_code`; without such a group there is no member of that name."""
        group = self._groups.get(name)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID if epoch >= 0 else Code.NONE
        return group.commit_code(member_id, epoch, part)

    def leave(self, name: str, leaving: Iterable[tuple[str, str | None]], now_ms: int) -> list[Code]:
        """Answer a LeaveGroup.  ``leaving``: member id, empty for a static member, and instance name of each."""
        group = self._groups[name]
        codes = [group.leave_classic(member_id, instance) for member_id, instance in leaving]
        self._on_changed(group, now_ms)
        return codes

    def dissolve(self, name: str) -> None:
        """Forget a group that another broker coordinates now."""
        if self._groups.pop(name, None) is not None:
            self._size -= self._sizes.pop(name)
            self._alarms.drop(name)
            self._changed.add(name)

    def prolong(self, now_ms: int) -> None:
        """Put all deadlines of all groups off, because members could not be answered until now."""
        for group in self._groups.values():
            group.prolong(now_ms)

    def tick(self, now_ms: int) -> None:
        for name in self._alarms.due(now_ms):
            group = self._groups[name]
            group.tick(now_ms)
            self._set_alarm(group)
            self._on_changed(group, now_ms)

    def _set_alarm(self, group: ConsumerGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._alarms.set(group.name, deadline_ms)

    def _on_answered(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._alarms.set(group.name, member.deadline_ms)
        self._on_changed(group, now_ms)

    def _on_changed(self, group: ConsumerGroup, now_ms: int) -> None:
        name = group.name
        if not group.registered:
            group.registered = True
            self._changed.add(name)
        if not group.saved:
            group.saved = True
            self._unsaved.add(name)
        size = group.size if group.members else 0
        self._size += size - self._sizes.pop(name, 0)
        if group.members:
            self._groups[name] = group
            self._sizes[name] = size
            if group.can_be_classic:
                self._classic.add(name)
        elif self._groups.pop(name, None) is not None:
            self._alarms.drop(name)
            self._emptied(name, now_ms)

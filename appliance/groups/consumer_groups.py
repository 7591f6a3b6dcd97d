"""Keeps all groups of the consumer protocol (KIP-848) of this appliance, their deadlines, and the memory they take.

:class:`ConsumerGroups` is for them what :class:`~.membership.Membership` is for groups of the classic protocol, and as
free of I/O.  The rules of a single group are in :mod:`.consumer_group`.

A group exists here while it has members.  Nothing is restored after the coordinator has died: an unknown member is
answered UNKNOWN_MEMBER_ID, gives up what it owns, and joins again with epoch 0; its positions are in the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..wire.kafka.codes import Code
from .alarms import Alarms
from .assignors import Part
from .consumer_group import JOIN, Beat, Beaten, ConsumerGroup, View
from .messages import Limits


class ConsumerGroups:
    """All groups.  ``emptied(name, now_ms)`` is called when a group's last member has gone."""

    def __init__(self, limits: Limits, emptied: Callable[[str, int], None]) -> None:
        self._limits = limits
        self._emptied = emptied
        self._groups: dict[str, ConsumerGroup] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._alarms = Alarms()
        self._changed: set[str] = set()

    def get(self, name: str) -> ConsumerGroup | None:
        """The group; do not change it."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        return list(self._groups)

    def next_deadline_ms(self) -> int | None:
        """When to call :meth:`tick` at the latest; calling it earlier does no harm."""
        return self._alarms.next_ms()

    def take_changed(self) -> set[str]:
        """Names of groups whose members or owned partitions have changed; a name without a group has no members."""
        changed, self._changed = self._changed, set()
        return changed

    def beat(self, name: str, beat: Beat, view: View, now_ms: int) -> Beaten:
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
            group = ConsumerGroup(name, limits)
        answer = group.beat(beat, view, now_ms)
        member = group.members.get(answer.member_id)
        if member is not None:
            self._alarms.set(name, member.deadline_ms)
        self._on_changed(group, now_ms)
        return answer

    def commit_code(self, name: str, member_id: str, epoch: int, part: Part | None = None) -> Code:
        """See :meth:`ConsumerGroup.commit_code`; without such a group there is no member of that name."""
        group = self._groups.get(name)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID if epoch >= 0 else Code.NONE
        return group.commit_code(member_id, epoch, part)

    def remove_instances(self, name: str, leaving: Iterable[tuple[str, str | None]], now_ms: int) -> list[Code]:
        """Remove static members.  ``leaving``: member id, which has to be empty, and instance name of each."""
        group = self._groups[name]
        codes = [
            Code.UNKNOWN_MEMBER_ID if member_id else group.remove_instance(instance) for member_id, instance in leaving
        ]
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
            deadline_ms = group.next_deadline_ms()
            if deadline_ms is not None:
                self._alarms.set(name, deadline_ms)
            self._on_changed(group, now_ms)

    def _on_changed(self, group: ConsumerGroup, now_ms: int) -> None:
        name = group.name
        if not group.registered:
            group.registered = True
            self._changed.add(name)
        size = group.size if group.members else 0
        self._size += size - self._sizes.pop(name, 0)
        if group.members:
            self._groups[name] = group
            self._sizes[name] = size
        elif self._groups.pop(name, None) is not None:
            self._alarms.drop(name)
            self._emptied(name, now_ms)

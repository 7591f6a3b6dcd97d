"""Keeps all Kafka groups that this appliance coordinates, their next deadlines, and the memory that they take.

:class:`ClassicGroups` is sans-IO: requests are calls with a token, the clock is an argument, and replies are collected
until :meth:`ClassicGroups.take_replies`.  The rules of a single group are in :mod:`.group_state`.

A group exists here while it has members, or has given ids to clients.  After the coordinator has died, the next one
restores its last generation (:mod:`.snapshots`); a member that is not in it is answered UNKNOWN_MEMBER_ID and joins
again.  Member ids are never used twice, so a member of an older incarnation is never mistaken for a new one.

An emptied group stays known for EMPTY_MS, also without committed offsets: Kafka's tools describe, list and delete it.
At most ``groups_max`` are, those emptied last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ..errors import OutOfResources
from ..wire.kafka.codes import Code
from .alarms import Alarms
from .group_state import Group
from .messages import Join, Joined, Limits, MemberReply, Sync, Synced, Token
from .snapshots import ClassicSnapshot

EMPTY_MS: Final = 600_000
"""As long as Kafka's offsets.retention.check.interval.ms, at which it forgets empty groups without offsets."""


class Emptied(NamedTuple):
    """A group whose last member has left, until it is forgotten."""

    protocol_type: str
    until_ms: int


class ClassicGroups:
    """All groups.  ``new_id`` returns a text that is unique for ever, such as a random UUID."""

    def __init__(self, limits: Limits, new_id: Callable[[], str]) -> None:
        self._limits = limits
        self._new_id = new_id
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._alarms = Alarms()
        self._replies: list[tuple[str, Token, MemberReply]] = []
        self._changed: set[str] = set()
        self._unsaved: set[str] = set()
        self._emptied: OrderedDict[str, Emptied] = OrderedDict()
        """The one emptied first comes first."""

    # -- reading --------------------------------------------------------------------------------------

    def get(self, name: str) -> Group | None:
        """The group; do not change it."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        return list(self._groups)

    def emptied(self, now_ms: int) -> Mapping[str, Emptied]:
        """The groups whose last member has left; not a copy."""
        self._forget_emptied(now_ms)
        return self._emptied

    def next_deadline_ms(self) -> int | None:
        """When to call :meth:`tick` at the latest; calling it earlier does no harm."""
        return self._alarms.next_ms()

    def take_replies(self) -> list[tuple[str, Token, MemberReply]]:
        """Group, token and reply of each, in order."""
        replies, self._replies = self._replies, []
        return replies

    def take_changed(self) -> set[str]:
        """Names of groups whose members or owned partitions have changed; a name without a group has no members."""
        changed, self._changed = self._changed, set()
        return changed

    def take_unsaved(self) -> set[str]:
        """Names of groups whose snapshot has changed; a name without a group has no members."""
        unsaved, self._unsaved = self._unsaved, set()
        return unsaved

    def restore(self, name: str, snapshot: ClassicSnapshot, now_ms: int) -> None:
        """Make a group that is not here from its snapshot.

        Raises:
            OutOfResources: there is no room for it.
        """
        group = self._new(name)
        group.restore(snapshot, now_ms)
        if len(self._groups) >= self._limits.groups_max or self._size + group.size > self._limits.bytes_max:
            raise OutOfResources(f"there is no room for the {len(snapshot.members)} members of group {name!r}")
        self._on_changed(group, now_ms)

    def hand_over(self, name: str) -> None:
        """Forget a group all of whose members have an assignment: it is of the consumer protocol from now on."""
        del self._groups[name]
        self._size -= self._sizes.pop(name)
        self._alarms.drop(name)
        self._unsaved.discard(name)

    def take_over(self, name: str, snapshot: ClassicSnapshot, now_ms: int) -> None:
        """Make a group from what it was in the consumer protocol; its members elect a leader, who assigns anew.

        Raises:
            OutOfResources: there is no room for it.
        """
        self.restore(name, snapshot, now_ms)
        group = self._groups[name]
        group.rebalance(now_ms)
        self._on_changed(group, now_ms)

    def _new(self, name: str) -> Group:
        def answer(token: Token, reply: MemberReply) -> None:
            self._replies.append((name, token, reply))

        return Group(name, self._limits, answer, self._new_id)

    # -- requests -------------------------------------------------------------------------------------

    def join(self, token: Token, name: str, join: Join, now_ms: int) -> None:
        limits = self._limits
        group = self._groups.get(name)
        error = limits.refuse(join)
        if not error and group is None and join.member_id:
            error = Code.UNKNOWN_MEMBER_ID
        elif not error and (
            self._size + join.size > limits.bytes_max or (group is None and len(self._groups) >= limits.groups_max)
        ):
            error = Code.GROUP_MAX_SIZE_REACHED
        if error:
            self._replies.append((name, token, Joined(error, join.member_id)))
            return
        if group is None:
            group = self._new(name)
        group.join(token, limits.bounded(join), now_ms)
        self._on_changed(group, now_ms)

    def sync(self, token: Token, name: str, sync: Sync, now_ms: int) -> None:
        group = self._groups.get(name)
        error = Code.NONE
        if group is None:
            error = Code.UNKNOWN_MEMBER_ID
        elif self._size + sum(len(data) for _, data in sync.assignments) > self._limits.bytes_max:
            error = Code.GROUP_MAX_SIZE_REACHED
        if group is None or error:
            self._replies.append((name, token, Synced(error)))
            return
        group.sync(token, sync, now_ms)
        self._on_changed(group, now_ms)

    def heartbeat(self, name: str, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        group = self._groups.get(name)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance, generation, now_ms)

    def leave(self, name: str, leaving: Iterable[tuple[str, str | None]], now_ms: int) -> list[Code]:
        """Remove members.  ``leaving``: member id and instance name of each; the answers are in the same order."""
        group = self._groups.get(name)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID for _ in leaving]
        codes = [group.leave(member_id, instance, now_ms) for member_id, instance in leaving]
        self._on_changed(group, now_ms)
        return codes

    def may_commit(self, name: str, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        group = self._groups.get(name)
        if group is None:
            return Code.ILLEGAL_GENERATION if generation >= 0 else Code.NONE
        return group.may_commit(member_id, instance, generation, now_ms)

    def delete(self, name: str, now_ms: int) -> Code:
        """Delete a group without members here.  GROUP_ID_NOT_FOUND: it is not known here; look into the registry."""
        group = self._groups.get(name)
        if group is not None and group.members:
            return Code.NON_EMPTY_GROUP
        if group is None and name not in self.emptied(now_ms):
            return Code.GROUP_ID_NOT_FOUND
        self.dissolve(name, Code.UNKNOWN_MEMBER_ID)
        return Code.NONE

    def dissolve(self, name: str, error: Code) -> None:
        """Forget the group, and answer its waiting requests with ``error``."""
        group = self._groups.get(name)
        if group is not None:
            group.dissolve(error)
            self._on_changed(group, 0)
        self._emptied.pop(name, None)

    def prolong(self, now_ms: int) -> None:
        """Put all deadlines of all groups off, because members could not be answered until now."""
        for group in list(self._groups.values()):
            group.prolong(now_ms)
            self._on_changed(group, now_ms)

    def tick(self, now_ms: int) -> None:
        for name in self._alarms.due(now_ms):
            group = self._groups[name]
            group.tick(now_ms)
            self._on_changed(group, now_ms)

    # -- after each change ----------------------------------------------------------------------------

    def remember(self, name: str, protocol_type: str, now_ms: int) -> None:
        """Know a group as emptied, from now on for EMPTY_MS."""
        self._emptied[name] = Emptied(protocol_type, now_ms + EMPTY_MS)
        self._emptied.move_to_end(name)
        self._forget_emptied(now_ms)

    def _forget_emptied(self, now_ms: int) -> None:
        emptied = self._emptied
        while emptied and (len(emptied) > self._limits.groups_max or next(iter(emptied.values())).until_ms <= now_ms):
            emptied.popitem(last=False)

    def _on_changed(self, group: Group, now_ms: int) -> None:
        """Update sizes, deadlines and the changed names after a change of a group."""
        name = group.name
        if not group.registered:
            group.registered = True
            self._changed.add(name)
        if not group.saved:
            group.saved = True
            self._unsaved.add(name)
        size = group.size
        self._size += size - self._sizes.pop(name, 0)
        if group.idle:
            self._alarms.drop(name)
            if self._groups.pop(name, None) is not None:  # else nobody has ever been in it
                self.remember(name, group.protocol_type, now_ms)
            return
        self._groups[name] = group
        self._emptied.pop(name, None)
        self._sizes[name] = size
        alarm_ms = self._alarms.get(name)
        if alarm_ms is None or alarm_ms > group.earliest_new_ms(now_ms):  # it comes before the older ones anyway
            deadline_ms = group.next_deadline_ms()
            assert deadline_ms is not None, "a group with members always waits for something"
            self._alarms.set(name, deadline_ms)

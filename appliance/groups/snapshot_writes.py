"""Writes snapshots of groups, and holds the answers that members must not have before (as Kafka's coordinator does).

A group is in one of these states; what it says of members is in ``content``, None when there are none::

    state    event                                       next
    SAVED    members are told something new              WRITING   ``content`` as of this moment is sent to the store
    WRITING  members are told something new              WRITING   and what is sent next is as of this moment
    WRITING  the store has it; nothing newer             SAVED     answers that waited for it are given
    WRITING  the store has it; something newer           WRITING   the same, and the newer one is sent
    WRITING  it cannot be stored within WRITE_MS_MAX     WRITING   answers that waited are given, and it is tried again
    WRITING  the store takes none of this size           SAVED     answers that waited are given
    any      the claim is over, or our lease             -         answers that waited are answered NOT_COORDINATOR

So at most one write of a group is on its way, whatever number of members came meanwhile.

When a generation cannot be stored, its members get it all the same: ZooKeeper may be slow while our lease still holds.
Should the coordinator die before it is, they meet the generation before, and an error with which they join again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ..errors import ApplianceError, NotCoordinator, Unavailable
from ..wire.kafka.codes import Code
from .messages import MemberReply, Token
from .store import GroupStore

WRITE_MS_MAX: Final = 3_000
"""A write takes so long at most before members are answered without it; one that came later waits for two."""
AGAIN_S: Final = 1.0

log = logging.getLogger(__name__)


class _Write:
    """A group in the state WRITING.  ``held``: answers, by the number of the write that they wait for."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.newest = 1
        self.held: list[tuple[int, Token, MemberReply]] = []
        self.waiting: list[tuple[int, asyncio.Future[Code]]] = []
        self.task: asyncio.Task[None] | None = None


class SnapshotWrites:
    """``answer`` gives an answer to its request."""

    def __init__(self, store: GroupStore, answer: Callable[[Token, MemberReply], None]) -> None:
        self._store, self._answer = store, answer
        self._writes: dict[str, _Write] = {}

    def begin(self, group: str, content: bytes | None) -> None:
        """Store this snapshot of a group, None: that it has no members."""
        write = self._writes.get(group)
        if write is not None:
            write.content = content
            write.newest += 1
            return
        write = self._writes[group] = _Write(content)
        write.task = asyncio.get_running_loop().create_task(self._write(group, write))

    def give(self, group: str, token: Token, reply: MemberReply) -> None:
        """Give an answer, once all is stored that was begun before."""
        write = self._writes.get(group)
        if write is None:
            self._answer(token, reply)
        else:
            write.held.append((write.newest, token, reply))

    async def settle(self, group: str) -> Code:
        """Wait until all is stored that was begun before, or is told all the same.

        Returns:
            NOT_COORDINATOR when the claim is over, else NONE.
        """
        write = self._writes.get(group)
        if write is None:
            return Code.NONE
        done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        write.waiting.append((write.newest, done))
        return await done

    def lose(self, group: str) -> None:
        """The claim is over: whoever has it now says what members have."""
        write = self._writes.pop(group, None)
        if write is None:
            return
        if write.task is not None:
            write.task.cancel()
        self._release(write, write.newest, is_lost=True)

    def close(self) -> None:
        for group in list(self._writes):
            self.lose(group)

    async def _write(self, group: str, write: _Write) -> None:
        number = 0
        try:
            while number < write.newest:
                number, is_done = write.newest, await self._store_once(group, write.content)
                self._release(write, number, is_lost=not self._store.leads)
                if not is_done:
                    number = 0
                    await asyncio.sleep(AGAIN_S)
        finally:
            if self._writes.get(group) is write:  # else the claim was lost, and this was answered
                del self._writes[group]
                self._release(write, write.newest, is_lost=False)

    async def _store_once(self, group: str, content: bytes | None) -> bool:
        """Whether nothing more is to be done about it."""
        try:
            async with asyncio.timeout(WRITE_MS_MAX / 1000):
                await self._store.save(group, content)
        except TimeoutError:
            log.warning("members of group %r: not stored within %d ms, trying again", group, WRITE_MS_MAX)
            return False
        except NotCoordinator as error:  # another broker has the group: its members here are dissolved
            log.warning("members of group %r: not stored: %s", group, error)
        except Unavailable as error:
            log.warning("members of group %r: not stored, trying again: %s", group, error)
            return False
        except ApplianceError as error:
            log.warning("members of group %r: not stored: %s", group, error)
        return True

    def _release(self, write: _Write, number: int, *, is_lost: bool) -> None:
        """Give the answers that wait for this write, and earlier ones."""
        held, write.held = write.held, [entry for entry in write.held if entry[0] > number]
        waiting, write.waiting = write.waiting, [entry for entry in write.waiting if entry[0] > number]
        for needed, token, reply in held:
            if needed <= number:
                self._answer(token, _refused(reply) if is_lost else reply)
        for needed, done in waiting:
            if needed <= number and not done.done():
                done.set_result(Code.NOT_COORDINATOR if is_lost else Code.NONE)


def _refused(reply: MemberReply) -> Any:
    return reply._replace(error=Code.NOT_COORDINATOR)

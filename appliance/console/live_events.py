"""Sends a page the state that its visitor may see, and then each change: server-sent events (HTML standard, 9.2).

An event is one JSON object::

    {"at": ms since 1970,
     "rated": whether rates are known,   not at first: they need two polls
     "more": whether it goes on in the next event,
     "set":  {section: {key: row}},      rows that are new or have changed
     "gone": {section: [key]}}           rows that are no more

The sections: ``appliance`` and ``alerts`` (one key, ""), ``topics``, ``groups``, and of what the page shows
``partitions`` and ``readers`` (of a topic) and ``group`` ("").  The first events have everything; more than
ROWS_OF_EVENT_MAX rows come in several.

A reader of a topic is a group that has committed an offset in it, or has a member with a partition of it: its members
there, READER_CLIENTS_MAX of their clients, its lag in this topic, and when that was asked for.

Places: a page has one of STREAMS_MAX, of which STREAMS_RESERVED are for those who are logged in; one address of others,
and one session, has at most STREAMS_OF_ONE_MAX.

No queue: a page that is slow gets the next state when it has taken the last one.  One that takes nothing for SEND_S_MAX
is dropped.  A stream ends after STREAM_S_MAX; pages connect again by themselves.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from ..addresses import site_of
from ..errors import BufferFull
from ..security.acls import Operation, ResourceType
from .observer import ConsoleSnapshot, Observer, total
from .visitors import Visitor

STREAMS_MAX: Final = 32
STREAMS_RESERVED: Final = 16
STREAMS_OF_ONE_MAX: Final = 8
STREAM_S_MAX: Final = 3_600.0
SEND_S_MAX: Final = 20.0
READER_CLIENTS_MAX: Final = 20
ROWS_OF_EVENT_MAX: Final = 1_000
"""The text of an event takes memory until the page has it."""
BEAT_S: Final = 15.0
"""An empty comment, sent so that a page that has gone is noticed."""

Sections = dict[str, Mapping[str, Any]]


def visible(snapshot: ConsoleSnapshot, visitor: Visitor, topic: str, group: str) -> Sections:
    """What a visitor may see of a snapshot, with the topic and the group that the page looks at."""
    access = visitor.access
    sections: Sections = {
        "topics": {name: row for name, row in snapshot.topics.items() if access.describable[name]},
        "groups": {},
        "partitions": {},
        "readers": {},
        "group": {},
        "appliance": {},
        "alerts": {},
    }
    every = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
    if every:
        sections["appliance"] = {"": snapshot.appliance}
        sections["alerts"] = {"": snapshot.alerts}
    groups = access.decisions(Operation.DESCRIBE, ResourceType.GROUP)
    sections["groups"] = {name: row for name, row in snapshot.groups.items() if every or groups[name]}
    if topic and access.describable[topic]:
        sections["partitions"] = {str(row.partition): row for row in snapshot.partitions.rows(topic)}
        sections["readers"] = readers(snapshot, topic, sections["groups"])
    if group in snapshot.details and groups[group]:
        detail = snapshot.details[group]
        rows = [row for row in detail["partitions"] if access.describable[row["topic"]]]
        sections["group"] = {"": {**detail, "partitions": rows}}
    return sections


def readers(snapshot: ConsoleSnapshot, topic: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    """The groups, of these, that read a topic."""
    rows = {}
    for name in groups.keys() & snapshot.details.keys():
        detail = snapshot.details[name]
        parts = [row for row in detail["partitions"] if row["topic"] == topic]
        if not parts:
            continue
        members = [member for member in detail["members"] if any(part[0] == topic for part in member["partitions"])]
        seconds = [row["lag_seconds"] for row in parts if row["lag_seconds"] is not None]
        rows[name] = {
            "state": groups[name]["state"],
            "members": len(members),
            "clients": sorted({f"{member['client'] or '?'} at {member['host'] or '?'}" for member in members})[
                :READER_CLIENTS_MAX
            ],
            "lag_messages": total(parts, "lag_messages"),
            "lag_bytes": total(parts, "lag_bytes"),
            "lag_seconds": max(seconds, default=None),
            "lost_bytes": total(parts, "lost_bytes"),
            "lag_asked_ms": groups[name]["lag_asked_ms"],
        }
    return rows


def changes(before: Sections, after: Sections) -> dict[str, Any]:
    """What turns one state into the other."""
    changed: dict[str, Any] = {"set": {}, "gone": {}}
    for section, rows in after.items():
        rows_before = before.get(section, {})
        new = {
            key: row
            for key, row in rows.items()
            if (before_row := rows_before.get(key)) is not row and (before_row != row or key not in rows_before)
        }
        if new:
            changed["set"][section] = new
        if gone := [key for key in rows_before if key not in rows]:
            changed["gone"][section] = gone
    return changed


def parts(changed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes, as several that have at most ROWS_OF_EVENT_MAX rows of a section each."""
    part: dict[str, Any] = {"set": {}, "gone": changed["gone"]}
    for section, rows in changed["set"].items():
        items = iter(rows.items())
        while some := dict(itertools.islice(items, ROWS_OF_EVENT_MAX)):
            if section in part["set"]:
                yield part | {"more": True}
                part = {"set": {}, "gone": {}}
            part["set"][section] = some
    yield part | {"more": False}


class StreamPlaces:
    """Counts the pages that are shown live."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, visitor: Visitor) -> StreamPlace:
        """A place for one more page.

        Raises:
            BufferFull: there is none.
        """
        host = visitor.peer.rpartition(":")[0].strip("[]")
        whose = visitor.session.csrf if visitor.session else site_of(host)
        places = STREAMS_MAX - (0 if visitor.session else STREAMS_RESERVED)
        if self._taken.total() >= places or self._taken[whose] >= STREAMS_OF_ONE_MAX:
            raise BufferFull(f"{self._taken.total()} pages are open already: close one, or log in")
        self._taken[whose] += 1
        return StreamPlace(self._taken, whose)


class StreamPlace(NamedTuple):
    taken: Counter[str]
    whose: str

    def give_back(self) -> None:
        self.taken.subtract([self.whose])
        if not self.taken[self.whose]:
            del self.taken[self.whose]


class LiveEvents:
    """The answer to one page: an ASGI application.  It gives ``place`` back at its end.

    ``visitor`` returns who is asking, as of now; None when the session is over or may not see anything any more.
    """

    def __init__(
        self,
        observer: Observer,
        visitor: Callable[[], Visitor | None],
        topic: str,
        group: str,
        clock: Callable[[], float],
        stopping: asyncio.Event,
        place: StreamPlace,
    ) -> None:
        self._observer, self._visitor, self._clock, self._stopping = observer, visitor, clock, stopping
        self._place = place
        self._topic, self._group = topic, group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(receive, send)
        finally:
            self._place.give_back()

    async def _answer(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        ends = [asyncio.ensure_future(task) for task in (_disconnect(receive), self._stopping.wait())]
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            with self._observer.watching(self._group):
                await asyncio.wait([*ends, sending], return_when=asyncio.FIRST_COMPLETED, timeout=STREAM_S_MAX)
        finally:
            for task in (*ends, sending):
                task.cancel()
        if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
            if not isinstance(error, TimeoutError | OSError):
                raise error
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        sent: Sections = {}
        number = 0
        while (visitor := self._visitor()) is not None:
            try:
                async with asyncio.timeout(BEAT_S):
                    snapshot = await self._observer.snapshot_after(number)
            except TimeoutError:
                await _send_text(send, b": beat\n\n")
                continue
            number = snapshot.number
            state = visible(snapshot, visitor, self._topic, self._group)
            for part in parts(changes(sent, state)):
                event = {"at": snapshot.at_ms, "rated": snapshot.rated, **part}
                await _send_text(send, b"data: %b\n\n" % msgspec.json.encode(event))
            sent = state


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_text(send: Send, text: bytes) -> None:
    async with asyncio.timeout(SEND_S_MAX):
        await send({"type": "http.response.body", "body": text, "more_body": True})

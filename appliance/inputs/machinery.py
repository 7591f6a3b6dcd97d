"""What all inputs share, and what the process of an input (:mod:`.process`) wants of each."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..config import Config
from ..errors import BadValue
from ..input_settings import fill_topic
from ..names import is_reserved, is_topic
from ..shared.heartbeats import Heart
from .guard import Guard
from .ledger import Ledger
from .outlet import Outlet
from .positions import PositionStore


class Machinery(NamedTuple):
    """What all inputs share."""

    name: str
    config: Config
    store: PositionStore
    outlet: Outlet
    ledger: Ledger
    sockets: Mapping[str, socket.socket]
    guard: Guard
    heart: Heart


class Input(Protocol):
    """What takes logs in.  An input is made by a function of its settings and the :class:`Machinery`."""

    async def run(self) -> None:
        """Take logs in until it is cancelled.  An error ends the process, which is started again."""

    async def drain(self) -> None:
        """After :meth:`run`: wait until everything that was taken is flushed."""


class InputTopics:
    """The topics that a template makes of the fields of messages, at most ``topics_max``: senders choose them."""

    def __init__(self, template: str, topics_max: int) -> None:
        self._template, self._topics_max = template, topics_max
        self._made: set[str] = set()

    def topic_for(self, fields: Mapping[str, str]) -> str:
        """Raises BadValue: there would be too many topics, or a sender asks for one of the system."""
        topic = fill_topic(self._template, fields)
        if topic not in self._made:
            if is_reserved(topic) or not is_topic(topic):
                raise BadValue(f"topic {topic}: no such name is made from the template {self._template}")
            if len(self._made) >= self._topics_max:
                raise BadValue(f"topic {topic}: {self._topics_max} were made from the template (topics_max)")
            self._made.add(topic)
        return topic


def is_readable(path: str) -> bool:
    """Tried, not asked: access(2) asks for the real user, and a device may be one that waits."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM)
    return True

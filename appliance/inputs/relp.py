"""RELP, the server's side: frames and answers as bytes, and which command may follow which.  Sans I/O.

A frame is ``NUMBER SP COMMAND SP LENGTH [SP DATA] LF``.  Its number, of a *transaction*, is in the answer to it, whose
command is ``rsp`` and whose data begins with a code: 200, or 500 for what is not taken.  The sender keeps what it sent
until the answer comes, and sends it again over another connection; so an answer means: flushed.

::

    state     takes                          leaves it by
    new       open                           open, with a version and a command that are known
    open      syslog                         close
    closed    nothing

Source: https://www.rsyslog.com/doc/relp.html, and librelp.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..errors import ProtocolFault
from .syslog_format import CountedReader

_HEADER: Final = re.compile(rb"\n?(0|[1-9]\d{0,8}) ([a-z]{1,32}) (\d{1,9})(?: |(?=\n))")
_HEADER_BYTES_MAX: Final = 64
_VERSIONS: Final = (b"0", b"1")
SERVER_CLOSE: Final = b"0 serverclose 0\n"
"""Says that the server closes the connection."""


class RelpMessage(NamedTuple):
    """A message, or a part of one (``part`` > 0); it is to be answered if ``is_last``."""

    number: bytes
    value: bytes
    part: int
    is_last: bool


class RelpAnswer(NamedTuple):
    """The answer to another command, to be sent after those to what came before it."""

    frame: bytes


TAKEN: Final = b" rsp 6 200 OK\n"
"""Behind the number of a transaction: its message is flushed."""


def rsp(number: bytes, data: bytes) -> bytes:
    """The frame that answers a transaction."""
    return b"%b rsp %d %b\n" % (number, len(data), data) if data else b"%b rsp 0\n" % number


class RelpReader:
    """Reads what the sender of one connection says, and keeps the state of the session."""

    def __init__(self, message_bytes_max: int) -> None:
        self._frames = CountedReader(_HEADER, _HEADER_BYTES_MAX, message_bytes_max)
        self._is_open = False
        self.is_closed = False
        """The sender has said so, or was refused: nothing more is taken."""
        self.fault: ProtocolFault | None = None
        """What is wrong with the bytes after those of which events were returned: nothing more is taken."""

    def feed(self, data: bytes) -> list[RelpMessage | RelpAnswer]:
        """Take the bytes that follow; return what is to be done, in its order."""
        events: list[RelpMessage | RelpAnswer] = []
        if self.is_closed or self.fault is not None:
            return events
        for (number, command, _), value, part, is_last in self._frames.feed(data):
            if command == b"syslog" and self._is_open:
                events.append(RelpMessage(number, value, part, is_last))
            elif part or command == b"syslog":
                what = "before open" if command == b"syslog" else "of this length"
                self.fault = ProtocolFault(f"RELP: {command.decode()} {what}")
                return events
            elif command == b"open":
                events.append(RelpAnswer(self._open(number, value)))
            elif command == b"close":
                self.is_closed = True
                events.append(RelpAnswer(rsp(number, b"")))
            else:
                events.append(RelpAnswer(rsp(number, b"500 command not known")))
            if self.is_closed:
                return events
        if self._frames.is_broken:
            self.fault = ProtocolFault("RELP: not the header of a frame")
        return events

    def _open(self, number: bytes, offers: bytes) -> bytes:
        """Answer the sender's offers: lines such as ``commands=syslog,starttls``."""
        offered = dict(line.strip().partition(b"=")[::2] for line in offers.split(b"\n") if b"=" in line)
        version = offered.get(b"relp_version", b"0").strip()
        commands = [command.strip() for command in offered.get(b"commands", b"syslog").split(b",")]
        if version not in _VERSIONS or b"syslog" not in commands:
            self.is_closed = True
            return rsp(number, b"500 relp_version must be 0 or 1, and commands have syslog")
        self._is_open = True
        return rsp(number, b"200 OK\nrelp_version=%b\nrelp_software=appliance\ncommands=syslog" % version)

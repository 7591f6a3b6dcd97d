"""Many reads as one request, ZooKeeper's ``multiRead`` (3.6 and newer), which kazoo does not know.

Each request costs kazoo's two threads and ours some 0.2 ms, whatever it asks; in a ``multiRead`` a read costs a
twentieth of that.  Unlike a multi, it carries out each of its parts by itself: those that fail have an error of their
own, and it is no snapshot.  It sets no watches, and knows no ``exists``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from .operations import REQUEST_BYTES_MAX, WINDOW, Node, Request

_GET_DATA, _GET_CHILDREN, _ERROR, _END = 4, 8, -1, -1
_HEADER: Final = struct.Struct(">i?i")
"""Of a part: its type, whether it is the end, its error code."""
_INT: Final = struct.Struct(">i")
_STAT: Final = struct.Struct(">qqqqiiiqiiq")
"""czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, size, children, pzxid"""
_LAST: Final = _HEADER.pack(_END, True, -1)

ReadReply: TypeAlias = Node | list[str] | int
"""A node, the names of children, or the code of an error."""


class MultiRead(NamedTuple):
    """A request as kazoo's connection sends it: with its type, and how it is written and its reply read."""

    parts: bytes
    type: int = 22

    @classmethod
    def encode(cls, chroot: str, requests: Sequence[Request]) -> MultiRead:
        """These reads, below ``chroot``, without a slash at its end."""
        parts = []
        for request in requests:
            path = (chroot + request.path if request.path != "/" else chroot or "/").encode()
            kind = _GET_CHILDREN if request.verb == "children" else _GET_DATA
            parts.append(_HEADER.pack(kind, False, -1) + _INT.pack(len(path)) + path + b"\x00")  # no watch
        return cls(b"".join(parts) + _LAST)

    def serialize(self) -> bytes:
        return self.parts

    @staticmethod
    def deserialize(reply: bytes, offset: int) -> list[ReadReply]:
        parts: list[ReadReply] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(reply, offset)
            offset += _HEADER.size
            if done:
                return parts
            if kind == _GET_DATA:
                (size,) = _INT.unpack_from(reply, offset)
                start = offset + _INT.size
                offset = start + max(size, 0)
                stat = _STAT.unpack_from(reply, offset)
                parts.append(Node(bytes(reply[start:offset]), stat[4], stat[7], stat[3], stat[8], stat[10]))
                offset += _STAT.size
            elif kind == _GET_CHILDREN:
                names, offset = _names(reply, offset)
                parts.append(names)
            elif kind == _ERROR:
                parts.append(_INT.unpack_from(reply, offset)[0])
                offset += _INT.size
            else:
                raise ValueError(f"type {kind} in the reply to many reads")


def _names(reply: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(reply, offset)
    offset += _INT.size
    names = []
    for _ in range(count):
        (size,) = _INT.unpack_from(reply, offset)
        start = offset + _INT.size
        offset = start + size
        names.append(reply[start:offset].decode())
    return names, offset


def together(requests: Sequence[Request], indexes: Sequence[int]) -> list[list[int]]:
    """Group these requests, in their order, so that those of a group can be sent as one: reads that follow each other.

    A read with a watch, and each other request, is alone.
    """
    groups: list[list[int]] = []
    room = 0
    for index in indexes:
        request = requests[index]
        reads = request.watch is None and request.verb in ("get", "children")
        room -= request.size
        if not (reads and groups and room > 0 and len(groups[-1]) < WINDOW):
            groups.append([])
            room = REQUEST_BYTES_MAX - request.size if reads else 0
        groups[-1].append(index)
    return groups

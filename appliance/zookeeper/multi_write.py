"""Many changes as one request, ZooKeeper's ``multi``, which carries out all of its parts or none.

kazoo has it, too, as an object for each part and each reply, which cost four times as much as these bytes: a commit of
a group is two parts, and a hundred groups share a request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo.protocol.serialization import write_string

from .operations import Request

_CREATE, _DELETE, _SET, _CHECK, _ERROR = 1, 2, 5, 13, -1
_HEADER: Final = struct.Struct(">i?i")
"""Of a part: its type, whether it is the end, its error code."""
_SIZED: Final = struct.Struct(">i?ii")
"""The same, and the size of the path behind it."""
_INT: Final = struct.Struct(">i")
_STAT_BYTES: Final = 68
_VERSION_AT: Final = 32
"""Where in a stat the version of the value is."""
_LAST: Final = _HEADER.pack(_ERROR, True, -1)
_EPHEMERAL: Final = 1

PartReply: TypeAlias = int | Exception
"""The version of the value, 0 when the part was no ``set``; of a multi that failed, an error for each part."""


class MultiWrite(NamedTuple):
    """A request as kazoo's connection sends it: with its type, and how it is written and its reply read."""

    parts: bytes
    error_of: Callable[[int], Exception]
    type: int = 14

    @classmethod
    def encode(
        cls, chroot: str, acl: Sequence[Any], requests: Sequence[Request], error_of: Callable[[int], Exception]
    ) -> MultiWrite:
        """These changes, below ``chroot``, without a slash at its end.

        Args:
            acl: kazoo's, of the nodes that are created.
            error_of: the exception for an error code of ZooKeeper.
        """
        sized, of_int = _SIZED.pack, _INT.pack
        acl_bytes = b""
        parts: list[bytes] = []
        for verb, path, value, version, ephemeral, _, _ in requests:
            place = (chroot + path if path != "/" else chroot or "/").encode()
            if verb == "set":
                parts += sized(_SET, False, -1, len(place)), place, of_int(len(value)), value, of_int(version)
            elif verb == "check":
                parts += sized(_CHECK, False, -1, len(place)), place, of_int(version)
            elif verb == "create":
                acl_bytes = acl_bytes or _encode_acl(acl)
                flags = of_int(_EPHEMERAL if ephemeral else 0)
                parts += sized(_CREATE, False, -1, len(place)), place, of_int(len(value)), value, acl_bytes, flags
            else:
                assert verb == "delete", verb
                parts += sized(_DELETE, False, -1, len(place)), place, of_int(version)
        parts.append(_LAST)
        return cls(b"".join(parts), error_of)

    def serialize(self) -> bytes:
        return self.parts

    def deserialize(self, reply: bytes, offset: int) -> list[PartReply]:
        parts: list[PartReply] = []
        header, of_int = _HEADER.unpack_from, _INT.unpack_from
        while True:
            kind, done, _ = header(reply, offset)
            offset += _HEADER.size
            if done:
                return parts
            if kind == _SET:
                parts += of_int(reply, offset + _VERSION_AT)
                offset += _STAT_BYTES
            elif kind in (_CHECK, _DELETE):
                parts.append(0)
            elif kind == _CREATE:
                parts.append(0)
                offset += _INT.size + max(0, *of_int(reply, offset))
            elif kind == _ERROR:
                parts.append(self.error_of(*of_int(reply, offset)))
                offset += _INT.size
            else:
                raise ValueError(f"type {kind} in the reply to many changes")


def _encode_acl(acl: Sequence[Any]) -> bytes:
    entries = [_INT.pack(entry.perms) + write_string(entry.id.scheme) + write_string(entry.id.id) for entry in acl]
    return _INT.pack(len(entries)) + b"".join(entries)

"""appliance.zookeeper.multi_write: the same bytes as kazoo's, and what its replies say."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kazoo import exceptions as refusals
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction, multiheader_struct
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from appliance.zookeeper.multi_write import MultiWrite
from appliance.zookeeper.operations import VERSION_MAX, Request, check_version, create, delete, set_value


def error_of(code: int) -> Exception:
    error: Exception = refusals.EXCEPTIONS[code]()
    return error


@pytest.mark.parametrize("chroot", ["", "/below"])
@pytest.mark.parametrize("acl", [OPEN_ACL_UNSAFE, CREATOR_ALL_ACL], ids=["open", "ours"])
def test_a_request_has_the_bytes_of_kazoos(chroot: str, acl: Any) -> None:
    parts: list[tuple[Request, Any]] = []
    for name, value in (("a", b""), ("gr\u00f6\u00dfer", b"1"), ("n" * 300, bytes(70_000))):
        path = f"/consumers/{name}"
        parts += [
            (check_version(path, -1), CheckVersion(chroot + path, -1)),
            (set_value(path, value, VERSION_MAX), SetData(chroot + path, value, VERSION_MAX)),
            (create(path, value), Create(chroot + path, value, acl, 0)),
            (create(path, value, ephemeral=True), Create(chroot + path, value, acl, 1)),
            (delete(path, 3), Delete(chroot + path, 3)),
        ]
    parts.append((check_version("/", 0), CheckVersion(chroot or "/", 0)))
    ours = MultiWrite.encode(chroot, acl, [request for request, _ in parts], error_of)
    assert ours.serialize() == bytes(Transaction([operation for _, operation in parts]).serialize())
    assert ours.type == Transaction.type
    assert MultiWrite.encode(chroot, acl, [], error_of).serialize() == bytes(Transaction([]).serialize())


def reply(*parts: tuple[int, bytes]) -> bytes:
    packed = b"".join(multiheader_struct.pack(kind, False, 0) + body for kind, body in parts)
    return b"head" + packed + multiheader_struct.pack(-1, True, -1)


def test_a_reply_has_the_version_of_each_value_that_was_set() -> None:
    stat = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, -7, 6, 7, 8, 9, 10, 11)  # after 2**31 changes it is negative
    path = struct.pack(">i", 2) + b"/a"
    request = MultiWrite.encode("", OPEN_ACL_UNSAFE, [], error_of)
    body = reply((13, b""), (5, stat), (1, path), (2, b""), (5, stat))
    assert request.deserialize(body, 4) == [0, -7, 0, 0, -7]
    assert request.deserialize(reply(), 4) == []


def test_a_reply_of_a_multi_that_failed_has_an_error_for_each_part() -> None:
    request = MultiWrite.encode("", OPEN_ACL_UNSAFE, [], error_of)
    body = reply(*((-1, struct.pack(">i", code)) for code in (0, -101, -2)))
    errors = [refusals.RolledBackError, refusals.NoNodeError, refusals.RuntimeInconsistency]
    assert [type(part) for part in request.deserialize(body, 4)] == errors
    with pytest.raises(ValueError, match="type 99"):
        request.deserialize(reply((99, b"")), 4)

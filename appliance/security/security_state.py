"""Holds users, roles, access rules and quotas in one immutable value.

The registry in ZooKeeper, the file in the data directory and the snapshot of each worker hold the same state::

    ZooKeeper ──► coordinator (``processes/coordinator/security_registry.py``) ──► file, every worker

A change makes a new value, so its identity shows whether anything has changed.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .accounts import Account
from .acls import Acl
from .quotas import Quota
from .scram import Verifier


class SecurityState(Struct, frozen=True):
    """``users``: user → mechanism → verifier; ``acls`` and ``quotas``: sorted, each once.

    ``secret``: the brokers of a cluster share it, and prove with it that they are brokers.  It also makes the decoys of
    unknown users, which are so the same at each broker.
    """

    users: dict[str, dict[str, Verifier]] = {}
    acls: tuple[Acl, ...] = ()
    quotas: tuple[Quota, ...] = ()
    secret: bytes = b""
    accounts: dict[str, Account] = {}
    """User → what is decided of one, with or without a verifier; those that are ``OPEN`` are left out."""
    roles: dict[str, tuple[str, ...]] = {}
    """Role → the users that have it, sorted; its rules are among ``acls``, see :mod:`.roles`."""

    def __repr__(self) -> str:
        counts = len(self.users), len(self.roles), len(self.acls), len(self.quotas)
        return "<SecurityState, {} users, {} roles, {} rules, {} quotas>".format(*counts)


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(SecurityState).decode


def pack(state: SecurityState) -> bytes:
    """For the workers' stream."""
    return _pack(state)


def unpack(packed: bytes) -> SecurityState:
    """Raises msgspec.MsgspecError."""
    return _unpack(packed)

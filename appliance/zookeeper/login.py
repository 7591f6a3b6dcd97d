"""Logs in to ZooKeeper: who we are there, and the exchange that proves it without sending the password.

:class:`ZooKeeperLogin` is a user with a scheme of ZooKeeper:

``sasl``
    SASL with DIGEST-MD5 (RFC 2831).  The password is not sent, and the server has to prove that it knows it, too.  So a
    program that took the port of a stopped node learns nothing.  The local ensemble serves nobody without it.
``digest``
    ZooKeeper's own: user and password are sent in the clear.  For ensembles of others that are set up this way.

Nodes are created with the ACL of their creator: all rights, and none for anybody else.

The local ensemble has one user.  Its password is made at the first start, and kept in ``<data>/zookeeper/secret``.  No
client gets it: the appliance does for members of groups what they need (``processes/coordinator/native_groups.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..config import ZooKeeperSection
from ..errors import BadValue
from ..security.secret_files import keep_secret, read_password

LOCAL_USER: Final = "appliance"
SECRET_FILE: Final = "zookeeper/secret"
DIGEST_URI: Final = b"zookeeper/zk-sasl-md5"  # fixed in ZooKeeper, whatever its host is called
CNONCE_BYTES: Final = 16
_DIRECTIVE: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s",]+)\s*(?:,|$)')


@dataclass(frozen=True)
class ZooKeeperLogin:
    """``scheme``: "sasl" or "digest".  The password is not part of its text."""

    scheme: str
    user: str
    password: str = field(repr=False)


def login_of(config: ZooKeeperSection, data_dir: Path) -> ZooKeeperLogin | None:
    """How this appliance logs in; None: it does not, since its external ensemble is open to all.

    Raises:
        BadValue: the file with the password cannot be used.
        OSError: the secret of the local ensemble cannot be stored.
    """
    if not config.connect:
        return ZooKeeperLogin("sasl", LOCAL_USER, keep_secret(data_dir / SECRET_FILE)) if config.nodes else None
    if not config.user:
        return None
    if not config.password_file:
        raise BadValue("zookeeper.user is set: put its password into a file, and name it in zookeeper.password_file")
    return ZooKeeperLogin(
        config.scheme, config.user, read_password(Path(config.password_file), "zookeeper.password_file")
    )


class DigestMd5:
    """The client's side of one DIGEST-MD5 exchange.  :meth:`respond` to each challenge until it is ``complete``."""

    def __init__(self, login: ZooKeeperLogin, cnonce: bytes = b"") -> None:
        self._user, self._password = login.user.encode(), login.password.encode()
        self._cnonce = cnonce or secrets.token_hex(CNONCE_BYTES).encode()
        self._expected = b""
        self.complete = False

    def respond(self, challenge: bytes, uri: bytes = DIGEST_URI) -> bytes:
        """The answer to a challenge of the server: first the response, then b"" to its proof.

        Raises:
            ValueError: the server does not know the password, or does not speak DIGEST-MD5.
        """
        directives = _directives(challenge)
        if self._expected:
            if not hmac.compare_digest(directives.get(b"rspauth", b""), self._expected):
                raise ValueError("the server does not know the password")
            self.complete = True
            return b""
        realm, nonce = directives.get(b"realm", b""), directives.get(b"nonce", b"")
        if not nonce or b"auth" not in directives.get(b"qop", b"auth").replace(b" ", b"").split(b","):
            raise ValueError("no challenge of DIGEST-MD5 with qop=auth")
        key = hashlib.md5(b":".join((self._user, realm, self._password)), usedforsecurity=False).digest()
        a1 = _hex(b":".join((key, nonce, self._cnonce)))
        middle = b":".join((nonce, b"00000001", self._cnonce, b"auth"))
        proof = _hex(b":".join((a1, middle, _hex(b"AUTHENTICATE:" + uri))))
        self._expected = _hex(b":".join((a1, middle, _hex(b":" + uri))))
        quoted = {b"username": self._user, b"realm": realm, b"nonce": nonce, b"cnonce": self._cnonce}
        quoted[b"digest-uri"] = uri
        parts = [b"charset=utf-8"] if b"charset" in directives else []
        parts += [name + b"=" + _quote(value) for name, value in quoted.items()]
        return b",".join([*parts, b"nc=00000001", b"qop=auth", b"response=" + proof])


def _directives(challenge: bytes) -> dict[bytes, bytes]:
    """``name=value`` pairs, with or without quotes; anything else ends the list."""
    directives: dict[bytes, bytes] = {}
    at = 0
    while match := _DIRECTIVE.match(challenge, at):
        name, value = match.groups()
        if value.startswith(b'"'):
            value = re.sub(rb"\\(.)", rb"\1", value[1:-1])
        directives[name] = value
        at = match.end()
    return directives


def _quote(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _hex(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).hexdigest().encode()


def jaas(login: ZooKeeperLogin, quorum_password: str) -> str:
    """The configuration of Java's login modules for a local node: its clients, and its peers of the ensemble.

    Passwords are hexadecimal digits, so nothing needs quotes.
    """
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    return (
        f'Server {{ {module} user_{login.user}="{login.password}"; }};\n'
        f'QuorumServer {{ {module} user_node="{quorum_password}"; }};\n'
        f'QuorumLearner {{ {module} username="node" password="{quorum_password}"; }};\n'
    )

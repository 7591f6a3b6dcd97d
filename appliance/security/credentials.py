"""Looks up verifiers for logins, with decoys for unknown users, so that nobody can tell who is known.

A decoy is made from the user's name and a secret that only this appliance has, so it stays the same.  Its salt and
iterations look like those of some real user, which the name decides.  It is made for known users, too, which takes the
same time.

Brokers of a cluster log in to each other with a password that they make from the secret that the registry gives them
all: nobody stores or sends it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from .scram import ITERATIONS_DEFAULT, ITERATIONS_MIN, MECHANISMS, SALT_BYTES, Verifier, make_verifier

PREFERRED: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""The order in which PLAIN takes a user's verifiers."""
NUMBER_BYTES: Final = 8
KEY_BYTES: Final = 64
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz012345" * 8
"""For ``translate``: each byte becomes a letter or digit."""

BROKERS_MECHANISM: Final = "SCRAM-SHA-512"
"""What brokers use under a name of their own, so that no user can be taken for one (``login_exchange``)."""

Users = Mapping[str, Mapping[str, Verifier]]
"""User → mechanism → verifier."""


class Credentials:
    """The verifiers of all users at one time."""

    def __init__(self, users: Users, secret: bytes) -> None:
        self._users, self._secret = users, secret
        verifiers = [(name, verifier) for user in sorted(users) for name, verifier in users[user].items()]
        self._models = {
            mechanism: [verifier for name, verifier in verifiers if name == mechanism] for mechanism in MECHANISMS
        }
        self._salt_bytes_max = max([SALT_BYTES, *(len(verifier.salt) for _, verifier in verifiers)])
        self._mechanisms = [max(users[user], key=_preference) for user in sorted(users) if users[user]]
        """What PLAIN would take of each user."""

    def find(self, mechanism: str, user: str) -> tuple[Verifier, bool]:
        """A verifier, and whether the user is known; a decoy for one who is not."""
        decoy = self._decoy(mechanism, user)
        verifier = self._users.get(user, {}).get(mechanism)
        return (decoy, False) if verifier is None else (verifier, True)

    def find_any(self, user: str) -> tuple[str, Verifier, bool]:
        """A mechanism that the user has a verifier for, and as :meth:`find`."""
        own = self._users.get(user)
        models = self._mechanisms or [PREFERRED[0]]
        decoy = models[int.from_bytes(self._bytes("mechanism", user, NUMBER_BYTES)) % len(models)]
        mechanism = max(own, key=_preference) if own else decoy
        return mechanism, *self.find(mechanism, user)

    def find_broker(self) -> tuple[Verifier, bool]:
        """As :meth:`find`, for another broker of this cluster."""
        return _verifier_of_brokers(self._secret), bool(self._secret)

    def _decoy(self, mechanism: str, user: str) -> Verifier:
        models = self._models[mechanism]
        drawn = self._bytes(mechanism, user, NUMBER_BYTES + KEY_BYTES + self._salt_bytes_max)
        number = int.from_bytes(drawn[:NUMBER_BYTES])
        keys, salt = drawn[NUMBER_BYTES : NUMBER_BYTES + KEY_BYTES], drawn[NUMBER_BYTES + KEY_BYTES :]
        if not models:
            return Verifier(salt[:SALT_BYTES], ITERATIONS_DEFAULT, keys, keys)
        model = models[number % len(models)]
        salt = salt[: len(model.salt)]
        if model.salt.isalnum():  # Kafka's tools make salts of letters and digits
            salt = salt.translate(_LETTERS)
        keys = keys[: len(model.stored_key)]
        return Verifier(salt, model.iterations, keys, keys)

    def _bytes(self, purpose: str, user: str, count: int) -> bytes:
        """Bytes that only who has the secret can tell from random ones."""
        text = f"{purpose} {user}".encode("utf-8", "surrogatepass")
        return hashlib.shake_256(self._secret + text).digest(count)


def password_of_brokers(secret: bytes) -> bytes:
    """As strong as the secret, which it does not tell."""
    return hmac.digest(secret, b"password of brokers", "sha256").hex().encode()


@lru_cache(2)
def _verifier_of_brokers(secret: bytes) -> Verifier:
    """Takes some milliseconds for a new secret."""
    salt = hmac.digest(secret, b"salt of brokers", "sha256")[:SALT_BYTES]
    return make_verifier(BROKERS_MECHANISM, password_of_brokers(secret), ITERATIONS_MIN, salt)


def _preference(mechanism: str) -> int:
    return -PREFERRED.index(mechanism)

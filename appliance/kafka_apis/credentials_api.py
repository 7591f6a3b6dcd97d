"""Answers DescribeUserScramCredentials and AlterUserScramCredentials: users, as Kafka's own tools administer them.

Kafka's clients make a salt, compute the salted password and send both, so the password never comes here.  The changes
of one user are made together or not at all; those of several users are made one after another.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from ..errors import ApplianceError, UnacceptableCredential, UnknownMechanism, UserExists
from ..security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, verifier_of
from ..security.security_state import SecurityState
from ..security.user_changes import StateChange, drop_verifiers, set_verifiers
from ..wire.kafka.call import Answer, Call, Handler
from ..wire.kafka.codes import Code
from .appliance import SecurityStore

NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's ScramMechanism."""
_NAMES: Final = {number: name for name, number in NUMBERS.items()}
SALT_BYTES_MAX: Final = 256


class CredentialsApi:
    def __init__(self, security: SecurityStore) -> None:
        self._security = security

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"DescribeUserScramCredentials": self._describe, "AlterUserScramCredentials": self._alter}

    async def _describe(self, call: Call) -> Answer:
        users = self._security.state.users
        asked = Counter(user.name for user in call.request.users or ()) or dict.fromkeys(sorted(users), 1)
        results = []
        for name, count in asked.items():
            row: dict[str, Any] = {"error_code": Code.NONE}
            if count > 1:
                row = _fault(Code.DUPLICATE_RESOURCE, f"user {name!r} is asked for {count} times")
            elif name not in users:
                row = _fault(Code.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
            else:
                row["credential_infos"] = [
                    {"mechanism": NUMBERS[mechanism], "iterations": verifier.iterations}
                    for mechanism, verifier in sorted(users[name].items())
                ]
            results.append({"user": name} | row)
        return {"error_code": Code.NONE, "results": results}

    async def _alter(self, call: Call) -> Answer:
        request = call.request
        names = dict.fromkeys(change.name for change in (*request.deletions, *request.upsertions))
        results = []
        for name in names:
            deletions = [deletion for deletion in request.deletions if deletion.name == name]
            upsertions = [upsertion for upsertion in request.upsertions if upsertion.name == name]
            row: dict[str, Any] = {"error_code": Code.NONE}
            try:
                await self._security.alter(_all(_changes(name, deletions, upsertions)))
            except ApplianceError as error:
                row = _fault(error.code, str(error))
            results.append({"user": name} | row)
        return {"results": results}


def _changes(name: str, deletions: list[Any], upsertions: list[Any]) -> list[StateChange]:
    """Raises ApplianceError: the first thing that is wrong."""
    counts = Counter(change.mechanism for change in (*deletions, *upsertions))
    for number, count in counts.items():
        if number not in _NAMES:
            raise UnknownMechanism(f"{number} is no mechanism: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512")
        if count > 1:
            raise UserExists(f"{_NAMES[number]} of user {name!r} is changed {count} times in one request")
    changes = [drop_verifiers(name, _NAMES[deletion.mechanism]) for deletion in deletions]
    for upsertion in upsertions:
        mechanism = _NAMES[upsertion.mechanism]
        if not ITERATIONS_MIN <= upsertion.iterations <= ITERATIONS_MAX:
            raise UnacceptableCredential(f"{upsertion.iterations} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are")
        if len(upsertion.salted_password) != hashlib.new(MECHANISMS[mechanism]).digest_size:
            raise UnacceptableCredential(f"a salted password of {len(upsertion.salted_password)} bytes")
        if not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
            raise UnacceptableCredential(f"a salt of {len(upsertion.salt)} bytes: 1 to {SALT_BYTES_MAX} are")
        verifier = verifier_of(mechanism, bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations)
        changes.append(set_verifiers(name, {mechanism: verifier}))
    return changes


def _all(changes: Iterable[StateChange]) -> StateChange:
    """All changes as one."""
    steps = list(changes)

    def change(state: SecurityState) -> SecurityState:
        for step in steps:
            state = step(state)
        return state

    return change


def _fault(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message}

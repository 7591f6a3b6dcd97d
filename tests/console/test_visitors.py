"""appliance.console.visitors: who may log in is decided by what is stored once the password was compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.addresses import Listener
from appliance.console.console_sessions import Attempts, Sessions
from appliance.console.visitors import Visitors
from appliance.errors import BadCredentials
from appliance.security import security_file
from appliance.security.audit_log import Audit
from appliance.security.configuration import Security
from appliance.security.login_exchange import PlainCheck
from appliance.security.scram import Verifier, make_verifier
from appliance.security.security_state import SecurityState

PEER = "127.0.0.1:5"


def verifiers(password: bytes) -> dict[str, Verifier]:
    return {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", password, 4096)}


ROOT = {"root": verifiers(b"another one")}


def visitors(path: Path) -> Visitors:
    def clock() -> float:
        return 1.0

    return Visitors(
        *(Listener("kafka", "SASL_PLAINTEXT", "127.0.0.1:1"), Security(), path, Sessions(clock), Attempts(clock)),
        Audit(lambda: 1),
        login_first=True,
        anonymous=False,
        wall_ms=lambda: 1,
    )


@pytest.mark.parametrize("users", [ROOT, ROOT | {"alice": verifiers(b"new password")}])
@pytest.mark.parametrize("seen", [False, True])
def test_a_user_who_changes_while_the_password_is_compared_is_refused(
    users: dict[str, dict[str, Verifier]], seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the user is deleted, or has another password, in the middle; another visitor may see that first."""
    path = tmp_path / security_file.FILE_NAME
    security_file.store(path, SecurityState(users=ROOT | {"alice": verifiers(b"old password")}))
    console = visitors(path)
    assert console.find(asyncio.run(console.log_in("alice", "old password", PEER)), PEER)
    compare = PlainCheck.run

    def run(check: PlainCheck) -> bool:
        right = compare(check)
        security_file.store(path, SecurityState(users=users))
        if seen:
            console.find("", PEER)
        return right

    monkeypatch.setattr(PlainCheck, "run", run)
    with pytest.raises(BadCredentials):
        asyncio.run(console.log_in("alice", "old password", PEER))

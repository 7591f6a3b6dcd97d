"""appliance.security.user_changes: what a deletion leaves, and what ends the connections of an earlier user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.errors import BadValue, InvalidRequest, UnknownUser
from appliance.processes.network.revocations import Revocations
from appliance.security.certificate_names import CertificateNames
from appliance.security.scram import Verifier
from appliance.security.security_state import SecurityState
from appliance.security.user_changes import alter_account, drop_verifiers, set_verifiers

OLD = {"SCRAM-SHA-256": Verifier(b"salt", 4096, b"old", b"old")}
NEW = {"SCRAM-SHA-256": Verifier(b"salt", 4096, b"new", b"new")}


def alice() -> SecurityState:
    return set_verifiers("alice", OLD, new=True)(SecurityState())


@pytest.mark.parametrize(
    ("decided", "ends", "remedy"),
    [
        ({"locked": True}, {"locked": False}, "users unlock alice"),
        ({"expires_ms": 1}, {"expires_ms": 0}, "users expire alice --after never"),
    ],
)
def test_a_lock_outlives_the_password(decided: dict[str, Any], ends: dict[str, Any], remedy: str) -> None:
    """So it holds for a certificate and a token of the name, and for a new user."""
    state = drop_verifiers("alice")(alter_account("alice", **decided)(alice()))
    assert not state.users and state.accounts["alice"].refusal(now_ms=2)
    with pytest.raises(UnknownUser, match=remedy):
        drop_verifiers("alice")(state)
    assert set_verifiers("alice", NEW, new=True)(state).accounts["alice"].refusal(now_ms=2)
    assert not alter_account("alice", **ends)(state).accounts["alice"].refusal(now_ms=2)


def test_a_deletion_leaves_nothing_else() -> None:
    dropped = drop_verifiers("alice")
    state = dropped(alter_account("alice", ended="now")(alice()))
    assert state == SecurityState() == dropped(state)


@pytest.mark.parametrize("decided", [{"locked": True}, {"expires_ms": 1}, {"ended": "now"}])
def test_who_need_not_log_in_cannot_be_locked(decided: dict[str, Any]) -> None:
    """It would be said to be done, and nobody would be refused."""
    with pytest.raises(InvalidRequest, match="need not log in"):
        alter_account("ANONYMOUS", without_password=True, **decided)
    alter_account("ANONYMOUS", locked=False, expires_ms=0)


@pytest.mark.parametrize(
    "name",
    ["ANONYMOUS", "*", "b*", " admin", "admin ", "Mu\u0308ller", "", "a\nb", "x" * 250],
)
def test_nobody_has_a_name_that_passes_for_another(name: str) -> None:
    """However they log in."""
    with pytest.raises(InvalidRequest):
        set_verifiers(name, OLD)
    with pytest.raises(BadValue):
        CertificateNames("uri", "DEFAULT").user({"subjectAltName": (("URI", name),)})


def test_a_user_is_added_once() -> None:
    change = set_verifiers("alice", OLD, new=True)
    state = change(SecurityState())
    assert change(state) == state
    assert set_verifiers("alice", NEW, new=False)(state).accounts == state.accounts, "a password ends no connection"


def test_who_sees_only_that_a_user_was_added_anew_ends_the_earlier_ones_connections() -> None:
    gone: list[str] = []
    session = SimpleNamespace(administrator=False, principal="User:alice", mechanism="SCRAM-SHA-256")
    connections = SimpleNamespace(
        by_fd={1: SimpleNamespace(session=session)}, disconnect=lambda _, why: gone.append(why)
    )
    revocations = Revocations(cast(Any, None), cast(Any, connections), [], lambda: None, lambda: 10)
    before = alice()
    revocations.on_security(before)
    revocations.on_security(set_verifiers("alice", NEW, new=False)(before))
    revocations.end_noted()
    assert not gone
    revocations.on_security(set_verifiers("alice", NEW, new=True)(drop_verifiers("alice")(before)))
    revocations.end_noted()
    assert gone

"""Changes of users, as functions from one security state to the next.

Each accepts a state that has the change already, since it is made again when a reply is lost (``alter_state``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import quote
from typing import Final
from uuid import uuid4

import msgspec

from ..errors import InvalidRequest, UnknownUser, UserExists
from .accounts import OPEN, Account
from .principals import ANONYMOUS, login_fault, name_fault, principal_of
from .scram import Verifier
from .security_state import SecurityState

USERS_MAX: Final = 10_000
"""Every worker holds all of them."""

StateChange = Callable[[SecurityState], SecurityState]


def check_user(name: str) -> None:
    """Raises InvalidRequest for a name that no user may have."""
    if why := name_fault(name):
        raise InvalidRequest(why)


def check_login(name: str) -> None:
    """Raises InvalidRequest for a name under which nobody may log in."""
    if why := login_fault(name):
        raise InvalidRequest(why)


def set_verifiers(name: str, verifiers: Mapping[str, Verifier], *, new: bool | None = None) -> StateChange:
    """Give a user these verifiers, by mechanism, beside those of other mechanisms.

    ``new``: True: only a user who does not exist; False: only one who does, and all other verifiers go.

    A new user ends the connections of an earlier one of the name: a broker that was away sees the new one only.

    Raises, when the change is made:
        InvalidRequest, UserExists, UnknownUser.
    """
    check_login(name)
    ended = uuid4().hex

    def change(state: SecurityState) -> SecurityState:
        own = state.users.get(name)
        if new and own not in (None, verifiers):
            raise UserExists(f"user {name!r} exists already: `appliance users password {quote(name)}` changes it")
        if new is False and own is None:
            raise UnknownUser(f"there is no user {name!r}")
        if own is None and len(state.users) >= USERS_MAX:
            raise InvalidRequest(f"there are {USERS_MAX} users already: delete some")
        after = dict(verifiers) if new is False else {**(own or {}), **verifiers}
        accounts = state.accounts
        if own is None:
            accounts = {**accounts, name: msgspec.structs.replace(accounts.get(name, OPEN), ended=ended)}
        return msgspec.structs.replace(state, users={**state.users, name: after}, accounts=accounts)

    return change


def drop_verifiers(name: str, mechanism: str | None = None) -> StateChange:
    """Take the verifier of one mechanism from a user, or all: a user without any is none.

    A lock and a time to expire stay: they also hold for a certificate and a token, and for who gets the name next.

    Raises, when the change is made for the first time:
        UnknownUser: there is nothing to take.
    """
    was_dropped = False

    def change(state: SecurityState) -> SecurityState:
        nonlocal was_dropped
        own = state.users.get(name, {})
        accounts = state.accounts
        account = accounts.get(name, OPEN)
        stays = account.locked or account.expires_ms > 0
        if mechanism is None and name in accounts and not stays:
            accounts = {other: account for other, account in accounts.items() if other != name}
        kept = {} if mechanism is None else {other: own[other] for other in own if other != mechanism}
        if kept == own and accounts is state.accounts and not was_dropped:
            raise UnknownUser(
                f"there is no user {name!r}{f' with {mechanism}' if mechanism else _remedy(name, account)}"
            )
        was_dropped = True
        users = {other: verifiers for other, verifiers in state.users.items() if other != name}
        return msgspec.structs.replace(state, users=users | ({name: kept} if kept else {}), accounts=accounts)

    return change


def _remedy(name: str, account: Account) -> str:
    """How to end what is decided of who has no password."""
    ends = [f"`appliance users unlock {quote(name)}` ends the lock"] if account.locked else []
    ends += [f"`appliance users expire {quote(name)} --after never` lets it not expire"] if account.expires_ms else []
    return f" with a password here: {' and '.join(ends)}" if ends else ""


def alter_account(
    name: str,
    *,
    locked: bool | None = None,
    expires_ms: int | None = None,
    ended: str = "",
    without_password: bool = False,
) -> StateChange:
    """Decide something of a user.  None, and "" for ``ended``, leave it as it is; see :class:`.accounts.Account`.

    ``without_password``: also of one who has no password here, but logs in with a certificate or a token.

    Raises, when the change is made:
        InvalidRequest: no user may have the name, or there are too many.
        UnknownUser: nobody with a password here has it.
    """
    check_user(name)
    if principal_of(name) == ANONYMOUS and (locked or expires_ms or ended):
        raise InvalidRequest(
            f"{name} is everybody who need not log in, who can be neither locked nor thrown out: let kafka.listen and"
            " native.listen ask for a login, or deny them with an access rule"
        )

    def change(state: SecurityState) -> SecurityState:
        own = state.accounts.get(name, OPEN)
        if own is OPEN and name not in state.users and not without_password:
            raise UnknownUser(
                f"there is no user {name!r} with a password here; for one of a certificate or a token say"
                " --without-password"
            )
        if own is OPEN and name not in state.users and len(state.accounts.keys() - state.users.keys()) >= USERS_MAX:
            raise InvalidRequest(f"of {USERS_MAX} users without a password something is decided already: end some")
        after = msgspec.structs.replace(
            own,
            locked=own.locked if locked is None else locked,
            expires_ms=own.expires_ms if expires_ms is None else expires_ms,
            ended=ended or own.ended,
        )
        others = {other: account for other, account in state.accounts.items() if other != name}
        return msgspec.structs.replace(state, accounts=others | ({} if after == OPEN else {name: after}))

    return change

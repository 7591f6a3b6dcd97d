"""Changes of users, as functions from one security state to the next.

Each accepts a state that has the change already, since it is made again when a reply is lost (``alter_state``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import quote
from typing import Final

import msgspec

from ..errors import InvalidRequest, UnknownUser, UserExists
from .principals import USER_CHARACTERS_MAX
from .scram import Verifier
from .security_state import SecurityState

USERS_MAX: Final = 10_000
"""Every worker holds all of them."""

StateChange = Callable[[SecurityState], SecurityState]


def check_user(name: str) -> None:
    """Raises InvalidRequest for a name that no user may have."""
    if not 0 < len(name) <= USER_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(f"a user's name has 1 to {USER_CHARACTERS_MAX} printable characters, not {name!r:.300}")


def set_verifiers(name: str, verifiers: Mapping[str, Verifier], *, new: bool | None = None) -> StateChange:
    """Give a user these verifiers, by mechanism, beside those of other mechanisms.

    ``new``: True: only a user who does not exist; False: only one who does, and all other verifiers go.

    Raises, when the change is made:
        InvalidRequest, UserExists, UnknownUser.
    """
    check_user(name)

    def change(state: SecurityState) -> SecurityState:
        own = state.users.get(name)
        if new and own not in (None, verifiers):
            raise UserExists(f"user {name!r} exists already: `appliance users password {quote(name)}` changes it")
        if new is False and own is None:
            raise UnknownUser(f"there is no user {name!r}")
        if own is None and len(state.users) >= USERS_MAX:
            raise InvalidRequest(f"there are {USERS_MAX} users already: delete some")
        after = dict(verifiers) if new is False else {**(own or {}), **verifiers}
        return msgspec.structs.replace(state, users={**state.users, name: after})

    return change


def drop_verifiers(name: str, mechanism: str | None = None) -> StateChange:
    """Take the verifier of one mechanism from a user, or all: a user without any is none.

    Raises, when the change is made for the first time:
        UnknownUser: there is nothing to take.
    """
    found = False

    def change(state: SecurityState) -> SecurityState:
        nonlocal found
        own = state.users.get(name, {})
        left = {} if mechanism is None else {each: own[each] for each in own if each != mechanism}
        if left == own and not found:
            raise UnknownUser(f"there is no user {name!r}" + (f" with {mechanism}" if mechanism else ""))
        found = True
        users = {other: verifiers for other, verifiers in state.users.items() if other != name}
        return msgspec.structs.replace(state, users=users | ({name: left} if left else {}))

    return change

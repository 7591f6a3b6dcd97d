"""Ends the connections of users who may not be connected any more: deleted, locked, expired, or thrown out.

A change of the security state is noted when it is read, which may be in the middle of a request, and carried out at the
end of the turn.  Connections that writers serve come back for it.  Programs of the service's own user and of root, at
the socket in the data directory, stay: they are who unlocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ...security.accounts import OPEN, Account
from ...security.principals import ANONYMOUS, BROKER_PREFIX, user_of_principal
from ...security.scram import Verifier
from ...security.security_state import SecurityState
from .connections import Connections
from .turn import Turn
from .worker_connection import ClientSession
from .writer_link import HandedOver

DELETED: Final = "this user was deleted"
ENDED: Final = "an administrator has ended all connections of this user"


class Revocations:
    """``served``: the connections that writers serve; ``recall`` takes them back."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        served: Iterable[HandedOver],
        recall: Callable[[], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._turn, self._connections, self._served = turn, connections, served
        self._recall, self._wall_ms = recall, wall_ms
        self._users: Mapping[str, Mapping[str, Verifier]] = {}
        self._accounts: Mapping[str, Account] = {}
        self._reasons: dict[str, str] = {}
        """Users whose connections are to be ended in this turn, and why."""
        self._begun = False
        self._looked_ms = 0

    def refusal(self, principal: str) -> str:
        """Why a principal may not be connected; "": nothing is against it."""
        if not self._accounts or principal == ANONYMOUS or principal.startswith(BROKER_PREFIX):
            return ""
        account = self._accounts.get(user_of_principal(principal))
        return account.refusal(self._wall_ms()) if account is not None else ""

    def on_security(self, state: SecurityState) -> None:
        """Note what a new state means for who is connected.  Nobody is thrown out by the first one."""
        if self._begun:
            for user in self._users.keys() - state.users.keys():
                self._reasons[user] = DELETED
            for user, account in state.accounts.items():
                if account.ended and account.ended != self._accounts.get(user, OPEN).ended:
                    self._reasons[user] = ENDED
        self._users, self._accounts, self._begun = state.users, state.accounts, True
        self._note_refused(0)

    def check_timeouts(self) -> None:
        """Note whose time is over since the last look."""
        since_ms, self._looked_ms = self._looked_ms, self._wall_ms()
        if any(since_ms < account.expires_ms <= self._looked_ms for account in self._accounts.values()):
            self._note_refused(since_ms)

    def _note_refused(self, since_ms: int) -> None:
        now_ms = self._wall_ms()
        for user, account in self._accounts.items():
            if (why := account.refusal(now_ms)) and (account.locked or account.expires_ms > since_ms):
                self._reasons[user] = why

    def end_noted(self) -> None:
        """End the connections that were noted."""
        if not self._reasons:
            return
        reasons, self._reasons = self._reasons, {}
        for connection in list(self._connections.by_fd.values()):
            if why := self._reason(connection.session, reasons):
                self._connections.disconnect(connection, why)
        away = [handed_over for handed_over in self._served if self._reason(handed_over.session, reasons)]
        for handed_over in away:
            handed_over.failure = self._reason(handed_over.session, reasons)
        if away:
            self._recall()

    def _reason(self, session: ClientSession, reasons: Mapping[str, str]) -> str:
        if session.administrator or session.principal == ANONYMOUS or session.principal.startswith(BROKER_PREFIX):
            return ""
        why = reasons.get(user_of_principal(session.principal), "")
        return why if why != DELETED or session.mechanism else ""

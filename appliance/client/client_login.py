"""Logs a connection of the native listener in, with SCRAM: values only; ``broker_connection`` sends and receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import ProtocolFault, UnknownMechanism
from ..security.scram import ScramClient

PREFERRED: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


class ClientLogin:
    """A user and the password.  Its text shows neither."""

    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password.encode()
        self._mechanism = ""

    def begin(self, mechanisms: Sequence[str] = ()) -> LoginSteps:
        """Begin a login; ``mechanisms``: what the appliance accepts, none: log in again as before.

        Raises:
            UnknownMechanism: it accepts no SCRAM, and our client does not send passwords.
        """
        for mechanism in PREFERRED:
            if mechanism in (mechanisms or (self._mechanism,)):
                self._mechanism = mechanism
                return LoginSteps(mechanism, ScramClient(mechanism, self._user, self._password))
        raise UnknownMechanism(f"the appliance accepts {', '.join(mechanisms)}: this client uses {PREFERRED[0]}")


class LoginSteps:
    """One login: :meth:`first`, then :meth:`next` with each answer, until that returns None."""

    def __init__(self, mechanism: str, scram: ScramClient) -> None:
        self.mechanism = mechanism
        self._scram = scram
        self._proven = False

    def first(self) -> bytes:
        return self._scram.first()

    def next(self, answer: bytes, over: bool) -> bytes | None:
        """The next message; None when both sides have proven that they know the password.

        Raises:
            ProtocolFault: the server does not know it, or ends the login too early or too late.
        """
        if self._proven != over:
            raise ProtocolFault("the login ends when it should not, or does not when it should")
        if self._proven:
            self._scram.check_last_message(answer)
            return None
        self._proven = True
        return self._scram.final(answer)

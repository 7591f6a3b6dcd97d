"""The server's side of one login, whichever listener it comes through: a mechanism, then its messages::

    state       choose, known      choose, unknown      message
    NEW         CHOSEN             UnknownMechanism     LoginOutOfOrder
    CHOSEN      LoginOutOfOrder    LoginOutOfOrder      SCRAM: ANSWERED;  PLAIN: CHECKING
    ANSWERED    LoginOutOfOrder    LoginOutOfOrder      SCRAM: DONE
    CHECKING    LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder; the owner calls ``checked``: DONE
    DONE        LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder
    FAILED      LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder

Every error leads to FAILED.  Wrong password and unknown user are one error, after the same work.

PLAIN (RFC 4616) brings the password itself.  It is compared with the SCRAM verifier of the user: that takes all
iterations, so the owner of the exchange runs :meth:`PlainCheck.run` in a thread.

A broker of this cluster logs in with the mechanism BROKERS: SCRAM with the password that brokers share.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import partial
from typing import Final

from ..errors import BadCredentials, LoginOutOfOrder, UnknownMechanism
from .credentials import BROKERS_MECHANISM, Credentials
from .principals import USER_CHARACTERS_MAX, principal_of, principal_of_broker
from .scram import MECHANISMS, PASSWORD_BYTES_MAX, ScramServer, Verifier, is_password

PLAIN: Final = "PLAIN"
ALL_MECHANISMS: Final = (*MECHANISMS, PLAIN)
BROKERS: Final = f"{BROKERS_MECHANISM}-BROKERS"
"""The mechanism of brokers; it is not told to clients."""


def parse_mechanisms(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(","))


class State(enum.Enum):
    NEW = enum.auto()
    CHOSEN = enum.auto()
    ANSWERED = enum.auto()
    CHECKING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class PlainCheck:
    """A password to be compared with a verifier.  It has no text that could show the password."""

    __slots__ = ("known", "mechanism", "password", "user", "verifier")

    def __init__(self, user: str, password: bytes, mechanism: str, verifier: Verifier, known: bool) -> None:
        self.user, self.password = user, password
        self.mechanism, self.verifier, self.known = mechanism, verifier, known

    def run(self) -> bool:
        """Whether the password is right; as slow as PBKDF2."""
        right = is_password(self.mechanism, self.password, self.verifier)
        return right and self.known


class Exchange:
    """One login.  ``user`` is set by the client's first message."""

    def __init__(self, mechanisms: Sequence[str], credentials: Credentials, brokers: bool = False) -> None:
        """
        Args:
            mechanisms: those that this listener accepts from clients.
            brokers: whether it accepts brokers of this cluster, too.
        """
        self.state = State.NEW
        self.mechanism = ""
        self.user = ""
        self._mechanisms, self._credentials, self._brokers = mechanisms, credentials, brokers
        self._scram: ScramServer | None = None

    def choose(self, mechanism: str) -> None:
        """Begin with a mechanism.

        Raises:
            UnknownMechanism: it is not accepted here.
            LoginOutOfOrder: a mechanism is chosen already.
        """
        self._expect(State.NEW)
        credentials = self._credentials  # ScramServer keeps these, not this exchange: that would be a cycle
        if mechanism == BROKERS and self._brokers:
            self._scram = ScramServer(BROKERS_MECHANISM, lambda _: credentials.find_broker())
        elif mechanism not in self._mechanisms:
            self.state = State.FAILED
            raise UnknownMechanism(f"no mechanism {mechanism!r:.50} here: use one of {', '.join(self._mechanisms)}")
        elif mechanism in MECHANISMS:
            self._scram = ScramServer(mechanism, partial(credentials.find, mechanism))
        self.mechanism = mechanism
        self.state = State.CHOSEN

    @property
    def principal(self) -> str:
        """Who the client says it is; "" before it has said that."""
        if not self.user:
            return ""
        return principal_of_broker(self.user) if self.mechanism == BROKERS else principal_of(self.user)

    def respond(self, message: bytes) -> bytes | PlainCheck:
        """The answer to the client's next message; for PLAIN the comparison to run, whose result :meth:`checked` takes.

        Raises:
            BadCredentials: wrong password, unknown user, or not a message of the mechanism.
            LoginOutOfOrder: no mechanism is chosen, or the exchange is over.
        """
        self._expect(State.CHOSEN, State.ANSWERED)
        first = self.state is State.CHOSEN
        self.state = State.FAILED
        if self._scram is None:
            check = self._plain(message)
            self.state = State.CHECKING
            return check
        if first:
            reply = self._scram.first(message)
            self.user = self._scram.user
            self.state = State.ANSWERED
        else:
            reply = self._scram.final(message)
            self.state = State.DONE
        return reply

    def checked(self, right: bool) -> None:
        """Take the result of a :class:`PlainCheck`.

        Raises:
            BadCredentials: wrong password or unknown user.
        """
        assert self.state is State.CHECKING
        self.state = State.DONE if right else State.FAILED
        if not right:
            raise BadCredentials("wrong password or unknown user")

    def _plain(self, message: bytes) -> PlainCheck:
        try:
            identity, user, _ = message.decode().split("\0")
        except ValueError:
            raise BadCredentials("not a message of PLAIN") from None
        password = message.rpartition(b"\0")[2]
        if (
            identity not in ("", user)
            or not 0 < len(user) <= USER_CHARACTERS_MAX
            or not 0 < len(password) <= PASSWORD_BYTES_MAX
        ):
            raise BadCredentials("not a message of PLAIN, or another identity")
        self.user = user
        return PlainCheck(user, password, *self._credentials.find_any(user))

    def _expect(self, *states: State) -> None:
        if self.state not in states:
            was, self.state = self.state, State.FAILED
            raise LoginOutOfOrder(f"a message of a login that does not follow ({was.name.lower()})")

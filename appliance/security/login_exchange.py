"""The server's side of one login, whichever listener it comes through: a mechanism, then its messages::

    state       choose, known      choose, unknown      message
    NEW         CHOSEN             UnknownMechanism     LoginOutOfOrder
    CHOSEN      LoginOutOfOrder    LoginOutOfOrder      SCRAM: ANSWERED;  PLAIN: CHECKING;  OAUTHBEARER: DONE, REFUSED
    ANSWERED    LoginOutOfOrder    LoginOutOfOrder      SCRAM: DONE
    CHECKING    LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder; the owner calls ``checked``: DONE
    REFUSED     LoginOutOfOrder    LoginOutOfOrder      BadCredentials: the client has seen why (RFC 7628, 3.2.3)
    DONE        LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder
    FAILED      LoginOutOfOrder    LoginOutOfOrder      LoginOutOfOrder

Every error leads to FAILED.  Wrong password and unknown user are one error, after the same work.

PLAIN (RFC 4616) brings the password itself.  It is compared with the SCRAM verifier of the user: that takes all
iterations, so the owner of the exchange runs :meth:`PlainCheck.run` in a thread.

OAUTHBEARER brings a token, which also says when the login ends (:mod:`.bearer_tokens`).

A broker of this cluster logs in with the mechanism BROKER_LOGIN: SCRAM with the password that brokers share.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import partial
from typing import Final

from ..errors import BadCredentials, LoginOutOfOrder, UnknownMechanism
from .bearer_tokens import OAUTHBEARER, BearerTokens, InvalidToken
from .credentials import BROKERS_MECHANISM, Credentials
from .principals import USER_CHARACTERS_MAX, principal_of, principal_of_broker
from .scram import MECHANISMS, PASSWORD_BYTES_MAX, ScramServer, Verifier, is_password

PLAIN: Final = "PLAIN"
PASSWORD_MECHANISMS: Final = (*MECHANISMS, PLAIN)
"""The mechanisms for users of the appliance."""
BROKER_LOGIN: Final = f"{BROKERS_MECHANISM}-BROKERS"
"""The mechanism of brokers; it is not told to clients."""


def parse_mechanisms(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(","))


class LoginState(enum.Enum):
    NEW = enum.auto()
    CHOSEN = enum.auto()
    ANSWERED = enum.auto()
    CHECKING = enum.auto()
    REFUSED = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class PlainCheck:
    """A password to be compared with a verifier.  It has no text that could show the password."""

    __slots__ = ("is_known", "mechanism", "password", "user", "verifier")

    def __init__(self, user: str, password: bytes, mechanism: str, verifier: Verifier, is_known: bool) -> None:
        self.user, self.password = user, password
        self.mechanism, self.verifier, self.is_known = mechanism, verifier, is_known

    def run(self) -> bool:
        """Whether the password is right; as slow as PBKDF2."""
        right = is_password(self.mechanism, self.password, self.verifier)
        return right and self.is_known


class Exchange:
    """One login.  ``user`` is set by the client's first message."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        credentials: Credentials,
        brokers: bool = False,
        tokens: BearerTokens | None = None,
    ) -> None:
        """
        Args:
            mechanisms: those that this listener accepts from clients.
            brokers: whether it accepts brokers of this cluster, too.
            tokens: what checks those of OAUTHBEARER.
        """
        self.state = LoginState.NEW
        self.mechanism = ""
        self.user = ""
        self._mechanisms, self._credentials, self._brokers = mechanisms, credentials, brokers
        self.expires_s = 0.0
        """When the login ends, in seconds since 1970; 0: it does not by itself."""
        self._tokens = tokens
        self._refusal = ""
        self._scram: ScramServer | None = None
        self._proved: tuple[str, Verifier] | None = None
        """The mechanism and the verifier that the password was right for."""

    def choose(self, mechanism: str) -> None:
        """Begin with a mechanism.

        Raises:
            UnknownMechanism: it is not accepted here.
            LoginOutOfOrder: a mechanism is chosen already.
        """
        self._expect(LoginState.NEW)
        credentials = self._credentials  # ScramServer keeps these, not this exchange: that would be a cycle
        if mechanism == BROKER_LOGIN and self._brokers:
            self._scram = ScramServer(BROKERS_MECHANISM, lambda _: credentials.find_broker())
        elif mechanism not in self._mechanisms:
            self.state = LoginState.FAILED
            raise UnknownMechanism(f"no mechanism {mechanism!r:.50} here: use one of {', '.join(self._mechanisms)}")
        elif mechanism in MECHANISMS:
            self._scram = ScramServer(mechanism, partial(credentials.find, mechanism))
        self.mechanism = mechanism
        self.state = LoginState.CHOSEN

    @property
    def has_refused_token(self) -> bool:
        """Whether the client has had the first answer to a token that is not good."""
        return bool(self._refusal)

    @property
    def principal(self) -> str:
        """Who the client says it is; "" before it has said that."""
        if not self.user:
            return ""
        return principal_of_broker(self.user) if self.mechanism == BROKER_LOGIN else principal_of(self.user)

    def respond(self, message: bytes) -> bytes | PlainCheck:
        """The answer to the client's next message; for PLAIN the comparison to run, whose result :meth:`checked` takes.

        Raises:
            BadCredentials: wrong password, unknown user, or not a message of the mechanism.
            LoginOutOfOrder: no mechanism is chosen, or the exchange is over.
        """
        self._expect(LoginState.CHOSEN, LoginState.ANSWERED, LoginState.REFUSED)
        first, refused = self.state is LoginState.CHOSEN, self.state is LoginState.REFUSED
        self.state = LoginState.FAILED
        if refused:
            raise BadCredentials(self._refusal)
        if self.mechanism == OAUTHBEARER and self._tokens is not None:
            return self._bearer(message, self._tokens)
        if self._scram is None:
            check = self._plain(message)
            self.state = LoginState.CHECKING
            return check
        if first:
            reply = self._scram.first(message)
            self.user = self._scram.user
            self.state = LoginState.ANSWERED
        else:
            reply = self._scram.final(message)
            self._proved = self.mechanism, self._scram.verifier
            self.state = LoginState.DONE
        return reply

    def checked(self, right: bool) -> None:
        """Take the result of a :class:`PlainCheck`.

        Raises:
            BadCredentials: wrong password or unknown user.
        """
        assert self.state is LoginState.CHECKING
        self.state = LoginState.DONE if right else LoginState.FAILED
        if not right:
            raise BadCredentials("wrong password or unknown user")

    def check_present(self, credentials: Credentials) -> None:
        """Check that a login that is done holds with the verifiers of now: it may have begun long before.

        Raises:
            BadCredentials: the user was deleted since it began, or has another password.
        """
        if self._proved is None:  # a token, which nobody here can change
            return
        mechanism, verifier = self._proved
        stored = credentials.find_broker() if self.mechanism == BROKER_LOGIN else credentials.find(mechanism, self.user)
        if stored != (verifier, True):
            self.state = LoginState.FAILED
            raise BadCredentials("wrong password or unknown user")

    def _bearer(self, message: bytes, tokens: BearerTokens) -> bytes:
        try:
            self.user, self.expires_s = tokens.check(message)
        except InvalidToken as error:
            # As good as a wrong password: the owner notes it and delays this answer, since the client need not send
            # the byte that would fail the login, and could try token after token.  It does neither again for the byte.
            self._refusal = str(error)
            self.state = LoginState.REFUSED
            return error.answer
        self.state = LoginState.DONE
        return b""

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
        check = PlainCheck(user, password, *self._credentials.find_any(user))
        self._proved = check.mechanism, check.verifier
        return check

    def _expect(self, *states: LoginState) -> None:
        if self.state not in states:
            was, self.state = self.state, LoginState.FAILED
            raise LoginOutOfOrder(f"a message of a login that does not follow ({was.name.lower()})")

"""Accepts connections from the listeners, brings them through TLS, and refuses those for which there is no room.

Bounds: ``network.connections_max`` connections, or fewer where the system grants fewer descriptors::

    of the descriptors that are granted       are for
    what the worker has at its start          listeners, channels, doorbells
    an eighth, at most OPEN_FILES_MAX         segment files
    those that exist now                      links to writers, handshakes, relays
    an eighth, at most SPARE_DESCRIPTORS      writers that are started next, files that slow readers hold
    a sixteenth, at most RESERVED             administrators
    all others                                connections

A worker that has to refuse a connection leaves its TCP listeners to other workers for ACCEPT_PAUSE_MS.

RESERVED more are for administrators alone: root, and the user of the service, who come through a Unix socket.  Whatever
others do, the command line gets in.

Connections are also counted by address and by user (:class:`ConnectionPlaces`), so that no client takes the places of
all others: ``network.connections_per_address_max`` and ``network.connections_per_user_max``.  By default an address has
at most 1 / PLACES_SHARE of a worker's connections, and this host, where users share one address, all.  Those that have
not logged in yet have at most that share of all, too: for one more, one of the address with the most of them gives
way, so nobody without a password keeps others away.  Nor those of one's own address: where that has no place left, one
of it that has not logged in, or that has not completed its handshake, gives way to one that is to log in.  What a
listener without a login has admitted stays.  A connection that a writer
serves is counted, too.  Unix sockets have no address.  Not counted by user: who has not logged in, the brokers of the
cluster, and administrators: root, and the user of the service, through a Unix socket.

A connection of a TLS listener completes its handshake before it may send requests (:class:`Handshakes`).  A handshake
has a socket and OpenSSL's state, nothing else: no inbox, no codec, no place among the connections::

    accepted ── began ──► handshake ── complete ──► connection
                             │
                             └── failed, too slow, too large, or pushed out ──► closed, counted by reason

Signing takes up to a millisecond, so STEPS_PER_TURN handshakes go on in one turn of the loop; epoll reports the others
again.

Bounds of handshakes: ``tls.handshakes_max`` of a worker, ``tls.handshake_ms_max`` of time, HANDSHAKE_BYTES_MAX of
received bytes.  When there is no room for one more, one of the address with the most of them gives way.

Who gives way of those that wait is the oldest of the younger half (:func:`giving_way`).  A quick client is through
before as many have come as the younger half has places: so those who hold places without going on lose them to those
who come.  One on a slow link may be pushed out by many who come after it, as often as the older half is full when its
turn comes; but each place there is free again after the time of a login, or of a handshake, at most, and who has it is
pushed out by nobody.  If the oldest of all gave way, whoever needs longer than the others take to come would never get
through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar

from ...addresses import Listener, address_text, site_of
from ...config import NetworkSection
from ...errors import BadValue
from ...machine_limits import (
    ADVICE,
    CONNECTIONS_MAX,
    DESCRIPTORS,
    PER_ADDRESS_MAX,
    PER_USER_MAX,
    descriptors_granted,
    descriptors_of,
    limit_of,
)
from ...security.audit_log import Reason
from ...security.certificate_names import CertificateNames
from ...security.configuration import Tls
from ...security.local_users import is_administrator
from ...security.principals import ANONYMOUS, BROKER_PREFIX
from ...wire.sockets import set_options
from ...wire.transport import PlainOnTls, TlsTransport
from ..messages import LimitReached
from .turn import Turn
from .worker_connection import ClientSession, WorkerConnection

Waiting = TypeVar("Waiting")

PEER_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid, gid: see unix(7)."""
SPARE_DESCRIPTORS: Final = 64
SPARE_SHARE: Final = 8
RESERVED_SHARE: Final = 16
"""Parts of what is granted, where that is little."""
RESERVED: Final = 16
"""Connections of a worker, and their descriptors, for administrators."""
ACCEPT_PAUSE_MS: Final = 100
LACKING_MS: Final = 5_000
"""How long a worker reports a limit of the machine after it had to refuse a connection for it."""
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PLACES_SHARE: Final = 4
LOOPBACK_SITE: Final = site_of("::1")
STEPS_PER_TURN: Final = 8
HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""A client's certificates have a few kilobytes; OpenSSL takes at most 100 KiB of them."""


def giving_way(crowd: Collection[Waiting]) -> Waiting:
    """Who of those that wait gives way to one more: the oldest of the younger half.  ``crowd``: the oldest first."""
    return next(islice(crowd, len(crowd) // 2, None))


def _largest(crowds: Mapping[str, Collection[Waiting]]) -> Collection[Waiting]:
    """Those of the address with the most of them; of all together when each address has one.  The oldest first."""
    crowd = max(crowds.values(), key=len)
    return crowd if len(crowd) > 1 else list(chain.from_iterable(crowds.values()))


def site_of_host(host: str) -> str:
    """What a client's address, as in ``ClientSession.host``, is counted as: of IPv6 the network of its host."""
    return site_of(host.strip("[]"))


class ConnectionPlaces:
    """Counts connections by address and by user, and makes a login their principal.

    What is refused is in the audit log, and closed, as Kafka does.
    """

    def __init__(self, turn: Turn, limits: NetworkSection) -> None:
        self._turn = turn
        self._connections_max = limits.connections_max
        self._per_address, self._per_user = limits.connections_per_address_max, limits.connections_per_user_max
        self._by_address: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._strangers: dict[str, dict[WorkerConnection, None]] = {}
        """The connections that have not logged in yet, by address; the oldest first."""
        self._stranger_count = 0

    def admits_address(self, accepted: AcceptedConnection, handshakes: int) -> bool:
        """Whether there is room for one more connection of an address; ``handshakes``: how many it has begun."""
        site = accepted.site
        is_local = site.startswith("127.") or site == LOOPBACK_SITE
        shared = self._connections_max if is_local else max(1, self._connections_max // PLACES_SHARE)
        return not site or self._by_address[site] + handshakes < (self._per_address or shared)

    def refuse_address(self, accepted: AcceptedConnection) -> None:
        """Close a connection whose address has no room for it."""
        self._turn.audit.refused(Reason.CONNECTIONS_PER_ADDRESS, "", accepted.peer, what=PER_ADDRESS_MAX)
        accepted.sock.close()

    def strangers_of(self, site: str) -> Collection[WorkerConnection]:
        """The connections of an address that have not logged in yet, the oldest first."""
        return self._strangers.get(site, {})

    def admits(self, session: ClientSession, principal: str, peer: str) -> bool:
        """Whether there is room for one more connection of a principal, which this one will be."""
        if not self._per_user or not _is_counted(session, principal) or self._by_user[principal] < self._per_user:
            return True
        self._turn.audit.refused(Reason.CONNECTIONS_PER_USER, principal, peer, what=PER_USER_MAX)
        return False

    def hold(self, connection: WorkerConnection) -> None:
        """Count a connection until it ends."""
        self.enter(connection.session)
        connection.own(self, partial(self._release, connection))
        if connection.session.gated:
            self._strangers.setdefault(site_of_host(connection.session.host), {})[connection] = None
            self._stranger_count += 1

    def _release(self, connection: WorkerConnection) -> None:
        self.leave(connection.session)
        self._know(connection)

    def _know(self, connection: WorkerConnection) -> None:
        """A connection has logged in, or is gone."""
        site = site_of_host(connection.session.host)
        of_site = self._strangers.get(site, {})
        if connection in of_site:
            del of_site[connection]
            self._stranger_count -= 1
            if not of_site:
                del self._strangers[site]

    def crowded_out(self, room: int) -> WorkerConnection | None:
        """A connection that has not logged in and gives way to a new one; ``room``: places of all connections."""
        if self._stranger_count < max(1, room // PLACES_SHARE):
            return None
        return giving_way(_largest(self._strangers))

    def enter(self, session: ClientSession) -> None:
        if session.host:
            self._by_address[site_of_host(session.host)] += 1
        if _is_counted(session, session.principal):
            self._by_user[session.principal] += 1

    def leave(self, session: ClientSession) -> None:
        if session.host:
            _count_less(self._by_address, site_of_host(session.host))
        if _is_counted(session, session.principal):
            _count_less(self._by_user, session.principal)

    def log_in(self, connection: WorkerConnection, principal: str) -> bool:
        """Make this the connection's principal, and count it there; False when there is no room."""
        session = connection.session
        if principal == session.principal:
            self._know(connection)
            return True
        if not self.admits(session, principal, connection.peer):
            return False
        self._know(connection)
        self.leave(session)
        session.become(principal)
        self.enter(session)
        return True


def _is_counted(session: ClientSession, principal: str) -> bool:
    return not session.administrator and principal != ANONYMOUS and not principal.startswith(BROKER_PREFIX)


def _count_less(counts: Counter[str], name: str) -> None:
    """Count one less; the last one leaves no entry."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


class AcceptedConnection(NamedTuple):
    """A new connection, its listener at the address that the client connected to, and the client's address.

    The address of a client of a Unix socket is "unix:" and its process id; ``uid`` is its user, -1 of all others.
    """

    sock: socket.socket
    listener: Listener
    peer: str
    uid: int = -1

    @property
    def host(self) -> str:
        """The client's address without its port; "" of a Unix socket."""
        return "" if self.listener.unix else self.peer.rpartition(":")[0]

    @property
    def site(self) -> str:
        """What the client's address is counted as: see :func:`site_of_host`."""
        return site_of_host(self.host)

    @property
    def administrator(self) -> bool:
        return self.uid >= 0 and is_administrator(self.uid)


class Acceptor:
    """The listeners, which all workers share, and a spare descriptor to refuse connections with."""

    def __init__(
        self, listeners: Sequence[tuple[Listener, socket.socket]], connections_max: int, epoll: select.epoll, turn: Turn
    ) -> None:
        self._turn, self._epoll = turn, epoll
        self._connections_max = connections_max
        self.by_fd = {sock.fileno(): (listener, sock) for listener, sock in listeners}
        self.refused = 0
        self.resume_ms = 0
        """When the listeners are watched again; 0: they are watched now."""
        self._lacking, self._lacking_until_ms = "", 0
        """The limit of the machine that a connection was refused for, and how long that counts."""
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._at_start = 0
        """Descriptors that the worker has before it serves anybody."""
        self._watch(True)

    def count_descriptors(self) -> None:
        """Note what the worker has open now, before it serves anybody."""
        self._at_start = descriptors_of(os.getpid()).in_use or 0

    def room(self, descriptors: int) -> int:
        """How many connections the granted descriptors allow, besides those of administrators.

        ``descriptors``: as :meth:`accept`.
        """
        granted = descriptors_granted()
        spare = min(SPARE_DESCRIPTORS, granted // SPARE_SHARE) + min(RESERVED, granted // RESERVED_SHARE)
        return max(1, granted - self._at_start - descriptors - spare)

    def accept(self, fd: int, connections: int, descriptors: int) -> AcceptedConnection | None:
        """Accept a connection from the listener ``fd``; None: it was refused, or is gone.

        Args:
            connections: how many this worker has.
            descriptors: how many it has for other things that came since its start, and may have for files.
        """
        listener, listening = self.by_fd[fd]
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                self._refuse_for_lack(listening, error)
            return None
        try:
            accepted = self._identify(sock, listener, peer)
        except OSError:  # gone already
            sock.close()
            return None
        reserved = RESERVED if accepted.administrator else 0
        if reached := self._reached_by(connections, descriptors, reserved):
            self.refused += 1
            text = "connection of %s refused: %s reached: %s"
            self._turn.complain(text, accepted.peer, reached, ADVICE[reached])
            sock.close()
            self._pause()
            return None
        return accepted

    @staticmethod
    def _identify(sock: socket.socket, listener: Listener, peer: tuple[Any, ...]) -> AcceptedConnection:
        """Raises OSError: it is gone already."""
        sock.setblocking(False)
        if listener.unix:
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
            pid, uid, _ = PEER_CREDENTIALS.unpack(credentials)
            return AcceptedConnection(sock, listener, f"unix:{pid}", uid)
        set_options(sock, peer[0])
        return AcceptedConnection(sock, listener._replace(address=address_text(sock.getsockname())), address_text(peer))

    def places(self, descriptors: int) -> int:
        """How many connections there may be, besides those of administrators; ``descriptors``: as :meth:`accept`."""
        return min(self._connections_max, self.room(descriptors))

    def limits(self, connections: int, descriptors: int) -> list[LimitReached]:
        """The limits that keep clients away now; arguments as :meth:`accept`."""
        reached = self._reached_by(connections, descriptors)
        if not reached and self._turn.now_ms < self._lacking_until_ms:
            reached = self._lacking
        if not reached:
            return []
        if reached == CONNECTIONS_MAX:
            return [LimitReached(reached, self._connections_max, connections)]
        return [LimitReached(reached, None, None)]  # the supervisor measures: this process may lack what that takes

    def _reached_by(self, connections: int, descriptors: int, reserved: int = 0) -> str:
        """The name of the limit that so many connections have reached, "" when there is room for one more.

        ``reserved``: places for it beside those for all.
        """
        if connections < self.places(descriptors) + reserved:
            return ""
        return CONNECTIONS_MAX if connections >= self._connections_max + reserved else DESCRIPTORS

    def _refuse_for_lack(self, listening: socket.socket, error: OSError) -> None:
        """Close a connection with the spare descriptor, so that its client knows at once."""
        spare, self._spare = self._spare, -1
        with contextlib.suppress(OSError):
            if spare >= 0:
                os.close(spare)
                listening.accept()[0].close()
                self.refused += 1
        with contextlib.suppress(OSError):  # then the next shortage closes none
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._lacking, self._lacking_until_ms = limit_of(error), self._turn.now_ms + LACKING_MS
        advice = ADVICE.get(self._lacking, "look at the machine")
        self._turn.complain("connections are refused: %s: %s", str(error), advice)
        self._pause()

    def _pause(self) -> None:
        """Leave the listeners to other workers: this one would only refuse."""
        if not self.resume_ms and self.by_fd:
            self.resume_ms = self._turn.now_ms + ACCEPT_PAUSE_MS
            self._watch(False, unix=False)

    def resume(self) -> None:
        """Watch the listeners again once the pause is over."""
        if self._turn.now_ms >= self.resume_ms:
            self.resume_ms = 0
            self._watch(True, unix=False)

    def _watch(self, watch: bool, unix: bool = True) -> None:
        """``unix``: also the Unix sockets."""
        for fd, (listener, _) in self.by_fd.items():
            if listener.unix and not unix:
                continue
            if watch:
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            else:
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Close the listeners: the worker stops."""
        if self.resume_ms:
            self._watch(True, unix=False)
        self._watch(False)
        for _, sock in self.by_fd.values():
            sock.close()
        self.by_fd.clear()
        self.resume_ms = 0


class _Handshake(NamedTuple):
    transport: TlsTransport
    accepted: AcceptedConnection
    deadline_ms: int


class Handshakes:
    """All handshakes of one worker.

    ``on_complete`` is called with a transport that can be used, and with the user of its certificate, "" without one.
    """

    def __init__(
        self,
        turn: Turn,
        epoll: select.epoll,
        limits: Tls,
        on_complete: Callable[[TlsTransport, AcceptedConnection, str], None],
    ) -> None:
        self._turn, self._epoll, self._limits = turn, epoll, limits
        self._on_complete = on_complete
        self._names = CertificateNames(limits.principal_from, limits.principal_rules)
        self._steps = STEPS_PER_TURN
        self.by_fd: OrderedDict[int, _Handshake] = OrderedDict()
        """The oldest first."""
        self._by_site: dict[str, dict[int, None]] = {}
        """The descriptors of each address (:func:`site_of_host`), the oldest first."""

    def reload(self, limits: Tls) -> None:
        self._limits = limits
        self._names = CertificateNames(limits.principal_from, limits.principal_rules)

    def begin_handshake(self, accepted: AcceptedConnection, context: ssl.SSLContext) -> None:
        """Let a new connection begin its handshake."""
        while len(self.by_fd) >= self._limits.handshakes_max:
            self._push_out(giving_way(_largest(self._by_site)), "tls.handshakes_max")
        transport = TlsTransport(accepted.sock, context)
        fd = accepted.sock.fileno()
        self.by_fd[fd] = _Handshake(transport, accepted, self._turn.now_ms + self._limits.handshake_ms_max)
        self._by_site.setdefault(accepted.site, {})[fd] = None
        self._epoll.register(fd, select.EPOLLIN)

    def count_of(self, site: str) -> int:
        """How many handshakes an address has begun and not completed."""
        return len(self._by_site.get(site, ()))

    def push_out_one_of(self, site: str) -> None:
        """Close a handshake of an address, which has one."""
        self._push_out(giving_way(self._by_site[site]), PER_ADDRESS_MAX)

    def _push_out(self, fd: int, bound: str) -> None:
        self._refuse(fd, self.by_fd[fd], Reason.TIMEOUT, f"pushed out by newer handshakes: {bound}")

    def begin_turn(self) -> None:
        self._steps = STEPS_PER_TURN

    def on_event(self, fd: int) -> None:
        """Go on with a handshake whose socket is ready."""
        if not self._steps:
            return
        self._steps -= 1
        handshake = self.by_fd[fd]
        transport = handshake.transport
        writing = transport.wants_write
        try:
            complete = transport.handshake()
        except PlainOnTls:
            self._refuse(fd, handshake, Reason.PLAIN_ON_TLS, "its first bytes are not those of TLS")
            return
        except ssl.SSLError as error:
            self._refuse(fd, handshake, *_reason_of(error))
            return
        except OSError:  # it went away, perhaps since it refuses our certificate without saying so
            self._remove(fd, handshake)
            transport.sock.close()
            return
        if complete:
            self._complete(fd, handshake)
        elif transport.received_bytes > HANDSHAKE_BYTES_MAX:
            self._refuse(fd, handshake, Reason.TLS_HANDSHAKE, f"more than {HANDSHAKE_BYTES_MAX} bytes")
        elif transport.wants_write != writing:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if transport.wants_write else 0))

    def _complete(self, fd: int, handshake: _Handshake) -> None:
        """Note who a client is by its certificate, and hand it on; with SASL it still has to log in."""
        transport, accepted = handshake.transport, handshake.accepted
        listener, user = accepted.listener, ""
        try:
            user = "" if listener.sasl else self._names.user(transport.certificate())
        except (BadValue, ValueError, ssl.SSLError) as error:
            self._refuse(fd, handshake, Reason.CERTIFICATE, str(error))
            return
        self._remove(fd, handshake)
        self._on_complete(transport, accepted, user)

    def check_timeouts(self) -> None:
        """Close the handshakes that take too long."""
        for fd, handshake in list(self.by_fd.items()):
            if handshake.deadline_ms > self._turn.now_ms:
                break
            self._refuse(fd, handshake, Reason.TIMEOUT, "a handshake takes longer than tls.handshake_ms_max")

    def _refuse(self, fd: int, handshake: _Handshake, reason: Reason, what: str) -> None:
        """Close a connection, with one line in the audit log."""
        self._remove(fd, handshake)
        listener = handshake.accepted.listener
        where = f"{listener.protocol} {listener.security}"
        self._turn.audit.refused(reason, "", handshake.accepted.peer, listener=where, what=what)
        self._turn.close_at_end(handshake.transport.sock.close)

    def _remove(self, fd: int, handshake: _Handshake) -> None:
        del self.by_fd[fd]
        site = handshake.accepted.site
        del self._by_site[site][fd]
        if not self._by_site[site]:
            del self._by_site[site]
        self._epoll.unregister(fd)

    def close(self) -> None:
        """The worker stops."""
        for fd, handshake in list(self.by_fd.items()):
            self._remove(fd, handshake)
            handshake.transport.sock.close()


def _reason_of(error: ssl.SSLError) -> tuple[Reason, str]:
    """Whether a failed handshake is about a certificate, and why it failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Reason.CERTIFICATE, error.verify_message
    why = (error.reason or type(error).__name__).lower().replace("_", " ")
    return (Reason.CERTIFICATE if "certificate" in why or "unknown ca" in why else Reason.TLS_HANDSHAKE), why

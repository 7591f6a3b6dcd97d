"""Sends requests to other brokers: for offsets to a partition's leader, for changes to a group's coordinator.

Each connection logs in as a broker, with the secret that the registry gives all brokers of the cluster
(``security/credentials.py``), whatever the listener asks of clients: so a broker needs neither a user nor access rules,
and nobody else gets its rights.  A native listener with TLS also gets this broker's own certificate.

A request has a connection to the peer's native listener for itself.  After the answer the connection is kept for the
next one, for KEPT_S: a login costs both sides more than most requests do.  One that has failed, or whose request was
given up, is closed: its answer would be taken for that of the next.  The offsets of a peer that does not answer within
PEER_MS_MAX are left out.  A change that is not answered within ADMIN_MS_MAX fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ...addresses import parse_addresses, parse_listeners
from ...errors import BrokerAway, ProtocolFault, from_code
from ...security.configuration import Tls
from ...security.credentials import BROKERS_MECHANISM, password_of_brokers
from ...security.login_exchange import BROKER_LOGIN
from ...security.scram import ScramClient
from ...wire import native
from ...wire.bounds import PARTS_MAX_MIN
from ...wire.requests import OffsetsPart, OffsetsResult

PEER_MS_MAX: Final = 2_000
ADMIN_MS_MAX: Final = 12_000
"""Longer than a commit waits for ZooKeeper."""
REPLY_BYTES_MAX: Final = 4 << 20
"""Larger than the answer to PARTS_MAX_MIN parts."""
KEPT_S: Final = 0.8
"""Shorter than any ``network.idle_ms``: a peer does not close a connection while a request is on its way."""
KEPT_MAX: Final = 16
"""Connections to one peer that are kept; as many as it is passed transactions at once (``peer_transactions.py``)."""
AGE_S_MAX: Final = 300.0
"""After this a connection is not used again: certificates may have been renewed."""
FAULTS: Final = (OSError, ValueError, TypeError, EOFError, ProtocolFault)
"""Errors of a peer that is away, or is no appliance; TimeoutError is an OSError."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerIdentity:
    """Who this broker is to others: its id, the secret of the cluster, and the files of TLS."""

    broker_id: int
    secret: bytes = field(repr=False)
    tls: Tls


class _Peer:
    """A connection to a native listener, logged in as ``identity``; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: BrokerIdentity) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0
        self.identity = identity
        self.opened_s = self.used_s = asyncio.get_running_loop().time()
        self._age_s_max = AGE_S_MAX

    def is_usable(self, now_s: float) -> bool:
        """Whether another request may be sent: neither the peer nor time has ended the connection."""
        ended = self._reader.at_eof() or self._writer.transport.is_closing()
        return not ended and now_s - self.used_s <= KEPT_S and now_s - self.opened_s <= self._age_s_max

    async def ask(self, kind: int, *arguments: Any) -> list[Any]:
        """Send a request, and return the header of its reply."""
        self._correlation_id += 1
        self._writer.write(native.encode_frame([kind, self._correlation_id, *arguments]))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > REPLY_BYTES_MAX:
            raise ProtocolFault(f"a reply of {size} bytes")
        header: list[Any] = native.decode_header(memoryview(await self._reader.readexactly(size)))[0]
        if header[0] != self._correlation_id:
            raise ProtocolFault(f"a reply to request {header[0]} instead of {self._correlation_id}")
        return header

    async def log_in(self) -> None:
        """Say hello, prove to be a broker of this cluster, and let the peer prove it.

        Raises:
            ProtocolFault: one of the two is none, or does not know the secret of the cluster yet.
        """
        header = await self.ask(native.HELLO, native.MAGIC, native.VERSION, "coordinator")
        if header[1]:
            raise ProtocolFault(f"the greeting is answered {header[:3]}")
        password = password_of_brokers(self.identity.secret)
        scram = ScramClient(BROKERS_MECHANISM, str(self.identity.broker_id), password)
        proof = scram.final(await self._login_message(BROKER_LOGIN, scram.first()))
        scram.check_last_message(await self._login_message(None, proof))

    async def _login_message(self, mechanism: str | None, message: bytes) -> bytes:
        _, error, text, answer, lifetime_ms, *_ = await self.ask(native.LOGIN, mechanism, message)
        if error:
            raise ProtocolFault(f"the login of a broker is refused: {text}")
        if lifetime_ms:  # security.sessions_ms_max there: after it requests are refused
            self._age_s_max = min(AGE_S_MAX, lifetime_ms / 2000)
        return bytes(answer)

    def close(self) -> None:
        self._writer.transport.abort()  # every answer is here; the end of TLS would be waited for


async def _connect(address: str, identity: BrokerIdentity) -> _Peer:
    """Connect, and log in."""
    listener, *_ = parse_listeners("native", address)
    (host, port), *_ = parse_addresses(listener.address)
    context, tls = None, identity.tls
    if listener.tls:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key)
    peer = _Peer(*await asyncio.open_connection(host, port, ssl=context), identity)
    try:
        await peer.log_in()
    except BaseException:  # also of one that is given up
        peer.close()
        raise
    return peer


class PeerConnections:
    """The connections to the other brokers; ``identity`` returns who this one is by now."""

    def __init__(self, identity: Callable[[], BrokerIdentity]) -> None:
        self._identity = identity
        self._kept: dict[str, list[_Peer]] = {}
        """By address, those that no request uses; the one that was used last is the last."""
        self._expiry: asyncio.TimerHandle | None = None

    async def ask_offsets(self, address: str, parts: Sequence[OffsetsPart]) -> list[OffsetsResult]:
        """Ask the broker at ``address`` (its native listener) for one result per part; empty if it does not answer."""
        results: list[OffsetsResult] = []
        try:
            async with asyncio.timeout(PEER_MS_MAX / 1000), self._connected(address) as peer:
                for start in range(0, len(parts), PARTS_MAX_MIN):
                    header = await peer.ask(native.OFFSETS, parts[start : start + PARTS_MAX_MIN])
                    if header[1] or len(header) < 3:
                        raise ProtocolFault(f"answer {header[:2]}")
                    results += [OffsetsResult(*row) for row in header[2]]
        except FAULTS as error:
            log.info("the broker at %s does not answer with its offsets: %r", address, error)
            return []
        return results if len(results) == len(parts) else []

    async def ask_admin(self, address: str, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Let the broker whose native listener is at ``address`` carry an admin verb out, and return the result.

        Raises:
            BrokerAway: it does not answer; the verb may have been carried out.
            ApplianceError: its answer.
        """
        try:
            async with asyncio.timeout(ADMIN_MS_MAX / 1000), self._connected(address) as peer:
                code, message, result = (await peer.ask(native.ADMIN, verb, dict(arguments)))[1:4]
        except FAULTS as error:
            raise BrokerAway(f"the broker at {address} does not answer: {error!r}") from None
        if code:
            raise from_code(code, message)
        return result

    def close(self) -> None:
        """Close those that are kept."""
        kept, self._kept = self._kept, {}
        for peer in itertools.chain.from_iterable(kept.values()):
            peer.close()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @asynccontextmanager
    async def _connected(self, address: str) -> AsyncIterator[_Peer]:
        identity = self._identity()
        peer = self._take(address, identity) or await _connect(address, identity)
        try:
            yield peer
        except BaseException:  # also of a request that is given up
            peer.close()
            raise
        self._keep(address, peer)

    def _take(self, address: str, identity: BrokerIdentity) -> _Peer | None:
        kept, now_s = self._kept.get(address, []), asyncio.get_running_loop().time()
        while kept:
            peer = kept.pop()
            if peer.identity == identity and peer.is_usable(now_s):
                return peer
            peer.close()
        return None

    def _keep(self, address: str, peer: _Peer) -> None:
        kept, loop = self._kept.setdefault(address, []), asyncio.get_running_loop()
        peer.used_s = loop.time()
        kept.append(peer)
        if len(kept) > KEPT_MAX:
            kept.pop(0).close()
        if self._expiry is None:
            self._expiry = loop.call_later(KEPT_S, self._expire)

    def _expire(self) -> None:
        """Close those that have been kept long enough."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for address, peers in list(self._kept.items()):
            usable = [peer for peer in peers if peer.is_usable(now_s)]
            for peer in peers:
                if peer not in usable:
                    peer.close()
            if usable:
                self._kept[address] = usable
            else:
                del self._kept[address]
        self._expiry = loop.call_later(KEPT_S, self._expire) if self._kept else None

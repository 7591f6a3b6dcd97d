"""Sends requests to other brokers: for offsets to a partition's leader, for changes to a group's coordinator.

Each connection logs in as a broker, with the secret that the registry gives all brokers of the cluster
(``security/credentials.py``), whatever the listener asks of clients: so a broker needs neither a user nor access rules,
and nobody else gets its rights.  A native listener with TLS also gets this broker's own certificate.

Each request opens a connection to the peer's native listener, and closes it after the answer.  Only requests that list
topics or groups, or change committed offsets, need one.  The offsets of a peer that does not answer within PEER_MS_MAX
are left out.  A change that is not answered within ADMIN_MS_MAX fails.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
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
FAULTS: Final = (OSError, ValueError, TypeError, EOFError, ProtocolFault)
"""Errors of a peer that is away, or is no appliance; TimeoutError is an OSError."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerIdentity:
    """Who this broker is to others: its id, the secret of the cluster, and the files of TLS."""

    broker_id: int
    secret: bytes = field(repr=False)
    tls: Tls


async def ask_offsets(address: str, identity: BrokerIdentity, parts: Sequence[OffsetsPart]) -> list[OffsetsResult]:
    """Ask the broker at ``address`` (its native listener) for one result per part; empty if it does not answer."""
    results: list[OffsetsResult] = []
    try:
        async with asyncio.timeout(PEER_MS_MAX / 1000), _connected(address, identity) as peer:
            for start in range(0, len(parts), PARTS_MAX_MIN):
                header = await peer.ask([native.OFFSETS, 2, parts[start : start + PARTS_MAX_MIN]])
                if header[1] or len(header) < 3:
                    raise ProtocolFault(f"answer {header[:2]}")
                results += [OffsetsResult(*row) for row in header[2]]
    except FAULTS as error:
        log.info("the broker at %s does not answer with its offsets: %r", address, error)
        return []
    return results if len(results) == len(parts) else []


async def ask_admin(address: str, identity: BrokerIdentity, verb: str, arguments: Mapping[str, Any]) -> Any:
    """Let the broker whose native listener is at ``address`` carry an admin verb out, and return the result.

    Raises:
        BrokerAway: it does not answer; the verb may have been carried out.
        ApplianceError: its answer.
    """
    try:
        async with asyncio.timeout(ADMIN_MS_MAX / 1000), _connected(address, identity) as peer:
            code, message, result = (await peer.ask([native.ADMIN, 2, verb, dict(arguments)]))[1:4]
    except FAULTS as error:
        raise BrokerAway(f"the broker at {address} does not answer: {error!r}") from None
    if code:
        raise from_code(code, message)
    return result


class _Peer:
    """A connection to a native listener, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: Sequence[Any]) -> list[Any]:
        """Send a request, and return the header of the reply."""
        self._writer.write(native.encode_frame(request))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > REPLY_BYTES_MAX:
            raise ProtocolFault(f"a reply of {size} bytes")
        header: list[Any] = native.decode_header(memoryview(await self._reader.readexactly(size)))[0]
        return header

    async def log_in(self, identity: BrokerIdentity) -> None:
        """Prove to be a broker of this cluster, and let the peer prove it.

        Raises:
            ProtocolFault: one of the two is none, or does not know the secret of the cluster yet.
        """
        scram = ScramClient(BROKERS_MECHANISM, str(identity.broker_id), password_of_brokers(identity.secret))
        proof = scram.final(await self._login_message(BROKER_LOGIN, scram.first()))
        scram.check_last_message(await self._login_message(None, proof))

    async def _login_message(self, mechanism: str | None, message: bytes) -> bytes:
        _, error, text, answer, *_ = await self.ask([native.LOGIN, 1, mechanism, message])
        if error:
            raise ProtocolFault(f"the login of a broker is refused: {text}")
        return bytes(answer)


@asynccontextmanager
async def _connected(address: str, identity: BrokerIdentity) -> AsyncIterator[_Peer]:
    """Connect, say hello and log in."""
    listener, *_ = parse_listeners("native", address)
    (host, port), *_ = parse_addresses(listener.address)
    context, tls = None, identity.tls
    if listener.tls:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        peer = _Peer(reader, writer)
        header = await peer.ask([native.HELLO, 1, native.MAGIC, native.VERSION, "coordinator"])
        if header[1]:
            raise ProtocolFault(f"the greeting is answered {header[:3]}")
        await peer.log_in(identity)
        yield peer
    finally:
        writer.transport.abort()  # the answer is here; the end of TLS would be waited for

"""Questions to other brokers: what only a partition's leader knows, what only a group's coordinator may do.

One short connection to the peer's native door per question, closed after the answer; asked only when somebody
looks at topics or groups, or moves positions.  A peer that does not answer within PEER_MS_MAX is left out of what is
shown; what it was to do has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...addresses import parse_addresses
from ...errors import BrokerAway, ProtocolFault, from_code
from ...wire import native
from ...wire.bounds import PARTS_MAX_MIN
from ...wire.requests import OffsetsPart, OffsetsResult

PEER_MS_MAX: Final = 2_000
ADMIN_MS_MAX: Final = 12_000
"""More than a commit waits for ZooKeeper."""
REPLY_BYTES_MAX: Final = 4 << 20
"""More than the answer to PARTS_MAX_MIN parts."""
log = logging.getLogger(__name__)


async def ask_offsets(address: str, parts: Sequence[OffsetsPart]) -> list[OffsetsResult]:
    """One result per part, from the broker whose native door is at ``address``; none when it does not answer."""
    results: list[OffsetsResult] = []
    try:
        async with asyncio.timeout(PEER_MS_MAX / 1000):
            (host, port), *_ = parse_addresses(address)
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(native.encode_frame([native.HELLO, 1, native.MAGIC, native.VERSION, "coordinator"]))
                await _answer(reader)
                for start in range(0, len(parts), PARTS_MAX_MIN):
                    some = parts[start : start + PARTS_MAX_MIN]
                    writer.write(native.encode_frame([native.OFFSETS, 2, some]))
                    rows = await _answer(reader)
                    results += [OffsetsResult(*row) for row in rows]
            finally:
                writer.close()
    except (OSError, ValueError, TypeError, EOFError, ProtocolFault) as error:  # TimeoutError is an OSError
        log.info("the broker at %s does not tell its offsets: %r", address, error)
        return []
    return results if len(results) == len(parts) else []


async def ask_admin(address: str, verb: str, arguments: Mapping[str, Any]) -> None:
    """Have the broker whose native door is at ``address`` carry an admin verb out.

    Raises:
        BrokerAway: it does not answer; the verb may have been carried out.
        ApplianceError: what it answers.
    """
    try:
        async with asyncio.timeout(ADMIN_MS_MAX / 1000):
            (host, port), *_ = parse_addresses(address)
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(native.encode_frame([native.HELLO, 1, native.MAGIC, native.VERSION, "coordinator"]))
                await _header(reader)
                writer.write(native.encode_frame([native.ADMIN, 2, verb, dict(arguments)]))
                code, message = (await _header(reader))[1:3]
            finally:
                writer.close()
    except (OSError, ValueError, TypeError, EOFError, ProtocolFault) as error:  # TimeoutError is an OSError
        raise BrokerAway(f"the broker at {address}, which coordinates this group, does not answer: {error!r}") from None
    if code:
        raise from_code(code, message)


async def _header(reader: asyncio.StreamReader) -> list[Any]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > REPLY_BYTES_MAX:
        raise ProtocolFault(f"a reply of {size} bytes")
    header: list[Any] = native.decode_header(memoryview(await reader.readexactly(size)))[0]
    return header


async def _answer(reader: asyncio.StreamReader) -> list[list[int]]:
    """The third field of the reply that comes next."""
    header = await _header(reader)
    if header[1] or len(header) < 3:
        raise ProtocolFault(f"answer {header[:2]}")
    rows: list[list[int]] = header[2]
    return rows

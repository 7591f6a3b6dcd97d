"""Consumes as a member of the demo's group and writes a note of every message to a spool.  It may be killed.

Run as ``python -m appliance.cli.demo.spooling_consumer``.  Arguments: address, group, spool file, session timeout in
ms, topics.

A message is in the spool (see :mod:`.ledger`) before the next one is requested.  An offset is committed only after the
next message was requested.  So every committed message is in the spool, at whatever instruction the process is killed.
"""

from __future__ import annotations

import os
import signal
import sys

from ...client import GroupConsumer, Message
from .ledger import ENTRY, line_bytes

COMMIT_MS = 500
PATIENCE_S = 0.2


def entry(topics: list[str], message: Message) -> bytes:
    """The spool's entry for a message."""
    number = next(int(value or 0) for name, value in message.headers if name == "line")
    line = line_bytes(message.key or b"", number, message.value or b"")
    return ENTRY.pack(topics.index(message.topic), message.partition, message.offset, line)


def main(bootstrap: str, group: str, spool: str, session_ms: str, *topics: str) -> None:
    """Consume until SIGTERM, then leave the group in order."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    names = list(topics)
    file = os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    consumer = GroupConsumer(
        bootstrap,
        group,
        auto_commit_ms=COMMIT_MS,
        session_timeout_ms=int(session_ms),
        client_name="demo",
    )
    with consumer:
        (stream,) = consumer.create_message_streams_by_filter(",".join(names))
        while not stopping:
            for message in stream.messages(PATIENCE_S):
                os.write(file, entry(names, message))
                if stopping:
                    break
    os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])

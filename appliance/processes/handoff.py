"""How a connection that only produces to one partition is handed over to that partition's writer, and taken back.

Through a worker a produce request costs four wake-ups: worker, writer, worker, client.  A connection that does nothing
but produce to one partition therefore moves to the partition's writer, which receives, writes and answers by itself,
and moves back as soon as anything else comes.  What is unusual is a worker's business alone.

A connection, its descriptor and its bytes have one owner at any time.  They travel in one message each way; whoever has
sent it has closed its own descriptor and holds none of its bytes any more::

    state         owner            the worker has            the writer has        leaves it by
    owned         worker           socket, inbox, requests   -                     hand over: nothing is outstanding
    handing over  message queue    token, names              -                     the writer takes the message
    handed over   writer           token, names              socket, own buffer    take back: nothing is outstanding
    coming back   message queue    token, names              -                     the worker takes the message
    closing       -                -                         -                     the kernel closes the descriptor

*Nothing is outstanding*: every request has been answered, the ones with acks=0 included, every reply has left, and no
whole request waits in the inbox (worker), or every request taken has been answered (writer; replies that the client
has not taken travel along as bytes).

When one side dies, in any state: the kernel closes the descriptors that it owned, and those in messages that nobody
can take any more, so the client sees the connection end and reconnects.  A worker whose writer is gone forgets its
tokens.  A writer whose worker is gone closes what that worker had handed over: nobody is left to take it back.
Messages that were sent before the sender died are still taken: the end of a channel comes behind them.

Messages, beside those of :mod:`appliance.processes.writer.worker_link`::

    worker → writer   ["handoff", token, protocol, acks, buffer bytes, received bytes] +fd
                      ["recall"]                          give all back
    writer → worker   ["received", token, bytes] ...      what nobody has taken of the stream, in order
                      ["unsent", token, bytes] ...        what the client has not taken of the replies, in order
                      ["back", token] +fd                 the connection itself, behind its bytes
                      ["gone", token]                     its descriptor did not arrive: the kernel has closed it

Bounds: ``PIECE_BYTES`` a message; ``CONNECTIONS_MAX`` of one worker at one writer; ``network.handoff_bytes_max`` of
buffers for all that a worker has handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a stream in one message, which must fit a channel's packet."""
CONNECTIONS_MAX: Final = 16
"""Connections of one worker at one writer."""
BUFFER_BYTES_MIN: Final = 256 * 1024
"""A writer receives into at least this much: what one recv takes is written and flushed together."""


def pieces(what: str, token: int, data: bytes | memoryview) -> Iterator[tuple[Any, ...]]:
    """Messages that carry ``data``, which may be of any size."""
    for start in range(0, len(data), PIECE_BYTES):
        yield what, token, bytes(data[start : start + PIECE_BYTES])

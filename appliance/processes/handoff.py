"""The handoff: a connection that only produces to one partition moves to the partition's writer, and back.

Through a worker a produce request costs four wake-ups: worker, writer, worker, client.  A connection that only produces
to one partition therefore moves to the partition's writer, which receives, writes and answers by itself.  It moves back
as soon as any other request comes.

A connection, its descriptor and its bytes have one owner at any time.  The sender of a handoff message does not use its
own descriptor any more, closes it (a worker at the end of its turn), and keeps none of the connection's bytes::

    state         owner            the worker has            the writer has        leaves it by
    owned         worker           socket, inbox, requests   -                     hand over: nothing is outstanding
    handing over  message queue    token, names              -                     the writer takes the message
    handed over   writer           token, names              socket, own buffer    take back: nothing is outstanding
    coming back   message queue    token, names              -                     the worker takes the message
    closing       -                -                         -                     the kernel closes the descriptor

*Nothing is outstanding* means, in the worker: every request has been answered (with acks=0: appended), every reply has
been sent, and no whole request waits in the inbox.  In the writer: every request taken has been answered; replies that
the client has not received move along as bytes.

When one side dies, in any state, the kernel closes the descriptors that it owned, and those in messages that no process
can receive any more.  So the client sees the connection end and reconnects.  A worker whose writer is gone forgets its
tokens.  A writer whose worker is gone closes the connections that this worker had handed over.  Messages that were sent
before the sender died are still received: EOF comes after them.

A connection with TLS keeps its socket in the worker, since its keys cannot leave the process.  The descriptor that
moves is one end of a pair of Unix sockets, ``far``, and the worker passes the plain bytes on between the other end,
``near``, and the client (:mod:`appliance.processes.network.relays`).  Owners of requests and replies are the same::

    state         the worker also has                     the writer has, as its socket
    handing over  the client's socket, near, bytes that   -
    coming back     neither side has taken yet            -
    handed over                                           far
    closing       -                                       -

When the connection comes back, the worker takes the bytes that are left in both Unix sockets.  When the writer dies,
the client still gets the replies that are left in them, as it gets those in the socket of a plain connection.

Bounds: ``PIECE_BYTES`` a message; ``CONNECTIONS_MAX`` connections of one worker at one writer;
``network.handoff_bytes_max`` for the buffers of all connections that a worker has handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a stream in one message, which must fit a channel's packet."""
CONNECTIONS_MAX: Final = 16
"""Connections of one worker at one writer."""
BUFFER_BYTES_MIN: Final = 256 * 1024
"""Smallest receive buffer of a writer: the requests of one recv are written and flushed together."""


def pieces(data: bytes | memoryview) -> Iterator[bytes]:
    """``data``, which may be of any size, in pieces that fit a message each."""
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])

"""The native client for programs with an event loop (asyncio).

Example::

    async with Producer("127.0.0.1:9091") as producer:
        await producer.send_and_wait("logs", b"line")

    async with GroupConsumer("127.0.0.1:9091", "reports") as consumer:
        (stream,) = (await consumer.create_message_streams({"logs": 1}))["logs"]
        async for message in stream:
            ...

The classes have the names, arguments, results and errors of those in :mod:`appliance.client`.  Each is a thin one
around such a client, its *core*: no part of the protocol is here.  Calls of the core that may wait are made in threads
(``worker``); whatever moves a position or puts a message into a batch happens in the event loop, and takes no waiting.
So a cancelled task leaves nothing half done:

======================================  ==================================================================
cancelled while it waits                then
======================================  ==================================================================
in ``send``                             the message is not sent
for a delivery                          the message is sent; nobody hears what became of it
for messages                            the next one who reads gets them; no position has moved
in a call that changes something        the change is made all the same, in its turn
in the end of a transaction             raised when it has ended
======================================  ==================================================================

Back-pressure is the core's: ``send`` waits while the producer's buffer is full, and consumers fetch as much as their
options allow and decode one batch ahead.  A client is for the tasks of one event loop; none may be used after a fork.
"""

from ...wire.requests import EARLIEST, LATEST
from ..client_security import ClientSecurity
from ..decoder import Message, Values
from ..delivery import Sent
from ..group import Blacklist, Whitelist
from .admin import Admin
from .consumer import Consumer
from .group import GroupConsumer, MessageStream
from .producer import Delivery, Producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "Blacklist",
    "ClientSecurity",
    "Consumer",
    "Delivery",
    "GroupConsumer",
    "Message",
    "MessageStream",
    "Producer",
    "Sent",
    "Values",
    "Whitelist",
]

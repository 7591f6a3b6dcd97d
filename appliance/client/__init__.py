"""The native client: produce, consume, consume as a group, administrate.

Reading order, each module after those that it uses:

1. ``client_login``, ``client_security``, ``broker_connection`` (frames and a socket),
   ``cluster_client`` (leaders of partitions; requests to any broker);
2. ``troubles`` (what a client waits for), ``threads`` (reports a thread's end to the application);
3. producing: ``delivery`` (a message and its batch), ``callbacks``, ``outstanding``, ``partition_queue`` (the order of
   a partition's batches, pure), ``broker_link``, ``background_requests``, ``dispatcher`` (batches to brokers, replies
   to batches), ``sender`` (in which thread), ``producer_options``, ``transactions``, ``known_topics``,
   ``outgoing`` (a checked message), ``open_batches``, ``lifetime``, ``producer``;
4. consuming: ``fetcher``, ``decoder``, ``consumer``; ``streams``, ``group_fetching``, ``group`` (the paper's consumer);
5. ``audit`` (counts of delivered messages), ``admin``; ``aio``, all of them for an event loop.
"""

from ..wire.requests import EARLIEST, LATEST
from .admin import Admin
from .audit import Audit
from .client_security import ClientSecurity
from .consumer import Consumer
from .decoder import Message, Values
from .delivery import Delivery, Sent
from .group import Blacklist, GroupConsumer, Whitelist
from .producer import Producer
from .streams import MessageStream

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "Audit",
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

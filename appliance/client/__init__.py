"""The native client: produce, consume, consume as a group, administrate.

Reading order: ``connection`` (frames and a socket), ``cluster`` (who leads what), ``delivery`` and ``lane``
(a message and its partition's order, pure), ``threads`` and ``callbacks`` (what ends reaches the application),
``sender`` and ``producer``, ``consumer``, ``group`` (the paper's
consumer), ``audit`` (counts of what was delivered), ``admin``.
"""

from ..wire.requests import EARLIEST, LATEST
from .admin import Admin
from .audit import Audit
from .consumer import Consumer, Message, Values
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

"""The native client: produce, consume, consume as a group, administrate.

Reading order: ``connection`` (frames and a socket), ``cluster`` (who leads what), ``delivery`` and ``lane``
(a message and its partition's order, pure), ``sender`` and ``producer``, ``consumer``, ``group`` (the paper's
consumer), ``admin``.
"""

from ..wire.requests import EARLIEST, LATEST
from .consumer import Consumer, Message, Values
from .delivery import Delivery, Sent
from .producer import Producer

__all__ = ["EARLIEST", "LATEST", "Consumer", "Delivery", "Message", "Producer", "Sent", "Values"]

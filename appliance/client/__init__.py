"""The native client: produce, consume, consume as a group, administrate.

Reading order: ``connection`` (frames and a socket), ``cluster`` (who leads what), ``delivery`` and ``lane``
(a message and its partition's order, pure), ``sender`` and ``producer``, ``consumer``, ``group`` (the paper's
consumer), ``admin``.
"""

from .producer import Producer

__all__ = ["Producer"]

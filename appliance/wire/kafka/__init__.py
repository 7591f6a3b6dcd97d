"""Decodes and encodes the Kafka protocol, without I/O.

``apis.py`` is the table of the APIs served.  ``codec.py`` decodes the requests that a network worker answers itself,
with ``produce.py``, ``fetch.py`` and ``list_offsets.py``, one layout each, over ``primitives.py``.  ``metadata.py``
decodes Metadata, FindCoordinator and InitProducerId, which a worker answers when it can.  ``forwarded.py`` decodes the
others with kafka-python, in the coordinator, after ``walk.py`` has checked their structure.
"""

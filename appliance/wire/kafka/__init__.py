"""The Kafka listener's codecs, sans-IO.

``apis.py`` is the table of what is served.  ``codec.py`` answers or decodes by hand what a network worker serves
itself (with ``produce.py``, ``fetch.py`` and ``list_offsets.py``, one layout each, over ``primitives.py``).
``forwarded.py`` decodes the rest with kafka-python, in the coordinator.
"""

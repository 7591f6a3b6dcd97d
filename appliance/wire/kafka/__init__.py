"""The Kafka door's codec, sans-IO.

``apis.py`` is the table of what is served; ``hot.py`` answers or decodes by hand what a network worker
handles itself (with ``produce.py``, ``fetch.py`` and ``offsets.py``, one layout each, over
``primitives.py``); ``cold.py`` decodes the rest with kafka-python, in the coordinator.
"""

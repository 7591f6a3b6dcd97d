"""A hostile client beside honest ones: ``python -m tests.hostile`` for the long run.

``kafka_frames`` and ``native_frames`` generate requests from the schemas of the two protocols; ``attack`` delivers them
in every way that TCP allows; ``honest`` is a producer, a consumer and a group that measure how long they had to wait;
``box`` puts an appliance, an attack and the honest ones together and says what became of it.  A listener or a handshake
that comes later is one more :class:`attack.Target`.
"""

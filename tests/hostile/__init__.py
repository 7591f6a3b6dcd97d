"""A hostile client beside honest ones: ``python -m tests.hostile`` for the long run.

``kafka_frames`` and ``native_frames`` generate requests from the schemas of the two protocols; ``login_frames`` and
``tls_records`` what comes before a login and instead of a handshake; ``attack`` delivers them in every way that TCP and
TLS allow; ``honest`` is a producer, a consumer and a group that measure how long they had to wait;
``box`` puts an appliance, an attack and the honest ones together and says what became of it.  A
listener that comes later is one more :class:`attack.Target`.
"""

"""Judges an appliance: which of the known conditions hold now, how bad they are, and what to do.

``conditions`` is the one list of what can be wrong; ``findings`` compares it with what is known about an appliance, for
``appliance health``, ``status``, ``doctor``, the console, ``/ready`` and systemd's status line; ``alert_rules`` writes
it as rules for Prometheus.
"""

"""The processes: supervisor, network worker, writer, coordinator, a package with one ``run`` for each.

``child`` starts a forked process, ``control`` is the channel between processes, ``clock`` is their time, ``handoff``
specifies how a connection moves between worker and writer, ``snapshot`` is what workers answer metadata from.
"""

"""The processes: supervisor, network worker, writer, coordinator, a package with one ``run`` for each.

``child`` starts a forked process, ``control`` is the channel between processes and ``messages`` what goes over it,
``clock`` is their time.  ``handoff``
specifies how a connection moves between worker and writer; workers answer metadata requests from a ``snapshot``.
"""

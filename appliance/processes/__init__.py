"""The processes: supervisor, network worker, writer, coordinator, a package with one ``run`` for each.

``child`` starts a forked process, ``control`` is the channel between processes and ``messages`` what goes over it,
``clock`` is their time.  ``handoff`` specifies how a connection moves between worker and writer, ``answers`` what a
writer says to append requests; workers answer metadata requests from a ``snapshot``, and load certificates with
``tls_files``.
"""

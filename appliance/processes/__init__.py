"""The processes: supervisor, network worker, writer, coordinator, a package with one ``run`` for each.

``child`` starts a forked process, ``control`` is the channel between processes, ``message_stream`` the stream for large
messages, and ``messages`` what goes over both.  ``connection`` is what a connection of a
client is, in a worker and in a writer; ``handoff`` specifies how it moves between them, ``answers`` what a writer says
to append requests; workers answer metadata requests from a ``snapshot``, and load certificates with ``tls_files``.
"""

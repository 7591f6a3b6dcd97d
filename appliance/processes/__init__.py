"""The processes, a package each with one ``run``: supervisor, network worker, writer, coordinator.

``child`` is what a forked process does first, ``control`` how processes talk, ``clock`` what time it is.
"""

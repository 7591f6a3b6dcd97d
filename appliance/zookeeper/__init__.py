"""ZooKeeper: where brokers, topics, group members, owners and offsets are registered.

Reading order:

1. ``paths`` (names and values), ``patterns`` and ``assignment`` (pure), ``operations`` (requests as values);
2. the registries as operations: ``broker_registry``, ``group_registry``, ``claims`` (who
   coordinates a group), ``native_nodes`` (members of native groups), ``cluster_identity``, ``deletion``;
3. running operations over kazoo: ``kazoo_link``, ``lease``, ``tasks``, ``kept_nodes``, ``session``;
4. the local nodes, which the supervisor runs without kazoo: ``java``, ``node_files``, ``ensemble``.

This package imports nothing by itself, so that the supervisor can import ``ensemble`` without loading kazoo.
"""

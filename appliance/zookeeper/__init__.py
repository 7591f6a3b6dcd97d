"""ZooKeeper: where brokers, topics, group members, owners and offsets are registered.

Reading order: ``paths`` (names and values), ``assignment`` (pure), ``registry`` (session and registries over
kazoo), ``rebalance`` (the paper's loop), ``ensemble`` (the local nodes; used by the supervisor, without
kazoo). This package imports nothing by itself, so that the supervisor can take ``ensemble`` without loading
kazoo.
"""

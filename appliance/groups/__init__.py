"""Kafka's consumer groups: their state, members and committed offsets.  No sockets, no ZooKeeper, no files."""

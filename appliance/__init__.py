"""A log broker in one box: the system of "Kafka: a Distributed Messaging System for Log Processing".

Shippers push logs in through the native or the Kafka listener; groups of consumers pull them out at their
own pace.  One supervisor forks a writer process per partition and a pool of network workers, which share segment
tables through POSIX shared memory; groups are coordinated through ZooKeeper.

``README.md`` beside this file has the reading order, the walk-throughs, the glossary and the invariants.
"""

__version__ = "0.1.0"

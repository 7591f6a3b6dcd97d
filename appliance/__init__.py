"""A log broker in one box: the system of "Kafka: a Distributed Messaging System for Log Processing".

Shippers push logs in through the native or the Kafka door; groups of consumers pull them out at their own
pace.  One supervisor forks a writer process per partition and a pool of network workers, which share segment
tables through POSIX shared memory; groups are coordinated through ZooKeeper.

Reading order: ``errors``, ``config``, ``records`` (the one format), ``log`` (one partition's files),
``shared`` (what processes see of each other), ``wire`` (the doors), ``broker`` (request to plan),
``processes`` (supervisor first), ``zookeeper``, ``client``, ``cli``.
"""

__version__ = "0.1.0"

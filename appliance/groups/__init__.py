"""Groups and the cold APIs of the Kafka door: pure state and handlers, no sockets, no ZooKeeper, no clock."""

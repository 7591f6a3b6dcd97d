"""The Kafka APIs that network workers forward to the coordinator: handlers without sockets and files."""

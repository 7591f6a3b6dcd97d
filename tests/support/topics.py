"""Topics filled with batches of our choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from appliance.client.cluster_client import Cluster
from appliance.errors import from_code
from appliance.wire.native import ProduceHead

from .server import Server


class Topics:
    """Creates and fills topics of one appliance with batches as they are."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cluster = Cluster(server.native, client_name="test")

    def create(self, name: str, partitions: int = 1, **settings: object) -> str:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.cluster.admin("create_topic", {"name": name, "partitions": partitions, "settings": named})
        return name

    def write(self, topic: str, batches: Sequence[bytes], partition: int = 0) -> None:
        self.cluster.refresh([topic])
        leader = self.cluster.leader(topic, partition)
        connection = self.cluster.connect(self.cluster.address(leader))
        try:
            for batch in batches:
                connection.post_batch(ProduceHead(topic, partition, -1, 10_000), batch, expects_reply=True)
                replies: list[object] = []
                while not replies:
                    connection.flush()
                    connection.wait(10)
                    for reply in connection.receive():
                        replies.append(reply)
                        if reply.header[1]:
                            raise from_code(reply.header[1], reply.header[5])
        finally:
            connection.close()

    def options(self, topic: str, **options: object) -> dict[str, str]:
        """Of a reader of this topic."""
        own = {key: str(value) for key, value in options.items()}
        return {"bootstrap.servers": self.server.native, "subscribe": topic} | own


@pytest.fixture
def topics_of() -> Iterator[Callable[[Server], Topics]]:
    """Of an appliance of the test's own."""
    made: list[Topics] = []

    def make(server: Server) -> Topics:
        made.append(Topics(server))
        return made[-1]

    yield make
    for topics in made:
        topics.cluster.close()


@pytest.fixture
def topics(appliance: Server, topics_of: Callable[[Server], Topics]) -> Topics:
    return topics_of(appliance)

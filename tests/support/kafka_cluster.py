"""A cluster of Apache Kafka for tests: brokers of one machine, the first of which is the controller, too."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from appliance.bench.brokers import CLUSTER_ID, QUIET, Daemon, answers

from .ready import free_port

JVM = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PROPERTIES = """\
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
log.dirs={data}
"""


class Node(NamedTuple):
    address: str
    daemon: Daemon


class KafkaCluster:
    """``count`` brokers, with as many replicas of what they keep for themselves.  ``jars``: the directory of Kafka's.

    Raises:
        Missing: a broker does not start.
    """

    def __init__(self, directory: Path, jars: Path, count: int = 2) -> None:
        self.jars, self.nodes = jars, list[Node]()
        controller = free_port()
        try:
            for number in range(1, count + 1):
                self.nodes.append(self._node(directory / f"node-{number}", number, controller, count))
        except BaseException:
            self.stop()
            raise

    def _node(self, place: Path, number: int, controller: int, count: int) -> Node:
        address = f"127.0.0.1:{free_port()}"
        listeners = f"PLAINTEXT://{address}" + (f",CONTROLLER://127.0.0.1:{controller}" if number == 1 else "")
        place.mkdir(parents=True)
        properties = place / "server.properties"
        values = {"roles": "broker,controller" if number == 1 else "broker", "node": number, "controller": controller}
        values |= {"listeners": listeners, "replicas": count, "data": place / "data"}
        properties.write_text(PROPERTIES.format(**values))
        java = ["java", *JVM, QUIET, "-cp", f"{self.jars}/*"]
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        return Node(address, Daemon([*java, "kafka.Kafka", str(properties)], place, lambda: answers(address)))

    @property
    def addresses(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def kill(self, index: int) -> None:
        """One broker, and it stays away; the first one is the controller."""
        process = self.nodes[index].daemon.process
        process.kill()
        process.wait()

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.daemon.stop()

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

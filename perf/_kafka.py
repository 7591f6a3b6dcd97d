"""Starts Apache Kafka 4.1 for benchmarks side by side: one KRaft broker with Kafka's default settings.

The jars are in the directory that KAFKA_LIB names.  Without it Maven fetches them (``perf/kafka/pom.xml``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from _bench import answers, cpu_s, free_port, pss_bytes, tree

HERE = Path(__file__).parent
JVM = ["-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port}{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{tls}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.dirs={data}
"""


def find_jars(cache: Path) -> Path | None:
    """The directory of Kafka's jars; None if there are none and Maven cannot fetch them."""
    given = os.environ.get("KAFKA_LIB", "")
    if given:
        return Path(given)
    lib = cache / "kafka-4.1.0"
    if not lib.is_dir() and shutil.which("mvn"):
        print("fetching Apache Kafka 4.1 with Maven ...", file=sys.stderr)
        command = ["mvn", "-q", "-f", str(HERE / "kafka" / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={lib}"], check=False)
    return lib if lib.is_dir() else None


class Kafka:
    """A broker on free ports, formatted and started; ``serving_s`` from exec until it answers.

    ``more``: lines of its properties about TLS; with them it listens at ``tls_address``, too.
    """

    def __init__(self, lib: Path, directory: Path, more: str = "") -> None:
        self.lib = lib
        port, controller = free_port(), free_port()
        self.address, self.tls_address = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
        tls = f",SSL://{self.tls_address}" if more else ""
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        content = PROPERTIES.format(port=port, controller=controller, tls=tls, data=directory / "data")
        properties.write_text(content + more)
        tool = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(properties)]
        subprocess.run(self.java(*tool), check=True, stdout=subprocess.DEVNULL)
        start = time.perf_counter()
        self._log = (directory / "kafka.log").open("w")
        self.process = subprocess.Popen(
            ["java", *JVM, "-cp", f"{lib}/*", "kafka.Kafka", str(properties)], stdout=self._log, stderr=self._log
        )
        while not answers(self.address):
            if self.process.poll() is not None or time.perf_counter() - start > 60:
                sys.exit(f"Kafka did not start; see {directory}/kafka.log")
            time.sleep(0.005)
        self.serving_s = time.perf_counter() - start

    def java(self, *arguments: str) -> list[str]:
        return ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{self.lib}/*", *arguments]

    def cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in tree(self.process.pid))

    def pss_bytes(self) -> int:
        return sum(pss_bytes(pid) for pid in tree(self.process.pid))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

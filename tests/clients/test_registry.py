"""A schema registry that keeps its schemas in a topic: Apicurio, by the interface that Confluent's clients speak.

Its database is in memory, so a registry that has started again knows what it has read from the topic, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from ..support.ready import free_port
from ..support.server import Server, wait_for
from .adapters import SHORT_LIVED, newest_java, unpacked

APICURIO = "io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all"
SCHEMAS = 30
START_S_MAX = 240
STRIKES = ("coordinator", "network", "writer")


class Registry:
    """One registry, killed at the end."""

    def __init__(self, kafka: str, log: Path) -> None:
        self._kafka, self._log = kafka, log
        self._port = free_port()

    @contextmanager
    def running(self) -> Iterator[None]:
        place = unpacked("apicurio", APICURIO)
        environment = {
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": self._kafka,
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self._port),
            "QUARKUS_MANAGEMENT_PORT": str(free_port()),
        }
        with self._log.open("ab") as log:
            command = [newest_java(), "-Xmx400m", *SHORT_LIVED, "-jar", str(place / "quarkus-run.jar")]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
        try:
            wait_for(lambda: self.answers(process), "the registry answers", START_S_MAX)
            yield
        finally:
            process.kill()
            process.wait()

    def answers(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self._log.read_text()[-3000:]
        try:
            self.ask("GET", "subjects")
        except (URLError, TimeoutError, ConnectionError):
            return False
        return True

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """
        Raises:
            HTTPError: the registry refuses.
        """
        url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7/{path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        with urlopen(Request(url, data, headers, method=method), timeout=60) as answer:
            return json.load(answer)

    def register(self, subject: str, schema: str) -> int:
        return int(self.ask("POST", f"subjects/{subject}/versions", {"schema": schema})["id"])

    def knows(self, known: dict[str, list[tuple[int, str]]]) -> bool:
        try:
            return self.all() == known
        except HTTPError:  # of a subject whose versions it has not read yet
            return False

    def all(self) -> dict[str, list[tuple[int, str]]]:
        """By subject the ids and schemas of its versions."""
        subjects: dict[str, list[tuple[int, str]]] = {}
        for subject in self.ask("GET", "subjects"):
            versions = self.ask("GET", f"subjects/{subject}/versions")
            answers = [self.ask("GET", f"subjects/{subject}/versions/{version}") for version in versions]
            subjects[subject] = [(answer["id"], answer["schema"]) for answer in answers]
        return subjects


def schema(number: int, kind: str = "int") -> str:
    """A record with ``number`` more fields, each of which has a default: each is compatible with all before."""
    added = [{"name": f"f{index}", "type": "int", "default": index} for index in range(number)]
    fields = [{"name": "id", "type": kind}, *added]
    return json.dumps({"type": "record", "name": "order", "fields": fields}, separators=(",", ":"))


@pytest.mark.long  # a registry takes 20 s to start
@pytest.mark.timeout(900)
def test_a_registry_keeps_its_schemas(tmp_path: Path) -> None:
    """What it has confirmed is there, with the same ids, after kills of it, and of each of our processes."""
    with Server(tmp_path / "data", **{"zookeeper.nodes": 1}) as server:
        server.wait_for_zookeeper()
        registry = Registry(server.kafka, tmp_path / "registry.log")
        with registry.running():
            registry.register("orders-value", schema(0))
            registry.ask("PUT", "config/orders-value", {"compatibility": "BACKWARD"})
            for number in range(1, SCHEMAS):
                registry.register("orders-value", schema(number))
                registry.register(f"topic-{number}-value", schema(number))
                if number % 10 == 0:
                    server.kill(server.pids(STRIKES[number // 10 % 3])[0])
            registry.ask("DELETE", "subjects/topic-3-value")
            known = registry.all()
            assert [text for _, text in known["orders-value"]] == [schema(number) for number in range(SCHEMAS)]
            assert len(known) == SCHEMAS - 1
        with registry.running():
            wait_for(lambda: registry.knows(known), "it has read its topic", START_S_MAX)
            with pytest.raises(HTTPError) as refused:
                registry.register("orders-value", schema(SCHEMAS, "string"))
            assert refused.value.code == 409
            assert registry.register("orders-value", schema(3)) == known["orders-value"][3][0]

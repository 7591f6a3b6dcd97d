"""A real appliance with inputs by HTTP, and how tests send to it and read what is in its topics."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from appliance.client import Consumer
from appliance.client.decoder import Message
from appliance.wire.requests import LATEST

from ..support.certificates import make_certificates
from ..support.server import Server, runs, wait_for


def make_identities(directory: Path) -> Path:
    """Make an authority, and certificates of a server here and of a client "shipper"; return the directory."""
    for arguments in (("ca",), ("server", "127.0.0.1", "localhost"), ("client", "shipper")):
        assert make_certificates(directory, *arguments).returncode == 0
    return directory


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Box:
    """An appliance whose inputs are tables of a file."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def address(self, name: str) -> tuple[str, int]:
        def bound() -> Any:
            return self.server.state.get("inputs", {}).get(name, {}).get("addresses")

        url = urlsplit(wait_for(bound, f"the address of {name}")[0])
        assert url.hostname is not None and url.port is not None
        return url.hostname, url.port

    def send(
        self,
        name: str,
        body: bytes | str = b"",
        path: str = "/",
        *,
        method: str = "POST",
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> Reply:
        """One request on a connection of its own; ``content_type`` is a header, as all names are."""
        host, port = self.address(name)
        connection = (
            http.client.HTTPConnection(host, port, timeout=60)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=60, context=tls)
        )
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body.encode() if isinstance(body, str) else body, given)
            return reply_of(connection)
        finally:
            connection.close()

    def messages(self, topic: str) -> list[Message]:
        """All messages of a topic now."""
        found: list[Message] = []
        with Consumer(self.server.native) as consumer:
            consumer.assign_topic(topic)
            for part, end in consumer.offsets_at(LATEST).items():
                while consumer.position(*part) < end:
                    found += consumer.poll(timeout=10)
        return found

    def values(self, topic: str) -> list[bytes]:
        return [message.value or b"" for message in self.messages(topic)]

    def pid(self, name: str) -> int:
        """The process of an input."""

        def found() -> list[int]:
            pids = self.server.pids("input")
            return [pid for pid in pids if runs(pid) and title_of(pid).endswith(f"input {name}")]

        pids: list[int] = wait_for(found, f"the process of {name} to be shown")
        return pids[0]

    def row(self, name: str) -> Mapping[str, Any]:
        """An input in state.json."""
        row: Mapping[str, Any] = self.server.state["inputs"][name]
        return row


def title_of(pid: int) -> str:
    """What `ps` shows of a process; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def reply_of(connection: http.client.HTTPConnection) -> Reply:
    response = connection.getresponse()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def headers_of(message: Message) -> dict[str, str]:
    """The headers of a message but ``origin``, which is for the ledger."""
    return {name: (value or b"").decode() for name, value in message.headers if name != "origin"}


@contextmanager
def box(directory: Path, tables: str, **settings: Any) -> Iterator[Box]:
    """``tables``: the TOML file."""
    file = directory / "appliance.toml"
    file.write_text(tables)
    with Server(directory / "data", file, **settings) as server:
        yield Box(server)

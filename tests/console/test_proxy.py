"""The console behind a reverse proxy with TLS: a login first, the visitor's own address, cookies for TLS only.

The set-up is that of systemd/README.md, word for word but for names and ports: with nginx where there is one (PATH, or
NGINX), and with a proxy of this test.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.client import Admin, Producer

from ..support.certificates import make_certificates
from ..support.command_line import succeeding
from ..support.ready import free_port
from ..support.server import Server, wait_for
from ..systemd.test_recipes import section

NGINX = os.environ.get("NGINX") or shutil.which("nginx")
AROUND = """\
daemon off; pid {place}/nginx.pid; error_log {place}/nginx.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
{server}
}}
"""


class Behind(NamedTuple):
    """An appliance whose console is behind a proxy with TLS, at ``port``."""

    server: Server
    port: int
    certificates: Path
    password: str

    def ask(
        self, path: str, body: Any = None, *, source: str = "127.0.0.5", cookie: str = "", **headers: str
    ) -> tuple[int, Any, str]:
        """Status, answer and cookie, as a browser at the address ``source`` gets them."""
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=60, source_address=(source, 0), context=context
        )
        given = {name.replace("_", "-"): value for name, value in headers.items()} | {"cookie": cookie}
        with contextlib.closing(connection):
            if body is None:
                connection.request("GET", path, headers=given)
            else:
                own = {"content-type": "application/json", "origin": f"https://localhost:{self.port}"}
                connection.request("POST", path, json.dumps(body), own | given)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.getheader("set-cookie") or ""

    def log_in(self, password: str = "", **options: str) -> tuple[int, Any, str]:
        return self.ask("/api/login", {"user": "admin", "password": password or self.password}, **options)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, console: int) -> None:
    """Pass one request on, with what the page's configuration of nginx adds, and the answer back."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"(?im)^content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    came = re.findall(r"(?im)^x-forwarded-for: (.*?)\r$", head)
    head = re.sub(r"(?im)^(x-forwarded-\w+|connection): .*\r\n", "", head)
    peer = writer.get_extra_info("peername")[0]
    added = f"X-Forwarded-For: {', '.join([*came, peer])}\r\nX-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"
    behind, to_console = await asyncio.open_connection("127.0.0.1", console)
    to_console.write(head.removesuffix("\r\n").encode() + added.encode() + body)
    while piece := await behind.read(65_536):
        writer.write(piece)
        await writer.drain()
    to_console.close()
    writer.close()


@contextlib.contextmanager
def own_proxy(port: int, console: int, certificates: Path) -> Iterator[None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    loop, listening = asyncio.new_event_loop(), threading.Event()

    async def serve() -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await forward(reader, writer, console)

        server = await asyncio.start_server(answer, "127.0.0.1", port, ssl=context)
        listening.set()
        return server

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(serve())
        loop.run_forever()
        server.close()
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert listening.wait(60)
    yield
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@contextlib.contextmanager
def nginx(port: int, console: int, certificates: Path) -> Iterator[None]:
    """The configuration of the page."""
    if not NGINX:
        pytest.skip("no nginx: install it, or set NGINX to the program of an unpacked package")
    (server,) = [block.code for block in section("The console behind a proxy") if block.language == "nginx"]
    for shown, used in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/nginx/logs.example.net.pem": f"{certificates}/server.pem",
        "/etc/nginx/logs.example.net.key": f"{certificates}/server.key",
        "logs.example.net": "localhost",
        "127.0.0.1:9094": f"127.0.0.1:{console}",
    }.items():
        assert shown in server
        server = server.replace(shown, used)
    place = certificates / "nginx"
    place.mkdir()
    (place / "nginx.conf").write_text(AROUND.format(place=place, server=server))
    command = [NGINX, "-e", str(place / "nginx.log"), "-c", str(place / "nginx.conf")]
    with subprocess.Popen(command) as process:
        try:

            def listens() -> bool:
                assert process.poll() is None, (place / "nginx.log").read_text()
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    return True
                return False

            wait_for(listens, "nginx")
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=[own_proxy, nginx], ids=lambda proxy: str(proxy.__name__))
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """The set-up of the page, with a topic that nobody may read without a login."""
    place = tmp_path_factory.mktemp("behind")
    for arguments in (("ca",), ("server", "localhost")):
        assert make_certificates(place, *arguments).returncode == 0
    console, port = free_port(), free_port()
    (toml,) = [block.code for block in section("The console behind a proxy") if block.language == "toml"]
    (place / "appliance.toml").write_text(toml.replace("9094", str(console)).replace("logs.example.net", "localhost"))
    password = place / "admin.password"
    password.write_text("correct horse\n")
    password.chmod(0o600)
    server = Server(place / "data", place / "appliance.toml", **{"zookeeper.nodes": 0})
    with server, request.param(port, console, place):
        succeeding("users", "add", "admin", "--password-file", str(password), "--data", str(server.data_dir))
        with Admin(server.state["listeners"]["local"]) as admin:
            admin.create_topic("secret")
        with Producer(server.state["listeners"]["local"]) as producer:
            producer.send("secret", b"a credit card").result()
        yield Behind(server, port, place, "correct horse")


def test_nothing_is_seen_before_a_login(behind: Behind) -> None:
    assert behind.ask("/api/session")[1]["login_first"]
    for path in ("/api/messages?topics=secret", "/api/message?topic=secret&partition=0&offset=0", "/api/events"):
        assert behind.ask(path)[:2] == (401, {"error": "log in first"}), path
    status, _, cookie = behind.log_in()
    assert status == 200
    seen = behind.ask("/api/messages?topics=secret", cookie=cookie.partition(";")[0])[1]
    assert seen["messages"][0]["value"]["text"] == "a credit card"


def test_the_cookie_is_for_tls_only(behind: Behind) -> None:
    cookie = behind.log_in()[2]
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))


def test_the_audit_log_has_the_address_of_the_visitor(behind: Behind) -> None:
    """Not that of the proxy, and not one that the visitor makes up."""
    assert behind.log_in(source="127.0.0.7", x_forwarded_for="9.9.9.9")[0] == 200
    assert behind.log_in("wrong", source="127.0.0.8", x_forwarded_for="127.0.0.1")[0] == 401
    for line in ("logged in: who=User:admin from=127.0.0.7:0 ", "who=User:admin from=127.0.0.8:0 "):
        wait_for(lambda: line in behind.server.log(), line)  # noqa: B023
    assert "9.9.9.9" not in behind.server.log()


def test_who_is_no_proxy_cannot_say_where_others_come_from(behind: Behind) -> None:
    address = behind.server.state["listeners"]["console"]
    connection = http.client.HTTPConnection(address, timeout=60, source_address=("127.0.0.9", 0))
    with contextlib.closing(connection):
        body = json.dumps({"user": "admin", "password": "no"})
        headers = {"content-type": "application/json", "x-forwarded-for": "8.8.8.8", "x-forwarded-proto": "https"}
        connection.request("POST", "/api/login", body, headers)
        assert connection.getresponse().status == 401
    wait_for(lambda: "who=User:admin from=127.0.0.9:" in behind.server.log(), "its own address")
    assert "8.8.8.8" not in behind.server.log()


def test_who_guesses_behind_the_proxy_keeps_nobody_else_out(behind: Behind) -> None:
    guesses = [behind.log_in("guess", source="127.0.0.66")[0] for _ in range(12)]
    assert guesses == [401] * 10 + [503] * 2
    assert behind.log_in(source="127.0.0.67")[0] == 200

"""The set-ups of systemd/README.md work as they are written there.

Method: the commands and files of a section are taken from the page, with other paths, ports and names of hosts in
place of those on the page, and nothing else; then each of the clients that the section shows sends a line, and one
without a certificate, or without TLS, is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from appliance.client import Admin
from appliance.errors import TopicNotPermitted
from appliance.wire import native

from ..clients.adapters import java
from ..clients.shipper_files import STATE_DIRS, Security, on_page
from ..clients.test_shippers import OMKAFKA, RSYSLOG, running
from ..support.certificates import SCRIPT
from ..support.command_line import succeeding
from ..support.native_peer import Peer
from ..support.ready import free_port
from ..support.server import Server, wait_for

PAGE = SCRIPT.parent / "README.md"
COMMAND = f"{sys.executable} -m appliance"
WAIT_S = 60


class Block(NamedTuple):
    """A code block: its language, the file that the text before it names ("" for none), and the code."""

    language: str
    file: str
    code: str


def section(heading: str) -> list[Block]:
    """The code blocks below a heading of the page."""
    found = re.search(rf"^### {re.escape(heading)}\n(.*?)^##", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE.name} has no section {heading!r}"
    pieces = re.findall(r"(.*?)^```(\w+)\n(.*?)^```\n", found[1], re.DOTALL | re.MULTILINE)
    named = [(re.findall(r"`(/\S+)`[^`\n]*:\n\n\Z|`(/\S+)`, for.*:\n\n\Z", text), *rest) for text, *rest in pieces]
    return [Block(language, "".join(files[0]) if files else "", code) for files, language, code in named]


class Recipe:
    """A section of the page, carried out in ``place``."""

    def __init__(self, heading: str, place: Path) -> None:
        self.blocks = section(heading)
        self.place = place
        self.server = Server(place / "data", place / "etc/appliance.toml", **{"zookeeper.nodes": 0})
        del self.server.settings["kafka.listen"]  # the page has it
        self.port = free_port()
        for name in ("root", "etc", "shipper"):
            (place / name).mkdir(parents=True)

    def here(self, text: str) -> str:
        """The text with the test's paths, names and ports."""
        for shown, used in {
            "systemd/make-certificates": str(SCRIPT),
            "/root/": f"{self.place}/root/",
            "/etc/appliance/": f"{self.place}/etc/",
            "/etc/shipper/": f"{self.place}/shipper/",
            "/var/lib/appliance": f"{self.place}/data",
            "/var/log/app.log": f"{self.place}/app.log",
            "logs.example.net:9093": f"localhost:{self.port}",
            "0.0.0.0:9093": f"0.0.0.0:{self.port}",
            "logs.example.net localhost": "localhost",
            "127.0.0.1:9092": "127.0.0.1:0",
            "-g appliance": f"-g {os.getgid()}",
        }.items():
            text = text.replace(shown, used)
        password = self.place / "root/shipper.password"
        if password.exists():
            text = text.replace("PASSWORD", password.read_text().strip())
        for state_dir in STATE_DIRS:
            text = text.replace(state_dir, f"{self.place}/shipper")
        return re.sub(r"^(\s*)appliance ", rf"\1{COMMAND} ", text, flags=re.MULTILINE)

    def set_up(self) -> None:
        """Write the files of the appliance, and run all commands, in their order."""
        for block in self.blocks:
            if block.language == "toml":
                assert block.file == "/etc/appliance/appliance.toml"
                (self.place / "etc/appliance.toml").write_text(self.here(block.code))
            if block.language == "console":
                for line in block.code.splitlines():
                    assert line.startswith("$ "), line
                    self._run(line.removeprefix("$ "))
        for name in ("ca.pem", "web-1.pem", "web-1.key", "web-1.keystore.pem"):
            if (self.place / "root/authority" / name).exists():
                shutil.copy(self.place / "root/authority" / name, self.place / "shipper")

    def _run(self, line: str) -> None:
        if line == "systemctl restart appliance":
            self.server.start()
            return
        done = subprocess.run(self.here(line), shell=True, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, (line, done.stdout, done.stderr)

    def client_file(self, name: str) -> Path:
        """A file of the section for a client's host, written there."""
        (block,) = [block for block in self.blocks if block.file.endswith(f"/{name}")]
        path = self.place / "shipper" / name
        path.write_text(self.here(block.code))
        return path

    def program(self) -> str:
        """The Python program of the section."""
        (block,) = [block for block in self.blocks if block.language == "python"]
        return self.here(block.code)


def lines_of(server: Server, topic: str = "web") -> set[bytes]:
    """By root, who may read all."""
    said = succeeding("consume", topic, "--from", "earliest", "--timeout", "1", "--data", str(server.data_dir))
    return set(said.out.encode().splitlines())


def send_by_kcat(recipe: Recipe, line: str) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat: install it")
    words = ["kcat", "-F", str(recipe.client_file("kcat.conf")), "-P", "-t", "web"]
    subprocess.run(words, input=line + "\n", text=True, check=True, timeout=WAIT_S, capture_output=True)


def send_by_python(recipe: Recipe, line: str) -> None:
    code = recipe.program().replace("a line from Python", line)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)


def send_by_java(recipe: Recipe, line: str) -> None:
    """Kafka's own tool, which sends numbers behind a prefix."""
    properties = recipe.client_file("java.properties")
    java(
        "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", f"localhost:{recipe.port}", "--topic", "web",
        "--max-messages", "1", "--producer.config", str(properties), "--value-prefix", "7",
    )  # fmt: skip


def send_by_rsyslog(recipe: Recipe, line: str) -> None:
    if not (Path(RSYSLOG).exists() and OMKAFKA.exists()):
        pytest.skip("no rsyslog with omkafka: apt-get install rsyslog rsyslog-kafka")
    (recipe.place / "app.log").write_text(line + "\n")
    conf = recipe.client_file("rsyslog.conf")
    command = [RSYSLOG, "-n", "-f", str(conf), "-i", str(recipe.place / "rsyslog.pid")]
    with running(command, recipe.place):
        wait_for(lambda: line.encode() in lines_of(recipe.server), "the line", WAIT_S)


def send_by_fluent_bit(recipe: Recipe, line: str) -> None:
    program = os.environ.get("FLUENT_BIT") or shutil.which("fluent-bit")
    if program is None:
        pytest.skip("no fluent-bit: install it, or set FLUENT_BIT to its program")
    (recipe.place / "app.log").write_text(line + "\n")
    with running([program, "-c", str(recipe.client_file("fluent-bit.conf"))], recipe.place):
        wait_for(lambda: line.encode() in lines_of(recipe.server), "the line", WAIT_S)


CLIENTS = {
    "kcat": send_by_kcat,
    "python": send_by_python,
    "java": send_by_java,
    "rsyslog": send_by_rsyslog,
    "fluent-bit": send_by_fluent_bit,
}


@contextmanager
def carried_out(heading: str, place: Path) -> Iterator[Recipe]:
    recipe = Recipe(heading, place)
    try:
        recipe.set_up()
        yield recipe
    finally:
        recipe.server.__exit__(None, None, None)


@pytest.fixture(scope="module")
def mtls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    with carried_out("Certificates of clients (mTLS)", tmp_path_factory.mktemp("mtls")) as recipe:
        yield recipe


@pytest.fixture(scope="module")
def scram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    with carried_out("Passwords for other hosts (TLS and SCRAM)", tmp_path_factory.mktemp("scram")) as recipe:
        yield recipe


def sends(recipe: Recipe, client: str) -> None:
    line = "7.0" if client == "java" else f"a line from {client}"
    CLIENTS[client](recipe, line)
    wait_for(lambda: line.encode() in lines_of(recipe.server), "the line", WAIT_S)


def assert_refused(recipe: Recipe, options: dict[str, str]) -> None:
    """By librdkafka: a client of kafka-python that is refused leaves sockets open, which a later test pays for."""
    client = AdminClient({"bootstrap.servers": f"localhost:{recipe.port}", **options})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)


@pytest.mark.parametrize("name", ["rsyslog.conf", "fluent-bit.conf"])
@pytest.mark.parametrize(
    "security, heading",
    [("scram", "Passwords for other hosts (TLS and SCRAM)"), ("mtls", "Certificates of clients (mTLS)")],
)
def test_the_shippers_of_the_page_are_those_that_lose_nothing(heading: str, security: Security, name: str) -> None:
    """Goal: what is copied from the page is what ``clients/test_shippers.py`` restarts and fills disks with."""
    (block,) = [block for block in section(heading) if block.file == f"/etc/shipper/{name}"]
    assert block.code == on_page(name, security)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_with_certificates(mtls: Recipe, client: str) -> None:
    sends(mtls, client)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_with_passwords(scram: Recipe, client: str) -> None:
    sends(scram, client)


def test_the_password_of_a_client_is_nowhere(scram: Recipe) -> None:
    """Goal: verifiers only.  Method: look for it in every file of the appliance, its log, arguments, environments."""
    password = (scram.place / "root/shipper.password").read_bytes().strip()
    assert len(password) == 32
    files = [path for path in scram.server.data_dir.rglob("*") if path.is_file()]
    files += [
        scram.server.log_path,
        *(
            Path(f"/proc/{row['pid']}/{name}")
            for row in scram.server.state["processes"]
            for name in ("cmdline", "environ")
        ),
    ]
    assert not [path for path in files if password in path.read_bytes()]
    assert b"SCRAM-SHA-512" in b"".join(path.read_bytes() for path in scram.server.data_dir.glob("*.json"))


def test_a_wrong_password_is_refused(scram: Recipe) -> None:
    """Method: the right one logs in first, and the audit log tells the two apart."""
    sends(scram, "python")
    options = {
        "security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "shipper",
        "sasl.password": "wrong", "ssl.ca.location": f"{scram.place}/shipper/ca.pem",
    }  # fmt: skip
    assert_refused(scram, options)
    wait_for(lambda: scram.server.state["refusals"].get("bad credentials"), "it is counted")
    for line in ('refused: reason="bad credentials" who=User:shipper', "logged in: who=User:shipper"):
        wait_for(lambda: line in scram.server.log(), line)  # noqa: B023


@pytest.mark.parametrize("protocol", ["ssl", "plaintext"])
def test_a_client_without_a_certificate_is_refused(mtls: Recipe, protocol: str) -> None:
    before = sum(mtls.server.state["refusals"].values())
    assert_refused(mtls, {"security.protocol": protocol, "ssl.ca.location": f"{mtls.place}/shipper/ca.pem"})
    wait_for(lambda: sum(mtls.server.state["refusals"].values()) > before, "it is counted")


def test_access_rules(tmp_path: Path) -> None:
    """Method: the commands of the page as root, who may; then a client without a login, who may nothing."""
    recipe = Recipe("Access rules and quotas", tmp_path)
    recipe.server.settings["kafka.listen"] = "127.0.0.1:0"
    try:
        recipe.set_up()
        with Peer(recipe.server.native) as peer:
            assert peer.call([native.ADMIN, 1, "create_topic", {"name": "web-access"}])[0][1] == TopicNotPermitted.code
        with Admin(recipe.server.state["listeners"]["local"]) as admin:
            given = {(rule["principal"], rule["operation"], rule["name"]) for rule in admin.acls()}
    finally:
        recipe.server.__exit__(None, None, None)
    assert given == {
        ("User:shipper", "Write", "web-"),
        ("User:shipper", "Create", "web-"),
        ("User:reports", "Read", "web-access"),
        ("User:reports", "Read", "reports"),
        ("Role:shippers", "Write", "web-"),
        ("User:CN=web-1,O=example", "Write", "web-"),
    }


def test_the_default_is_refused_on_other_addresses(tmp_path: Path) -> None:
    (block,) = [block for block in section("This host only") if block.language == "toml"]
    file = tmp_path / "appliance.toml"
    for listen, status in (("127.0.0.1:9092", 0), ("0.0.0.0:9092", 78)):
        file.write_text(block.code.replace("127.0.0.1:9092", listen))
        command = [sys.executable, "-m", "appliance", "config", "check", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == status and ("security.allow_insecure" in done.stderr) == bool(status), done

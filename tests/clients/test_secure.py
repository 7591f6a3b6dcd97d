"""Real clients over TLS with passwords and with certificates; refused, each for its reason; and Kafka's own tools.

One appliance that checks rights.  The way to connect decides what happens to a client, whatever it is: see REASONS.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.support.certificates import make_certificates
from tests.support.command_line import succeeding
from tests.support.server import Server, wait_for

from .adapters import (
    DEADLINE_S,
    GO,
    JAVA_OPTIONS,
    PROGRAMS,
    _made,
    close_sockets_but,
    compiled,
    jars,
    java,
    kafka_jars,
    open_sockets,
    run,
)
from .test_shippers import OMKAFKA, RSYSLOG, running

TOPIC = "secured"
PASSWORD = "correct-horse"
MECHANISM = "SCRAM-SHA-512"


class Access(NamedTuple):
    """A way to connect.  ``user``: "" for none, and a certificate decides who the client is."""

    bootstrap: str
    ca: str
    user: str = ""
    password: str = ""
    certificate: str = ""

    @property
    def key(self) -> str:
        return self.certificate.removesuffix(".pem") + ".key" if self.certificate else ""

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.user else "SSL"

    @property
    def librdkafka(self) -> dict[str, str]:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca,
        }
        if self.user:
            settings |= {"sasl.mechanism": MECHANISM, "sasl.username": self.user, "sasl.password": self.password}
        if self.certificate:
            settings |= {"ssl.certificate.location": self.certificate, "ssl.key.location": self.key}
        return settings

    @property
    def properties(self) -> dict[str, str]:
        """Those of Kafka's own client."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
        }
        if self.user:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            login = f'{module} required username="{self.user}" password="{self.password}";'
            settings |= {"sasl.mechanism": MECHANISM, "sasl.jaas.config": login}
        if self.certificate:
            keystore = self.certificate.removesuffix(".pem") + ".keystore.pem"
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore}
        return settings

    @property
    def python(self) -> dict[str, Any]:
        """Those of kafka-python and aiokafka."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        settings = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.protocol,
            "ssl_context": context,
        }
        if self.user:
            login = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
            settings |= {"sasl_mechanism": MECHANISM, **login}
        return settings


REASONS = {
    "password": "",
    "certificate": "",
    "wrong password": "bad credentials",
    "unknown user": "bad credentials",
    "certificate of another authority": "certificate",
    "no certificate": "",
}
"""Ways to connect, and why they are refused, as the appliance counts it.  The last one is served, but has no rights."""
SERVED = ("password", "certificate")


class Secured:
    def __init__(self, server: Server, files: Path) -> None:
        self.server, self.files = server, files

    def access(self, way: str) -> Access:
        with_login, with_tls = (self.server.address("kafka", each).replace("127.0.0.1", "localhost") for each in
                                ("SASL_SSL", "SSL"))  # fmt: skip
        ca = f"{self.files}/ca.pem"
        return {
            "password": Access(with_login, ca, "alice", PASSWORD),
            "certificate": Access(with_tls, ca, certificate=f"{self.files}/web-1.pem"),
            "wrong password": Access(with_login, ca, "alice", "wrong"),
            "unknown user": Access(with_login, ca, "mallory", PASSWORD),
            "certificate of another authority": Access(with_tls, ca, certificate=f"{self.files}/other/web-1.pem"),
            "no certificate": Access(with_tls, ca),
        }[way]

    def refusals(self, reason: str) -> int:
        return int(self.server.state.get("refusals", {}).get(reason, 0))

    def check(self, way: str, attempt: Callable[[Access], str]) -> None:
        """Check one attempt of a client, which returns its error, "" for none."""
        reason = REASONS[way]
        before = self.refusals(reason)
        check_error(way, attempt(self.access(way)))
        if reason:
            wait_for(lambda: self.refusals(reason) > before, f"it is refused for its reason: {reason}")


def check_error(way: str, error: str) -> None:
    """Check what a client says of its attempt, "" for nothing."""
    assert bool(error) == (way not in SERVED), (way, error)
    if way == "no certificate":
        assert "authoriz" in error.lower(), error


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("secured")
    for directory in (files, files / "other"):
        for arguments in (("ca",), ("client", "web-1")):
            assert make_certificates(directory, *arguments).returncode == 0
    assert make_certificates(files, "server", "localhost", "127.0.0.1").returncode == 0
    settings: dict[str, Any] = {
        "kafka.listen": "127.0.0.1:0, SSL://127.0.0.1:0, SASL_SSL://127.0.0.1:0",
        "kafka.advertised": "",
        "tls.certificate": files / "server.pem",
        "tls.key": files / "server.key",
        "tls.ca": files / "ca.pem",
        "tls.client_auth": "requested",
        "security.authorizer": "acl",
        "security.super_users": "User:admin",
    }
    password = files / "password"
    password.touch(0o600)
    password.write_text(f"{PASSWORD}\n")
    with Server(files / "data", **settings) as server:
        data = ("--data", str(server.data_dir))
        succeeding("topics", "create", TOPIC, *data)
        for user in ("alice", "admin"):
            succeeding("users", "add", user, "--password-file", str(password), *data)
        for principal in ("User:alice", "User:CN=web-1"):
            for operation in ("Write", "Read"):
                rule = ("--principal", principal, "--operation", operation, "--topic", TOPIC)
                succeeding("acl", "add", *rule, *data)
        yield Secured(server, files)


def librdkafka(access: Access) -> str:
    errors: list[Any] = []
    settings = {"message.timeout.ms": 4_000, "log_level": 0, "error_cb": errors.append}
    producer = Producer(access.librdkafka | settings)
    delivered: list[Any] = []
    producer.produce(TOPIC, b"from librdkafka", on_delivery=lambda error, _: delivered.append(error))
    until = perf_counter() + DEADLINE_S
    while not delivered and perf_counter() < until:
        producer.poll(0.05)
        if any(error.name() in ("_AUTHENTICATION", "_SSL", "_ALL_BROKERS_DOWN") for error in errors):
            producer.purge()
            return str(errors[0])
    assert delivered, "it neither succeeds nor fails"
    return str(delivered[0] or "")


def kafka_python(access: Access) -> str:
    before = open_sockets()
    producer = None
    try:
        producer = KafkaProducer(bootstrap_timeout_ms=4_000, request_timeout_ms=4_000, max_block_ms=4_000,
                                 delivery_timeout_ms=5_000, **access.python)  # fmt: skip
        producer.send(TOPIC, b"from kafka-python").get(DEADLINE_S)
        return ""
    except KafkaError as error:
        return repr(error)
    finally:
        if producer is not None:
            producer.close(1)
        close_sockets_but(before)


def aiokafka(access: Access) -> str:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError as AioError

    async def produce() -> str:
        producer = AIOKafkaProducer(request_timeout_ms=4_000, **access.python)
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, b"from aiokafka")
            return ""
        except AioError as error:
            return repr(error)
        finally:
            with suppress(AioError):
                await producer.stop()
            for each in gc.get_objects():  # it has left some to the garbage collector
                if issubclass(type(each), asyncio.Transport) and not each.is_closing():
                    each.abort()

    return asyncio.run(asyncio.wait_for(produce(), DEADLINE_S))


@pytest.mark.parametrize("way", REASONS)
@pytest.mark.parametrize("client", [librdkafka, kafka_python, aiokafka])
def test_clients_of_python(secured: Secured, client: Callable[[Access], str], way: str) -> None:
    secured.check(way, client)


def kcat(access: Access) -> str:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat: install it")
    options = [word for name, value in access.librdkafka.items() for word in ("-X", f"{name}={value}")]
    words = ["kcat", *options, "-X", "message.timeout.ms=4000", "-P", "-t", TOPIC]
    done = subprocess.run(words, input="from kcat\n", capture_output=True, text=True, timeout=60, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("way", REASONS)
def test_kcat(secured: Secured, way: str) -> None:
    secured.check(way, kcat)


@pytest.mark.parametrize("way", [way for way, reason in REASONS.items() if reason])
def test_rsyslog_is_refused(secured: Secured, way: str, tmp_path: Path) -> None:
    """The recipes have it with the right ones (``tests/systemd/test_recipes.py``)."""
    if not (Path(RSYSLOG).exists() and OMKAFKA.exists()):
        pytest.skip("no rsyslog with omkafka: apt-get install rsyslog rsyslog-kafka")
    access = secured.access(way)
    parameters = ",".join(f'"{name}={value}"' for name, value in access.librdkafka.items() if "bootstrap" not in name)
    (tmp_path / "in.log").write_text("a line\n")
    (tmp_path / "conf").write_text(
        f'global(workDirectory="{tmp_path}")\n'
        'module(load="imfile" pollingInterval="1")\nmodule(load="omkafka")\n'
        f'input(type="imfile" File="{tmp_path}/in.log" Tag="app:" freshStartTail="off" ruleset="ship")\n'
        f'ruleset(name="ship") {{ action(type="omkafka" broker=["{access.bootstrap}"] topic="{TOPIC}"'
        f" confParam=[{parameters}]) }}\n"
    )
    before = secured.refusals(REASONS[way])
    command = [RSYSLOG, "-n", "-f", str(tmp_path / "conf"), "-i", str(tmp_path / "pid")]
    with running(command, tmp_path):
        wait_for(lambda: secured.refusals(REASONS[way]) > before, REASONS[way])


def check_all(secured: Secured, errors: list[str]) -> None:
    """Check the errors of a program that tries all ways in their order."""
    assert len(errors) == len(REASONS)
    for way, error in zip(REASONS, errors, strict=True):
        check_error(way, error)


def counted(secured: Secured, attempt: Callable[[], list[str]]) -> list[str]:
    """What an attempt of all ways returns; each reason has been counted."""
    reasons = set(filter(None, REASONS.values()))
    before = {reason: secured.refusals(reason) for reason in reasons}
    errors = attempt()
    wait_for(lambda: all(secured.refusals(reason) > before[reason] for reason in reasons), "all reasons")
    return errors


def test_kafkas_own_client(secured: Secured, tmp_path: Path) -> None:
    files = []
    for number, way in enumerate(REASONS):
        file = tmp_path / f"{number}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in secured.access(way).properties.items()))
        files.append(str(file))
    path = compiled("java-Secure", "Secure.java", f"{kafka_jars()}/*")

    def attempt() -> list[str]:
        return run(["java", *JAVA_OPTIONS, "-cp", path, "Secure", TOPIC, *files]).splitlines()

    errors = counted(secured, attempt)
    check_all(secured, errors)
    named = dict(zip(REASONS, errors, strict=True))
    assert "SaslAuthenticationException" in named["wrong password"] == named["unknown user"]
    assert "TopicAuthorizationException" in named["no certificate"]


@functools.cache
def franz() -> str:
    def make(place: Path) -> None:
        command = [GO, "build", "-o", str(place / "client"), "./secure"]
        subprocess.run(command, cwd=PROGRAMS, check=True, capture_output=True, timeout=600)

    version = hashlib.sha256((PROGRAMS / "secure/main.go").read_bytes()).hexdigest()[:12]
    return str(_made(f"go-secure-{version}", make, "no Go, or no module proxy") / "client")


def test_franz_go(secured: Secured, tmp_path: Path) -> None:
    rows = [secured.access(way) for way in REASONS]
    (tmp_path / "ways").write_text("".join(json.dumps(row._asdict() | {"key": row.key}) + "\n" for row in rows))
    errors = counted(
        secured, lambda: [json.loads(line) for line in run([franz(), TOPIC, str(tmp_path / "ways")]).splitlines()]
    )
    check_all(secured, errors)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["password", "certificate", "wrong password"])
def test_sparks_own_connector(secured: Secured, way: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from .test_connectors import SPARK

    found = jars("spark-kafka", SPARK, alone=True)
    needed = ",".join(str(found / "{1}-{2}.jar".format(*artifact.split(":"))) for artifact in SPARK)
    topic = f"{TOPIC}-spark-{way.replace(' ', '-')}"
    data = ("--data", str(secured.server.data_dir))
    succeeding("topics", "create", topic, "--partitions", "2", *data)
    for principal in ("User:alice", "User:CN=web-1"):
        for operation in ("Write", "Read"):
            succeeding("acl", "add", "--principal", principal, "--operation", operation, "--topic", topic, *data)
        group = ("--operation", "Read", "--group", "spark-kafka", "--prefixed")
        succeeding("acl", "add", "--principal", principal, *group, *data)
    access = secured.access(way)
    options = {f"kafka.{name}": value for name, value in access.properties.items()}
    command = [sys.executable, str(PROGRAMS / "spark_kafka.py"), access.bootstrap, topic, needed, str(tmp_path)]
    environment = os.environ | {"KAFKA_OPTIONS": json.dumps(options)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if way not in SERVED:
        assert done.returncode != 0 and "SaslAuthenticationException" in done.stderr
    else:
        assert done.stdout.split() == ["1000"] * 4 + ["1500"] * 2, done.stderr[-3000:]


# ---- Kafka's own tools


@pytest.fixture
def as_admin(secured: Secured, tmp_path: Path) -> list[str]:
    """Arguments with which Kafka's tools log in as a super user."""
    access = secured.access("password")._replace(user="admin")
    file = tmp_path / "admin.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in access.properties.items()))
    return ["--bootstrap-server", access.bootstrap, "--command-config", str(file)]


def test_kafka_acls(secured: Secured, as_admin: list[str]) -> None:
    """Rules that Kafka's tool adds hold at once, are shown by ours, and are deleted by it again."""
    command = ["org.apache.kafka.tools.AclCommand", *as_admin]
    rule = ["--allow-principal", "User:carol", "--operation", "Write", "--topic", TOPIC]
    java(*command, "--add", *rule)
    data = ("--data", str(secured.server.data_dir))
    shown = json.loads(succeeding("acl", "list", "--principal", "User:carol", "--json", *data).out)
    assert [(row["operation"], row["name"], row["pattern"]) for row in shown] == [("Write", TOPIC, "Literal")]
    succeeding("users", "add", "carol", "--password-file", str(secured.files / "password"), *data)
    carol = secured.access("password")._replace(user="carol")
    assert librdkafka(carol) == ""
    listed = java(*command, "--list", "--topic", TOPIC)
    assert "principal=User:carol, host=*, operation=WRITE, permissionType=ALLOW" in listed
    java(*command, "--remove", *rule, "--force")
    assert "TOPIC_AUTHORIZATION_FAILED" in librdkafka(carol)
    succeeding("users", "delete", "carol", *data)


@pytest.mark.long
def test_kafka_configs_with_quotas_and_passwords(secured: Secured, as_admin: list[str]) -> None:
    """A quota that Kafka's tool sets throttles the user; a password that it sets logs the user in."""
    command = ["org.apache.kafka.tools.ConfigCommand", *as_admin, "--entity-type", "users", "--entity-name", "dave"]
    java(*command, "--alter", "--add-config", f"{MECHANISM}=[iterations=8192,password={PASSWORD}]")
    java(*command, "--alter", "--add-config", "producer_byte_rate=4096")
    described = java(*command, "--describe")
    assert "producer_byte_rate=4096.0" in described and f"{MECHANISM}=iterations=8192" in described
    data = ("--data", str(secured.server.data_dir))
    succeeding("acl", "add", "--principal", "User:dave", "--operation", "Write", "--topic", TOPIC, *data)
    throttled: list[int] = []
    settings = {"stats_cb": lambda text: throttled.append(_throttle_ms(text)), "statistics.interval.ms": 100}
    producer = Producer(secured.access("password")._replace(user="dave").librdkafka | settings)
    delivered: list[Any] = []
    for _ in range(4):
        producer.produce(TOPIC, bytes(8_000), on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.2)
    until = perf_counter() + DEADLINE_S
    while (len(delivered) < 1 or not any(throttled)) and perf_counter() < until:
        producer.poll(0.1)
    assert delivered[0] is None and max(throttled) > 0
    producer.purge()


def _throttle_ms(statistics: str) -> int:
    return max((row["throttle"]["max"] for row in json.loads(statistics)["brokers"].values()), default=0)

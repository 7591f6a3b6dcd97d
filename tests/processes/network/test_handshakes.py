"""handshakes of appliance.processes.network.acceptor, and all of TLS, with real clients: librdkafka and OpenSSL."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

from appliance.addresses import parse_addresses
from appliance.client import EARLIEST, ClientSecurity, Consumer, Producer
from appliance.client.cluster_client import Cluster
from appliance.errors import BadValue, BrokerAway
from appliance.processes.coordinator.peers import PeerConnections
from appliance.security.configuration import Tls
from appliance.wire.requests import LATEST, OffsetsPart, OffsetsResult

from ...support.broker_requests import as_broker
from ...support.certificates import NO_TEXT, make_certificates, sign_client
from ...support.command_line import succeeding
from ...support.server import Server, wait_for

HANDSHAKES_MAX = 20
CA_CONFIG = """[ca]
default_ca = own
[own]
database = {0}/index
new_certs_dir = {0}
rand_serial = yes
policy = any
crlnumber = {0}/number
default_md = sha256
default_crl_days = 30
[any]
commonName = supplied
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with its list of revoked certificates, and what it has signed; and another authority."""
    directory = tmp_path_factory.mktemp("certificates")
    for arguments in (
        ("ca",),
        ("server", "localhost", "127.0.0.1"),
        ("client", "web-1"),
        ("client", "revoked"),
        ("client", "expired"),
    ):
        make_certificates(directory, *arguments)
    other = directory / "other"
    make_certificates(other, "ca")
    make_certificates(other, "client", "stranger")
    (directory / "index").touch()
    (directory / "number").write_text("01")
    (directory / "openssl.conf").write_text(CA_CONFIG.format(directory))
    ca = ["openssl", "ca", "-config", f"{directory}/openssl.conf", "-cert", f"{directory}/ca.pem"]
    ca += ["-keyfile", f"{directory}/ca.key"]
    request = ["openssl", "req", "-new", "-key", f"{directory}/expired.key", "-subj", "/CN=expired", "-out"]
    subprocess.run([*request, f"{directory}/request"], check=True, capture_output=True)
    sign = ["-batch", "-notext", "-in", f"{directory}/request", "-out", f"{directory}/expired.pem"]
    sign += ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    subprocess.run([*ca, *sign], check=True, capture_output=True)
    subprocess.run([*ca, "-revoke", f"{directory}/revoked.pem"], check=True, capture_output=True)
    done = subprocess.run([*ca, "-gencrl"], check=True, capture_output=True)
    (directory / "authorities.pem").write_bytes((directory / "ca.pem").read_bytes() + done.stdout)
    return directory


def configuration(files: Path, client_auth: str = "requested") -> str:
    return (
        f'[tls]\ncertificate = "{files}/server.pem"\nkey = "{files}/server.key"\nca = "{files}/authorities.pem"\n'
        f'client_auth = "{client_auth}"\nhandshakes_max = {HANDSHAKES_MAX}\nhandshake_ms_max = 1500\n'
    )


@pytest.fixture(scope="module")
def server(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = files / "appliance.toml"
    config.write_text(configuration(files))
    each = "127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
    listening = {"kafka.listen": each, "native.listen": each}
    with Server(tmp_path_factory.mktemp("tls") / "data", config, **{"network.workers": 1, **listening}) as running:
        yield running


def address(server: Server, security: str = "SSL") -> tuple[str, int]:
    return parse_addresses(server.address("kafka", security))[0]


def context(files: Path, certificate: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=f"{files}/ca.pem")
    if certificate:
        made.load_cert_chain(f"{files}/{certificate}.pem", f"{files}/{certificate}.key")
    return made


def versions(sock: socket.socket) -> bytes:
    """The first bytes of the answer to ApiVersions."""
    sock.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
    return sock.recv(8)[4:]


def served(server: Server, files: Path, certificate: str = "") -> bool:
    """Whether a client is served; OpenSSL says that it was refused at the handshake, or at the first read."""
    with socket.create_connection(address(server), 20) as plain:
        try:
            with context(files, certificate).wrap_socket(plain, server_hostname="localhost") as sock:
                return versions(sock) == (7).to_bytes(4, "big")
        except (ssl.SSLError, ConnectionError):
            return False


def test_alternative_names_become_users_by_rules(
    files: Path, tmp_path: Path, make_appliance: Callable[..., Server]
) -> None:
    """Method: certificates with and without a URI, one without a subject at all; rights belong to the mapped user."""
    for name, extension in (("spiffe", "URI:spiffe://example/Web"), ("bare", "DNS:bare.example")):
        sign_client(files, tmp_path, name, extension)
    (tmp_path / "ca.pem").write_bytes((files / "ca.pem").read_bytes())
    config = tmp_path / "appliance.toml"
    rules = 'principal_from = "uri"\nprincipal_rules = "RULE:^spiffe:\\\\/\\\\/example\\\\/(.*)$/$1/L"\n'
    config.write_text(configuration(files, "required").replace("[tls]\n", f"[tls]\n{rules}"))
    listening = {"kafka.listen": "SSL://127.0.0.1:0", "network.workers": 1, "zookeeper.nodes": 0}
    server = make_appliance(config_file=config, **listening)
    assert served(server, tmp_path, "spiffe")
    assert not served(server, tmp_path, "bare")
    wait_for(lambda: "the certificate has no uri" in server.log(), "the reason in the audit log")
    assert "who=User:web" in server.log() and "User:ANONYMOUS" not in server.log()
    at = ("--data", str(server.data_dir))
    succeeding("users", "lock", "web", "--without-password", *at)
    before = server.log().count("logged in: who=User:web")
    assert before and not served(server, tmp_path, "spiffe")
    wait_for(lambda: "reason=locked who=User:web" in server.log(), "the reason in the audit log")
    assert server.log().count("logged in: who=User:web") == before
    succeeding("users", "unlock", "web", *at)
    assert served(server, tmp_path, "spiffe")


def refusals(server: Server) -> dict[str, int]:
    return dict(server.state["refusals"])


def kafka_client(server: Server, files: Path, certificate: str = "web-1") -> dict[str, Any]:
    settings = {
        "bootstrap.servers": server.address("kafka", "SSL"),
        "security.protocol": "ssl",
        "ssl.ca.location": f"{files}/ca.pem",
    }
    if certificate:
        settings |= {"ssl.certificate.location": f"{files}/{certificate}.pem"}
        settings |= {"ssl.key.location": f"{files}/{certificate}.key"}
    return settings


def test_librdkafka_writes_and_reads_over_tls_and_gets_addresses_with_tls(
    server: Server, files: Path, topic: str
) -> None:
    """Method: 12 MB in large batches and single messages, compared; the log is larger than any piece of a file."""
    settings = kafka_client(server, files)
    listed = AdminClient(settings).list_topics(timeout=60)
    host, port = address(server)
    assert [(broker.host, broker.port) for broker in listed.brokers.values()] == [(host, port)]
    values = [os.urandom(4_000) for _ in range(3_000)]
    producer = KafkaProducer(settings | {"linger.ms": 5, "queue.buffering.max.messages": 10_000})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    consumer = KafkaConsumer(settings | {"group.id": "g", "enable.auto.commit": False, "fetch.max.bytes": 50_000_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    while len(read) < len(values):
        messages = consumer.consume(1_000, 20)
        assert messages, f"{len(read)} of {len(values)} came"
        read += [message.value() for message in messages]
    consumer.close()
    assert read == values


def test_the_native_client_writes_and_reads_over_tls(server: Server, files: Path, topic: str) -> None:
    """Method: many messages in flight, and fetches larger than what is received at once."""
    security = ClientSecurity(ca=f"{files}/ca.pem", certificate=f"{files}/web-1.pem", key=f"{files}/web-1.key")
    bootstrap = f"SSL://{server.address('native', 'SSL')}"
    values = [os.urandom(4_000) for _ in range(3_000)]
    with Producer(bootstrap, security=security, linger_ms=5) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    read: list[bytes] = []
    with Consumer(bootstrap, security=security, partition_bytes_max=4 << 20) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        while len(read) < len(values):
            messages = consumer.poll(20)
            assert messages, f"{len(read)} of {len(values)} came"
            read += [message.value or b"" for message in messages]
    assert read == values


def test_the_native_client_says_why_tls_fails(server: Server, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.address("native", "SSL")
    with pytest.raises(BrokerAway, match="CERTIFICATE_VERIFY_FAILED"):
        Cluster(f"SSL://{address}", security=ClientSecurity(ca=f"{files}/other/ca.pem")).refresh(None)
    with pytest.raises(BrokerAway, match=r"WRONG_VERSION_NUMBER|closed"):
        Cluster(f"SSL://{server.native}", security=ClientSecurity(ca=f"{files}/ca.pem")).refresh(None)
    with pytest.raises(BrokerAway, match=r"closed the connection|reset"):
        Cluster(address).refresh(None)
    with pytest.raises(BadValue, match="PEM"):
        Cluster(f"SSL://{address}", security=ClientSecurity(ca=f"{files}/appliance.toml"))
    monkeypatch.setenv("APPLIANCE_CA", f"{files}/ca.pem")
    with contextlib.closing(Cluster(f"SSL://{address}")) as cluster:
        host, port = parse_addresses(address)[0]
        assert list(cluster.refresh(None).brokers.values()) == [(host, port)], "the environment names the authority"


def test_clients_log_in_over_tls(server: Server, files: Path, topic: str) -> None:
    """Method: librdkafka writes with SCRAM-SHA-512, the native client reads; then one with a wrong password."""
    password = files / "password"
    password.touch(0o600)
    password.write_text("correct horse battery\n")
    data = ("--data", str(server.data_dir))
    assert succeeding("users", "add", "web", "--password-file", str(password), *data).err == "", "it can log in"
    settings = {
        "bootstrap.servers": server.address("kafka", "SASL_SSL"),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": f"{files}/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "web",
        "sasl.password": "correct horse battery",
    }
    producer = KafkaProducer(settings)
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(60) == 0
    security = ClientSecurity(ca=f"{files}/ca.pem", user="web", password_file=str(password))
    with Consumer(f"SASL_SSL://{server.address('native', 'SASL_SSL')}", security=security) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        assert [message.value for message in consumer.poll(20)] == [b"value"]
    before = refusals(server).get("bad credentials", 0)
    with pytest.raises(KafkaException):
        AdminClient(settings | {"sasl.password": "wrong"}).list_topics(timeout=3)
    wait_for(lambda: refusals(server).get("bad credentials", 0) > before, "it is counted")
    succeeding("users", "delete", "web", *data)


def test_appliances_ask_each_other_with_their_own_certificates(server: Server, files: Path, topic: str) -> None:
    security = ClientSecurity(ca=f"{files}/ca.pem")
    bootstrap = f"SSL://{server.address('native', 'SSL')}"
    with Producer(bootstrap, security=security) as producer:
        producer.send(topic, b"value")
    tls = Tls(certificate=f"{files}/server.pem", key=f"{files}/server.key", ca=f"{files}/ca.pem")
    secret = msgspec.convert(
        msgspec.json.decode((server.data_dir / "security.json").read_bytes())["state"]["secret"], bytes
    )

    async def ask_end(peers: PeerConnections) -> list[OffsetsResult]:
        return await peers.ask_offsets(bootstrap, [OffsetsPart(topic, 0, LATEST)])

    (end,) = as_broker(secret, ask_end, tls)
    assert (end.error, end.offset > 0) == (0, True) and "logged in: who=User:CN=localhost" in server.log()
    assert as_broker(secret, ask_end) == []


@pytest.mark.parametrize(
    "certificate, why",
    [
        ("expired", "certificate has expired"),
        ("revoked", "certificate revoked"),
        ("other/stranger", "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_is_not_valid_is_refused_with_its_reason(
    server: Server, files: Path, certificate: str, why: str
) -> None:
    before = refusals(server).get("certificate", 0)
    assert served(server, files, "web-1") and not served(server, files, certificate)
    assert "logged in: who=User:CN=web-1" in server.log()
    wait_for(lambda: refusals(server).get("certificate", 0) > before, "it is counted")
    wait_for(lambda: why in server.log(), "the line with its reason")


def test_a_certificate_with_names_that_are_not_text_is_refused(server: Server, files: Path, tmp_path: Path) -> None:
    """And the worker goes on."""
    sign_client(files, tmp_path, "odd", NO_TEXT)
    (tmp_path / "ca.pem").write_bytes((files / "ca.pem").read_bytes())
    before = refusals(server).get("certificate", 0)
    assert not served(server, tmp_path, "odd")
    wait_for(lambda: refusals(server).get("certificate", 0) > before, "it is counted")
    assert "the certificate cannot be read" in server.log() and "Traceback" not in server.log()
    assert served(server, files, "web-1")


def test_librdkafka_is_told_that_its_certificate_is_refused(server: Server, files: Path) -> None:
    with pytest.raises(KafkaException):
        AdminClient(kafka_client(server, files, "revoked")).list_topics(timeout=3)


def test_plain_bytes_at_a_tls_listener_and_tls_at_a_plain_one(server: Server, files: Path) -> None:
    before = refusals(server)
    with socket.create_connection(address(server), 20) as sock:
        sock.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    with (
        socket.create_connection(address(server, "PLAINTEXT"), 20) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context(files).wrap_socket(sock, server_hostname="localhost")
    wait_for(
        lambda: all(refusals(server).get(name, 0) > before.get(name, 0) for name in ("plain on tls", "tls on plain")),
        "both are counted",
    )
    assert "it speaks TLS, and this listener has none" in server.log()


@pytest.mark.parametrize("old", ["TLSv1", "TLSv1_1"])
def test_old_versions_of_tls_are_refused(server: Server, files: Path, old: str) -> None:
    made = context(files)
    made.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        made.minimum_version = made.maximum_version = ssl.TLSVersion[old]
    before = refusals(server).get("tls handshake", 0)
    with socket.create_connection(address(server), 20) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
        made.wrap_socket(sock, server_hostname="localhost")
    wait_for(lambda: refusals(server).get("tls handshake", 0) > before, "it is counted")


def test_half_open_handshakes_keep_nobody_away_and_end(
    files: Path, tmp_path: Path, make_appliance: Callable[..., Server]
) -> None:
    """Method: ten times as many as there may be, silent or in the middle of their hello; meanwhile right clients.

    The appliance is one of its own: clients of other tests try again for as long as they live, and may have to give way
    here, too.
    """
    config = tmp_path / "appliance.toml"
    config.write_text(configuration(files))
    server = make_appliance(config_file=config, **{"network.workers": 1, "kafka.listen": "SSL://127.0.0.1:0"})
    hello = ssl.MemoryBIO()
    client = context(files).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    half = hello.read()[:100]
    with contextlib.ExitStack() as stack:
        for number in range(10 * HANDSHAKES_MAX):
            sock = stack.enter_context(socket.create_connection(address(server), 20))
            sock.sendall(half if number % 2 else b"")
            if not number % HANDSHAKES_MAX:
                assert served(server, files)
        wait_for(lambda: refusals(server) == {"timeout": 10 * HANDSHAKES_MAX}, "all were closed, and nobody else")


def shown(server: Server) -> bytes:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(address(server), timeout=60).encode()


def test_a_certificate_is_replaced_while_running_and_a_bad_one_is_not(server: Server, files: Path) -> None:
    """Method: an old connection stays; then a key of another certificate, and one that all can read."""
    old = shown(server)
    with (
        socket.create_connection(address(server), 20) as plain,
        context(files).wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        make_certificates(files, "server", "localhost", "127.0.0.1")
        wait_for(lambda: shown(server) != old, "the new one is shown")
        assert versions(sock) and served(server, files)
    new = shown(server)
    key = files / "server.key"
    right = key.read_bytes()
    key.write_bytes((files / "web-1.key").read_bytes())
    wait_for(lambda: "key values mismatch" in server.log(), "the mismatch is logged")
    key.write_bytes(right)
    key.chmod(0o644)
    wait_for(lambda: "its mode is 0644" in server.log(), "the mode is logged")
    assert shown(server) == new and served(server, files)
    key.chmod(0o600)
    wait_for(lambda: server.log().rstrip().endswith(f"certificate loaded: {files}/server.pem"), "all is well again")


def test_a_reload_changes_who_needs_a_certificate(server: Server, files: Path) -> None:
    assert server.config_file is not None and server.process is not None
    assert served(server, files)
    server.config_file.write_text(configuration(files, "required"))
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: not served(server, files), "a client without a certificate is refused")
    assert served(server, files, "web-1")

    def refused_with_its_reason() -> bool:
        """Each try is another line: the audit log leaves some out when a second has many, as after a test before."""
        return not served(server, files) and "did not return a certificate" in server.log()

    wait_for(refused_with_its_reason, "the line with its reason")
    server.config_file.write_text(configuration(files))
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: served(server, files), "it is served again")


def test_handshakes_count_for_their_address(files: Path, tmp_path: Path) -> None:
    """Who never goes on with a handshake has its places as any other, and gives way to those of its own address."""
    config = tmp_path / "appliance.toml"
    config.write_text(configuration(files).replace("handshake_ms_max = 1500", "handshake_ms_max = 60000"))
    listening = {"kafka.listen": "SSL://127.0.0.1:0", "native.listen": "", "network.connections_per_address_max": 2}
    with (
        Server(tmp_path / "data", config, **{"network.workers": 1, **listening}) as one,
        contextlib.ExitStack() as stack,
    ):

        def connect(source: str = "127.0.0.1") -> socket.socket:
            return stack.enter_context(socket.create_connection(address(one), 20, (source, 0)))

        def secure(plain: socket.socket) -> ssl.SSLSocket:
            return stack.enter_context(context(files, "web-1").wrap_socket(plain, server_hostname="localhost"))

        begun = [connect() for _ in range(3)]
        assert begun[1].recv(1) == b"", "the older half of this address is kept"
        complete = [secure(connect()) for _ in range(2)]
        assert all(map(versions, complete)) and begun[2].recv(1) == begun[0].recv(1) == b""
        assert connect().recv(1) == b"", "nobody gives way whose handshake is complete"
        assert versions(secure(connect("127.0.0.2")))
        complete[0].close()
        wait_for(lambda: served(one, files, "web-1"), "there is room again")
        assert "pushed out by newer handshakes: network.connections_per_address_max" in one.log()
        assert 'reason="connections per address"' in one.log()

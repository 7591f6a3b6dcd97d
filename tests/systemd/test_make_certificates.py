"""systemd/make-certificates: what it makes lets TLS verify names, and keeps keys from others."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from ..support.certificates import make_certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for arguments in (("ca",), ("server", "logs.example.net", "localhost", "127.0.0.1", "::1"), ("client", "web-1")):
        result = make_certificates(directory, *arguments)
        assert result.returncode == 0 and result.stderr == result.stdout == "", result
    return directory


def handshake(directory: Path, name: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Client and server after a handshake in memory, both with certificates."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(directory / "server.pem", directory / "server.key")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_cert_chain(directory / "web-1.pem", directory / "web-1.key")
    for context in (server_context, client_context):
        context.load_verify_locations(directory / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    server.write(b"x")
    assert client.read(1) == b"x"
    return client, server


@pytest.mark.parametrize("name", ["logs.example.net", "localhost", "127.0.0.1", "::1"])
def test_both_sides_verify_each_other(made: Path, name: str) -> None:
    _, server = handshake(made, name)
    certificate = server.getpeercert()
    assert certificate is not None and certificate["subject"] == ((("commonName", "web-1"),),)


def test_another_name_is_refused(made: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(made, "evil.example.net")


def test_keys_are_for_their_owner(made: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    keys = {"ca.key", "server.key", "web-1.key", "web-1.keystore.pem"}
    assert modes == {name: 0o600 for name in keys} | {"ca.pem": 0o644, "server.pem": 0o644, "web-1.pem": 0o644}


def test_a_renewal_replaces_and_an_authority_stays(made: Path) -> None:
    before = (made / "server.pem").read_bytes(), (made / "ca.pem").read_bytes()
    assert make_certificates(made, "server", "localhost", "127.0.0.1", "::1", "logs.example.net").returncode == 0
    assert (made / "server.pem").read_bytes() != before[0]
    refused = make_certificates(made, "ca")
    assert refused.returncode == 64 and "is there already" in refused.stderr
    assert (made / "ca.pem").read_bytes() == before[1]
    handshake(made, "logs.example.net")


@pytest.mark.parametrize(
    "arguments", [("client", "../x"), ("client", "ca"), ("server", "a b"), ("server",), ("other",)]
)
def test_wrong_arguments_make_nothing(made: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(made.iterdir())
    assert make_certificates(made, *arguments).returncode == 64
    assert sorted(made.iterdir()) == before

"""appliance.wire.transport: TLS over a socket whose bytes come and go in any pieces."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.processes.tls_files import TlsFiles
from appliance.security.certificate_names import subject_text
from appliance.security.configuration import Tls
from appliance.wire import transport as transports
from appliance.wire.transport import PIECE_BYTES, PlainOnTls, TlsTransport

from ..support.certificates import make_certificates

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for arguments in (("ca",), ("server", "localhost"), ("client", "web-1")):
        make_certificates(directory, *arguments)
    return directory


def tls(directory: Path, client_auth: str = "none") -> Tls:
    return Tls(
        certificate=f"{directory}/server.pem",
        key=f"{directory}/server.key",
        ca=f"{directory}/ca.pem",
        client_auth=client_auth,  # type: ignore[arg-type]
    )


@functools.cache
def server_context(directory: Path, client_auth: str) -> ssl.SSLContext:
    return TlsFiles(tls(directory, client_auth)).context


@functools.cache
def client_context(directory: Path, version: ssl.TLSVersion, certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=f"{directory}/ca.pem")
    context.minimum_version = context.maximum_version = version
    if certificate:
        context.load_cert_chain(f"{directory}/{certificate}.pem", f"{directory}/{certificate}.key")
    return context


class Pair:
    """A transport, and an OpenSSL client whose encrypted bytes this test moves.

    ``sending`` and ``receiving``: how many bytes the socket takes and gives at a time, in turns.
    """

    def __init__(self, directory: Path, version: ssl.TLSVersion, certificate: str = "", client_auth: str = "none"):
        self.near, self.far = socket.socketpair()
        for sock in (self.near, self.far):
            sock.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.transport = TlsTransport(self.near, server_context(directory, client_auth))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(directory, version, certificate)
        self.client = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.unsent = b""

    def to_client(self, most: int = 1 << 20) -> None:
        with contextlib.suppress(BlockingIOError):
            self.incoming.write(self.far.recv(most))

    def to_server(self, most: int = 1 << 20) -> int:
        """Move up to ``most`` encrypted bytes; how many it were."""
        self.unsent += self.outgoing.read()
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self.far.send(self.unsent[:most]) if self.unsent else 0
        self.unsent = self.unsent[sent:]
        return sent

    def connect(self, most: int = 1 << 20) -> None:
        done = greeted = False
        while not (done and greeted):
            if not greeted:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self.client.do_handshake()
                    greeted = True
            self.to_server(most)
            if not done:
                done = self.transport.handshake()
            self.to_client(most)

    def receive(self, room: int) -> bytes | None:
        """What the transport has; None: nothing yet."""
        target = memoryview(bytearray(room))
        try:
            return bytes(target[: self.transport.receive_into(target)])
        except BlockingIOError:
            return None

    def read(self) -> bytes:
        """What the client can decrypt."""
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.client.read(1 << 16):
                data += piece
        return data

    def close(self) -> None:
        self.near.close()
        self.far.close()


@contextlib.contextmanager
def connected(directory: Path, version: ssl.TLSVersion, **options: str) -> Iterator[Pair]:
    pair = Pair(directory, version, **options)
    try:
        pair.connect()
        yield pair
    finally:
        pair.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_handshake_in_pieces_and_the_subject_of_the_client(files: Path, version: ssl.TLSVersion, most: int) -> None:
    pair = Pair(files, version, "web-1", "required")
    try:
        pair.connect(most)
        assert subject_text(pair.transport.certificate()) == "CN=web-1"
    finally:
        pair.close()


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=settings.get_profile("suite").max_examples // 5)
@given(data=st.data())
def test_received_bytes_arrive_whole_whatever_the_pieces(
    files: Path, version: ssl.TLSVersion, data: st.DataObject
) -> None:
    """Goal: nothing that was received stays behind unseen: epoll would not report it."""
    sizes = st.integers(300, 40_000)
    with connected(files, version) as pair:
        want = b""
        for size in data.draw(st.lists(sizes, min_size=1, max_size=4)):
            pair.client.write(piece := os.urandom(size))
            want += piece
        got = b""
        while len(got) < len(want):
            moved = pair.to_server(data.draw(sizes))
            seen = pair.receive(data.draw(sizes))
            got += seen or b""
            while pair.transport.pending:
                got += pair.receive(data.draw(sizes)) or b""
            assert moved or seen or pair.unsent, "all was sent, and the transport shows no more"
        assert got == want


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=settings.get_profile("suite").max_examples // 5)
@given(data=st.data())
def test_sent_bytes_and_files_arrive_whole_whatever_the_socket_takes(
    files: Path, version: ssl.TLSVersion, data: st.DataObject
) -> None:
    """Method: as a connection does, the same bytes are given again until the transport has taken them."""
    pieces = data.draw(
        st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 2 * PIECE_BYTES)), min_size=1, max_size=4)
    )
    with connected(files, version) as pair, open(files / "file", "w+b") as file:  # noqa: PTH123
        want, got = b"", b""
        for number, (from_file, more, size) in enumerate(pieces):
            content = os.urandom(size)
            want += content
            file.truncate(0)
            os.pwrite(file.fileno(), content, 0)
            flags = socket.MSG_MORE if more and number + 1 < len(pieces) else 0
            sent = 0
            while sent < size:
                try:
                    if from_file:
                        taken = pair.transport.send_file(file.fileno(), sent, size - sent)
                    else:
                        taken = pair.transport.send(content[sent:], flags)
                    assert 0 < taken <= PIECE_BYTES
                    sent += taken
                except BlockingIOError:
                    pair.to_client(data.draw(st.integers(1, 50_000)))
                    got += pair.read()
        while len(got) < len(want):
            pair.to_client()
            got += pair.read()
        assert got == want


def test_ends_of_streams(files: Path) -> None:
    with connected(files, ssl.TLSVersion.TLSv1_3) as pair:
        pair.client.write(b"last")
        with contextlib.suppress(ssl.SSLWantReadError):
            pair.client.unwrap()
        pair.to_server()
        assert pair.receive(100) == b"last" and pair.transport.pending
        assert pair.receive(100) == b"", "the end comes after the bytes"
    with connected(files, ssl.TLSVersion.TLSv1_3) as pair:
        pair.far.close()
        assert pair.receive(100) == b"", "an end without an alert"
    with connected(files, ssl.TLSVersion.TLSv1_3) as pair:
        pair.transport.close()
        pair.to_client()
        assert pair.client.read() == b"", "the client sees that nobody cut the stream"


def test_the_end_of_a_file(files: Path) -> None:
    with connected(files, ssl.TLSVersion.TLSv1_3) as pair, open(files / "server.pem", "rb") as file:  # noqa: PTH123
        assert pair.transport.send_file(file.fileno(), 1 << 20, 10) == 0


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", bytes(4), b"\x80"])
def test_a_peer_without_tls_is_known_by_its_first_byte(files: Path, first: bytes) -> None:
    pair = Pair(files, ssl.TLSVersion.TLSv1_3)
    try:
        pair.far.send(first)
        with pytest.raises(PlainOnTls):
            pair.transport.handshake()
    finally:
        pair.close()


def test_bytes_that_were_changed_on_the_way_end_the_connection(files: Path) -> None:
    for version in VERSIONS:
        with connected(files, version) as pair:
            pair.client.write(b"x" * 100)
            pair.unsent = pair.outgoing.read()
            pair.unsent = pair.unsent[:-1] + bytes([pair.unsent[-1] ^ 1])
            pair.to_server()
            with pytest.raises(ssl.SSLError):
                pair.receive(100)


def test_renegotiation_is_refused(files: Path) -> None:
    """Method: openssl s_client renegotiates at the letter R."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect", address, "-tls1_2", "-quiet", "-no_ign_eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        sock, _ = server.accept()
        with client, sock:
            assert client.stdin is not None
            transport = TlsTransport(sock, TlsFiles(tls(files)).context)
            while not transport.handshake():
                pass
            client.stdin.write(b"R\n")
            client.stdin.flush()
            with pytest.raises(OSError, match="renegotiate"):
                transport.receive_into(memoryview(bytearray(1000)))
            assert transport.fault
            client.kill()


def test_memory_of_a_peer_that_sends_and_does_not_read_is_bounded(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: answers to messages of TLS that nobody takes; real ones are too few in a test, so OpenSSL is replaced."""

    class Flooded:
        pending = 1000

        def read(self, size: int = -1) -> bytes:
            return bytes(1000)

    with connected(files, ssl.TLSVersion.TLSv1_3) as pair:
        monkeypatch.setattr(pair.transport, "_outgoing", Flooded())
        with pytest.raises(OSError, match="updates keys"):
            for _ in range(1 + 2 * (PIECE_BYTES + transports.CONTROL_BYTES_MAX) // 1000):
                pair.client.write(b"x")
                pair.to_server()
                pair.receive(10)
        assert len(pair.transport._unsent) <= PIECE_BYTES + transports.CONTROL_BYTES_MAX

"""How many clients log in per second: connect, log in on the Kafka listener, close; also with TLS.

    python perf/logins.py [--smoke] [--logins 5000] [--clients 8] [--processes 2] [--rounds 3]

The clients share few processes, with epoll and plain sockets, since they use the processors of the server.  A login is
a connection and its round trips, one after the other, as of clients in use: three with SCRAM-SHA-256, two with
OAUTHBEARER.  The salted password is computed once: clients in use keep it, too, and the server never runs PBKDF2 for
SCRAM.  All have the same token, which the server checks anew each time; RS256 and ES256 are how it is signed.  With TLS
each connection has a whole handshake, in which the client checks the server's certificate: the server resumes none.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import select
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from _bench import headline, row
from _certificates import Certificates
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from appliance.bench.local_appliance import LocalAppliance
from appliance.security import scram
from appliance.security.bearer_tokens import OAUTHBEARER
from appliance.wire.transport import PlainTransport, TlsTransport

USER, PASSWORD, MECHANISM = "alice", b"long secret", "SCRAM-SHA-256"
ISSUER, AUDIENCE = "https://id.example", "logs"
TOKEN_S = 24 * 3600
HANDSHAKE, AUTHENTICATE = 17, 36
HOST = "127.0.0.1"
RECEIVE_BYTES: Final = 4096

Talk = Generator[bytes, bytes, None]
"""Yields requests, each with its length, and is sent the replies without correlation id."""


class Figures(NamedTuple):
    logins_per_s: float
    client_cpu_ms_each: float


def _request(key: int, body: bytes) -> bytes:
    return struct.pack(">Ihhih", 10 + len(body), key, 1, 1, -1) + body


def _authenticate(message: bytes) -> bytes:
    return _request(AUTHENTICATE, struct.pack(">i", len(message)) + message)


def _token(reply: bytes) -> bytes:
    error, text_bytes = struct.unpack_from(">hh", reply)
    assert error == 0, reply
    (size,) = struct.unpack_from(">i", reply, 4 + max(text_bytes, 0))
    return reply[8 + max(text_bytes, 0) :][:size]


def _login(token: str) -> Talk:
    """Yields the requests of one login, by a token if there is one, and is sent the answer to each."""
    name = OAUTHBEARER.encode() if token else MECHANISM.encode()
    chosen = yield _request(HANDSHAKE, struct.pack(">h", len(name)) + name)
    assert chosen[:2] == b"\0\0", chosen
    if token:
        assert _token((yield _authenticate(b"n,,\1auth=Bearer " + token.encode() + b"\1\1"))) == b""
        return
    client = scram.ScramClient(MECHANISM, USER, PASSWORD)
    answer = _token((yield _authenticate(client.first())))
    client.check_last_message(_token((yield _authenticate(client.final(answer)))))


class _Client:
    """One connection, from the first request of a login to its last reply."""

    def __init__(self, port: int, context: ssl.SSLContext | None, token: str) -> None:
        sock = socket.socket()
        sock.connect((HOST, port))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd = sock.fileno()
        self._shaking = TlsTransport(sock, context, HOST) if context is not None else None
        self._transport = self._shaking or PlainTransport(sock)
        self._received = b""
        self._login = _login(token)
        if self._shaking is None:
            self._transport.send(next(self._login))

    def advance(self, target: memoryview) -> bool:
        """Go on after the socket became readable; return whether the client is logged in, and gone."""
        if self._shaking is not None:
            if self._shaking.handshake():
                self._shaking = None
                self._transport.send(next(self._login))
            return False
        try:
            count = self._transport.receive_into(target)
        except BlockingIOError:  # a record that is not whole yet
            return False
        assert count, "the server closed the connection"
        self._received += target[:count]
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            return False
        reply, self._received = self._received[8:], b""
        try:
            self._transport.send(self._login.send(reply))
        except StopIteration:
            self._transport.close()
            return True
        return False


def measure(
    port: int, logins: int, clients: int, processes: int, context: ssl.SSLContext | None, token: str
) -> Figures:
    """Share the logins among so many processes, each with ``clients`` clients at a time."""
    fork = multiprocessing.get_context("fork")
    share = port, logins // processes, clients, context, token
    running = [fork.Process(target=_log_in, args=share) for _ in range(processes)]
    begun, used = time.perf_counter(), _cpu_s()
    for process in running:
        process.start()
    for process in running:
        process.join()
    seconds = time.perf_counter() - begun
    assert not any(process.exitcode for process in running), "a process of clients has failed"
    return Figures(logins / seconds, (_cpu_s() - used) * 1000 / logins)


def _cpu_s() -> float:
    """User and system time of the processes that have ended, in s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _log_in(port: int, logins: int, clients: int, context: ssl.SSLContext | None, token: str) -> None:
    epoll, target = select.epoll(), memoryview(bytearray(RECEIVE_BYTES))
    by_fd: dict[int, _Client] = {}
    started = 0
    while by_fd or started < logins:
        while len(by_fd) < clients and started < logins:
            started += 1
            client = _Client(port, context, token)
            by_fd[client.fd] = client
            epoll.register(client.fd, select.EPOLLIN)
            if context is not None:
                client.advance(target)
        for fd, _ in epoll.poll():
            if by_fd[fd].advance(target):  # closed: epoll has forgotten it
                del by_fd[fd]


def _sign(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Tokens by how they are signed, and the settings of an appliance that takes them."""
    keys: dict[str, RSAKey | ECKey] = {"RS256": RSAKey.generate_key(2048), "ES256": ECKey.generate_key("P-256")}
    rows = [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in keys.items()]
    file = directory / "keys.json"
    file.write_text(json.dumps({"keys": rows}))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": int(time.time()) + TOKEN_S}
    tokens = {kid: jwt.encode({"alg": kid, "kid": kid}, claims, key, algorithms=[kid]) for kid, key in keys.items()}
    mechanisms = f"{MECHANISM},{OAUTHBEARER}"
    return tokens, {
        "security.mechanisms": mechanisms,
        "oauth.jwks": str(file),
        "oauth.issuer": ISSUER,
        "oauth.audience": AUDIENCE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a hundred logins, once")
    parser.add_argument("--logins", type=int, default=5_000)
    parser.add_argument("--clients", type=int, default=8, help="at a time, of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logins, rounds = (100, 1) if options.smoke else (options.logins, options.rounds)
    scram.salted_password = cache(scram.salted_password)
    headline("logins", logins=logins, clients=options.clients, processes=options.processes)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        password = Path(directory) / "password"
        password.write_bytes(PASSWORD)
        password.chmod(0o600)
        made = Certificates(Path(directory) / "certificates")
        trusting = ssl.create_default_context(cafile=made.client["ssl.ca.location"])
        tokens, trust = _sign(Path(directory))
        listening = {"kafka.listen": f"SASL_PLAINTEXT://{HOST}:0,SASL_SSL://{HOST}:0"}
        settings = made.appliance | trust | listening
        with LocalAppliance(Path(directory) / "data", **settings) as server:
            words = ["users", "add", USER, "--password-file", str(password), "--data", str(server.data_dir)]
            subprocess.run([sys.executable, "-m", "appliance", *words], check=True, stdout=subprocess.DEVNULL)
            contexts = {"SASL_PLAINTEXT": None, "SASL_SSL": trusting}
            ports = {name: int(server.address("kafka", name).rpartition(":")[2]) for name in contexts}
            ways = {MECHANISM: "", **{f"{OAUTHBEARER} {kid}": token for kid, token in tokens.items()}}
            shapes = [(name, way) for way in ways for name in contexts]
            for name, way in shapes:  # warms up, and computes the salted password
                _log_in(ports[name], 50, options.clients, contexts[name], ways[way])
            for _ in range(rounds):
                for name, way in shapes:
                    before = server.cpu_s("network")
                    many = logins, options.clients, options.processes
                    figures = measure(ports[name], *many, contexts[name], ways[way])
                    used_ms = (server.cpu_s("network") - before) * 1000 / logins
                    row(f"{name} {way}", **figures._asdict(), worker_cpu_ms_each=used_ms)


if __name__ == "__main__":
    main()

"""How many clients log in per second: connect, SCRAM-SHA-256 on the Kafka listener, close.

    python perf/logins.py [--smoke] [--logins 2000] [--clients 16]

The clients compute the salted password once: the figure is the server's, with a connection and three round trips each.
The server never runs PBKDF2 for SCRAM.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _bench import headline, row

from appliance.bench.local_appliance import LocalAppliance
from appliance.security import scram

USER, PASSWORD, MECHANISM = "alice", b"secret", "SCRAM-SHA-256"
HANDSHAKE, AUTHENTICATE = 17, 36
_salted: dict[bytes, bytes] = {}
_pbkdf2 = scram.salted_password


def _once(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    if salt not in _salted:
        _salted[salt] = _pbkdf2(mechanism, password, salt, iterations)
    return _salted[salt]


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int, body: bytes) -> bytes:
    content = struct.pack(">hhih", key, 1, 1, -1) + body
    writer.write(struct.pack(">I", len(content)) + content)
    size = int.from_bytes(await reader.readexactly(4))
    return (await reader.readexactly(size))[4:]


async def _token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> bytes:
    reply = await _ask(reader, writer, AUTHENTICATE, struct.pack(">i", len(message)) + message)
    error, text_bytes = struct.unpack_from(">hh", reply)
    assert error == 0, reply
    (size,) = struct.unpack_from(">i", reply, 4 + max(text_bytes, 0))
    return reply[8 + max(text_bytes, 0) :][:size]


async def log_in(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    name = MECHANISM.encode()
    chosen = await _ask(reader, writer, HANDSHAKE, struct.pack(">h", len(name)) + name)
    assert chosen[:2] == b"\0\0", chosen
    client = scram.ScramClient(MECHANISM, USER, PASSWORD)
    answer = await _token(reader, writer, client.first())
    client.check(await _token(reader, writer, client.final(answer)))
    writer.close()


async def measure(address: str, logins: int, clients: int) -> float:
    """Logins per second."""
    host, port = address.rsplit(":", 1)
    left = iter(range(logins))

    async def one() -> None:
        for _ in left:
            await log_in(host, int(port))

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return logins / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a hundred logins")
    parser.add_argument("--logins", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    logins = 100 if given.smoke else given.logins
    scram.salted_password = _once
    headline("logins", logins=logins, clients=given.clients)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        password = Path(directory) / "password"
        password.write_bytes(PASSWORD)
        password.chmod(0o600)
        settings = {"kafka.listen": "SASL_PLAINTEXT://127.0.0.1:0"}
        with LocalAppliance(Path(directory) / "data", **settings) as server:
            words = ["users", "add", USER, "--password-file", str(password), "--data", str(server.data_dir)]
            subprocess.run([sys.executable, "-m", "appliance", *words], check=True, stdout=subprocess.DEVNULL)
            address = server.address("kafka", "SASL_PLAINTEXT")
            asyncio.run(measure(address, 50, given.clients))
            before = server.cpu_s("network")
            rate = asyncio.run(measure(address, logins, given.clients))
            used_ms = (server.cpu_s("network") - before) * 1000 / logins
    row("SCRAM-SHA-256", logins_per_s=rate, worker_cpu_ms_each=used_ms)


if __name__ == "__main__":
    main()

"""How many clients log in per second: connect, SCRAM-SHA-256 on the Kafka listener, close.

    .venv/bin/python perf/logins.py [--logins 2000] [--clients 16]

The clients compute the salted password once: the figure is the server's, with a connection and three round trips each.
The server never runs PBKDF2 for SCRAM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from appliance.security import scram
from tests.server import Server

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


def cpu_s(server: Server) -> float:
    """CPU time of the network workers so far."""
    ticks = 0
    for row in server.state["processes"]:
        if row["role"].startswith("net"):
            fields = Path(f"/proc/{row['pid']}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logins", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    scram.salted_password = _once
    with tempfile.TemporaryDirectory() as directory:
        password = Path(directory) / "password"
        password.write_bytes(PASSWORD)
        password.chmod(0o600)
        with Server(Path(directory) / "data", None, **{"kafka.listen": "SASL_PLAINTEXT://127.0.0.1:0"}) as server:
            words = ["users", "add", USER, "--password-file", str(password), "--data", str(server.data_dir)]
            subprocess.run([sys.executable, "-m", "appliance", *words], check=True)
            address = server.address("kafka", "SASL_PLAINTEXT")
            asyncio.run(measure(address, 50, given.clients))
            before = cpu_s(server)
            rate = asyncio.run(measure(address, given.logins, given.clients))
            used_ms = (cpu_s(server) - before) * 1000 / given.logins
    print(f"{given.logins} logins, {given.clients} at a time, {os.cpu_count()} cores: {rate:,.0f} logins/s,")
    print(f"{used_ms:.2f} ms of the network workers' CPU each: {1000 / used_ms:,.0f} logins/s per core of the server")


if __name__ == "__main__":
    main()

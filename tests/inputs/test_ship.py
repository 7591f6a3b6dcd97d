"""``appliance ship --follow`` to an appliance elsewhere, over TLS and with a password."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.certificates import make_certificates
from ..support.command_line import run, succeeding
from ..support.server import Server, wait_for


def test_a_host_ships_its_files_over_tls_as_a_user_through_rotation_and_a_kill(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    log, password, positions = tmp_path / "logs/app.log", tmp_path / "password", tmp_path / "positions"
    log.parent.mkdir()
    password.write_text("correct horse\n")
    password.chmod(0o600)
    for words in (("ca",), ("server", "localhost", "127.0.0.1")):
        make_certificates(tmp_path, *words)
    tls = {"tls.certificate": tmp_path / "server.pem", "tls.key": tmp_path / "server.key"}
    with Server(tmp_path / "data", **tls, **{"native.listen": "SASL_SSL://127.0.0.1:0"}) as server:
        succeeding("users", "add", "web-1", "--password-file", str(password), "--data", str(server.data_dir))
        given = {"APPLIANCE_CA": f"{tmp_path}/ca.pem", "APPLIANCE_USER": "web-1"}
        address = f"SASL_SSL://{server.address('native', 'SASL_SSL')}"
        words = ["ship", str(log), "--topic", "app", "--positions", str(positions), "--connect", address]
        assert "APPLIANCE_PASSWORD_FILE" in run(*words).err
        command = [sys.executable, "-m", "appliance", *words, "--follow"]
        environment = os.environ | given | {"APPLIANCE_PASSWORD_FILE": str(password)}

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        log.write_bytes(b"one\n")
        shipping = begin()
        wait_for(lambda: server.state["tables"].get("app-0"), "the topic", 120)
        log.rename(f"{log}.1")
        log.write_bytes(b"two\n")
        shipping.send_signal(signal.SIGKILL)
        shipping.wait()
        Path(f"{log}.1.gz").write_bytes(gzip.compress(Path(f"{log}.1").read_bytes()))
        shipping = begin()
        with log.open("ab") as file:
            file.write(b"three\n")
        said = ("consume", "app", "--from", "earliest", "--max", "3", "--data", str(server.data_dir), "--timeout", "60")
        assert sorted(succeeding(*said).out.split()) == ["one", "three", "two"]  # files have no order among them
        shipping.send_signal(signal.SIGINT)
        shipping.wait(60)
        again = ("consume", "app", "--from", "earliest", "--timeout", "2", "--data", str(server.data_dir))
        assert len(succeeding(*again).out.split()) == 3

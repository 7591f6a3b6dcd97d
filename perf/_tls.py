"""Certificates for benchmarks over TLS, and the settings with which both brokers and librdkafka use them.

Both sides speak TLS 1.3 with AES-256-GCM and the same ECDSA certificate: Kafka is allowed nothing else, and OpenSSL
chooses that first.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "systemd/make-certificates"


class Certificates:
    """Makes them in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for what in (["ca"], ["server", "127.0.0.1", "localhost"]):
            subprocess.run([SCRIPT, what[0], directory, *what[1:]], check=True)
        keystore = directory / "keystore.pem"
        parts = [(directory / name).read_text() for name in ("server.key", "server.pem", "ca.pem")]
        keystore.touch(0o600)
        keystore.write_text("".join(parts))

    @property
    def appliance(self) -> dict[str, str]:
        """Keys of the appliance's configuration."""
        return {"tls.certificate": f"{self._directory}/server.pem", "tls.key": f"{self._directory}/server.key"}

    @property
    def kafka(self) -> str:
        """Lines of Kafka's properties."""
        return (
            f"ssl.keystore.type=PEM\nssl.keystore.location={self._directory}/keystore.pem\n"
            "ssl.enabled.protocols=TLSv1.3\nssl.cipher.suites=TLS_AES_256_GCM_SHA384\n"
        )

    @property
    def client(self) -> dict[str, str]:
        """Settings of librdkafka."""
        return {"security.protocol": "ssl", "ssl.ca.location": f"{self._directory}/ca.pem"}

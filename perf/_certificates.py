"""Makes the certificates of benchmarks over TLS, with the script that comes with the appliance."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "systemd/make-certificates"


class Certificates:
    """Makes them in ``directory``; has the settings with which both brokers and librdkafka use them."""

    def __init__(self, directory: Path) -> None:
        for what in (["ca"], ["server", "127.0.0.1", "localhost"]):
            subprocess.run([SCRIPT, what[0], directory, *what[1:]], check=True, stdout=subprocess.DEVNULL)
        keystore = directory / "keystore.pem"
        keystore.touch(0o600)
        keystore.write_text("".join((directory / name).read_text() for name in ("server.key", "server.pem", "ca.pem")))
        self.appliance = {"tls.certificate": f"{directory}/server.pem", "tls.key": f"{directory}/server.key"}
        self.kafka = (
            f"ssl.keystore.type=PEM\nssl.keystore.location={keystore}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={directory}/ca.pem\n"
            "ssl.enabled.protocols=TLSv1.3\nssl.cipher.suites=TLS_AES_256_GCM_SHA384\n"
        )
        self.client = {"security.protocol": "ssl", "ssl.ca.location": f"{directory}/ca.pem"}

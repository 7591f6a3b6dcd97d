"""Is the Kafka listener faster than Apache Kafka 4.1 over TLS?  The workloads of ``appliance bench kafka_rows``.

    python perf/kafka_tls.py [--smoke] [--rounds N] [--only WORD]

Both sides speak TLS 1.3 with AES-256-GCM and the same ECDSA certificate: Kafka is allowed nothing else, and OpenSSL
chooses that first.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from _bench import show

from appliance.bench import brokers
from appliance.bench.compiling import Missing
from appliance.bench.harness import Harness, Options
from appliance.bench.kafka_side import KafkaSide, warm_up
from appliance.bench.questions import kafka_rows

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    given = parser.parse_args()
    options = Options(Path(tempfile.gettempdir()), rounds=given.rounds, smoke=given.smoke, only=given.only)
    harness = Harness("kafka_tls", "Produce and consume over TLS", options, [], print)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        made = Certificates(Path(directory) / "certificates")
        makers = [lambda at: brokers.OurBroker(at, made.appliance), lambda at: brokers.Kafka(at, made.kafka)]
        try:
            client = harness.kafka_client()
        except Missing as missing:
            print(f"skipped, missing: {missing}")
            return
        with harness.started(makers) as started:
            sides = [KafkaSide(broker, client, made.client) for broker in started]
            warm_up(harness, sides)
            kafka_rows.rows(harness, sides)
    show(harness.finish())


if __name__ == "__main__":
    main()

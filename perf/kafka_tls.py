"""Is the Kafka listener faster than Apache Kafka over TLS?  The workloads of ``appliance bench kafka_rows``.

    python perf/kafka_tls.py [--smoke] [--rounds N] [--only WORD]

Both sides speak TLS 1.3 with AES-256-GCM and the same ECDSA certificate: Kafka is allowed nothing else, and OpenSSL
chooses that first.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bench import show
from _certificates import Certificates

from appliance.bench import brokers
from appliance.bench.compiling import Missing
from appliance.bench.harness import BenchOptions, Harness
from appliance.bench.kafka_side import KafkaSide, warm_up
from appliance.bench.questions import kafka_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parsed = parser.parse_args()
    options = BenchOptions(Path(tempfile.gettempdir()), rounds=parsed.rounds, smoke=parsed.smoke, only=parsed.only)
    harness = Harness("kafka_tls", "Produce and consume over TLS", options, [], print)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        made = Certificates(Path(directory) / "certificates")
        makers = [lambda at: brokers.OurBroker(at, made.appliance), lambda at: brokers.KafkaBroker(at, made.kafka)]
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

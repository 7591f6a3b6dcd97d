"""Does the memory of an appliance stay flat while 10 GB pass through it?

    python perf/soak.py [--smoke]

One producer and one consumer at full speed, 200-byte messages, retention that keeps 1 GB.  Prints after every tenth the
PSS of all processes, the size of the log on the disk and the open files of the workers, at the end the growth of PSS
since the first tenth.  The consumer counts the messages.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from _bench import PAYLOAD_BYTES, appliance, headline, row

from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Consumer, Producer
from appliance.client.admin import Admin
from appliance.config_keys import MIB
from appliance.wire.requests import EARLIEST

VALUE = bytes(PAYLOAD_BYTES)
BATCH = 1000
TENTHS = 10


def consume(address: str, count: int, failures: list[str], progress: list[int]) -> None:
    seen = 0
    with Consumer(address) as consumer:
        consumer.assign({("t", 0): EARLIEST})
        while seen < count:
            batches = consumer.fetch_batches(timeout=60)
            if not batches:
                break
            seen += sum(len(batch.values) for batch in batches)
            progress[0] = seen
    if seen != count:
        failures.append(f"{seen} of {count} messages arrived")


def measure(server: LocalAppliance, name: str) -> float:
    memory = server.pss_bytes() / MIB
    (partition,) = Admin(server.native).topics(["t"])[0]["partitions"]
    files = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in server.pids("network"))
    row(name, pss_mib=memory, log_mib=partition["bytes"] / MIB, worker_files=files)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of it")
    small = parser.parse_args().smoke
    total_bytes, segment = (100_000_000, 4 * MIB) if small else (10_000_000_000, 128 * MIB)
    count = total_bytes // PAYLOAD_BYTES // BATCH // TENTHS * BATCH * TENTHS
    headline("soak", bytes=total_bytes, message_bytes=PAYLOAD_BYTES, segment_bytes=segment)
    failures: list[str] = []
    progress = [0]
    with appliance(**{"disk.check_ms": 1000}) as started:
        server = started.server
        settings = {"segment.bytes": str(segment), "retention.bytes": str(8 * segment)}
        Admin(server.native).create_topic("t", 1, settings)
        reader = threading.Thread(target=consume, args=(server.native, count, failures, progress))
        reader.start()
        memory = []
        with Producer(server.native, acks="all", batch_messages_max=BATCH, batch_bytes_max=1 << 20) as producer:
            for tenth in range(TENTHS):
                for number in range(count // BATCH // TENTHS):
                    producer.send_many("t", [VALUE] * BATCH)
                    sent = tenth * count // TENTHS + number * BATCH
                    while reader.is_alive() and (sent - progress[0]) * PAYLOAD_BYTES > 4 * segment:
                        time.sleep(0.01)  # do not outrun the consumer: it cannot count what retention has deleted
                producer.flush()
                memory.append(measure(server, f"{(tenth + 1) * 100 // TENTHS} %"))
        reader.join()
        row("growth since the first tenth", mib=memory[-1] - memory[0], messages=count)
    assert not failures, failures


if __name__ == "__main__":
    main()

"""How fast is the native listener?  One producer, then one consumer, 200-byte messages, one partition, Python client.

    python perf/native.py [--smoke] [--rounds N]

Client and appliance share the machine.  Rates are messages per second of wall time, from the first send to the last
acknowledgement (acks=0: until the log has everything).  CPU is that of the appliance's processes, in seconds per
million messages.  All settings are the durable defaults.  At the end of each workload the messages that arrived are
counted and hashed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence

from _bench import PAYLOAD_BYTES, Appliance, appliance, digest, headline, row

from appliance.client import Consumer, Producer
from appliance.client.admin import Admin
from appliance.wire.requests import EARLIEST

WORKLOADS = [(1000, 3_000_000), (50, 1_500_000), (1, 100_000)]
ACKS: list[int | str] = [0, 1, "all"]
VALUE = bytes(range(PAYLOAD_BYTES))


def produce(address: str, topic: str, batch: int, acks: int | str, count: int) -> None:
    """Produce ``count`` messages, ``batch`` to a batch, many batches in flight."""
    with Producer(address, acks=acks, batch_messages_max=batch, batch_bytes_max=1 << 20, linger_ms=100) as producer:
        if batch == 1:
            for _ in range(count):
                producer.send(topic, VALUE)
        else:
            values = [VALUE] * batch
            for _ in range(count // batch):
                producer.send_many(topic, values)
        producer.flush()


def consume(address: str, topic: str, count: int) -> Iterator[Sequence[bytes | None]]:
    """Yields the values of ``count`` messages, a batch at a time."""
    with Consumer(address) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        seen = 0
        while seen < count:
            for batch in consumer.fetch_batches():
                seen += len(batch.values)
                yield batch.values
        assert seen == count


def wait_for_end(admin: Admin, topic: str, count: int) -> None:
    """Wait until the log has ``count`` messages: acks=0 has no replies."""
    deadline = time.perf_counter() + 60
    while sum(partition["messages"] for partition in admin.topics([topic])[0]["partitions"]) < count:
        assert time.perf_counter() < deadline, "messages without acknowledgement are missing"
        time.sleep(0.01)


def measure(server: Appliance, rounds: int, scale: int) -> None:
    """Measure all ``acks`` in turn.  Each run has its own topic, deleted after it to free its page cache."""
    admin = Admin(server.native)
    for batch, full in WORKLOADS:
        count = full // scale // batch * batch
        rates: dict[int | str, list[float]] = {acks: [] for acks in ACKS}
        cpus: dict[int | str, list[float]] = {acks: [] for acks in ACKS}
        for number in range(rounds):
            for acks in ACKS:
                topic = f"batch-{batch}-acks-{acks}-{number}"
                admin.create_topic(topic, 1)
                cpu, start = server.cpu_s(), time.perf_counter()
                produce(server.native, topic, batch, acks, count)
                if acks == 0:
                    wait_for_end(admin, topic, count)
                rates[acks].append(count / (time.perf_counter() - start))
                cpus[acks].append((server.cpu_s() - cpu) / count * 1e6)
                if (acks, number) != (ACKS[-1], rounds - 1):
                    admin.delete_topic(topic)
        for acks in ACKS:
            against_one = statistics.median(a / b for a, b in zip(rates[acks], rates[1], strict=True))
            spread = f"{min(rates[acks]):,.0f}-{max(rates[acks]):,.0f}"
            row(f"produce, {batch} a batch, acks={acks}", rate=statistics.median(rates[acks]), spread=spread,
                ratio_to_acks_1=against_one, cpu_s_per_million=statistics.median(cpus[acks]))  # fmt: skip
        read(server, topic, count, batch, rounds)  # the last one, which is still there
        admin.delete_topic(topic)


def read(server: Appliance, topic: str, count: int, batch: int, rounds: int) -> None:
    rates, cpus = [], []
    for _ in range(rounds):
        cpu, start = server.cpu_s(), time.perf_counter()
        for _ in consume(server.native, topic, count):
            pass
        rates.append(count / (time.perf_counter() - start))
        cpus.append((server.cpu_s() - cpu) / count * 1e6)
    arrived = digest(value or b"" for values in consume(server.native, topic, count) for value in values)
    assert arrived == digest(VALUE for _ in range(count)), "what arrived is not what was sent"
    row(f"consume, {batch} a batch", rate=statistics.median(rates), spread=f"{min(rates):,.0f}-{max(rates):,.0f}",
        cpu_s_per_million=statistics.median(cpus), hash=arrived)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the size, once")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many runs (default 3)")
    arguments = parser.parse_args()
    rounds, scale = (1, 100) if arguments.smoke else (arguments.rounds, 1)
    headline("native listener", message_bytes=PAYLOAD_BYTES, partitions=1, rounds=rounds, scale=f"1/{scale}")
    with appliance() as server:
        measure(server, rounds, scale)


if __name__ == "__main__":
    main()

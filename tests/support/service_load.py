"""Load for a service that is restarted: ``python -m tests.support.service_load TOPIC``, until SIGTERM.

Prints its pid, then::

    {"connections": 812, "refused": 0, "acknowledged": 30211, "gap_ms_max": 640}

A thread connects to both listeners again and again and counts failures.  The other sends numbered lines, one behind the
other; ``gap_ms_max`` is the longest time without an acknowledgement.  Every number below ``acknowledged`` was.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time

from appliance.client import Producer

LISTENERS = (("127.0.0.1", 9091), ("127.0.0.1", 9092))
PERIOD_S = 0.005


def main(topic: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    counts = {"connections": 0, "refused": 0}
    connecting = threading.Thread(target=connect, args=(ended, counts))
    connecting.start()
    acknowledged, last, gap_s = 0, 0.0, 0.0
    with Producer("127.0.0.1:9091", linger_ms=0) as producer:
        print(os.getpid(), flush=True)
        while not ended.is_set():
            producer.send(topic, b"%08d" % acknowledged).result(60)
            now = time.monotonic()
            gap_s = max(gap_s, now - last if last else 0)
            last, acknowledged = now, acknowledged + 1
    connecting.join()
    print(json.dumps(counts | {"acknowledged": acknowledged, "gap_ms_max": round(1000 * gap_s)}), flush=True)


def connect(ended: threading.Event, counts: dict[str, int]) -> None:
    """Connect, and close at once, as often as PERIOD_S allows."""
    while not ended.wait(PERIOD_S):
        for listener in LISTENERS:
            counts["connections"] += 1
            try:
                socket.create_connection(listener, 10).close()
            except OSError:
                counts["refused"] += 1


if __name__ == "__main__":
    main(sys.argv[1])

"""What the console's process loads: its memory is bounded, and most of it is code."""

from __future__ import annotations

import subprocess
import sys


def test_it_loads_nothing_of_the_coordinator() -> None:
    """The packages for ZooKeeper and for Kafka's cold requests, with the coordinator's own, take 10 MB."""
    code = "import sys, appliance.console.console_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    others = ("kazoo", "kafka", "appliance.groups.", "appliance.kafka_apis.", "appliance.processes.coordinator")
    assert [name for name in loaded.stdout.split() if name.startswith(others)] == []

"""appliance.bench.accounts: what a tree of processes has used, whatever its threads do meanwhile."""

from __future__ import annotations

import subprocess
import sys

from appliance.bench.accounts import tree

THREADS = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
def work():
    while True:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
threading.Thread(target=work, daemon=True).start()
input()
child.kill()
"""


def test_a_thread_that_ends_hides_no_process() -> None:
    """Goal: a JVM, which always has one that ends, is in each account; it was in some of them only."""
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        child = int(process.stdout.readline())
        assert all(tree(process.pid) == [process.pid, child] for _ in range(1_000))
        process.stdin.write(b"\n")

"""One appliance for all tests of this directory, with a one-node ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class Door:
    """A running appliance: ``kafka`` and ``native`` are the addresses of its doors."""

    def __init__(self, data: Path, *settings: str) -> None:
        self.data = data
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self.kafka = self.native = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "appliance", "start", "--data", str(self.data), *self._settings]
        command += ["--set", f"kafka.listen={self.kafka}", "--set", f"native.listen={self.native}"]
        self.log = (self.data.parent / f"{self.data.name}.log").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "serving" in line:
                words = dict(word.split("=", 1) for word in line.split() if "=" in word)
                self.kafka, self.native = words["kafka"], words["native"]
                return
        raise AssertionError(f"the appliance did not start: see {self.log.name}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.process.stdout.close()
        status = self.process.wait(60)
        self.log.close()
        return status


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    running = Door(tmp_path_factory.mktemp("clients") / "data", "zookeeper.nodes=1")
    yield running
    assert running.stop() == 0

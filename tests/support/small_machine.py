"""A machine with little room, for tests: its own small /dev/shm and a small disk, in a mount namespace of its own."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .server import Server

CHUNK = bytes(1 << 20)


class SmallMachine:
    """``path`` is the disk, seen from outside and inside alike.  Sizes are as mount takes them: ``36m``."""

    def __init__(self, mount_point: Path, shm: str, disk: str) -> None:
        mount = "mount -t tmpfs tmpfs -o"
        mounts = f"{mount} size={shm} /dev/shm && {mount} size={disk},nr_inodes=20000 {mount_point}"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", f"{mounts} && echo mounted && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._holder.stdout is not None
        self.may = self._holder.stdout.readline() == "mounted\n"
        self._root = Path(f"/proc/{self._holder.pid}/root")
        self.path = self._root / mount_point.relative_to("/")
        self.shm = self._root / "dev/shm"
        self.wrapper = ["nsenter", "-t", str(self._holder.pid), "-m"]

    def resize_shm(self, size: str) -> None:
        subprocess.run([*self.wrapper, "mount", "-o", f"remount,size={size}", "/dev/shm"], check=True)

    def server(self, log_path: Path, **settings: object) -> Server:
        server = Server(
            self.path / "box", **{"network.workers": 1, "disk.free_bytes_min": 0, "disk.free_bytes_warn": 0} | settings
        )
        server.within = self.wrapper
        server.log_path = log_path
        return server

    def close(self) -> None:
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()


def fill(path: Path) -> None:
    """Write a file until there is not a block left."""
    with path.open("wb", buffering=0) as file:
        size = len(CHUNK)
        while size:
            try:
                if file.write(CHUNK[:size]) < size:
                    size //= 2
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


@contextmanager
def small_machine(tmp_path: Path, shm: str = "64m", disk: str = "256m") -> Iterator[SmallMachine]:
    """Skips the test where mounting is not permitted."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    machine = SmallMachine(mount_point, shm, disk)
    try:
        if not machine.may:
            pytest.skip("mounting is not permitted here")
        yield machine
    finally:
        machine.close()

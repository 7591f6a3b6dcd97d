"""A booted machine for tests of the service: systemd in a container, its files an overlay over those of this machine.

Nothing that happens in it changes this machine: files go into ``scratch``, the network has a loopback only, processes
and mounts end with it.  It needs root, ``systemd-nspawn`` and overlays.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from .server import wait_for

BOOT_S_MAX = 60
END_S_MAX = 30
SCRIPT = """
mkdir -p "$1/up/etc/systemd/system" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root" || exit 99
exec systemd-nspawn --quiet --directory "$1/root" --boot --private-network --register=no --keep-unit \\
    --console=read-only --machine=appliance-test --setenv=TERM=dumb "${@:2}" systemd.unit=basic.target
"""


class Machine:
    """A booted machine; ``binds``: what it sees of this one beside the root file system, as options of nspawn."""

    def __init__(self, scratch: Path, binds: Sequence[str] = ()) -> None:
        self._scratch, self._binds = scratch, binds
        self.log = scratch / "console.log"
        self._process: subprocess.Popen[bytes]
        self._leader = 0

    def __enter__(self) -> Machine:
        """Boot; skips the test where that is not possible."""
        if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
            pytest.skip("booting needs root and systemd-nspawn (apt-get install systemd-container)")
        if Path(__file__).is_relative_to("/tmp"):
            pytest.skip("the machine has a /tmp of its own, and would not see this checkout: move it elsewhere")
        command = ["unshare", "--mount", "bash", "-c", SCRIPT, "bash", str(self._scratch), *self._binds]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(self._has_booted, "the machine to boot", BOOT_S_MAX)
        except AssertionError:
            self._kill()
            pytest.skip(f"systemd does not boot here: {self.log.read_text(errors='replace')[-300:]}")
        if self._process.poll() is not None:
            pytest.skip(f"nothing boots here: {self.log.read_text(errors='replace')[-300:]}")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.run("systemctl", "--no-block", "poweroff", check=False, seconds_max=5)
            self._process.wait(END_S_MAX)
        self._kill()

    def _kill(self) -> None:
        for pid in filter(None, (self._leader, self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(END_S_MAX)

    def _has_booted(self) -> bool:
        if self._process.poll() is not None:
            return True
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return False
        self._leader = int(children[0])
        return self.run("systemctl", "is-active", "--quiet", "basic.target", check=False).returncode == 0

    def command(self, *words: str) -> list[str]:
        """A command of this machine that runs ``words`` in the booted one, as root."""
        inside = [
            "nsenter",
            "--target",
            str(self._leader),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--root",
            "--wd",
        ]
        clean = [
            "env",
            "-i",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LANG=C.UTF-8",
            "TERM=dumb",
        ]
        return [*inside, *clean, *words]

    def run(
        self, *words: str, stdin: str = "", check: bool = True, seconds_max: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; what it prints is in the error when it fails."""
        done = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, timeout=seconds_max, check=False
        )
        assert not check or done.returncode == 0, f"{shlex.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def said(self, *words: str, stdin: str = "") -> str:
        """The output of a command that succeeds."""
        return self.run(*words, stdin=stdin).stdout

    def shell(self, script: str) -> str:
        """The output of a script for bash that succeeds."""
        return self.said("bash", "-euc", script)

    def property(self, unit: str, name: str) -> str:
        """A property of a unit, such as MainPID."""
        return self.said("systemctl", "show", "--value", "--property", name, unit).strip()

    def write(self, path: str, text: str) -> None:
        self.run("tee", path, stdin=text)

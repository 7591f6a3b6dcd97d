"""How an appliance was started, and where its log goes: what remedies name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

JOURNAL: Final = "journal"
"""``Launch.log`` of one that writes to the journal of systemd."""


class Launch(msgspec.Struct, frozen=True):
    """How a supervisor was started.

    ``words``: the command line behind ``appliance``, with whole paths; none: it is not known.  ``unit``: the service of
    systemd whose main process it is; "" if it was started otherwise.  ``log``: JOURNAL, or the file or terminal that is
    its standard error; "" if only who started it knows, since that is a pipe.
    """

    words: tuple[str, ...] = ()
    unit: str = ""
    log: str = ""

    @property
    def start(self) -> str:
        """The command that starts it again as it was, in backticks; "" if that is not known."""
        if self.unit:
            return f"`{shlex.join(['systemctl', 'start', self.unit])}`"
        return f"`{shlex.join(['appliance', *self.words])}`" if self.words else ""

    def set_key(self, key: str, value: object, at: Sequence[str] = ()) -> str:
        """What gives a key of the configuration another value: in its file, or where it is set on the command line.

        Args:
            at: the options that name this appliance.
        """
        file = self.words[self.words.index("--config") + 1] if "--config" in self.words else ""
        given = [word for word in self.words if word.startswith(f"{key}=")]
        if self.words and (given or not file):
            words = [word for word in self.words if word not in given]
            for _ in given:
                words.remove("--set")
            start = shlex.join(["appliance", *words, "--set", f"{key}={value}"])
            return f"stop it, and `{start}`"
        change = shlex.join(["appliance", "config", "set", key, str(value), "--config", file or "FILE", *at])
        return f"`{change}` and restart it"

    def read_log(self, pattern: str = "") -> str:
        """What shows the lines of its log with a pattern, or the last ones."""
        if self.log == JOURNAL:
            which = ["-u", self.unit] if self.unit else []
            return f"`{shlex.join(['journalctl', *which, *(['-g', pattern] if pattern else ['-n', '50'])])}`"
        if Path(self.log).is_file():
            words = ["grep", "-iE", pattern] if pattern else ["tail", "-n", "50"]
            return f"`{shlex.join([*words, self.log])}`"
        where = f"on {self.log}" if self.log else "in the log of its container, or of what has started it"
        return f"its standard error {where}" + (f", in lines with {pattern!r}," if pattern else "")

    @property
    def read_kernel_log(self) -> str:
        """What shows whether the kernel has killed processes, and for what."""
        shows = "journalctl -k -g 'Killed process'" if self.unit else "dmesg -T | grep 'Killed process'"
        return f"`{shows}` says whether the kernel lacked memory"


def launch_of_this_process(words: Sequence[str]) -> Launch:
    """How this process was started, with these words behind ``appliance``."""
    return Launch(tuple(words), _unit(), _log())


def _unit() -> str:
    """The service of systemd whose main process this is.

    Whoever starts it by hand, or from cron, has a control group of some service too, but another parent.
    """
    try:
        parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition("/")[2]
    except (OSError, IndexError):
        return ""
    return group if parent == "systemd" and group.endswith(".service") else ""


def _log() -> str:
    try:
        status = os.fstat(2)
        if os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
            return JOURNAL
        path = str(Path("/proc/self/fd/2").readlink())
    except OSError:
        return ""
    return path if path.startswith("/") and Path(path).exists() else ""

"""What remedies name: the commands in their backticks, whether these exist, and how to carry them out."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self

from typer.main import get_command

from appliance.cli import command_tree
from appliance.config import KEYS

from .command_line import Said, run

ASKS = ("trim", "delete", "reset", "abort-hanging")
"""Commands that ask before they destroy something."""


def commands_in(text: str) -> list[list[str]]:
    """The words of the commands of this program in a text, without its name."""
    quoted = re.findall(r"(?<!`)`(appliance [^`]*)`(?!`)", text)
    return [shlex.split(command)[1:] for command in quoted]


@cache
def _root() -> Any:
    return get_command(command_tree.tree())


def fault_of(words: list[str]) -> str:
    """Why a command does not exist with these options and arguments; "" if it does."""
    command: Any = _root()
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"no command {rest[:1]} in appliance {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    try:
        command.make_context(command.name, rest, resilient_parsing=False)
    except Exception as error:  # whatever the parser has against it
        return f"appliance {' '.join(words)}: {error}"
    return ""


def carry_out(words: list[str]) -> Said:
    """Run a command of a remedy, which has to work."""
    said = run(*words, *(["--yes"] if set(ASKS) & set(words) else []))
    assert said.status in (0, 74, 75), f"appliance {' '.join(words)}: {said}"
    return said


WITHOUT_COMMAND = {
    "ActionRefused": "the reason names what is in the way: a file, a mount, a limit of another program",
    "BrokerIdTaken": "which of the two has to go only the operator knows",
    "CertificateExpired": "certificates come from an authority of the operator's",
    "CertificateExpires": "as above",
    "CertificateUnusable": "the reason names the file, and what is wrong with it",
    "InputRefuses": "the sender that is wrong is on another host",
    "InputWaits": "the reason names the file or the address, and what is wrong with it",
    "InsecureListener": "whether TLS, a login or the loopback is wanted only the operator knows",
    "LeadersAway": "it is on another host",
    "LimitLow": "limits of processes are the service manager's",
    "PartitionOpening": "it ends by itself",
    "PartitionsForeign": "it is on another host",
    "RequestErrors": "Prometheus finds it, and has no case: the test asks Prometheus",
    "SlowFlushes": "as above",
}
"""Conditions whose remedy has no command, and why; their tests do what it says in words."""
NOT_CARRIED_OUT = {
    "iostat -x 1": "it shows what a disk does until it is ended, and is a package of its own",
    "date -u": "it is there to be compared with a watch",
    "timedatectl set-ntp true": "it changes the clock of the machine",
}
"""Commands that no test carries out, and why."""
SAYS_WHETHER = ("Killed process", "remount|I/O error")
"""In commands that look for what need not be there."""


class Remedy:
    """What a finding says to do; at the end of the ``with`` each command of it has been carried out as it stands.

    Args:
        places: what stands for words in capitals that only an operator knows, such as FILE.
        within: a command that runs the others, on a machine of the test's own.
    """

    def __init__(
        self, row: Mapping[str, Any], places: Mapping[str, object] | None = None, within: Sequence[str] = ()
    ) -> None:
        self.condition, self._within = str(row["condition"]), [*within]
        text = str(row["todo"])
        for name, value in (places or {}).items():
            text = re.sub(rf"\b{name}\b", str(value), text)
        quoted = re.findall(r"(?<!`)`([^`]*)`(?!`)", text)
        self.left = [one for one in quoted if one.partition(" ")[0] not in KEYS]
        assert bool(self.left) is not (self.condition in WITHOUT_COMMAND), row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            left = [one for one in self.left if one not in NOT_CARRIED_OUT]
            assert not left, f"{self.condition}: not carried out: {left}"

    def take(self, beginning: str) -> str:
        """The first command that begins so, to be carried out by the caller."""
        command = next(one for one in self.left if one.startswith(beginning))
        self.left.remove(command)
        return command

    def run(self, beginning: str, *more: str) -> Said:
        """Carry a command out, with more words; it has to work."""
        command = self.take(beginning)
        if command.startswith("appliance "):
            words = shlex.split(command)[1:]
            assert not (fault := fault_of(words)), fault
            return carry_out([*words, *more])
        words = [*self._within, "sh", "-c", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        works = (0, 1) if any(word in command for word in SAYS_WHETHER) else (0,)
        assert done.returncode in works, f"{self.condition}: {command}: {done}"
        return Said(done.returncode, done.stdout, done.stderr)

    def run_all(self) -> list[Said]:
        """Carry all out that are left, in order."""
        return [self.run(one) for one in [*self.left] if one not in NOT_CARRIED_OUT]

"""What the service of systemd needs beyond its unit for its inputs: groups that read files, and ports below 1024.

Both are in two files of systemd, made from the configuration: a drop-in of the service and a socket unit, whose sockets
the supervisor takes for the addresses of inputs.  So the service has no capability, and no group that no input needs.
"""

from __future__ import annotations

import grp
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..addresses import address_text
from ..config import Config
from ..durable_files import replace_file
from ..errors import ConfigFault, StorageFault
from ..input_settings import (
    Files,
    InputAddress,
    Journal,
    listen_of,
    parse_address,
    processes_of,
    shared_addresses,
)
from ..owners import acting_as_owner, keeper_of, refuse_others_directory
from ..processes.supervisor.inputs import DATAGRAM_BUFFER_BYTES, PASSED_NAME
from ..processes.supervisor.listeners import BACKLOG
from .guard import Guard
from .journal import journal_directories, journal_files
from .machinery import is_readable
from .rotation import Patterns

SERVICE: Final = "appliance.service"
DROP_IN: Final = Path(f"{SERVICE}.d/inputs.conf")
SOCKET: Final = Path("appliance-inputs.socket")
GROUPS: Final = {"files": "adm", "journal": "systemd-journal"}
"""Whom Debian lets read what root has written there."""
BOOTED: Final = Path("/run/systemd/system")
FIRST_OPEN_PORT: Final = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
MARK: Final = "# Written by `appliance inputs rights`"
HEAD: Final = MARK + ": what the inputs of {config} need.\n"


class Needed(NamedTuple):
    """``addresses``: those of ``listen`` that only root may bind, each as often as processes have a socket there."""

    groups: list[str]
    addresses: list[str]

    def units(self, config: Path) -> dict[Path, str]:
        """The files of systemd, by their path below the directory of units; "" for one that is not needed."""
        service = [f"SupplementaryGroups={' '.join(self.groups)}\n"] if self.groups else []
        service += [f"Sockets={SOCKET}\n"] if self.addresses else []
        head = HEAD.format(config=config)
        return {
            DROP_IN: f"{head}[Service]\n{''.join(service)}" if service else "",
            SOCKET: head + _socket_unit([*map(parse_address, self.addresses)]) if self.addresses else "",
        }


def needed(config: Config, data_dir: Path, has: Sequence[int] = ()) -> Needed:
    """What the owner of a data directory lacks for the inputs of a configuration, who is in the groups ``has`` already.

    For a file that an input refuses to read (:mod:`.guard`) nobody gets into a group.

    Raises:
        ConfigFault: a group that this host should have is not there.
    """
    groups: dict[str, None] = {}
    addresses: list[str] = []
    guard = Guard.of_config(config, data_dir)
    for settings in config.inputs.values():
        group = GROUPS["journal"] if isinstance(settings, Journal) else GROUPS["files"]
        if isinstance(settings, Files | Journal) and _opens_more(settings, data_dir, guard, group, has):
            groups[group] = None
        for text in listen_of(settings):
            count = processes_of(settings) if text in shared_addresses(settings) else 1
            addresses += [text] * count if needs_root(parse_address(text), data_dir) else []
    return Needed(list(groups), addresses)


def groups_of(pid: int | None) -> list[int]:
    """The groups that a process is in beside its first one; none of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    return [int(word) for line in lines if line.startswith("Groups:") for word in line.split()[1:]]


def apply_units(directory: Path, units: Mapping[Path, str]) -> None:
    """Write these files, by their path in the directory of units; remove those without a text.

    Raises:
        ConfigFault: somebody else has written one of them, or may exchange one while root writes it (OthersDirectory).
        OSError.
    """
    for name in units:
        refuse_others_directory(directory / name)
    for name, text in units.items():
        path = directory / name
        if path.exists() and not path.read_text().startswith(MARK):
            raise ConfigFault(f"{path} is not of `appliance inputs rights`: move it away")
        if text:
            path.parent.mkdir(exist_ok=True)
            replace_file(path, text.encode(), mode=0o644)
        else:
            path.unlink(missing_ok=True)


def restart_service() -> bool:
    """Have systemd read its files, and start the service again with what they give it; False: there is no systemd.

    Raises:
        StorageFault: systemd refuses that.
    """
    if not BOOTED.is_dir():
        return False
    for words in (("daemon-reload",), ("restart", SERVICE)):
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True)
        if done.returncode:
            raise StorageFault(f"systemctl {' '.join(words)}: {done.stderr.strip()}")
    return True


def needs_root(address: InputAddress, data_dir: Path) -> bool:
    """Whether the owner of a data directory may not bind an address."""
    first = int(FIRST_OPEN_PORT.read_text())
    return 0 < address.port < first and keeper_of(data_dir).uid != 0


def _opens_more(settings: Files | Journal, data_dir: Path, guard: Guard, group: str, has: Sequence[int]) -> bool:
    """Whether a member of the group reads files that the owner of the data directory does not without it."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigFault(f"this host has no group {group}") from None
    return not _readable(settings, data_dir, guard, [*has, gid]) <= _readable(settings, data_dir, guard, has)


def _readable(settings: Files | Journal, data_dir: Path, guard: Guard, groups: Sequence[int]) -> set[str]:
    with acting_as_owner(data_dir, groups):
        guard.begin_scan()
        if isinstance(settings, Journal):
            paths = journal_files(journal_directories(settings.directory))
            return {path for path in paths if is_readable(path)}
        return {path for path in Patterns(settings.include, settings.exclude).paths() if guard.is_readable(path)}


def _socket_unit(addresses: Sequence[InputAddress]) -> str:
    shares = "ReusePort=yes\n" if len(set(addresses)) < len(addresses) else ""
    lines = [
        f"Listen{'Datagram' if address.is_datagram else 'Stream'}={address_text((address.host, address.port))}\n"
        for address in addresses
    ]
    return f"""[Unit]
Description=Ports below 1024 of the inputs of the log broker appliance

[Socket]
{"".join(lines)}{shares}FileDescriptorName={PASSED_NAME}
Service={SERVICE}
Backlog={BACKLOG}
ReceiveBuffer={DATAGRAM_BUFFER_BYTES}
"""

"""Looks at an appliance for the commands that judge it: by its data directory, or at an address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..clock import wall_s
from ..owners import acting_as_owner
from .target import cluster, data_dir

if TYPE_CHECKING:
    from ..health.findings import GroupsSeen, Seen
    from ..metrics.looks import Look


class CommandSubject:
    """The appliance that a command is about.  ``at``: the options that name it."""

    def __init__(self, data: Path | None, connect: str | None) -> None:
        """Raises BadParameter: both are given."""
        if data is not None and connect is not None:
            raise typer.BadParameter("--data and --connect: give one of them")
        from ..metrics.looks import Looker, at_directory

        self.directory = None if connect else data_dir(data)
        self._connect = connect
        self._looker = Looker(self.directory) if self.directory is not None else None
        self.at: tuple[str, ...] = ()
        if self.directory is not None:
            self.at = at_directory(self.directory)
        elif connect:
            self.at = ("--connect", connect)

    def status(self) -> tuple[dict[str, Any], Look]:
        """Its status (:mod:`appliance.status`) with ``host``, and a look.

        Raises:
            NoDirectory, ApplianceError: as :meth:`look`.
        """
        from ..metrics.looks import of_other_host
        from ..status import collect

        if self.directory is not None:
            look = self.look()
            host = look.host.as_json() if look.host is not None else None
            with acting_as_owner(self.directory):
                return collect(self.directory) | {"host": host}, look
        with cluster(None, self._connect) as asked:
            status: dict[str, Any] = asked.admin("status", {})
        return status, of_other_host(status, wall_s())

    def look(self) -> Look:
        """Look now.

        Raises:
            NoDirectory: there is no such directory.
            ApplianceError: nobody answers at the address.
        """
        if self._looker is None or self.directory is None:
            return self.status()[1]
        with acting_as_owner(self.directory):
            return self._looker.take_look()

    def groups(self, look: Look) -> GroupsSeen:
        """Ask for its groups, within some time."""
        from ..errors import ApplianceError
        from ..health.findings import GroupsSeen
        from ..metrics.looks import GROUPS_MS, ask_groups

        if look.readings.state is None:
            return GroupsSeen()
        try:
            with cluster(self.directory, self._connect, timeout_ms=GROUPS_MS) as asked:
                return ask_groups(asked.admin, look.state)
        except ApplianceError as failed:
            return GroupsSeen(unknown=str(failed))

    def seen(self, now: Look, before: Look | None = None, groups: GroupsSeen | None = None) -> Seen:
        """What looks say, to be judged."""
        from ..metrics.looks import seen

        return seen(now, self.at, wall_s(), before, groups)

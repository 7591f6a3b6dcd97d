"""Runs an appliance for ``appliance start``, and parses plain options of that command itself.

typer, and pydantic behind it, take longer to import than the whole appliance, and at a restart everybody who produces
waits for that.  So a start whose options are complete and plain, as that of a service is, does without them.  All other
starts, such as those with a wrong option or ``--help``, go through ``service_commands``, which explains.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .. import extras
from ..config import Config, load
from ..errors import ApplianceError, BadValue
from ..launch import Launch, launch_of_this_process
from ..libc import give_back_memory
from ..security import configuration
from . import event_log
from .ending import CommandEnded, end_on_closed_pipe
from .faults import describe, report

if TYPE_CHECKING:
    from ..processes.supervisor.fork import SideRole
    from ..processes.supervisor.inputs import InputArguments
    from ..processes.supervisor.side_processes import SideArguments
    from ..shared.heartbeats import Heart

CONSOLE_PACKAGES = ("starlette", "uvicorn")


class StartOptions(NamedTuple):
    """The options of a start: ``--data``, ``--config``, and each ``--set``."""

    data: Path
    config: Path | None
    settings: list[str]

    @property
    def launch(self) -> Launch:
        """How this process was started, with these options."""
        words = ["start", "--data", str(self.data.absolute())]
        words += ["--config", str(self.config.absolute())] if self.config is not None else []
        return launch_of_this_process([*words, *(word for one in self.settings for word in ("--set", one))])


def plain_options(words: Sequence[str]) -> StartOptions | None:
    """The options, if all of them are ``--name value`` and right; None for any other words."""
    values: dict[str, list[str]] = {"--data": [], "--config": [], "--set": []}
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name not in values or not value or value.startswith("-") or not value.isprintable():
            return None
        values[name].append(value)
    data, config, settings = values.values()
    if len(words) % 2 or len(data) != 1 or len(config) > 1:
        return None
    return StartOptions(Path(data[0]), Path(config[0]) if config else None, settings)


def start(options: StartOptions) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.  What ends it earlier is noted for ``doctor``.

    Raises:
        ApplianceError, OSError: see :func:`appliance.processes.supervisor.run`.
    """
    try:
        return _start(options)
    except (ApplianceError, OSError) as error:
        from ..clock import wall_s
        from ..status import note_failed_start

        fault = describe(error)
        note_failed_start(options.data, wall_s(), fault.exit_status, fault.message, fault.advice, options.launch)
        raise


def _start(options: StartOptions) -> int:
    def read() -> Config:
        chosen = load(options.config, options.settings)
        event_log.configure(chosen.log)
        return chosen

    chosen = read()
    if chosen.console.listen and any(importlib.util.find_spec(name) is None for name in CONSOLE_PACKAGES):
        raise BadValue(
            f"console.listen = {chosen.console.listen}: its packages are missing: {extras.install('console')}"
        )
    if configuration.takes_tokens(chosen.security) and extras.missing("joserfc"):
        raise BadValue(
            f"security.mechanisms = {chosen.security.mechanisms}: the package for OAUTHBEARER is missing:"
            f" {extras.install('oauth')}"
        )
    from ..processes import supervisor  # after the configuration, so that a wrong one fails at once

    return supervisor.run(chosen, options.data, options.launch, read, SIDE_ROLES, _run_input)


def run(options: StartOptions) -> int:
    """As :func:`start`, with errors printed."""
    try:
        with end_on_closed_pipe():
            return start(options)
    except CommandEnded as ended:
        return ended.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ApplianceError, OSError) as error:
        return report(error)


@contextlib.contextmanager
def _importing(heart: Heart) -> Iterator[None]:
    """A block that imports what only this process needs: at a high load that takes seconds."""
    with heart.working():
        yield
    give_back_memory()  # of the bytes that were imported: 0.5 to 1 MB


def _serve_metrics(arguments: SideArguments) -> None:
    with _importing(arguments.heart):
        from ..metrics import metrics_server

    metrics_server.serve(arguments)


def _serve_console(arguments: SideArguments) -> None:
    with _importing(arguments.heart):
        from ..console import console_process

    console_process.serve(arguments)


def _tell_alerts(arguments: SideArguments) -> None:
    with _importing(arguments.heart):
        from ..metrics import alerting

    alerting.serve(arguments)


def _run_input(arguments: InputArguments) -> None:
    with _importing(arguments.heart):
        from ..inputs import process

    process.run(arguments)


SIDE_ROLES: Mapping[SideRole, Callable[[SideArguments], None]] = {
    "console": _serve_console,
    "metrics": _serve_metrics,
    "alerts": _tell_alerts,
}
"""The processes beside the data path, each with its table of the configuration.  They import after the fork."""

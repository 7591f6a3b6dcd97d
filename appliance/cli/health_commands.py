"""``appliance health``, ``reload`` and ``accept-clock``: one answer for scripts, and what a running one is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..clock import now_ms
from ..errors import BadValue, BrokerAway, InvalidRequest, RequestTimedOut, Unavailable
from ..owners import acting_as_owner, keeper_of
from ..units import duration, size
from . import output
from .asking import DryRunOption, YesOption, confirm
from .subject import CommandSubject
from .target import ConnectOption, DataOption, JsonOption, cluster, running_dir

RELOAD_MS_MAX = 20_000
LOOK_S = 0.02


def health(
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status says it.")] = False,
) -> None:
    """Say whether all is well: 0 yes, 75 something passes or needs room, 74 a log is damaged.

    Needs no free worker and no ZooKeeper with [b]--data[/b].  Each thing that is wrong is one line.

    [b]Examples[/b]

        appliance health --data /var/lib/appliance

        appliance health --data /var/lib/appliance --json

        appliance health -q --connect logs.example.net:9091 || echo look at it
    """
    from ..health.findings import Seen, exit_status, wrong

    subject = CommandSubject(data, connect)
    try:
        findings = wrong(subject.seen(subject.look()))
    except Unavailable:  # nobody answers at the address
        findings = wrong(Seen(None))
    status = exit_status(findings)
    if as_json:
        rows = [
            {
                **finding.as_json(),
                "exit_status": finding.exit_status,
                "stops_all": finding.condition.stops_all,
                "text": finding.text,
            }
            for finding in findings
        ]
        output.print_json({"healthy": status == 0, "exit_status": status, "findings": rows})
    elif not quiet:
        for line in [finding.text for finding in findings] or ["all is well"]:
            output.say(output.safe(line))
    raise typer.Exit(status)


def reload(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Let a running appliance read its configuration again, and wait until it has.

    Prints what has changed and what needs a restart.  A file that cannot be used changes nothing: exit status 78.

    [b]Examples[/b]

        appliance reload --data /var/lib/appliance

        appliance reload --data /var/lib/appliance --json
    """
    ask_to_reload(data, as_json=as_json)


def ask_to_reload(data: Path | None, *, as_json: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Let an appliance reload, wait until it has, and print what has changed, unless ``quiet``.

    Returns ``changed``, what it has taken, and ``needs_restart``: rows of a key, its value before, and its value now.
    """
    directory = running_dir(data)
    state = _state(directory)
    if state is None or state.get("state") != "serving":
        raise BrokerAway(f"no appliance serves {directory}")
    before = state["reload"]["count"]
    _ask_to_reload(directory, state["pid"])
    deadline_ms = now_ms() + RELOAD_MS_MAX
    while (last := (_state(directory) or state)["reload"])["count"] == before:
        if now_ms() > deadline_ms:
            raise RequestTimedOut(f"the appliance has not reloaded within {RELOAD_MS_MAX // 1000} s: see its log")
        time.sleep(LOOK_S)
    if last["error"]:
        raise BadValue(f"nothing has changed: {last['error']}")
    reloaded = {name: last[name] for name in ("changed", "needs_restart")}
    if quiet:
        return reloaded
    if as_json:
        output.print_json(reloaded)
        return reloaded
    for key, was, now in last["changed"]:
        output.say(f"{key}: {was} -> {now}")
    if not last["changed"]:
        output.say("nothing has changed")
    for key, was, now in last["needs_restart"]:
        output.say(f"needs a restart: {key}: {was} -> {now}")
    return reloaded


def check_read(config: Path, keys: Collection[str], reloaded: Mapping[str, Any]) -> None:
    """Check that a reload has met keys that a command has just changed in a file.

    Raises:
        InvalidRequest: it has not, so the appliance reads another file, or none.
    """
    met = {key for rows in reloaded.values() for key, *_ in rows}
    if not met.intersection(keys):
        raise InvalidRequest(
            f"{config} has it now, but the appliance does not read this file: start it with --config {config}"
        )


def accept_clock(
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Believe the clock of the machine after it has jumped: messages that are old by it are deleted.

    A jump deletes nothing by itself before it has lasted for disk.clock_jump_hold_ms.  Say this when the clock is right
    now, such as after a machine was paused or off for days.

    [b]Examples[/b]

        appliance accept-clock --dry-run --data /var/lib/appliance

        appliance accept-clock --yes --data /var/lib/appliance
    """
    with cluster(data, connect) as asked:
        clock = asked.admin("status", {})["clock"]
        row = {"jump_ms": clock["jump_ms"], "kept_bytes": clock["kept_bytes"]} if clock else None
        if row is not None and not dry_run:
            text = f"{'ahead' if row['jump_ms'] > 0 else 'back'} by {duration(abs(row['jump_ms']) / 1000)}"
            lost = f"{size(row['kept_bytes'])} of messages are old by it, and go"
            confirm([lost], f"The clock has jumped {text}: believe it?", yes=yes)
            asked.admin("accept_clock", {})
    if as_json:
        output.print_json(row)
    elif row is None:
        output.say("the clock has not jumped")
    else:
        output.print_rows([row], ["jump_ms", "kept_bytes"], as_json=False)


def _state(directory: Path) -> dict[str, Any] | None:
    from ..status import read_state

    with acting_as_owner(directory):
        return read_state(directory)


def _ask_to_reload(directory: Path, pid: int) -> None:
    """Send SIGHUP to the supervisor.

    Raises:
        BrokerAway: it has ended, or the process is not one of the directory's owner, who may write any number there.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        raise BrokerAway(f"no appliance serves {directory}") from None
    try:
        owner = keeper_of(directory).uid
        # Looked up while the process is held: its number cannot have become another's before the signal.
        if os.geteuid() == 0 and owner and _user_of_process(pid) != owner:
            raise BrokerAway(f"{directory} names process {pid}, which is not one of its owner")
        signal.pidfd_send_signal(process, signal.SIGHUP)
    except ProcessLookupError:
        raise BrokerAway(f"no appliance serves {directory}") from None
    finally:
        os.close(process)


def _user_of_process(pid: int) -> int:
    """The user who runs a process, as proc(5) has it.  Raises ProcessLookupError."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        raise ProcessLookupError(pid) from None
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(health)
    app.command(rich_help_panel="Running one")(reload)
    app.command(rich_help_panel="Running one")(accept_clock)

"""``appliance doctor``: what is wrong now, why, and what to do."""

from __future__ import annotations

import threading
from typing import Annotated, Final

import typer

from ... import extras
from .. import output
from ..subject import CommandSubject
from ..target import ConnectOption, DataOption, JsonOption

BETWEEN_S: Final = 0.5
PAGE: Final = "systemd/README.md"


def doctor(
    data: DataOption = None,
    connect: ConnectOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what has an exit status.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with an appliance now, why, what to do, and where it is explained.

    Looks twice, half a second apart, and asks for groups for at most two seconds.  "critical" is what does not work
    now, "warning" what may not work soon.  Exit status: 74 when a log is damaged, 75 when something passes or needs
    room, 0 otherwise; as appliance health.

    [b]Examples[/b]

        appliance doctor --data /var/lib/appliance

        appliance doctor --quiet --json | jq -r '.[].what'
    """
    from ...health.findings import exit_status, judge

    subject = CommandSubject(data, connect)
    before = subject.look()
    threading.Event().wait(BETWEEN_S)
    now = subject.look()
    groups = subject.groups(now)
    findings = judge(subject.seen(now, before, groups))
    if quiet:
        findings = [finding for finding in findings if finding.exit_status]
    page = extras.page(PAGE)
    if as_json:
        rows = [{**finding.as_json(), "exit_status": finding.exit_status} for finding in findings]
        output.print_json([{**row, "page": f"{page}#{row['page']}"} for row in rows])
    else:
        for finding in findings:
            output.say(f"{finding.condition.level}: {finding.what}")
            for name, text in (("why", finding.why), ("do", finding.todo), ("page", f"{page}#{finding.page}")):
                if text:
                    output.say(f"  {name:4} {text}")
        if not findings:
            output.say("nothing is wrong")
        if len(groups.rows) < groups.total:
            output.remark(f"of {groups.total:,} groups {len(groups.rows):,} were looked at: there was no time for more")
    if status := exit_status(findings):
        raise typer.Exit(status)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(doctor)

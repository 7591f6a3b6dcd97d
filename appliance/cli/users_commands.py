"""``appliance users``: add, list, lock, kick and delete users, let them expire, and change their passwords.

A password comes from a file or from the terminal, never from arguments or the environment, which other programs can
see.  It does not leave this process: the appliance gets verifiers made from it (``security/scram.py``).
"""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ..config_keys import DURATIONS_MS, parse_units
from ..errors import BadValue, NotPermitted
from ..security.accounts import EXPIRY_MS_MAX
from . import output
from .live_names import complete_users
from .target import ConnectOption, DataOption, JsonOption, cluster

app = typer.Typer(no_args_is_help=True, help="Add, list, lock, kick and delete users; change their passwords.")

UserArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_users, help="Name of the user.")]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        readable=False,
        help="File whose first line is the password, 0600; without it the password is read from the terminal.",
    ),
]
ATTEMPTS_MAX: Final = 3


@app.command()
def add(
    name: UserArgument,
    password_file: PasswordFileOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a user, who can log in with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

    [b]Examples[/b]

        appliance users add alice --data /tmp/box

        appliance users add shipper --password-file shipper.password --data /tmp/box

        appliance acl add --principal User:shipper --operation Write --topic web --data /tmp/box
    """
    _put(name, password_file, data, connect, as_json, new=True)


@app.command()
def password(
    name: UserArgument,
    password_file: PasswordFileOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the password of a user.  Connections that are logged in stay so.

    [b]Example[/b]

        appliance users password alice --data /tmp/box
    """
    _put(name, password_file, data, connect, as_json, new=False)


@app.command(name="list")
def list_(data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False) -> None:
    """List users, with the mechanisms that they can log in with, their roles, and who is locked or expires.

    [b]Example[/b]

        appliance users list --data /tmp/box
    """
    with cluster(data, connect) as asked:
        users = asked.admin("users", {})
    if as_json:
        output.print_json(users)
        return
    for row in users:
        row["standing"] = _standing(row)
    output.print_rows(users, ["name", "mechanisms", "roles", "standing"])


def _standing(row: dict[str, Any]) -> str:
    """What is decided of a user, in words."""
    locked = ["locked"] if row["locked"] else []
    if row["expires_ms"] is None:
        return "".join(locked)
    at = output.moment(row["expires_ms"] / 1000)
    return ", ".join([*locked, f"expired at {at}" if row["expired"] else f"until {at}"])


UsersArgument = Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_users, help="Users.")]
WithoutPasswordOption = Annotated[
    bool,
    typer.Option(
        "--without-password",
        help="Also a user without a password here: the subject of a certificate, or the claim of a token.",
    ),
]


@app.command()
def lock(
    names: UsersArgument,
    without_password: WithoutPasswordOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lock users: nobody logs in as them any more, and their connections end.

    Passwords and access rules stay; `users unlock` undoes it. Also users of certificates and tokens, by the name behind
    `User:`, with --without-password.

    [b]Examples[/b]

        appliance users lock alice --data /tmp/box

        appliance users lock "CN=web,O=example" --without-password
    """
    _alter_each(
        names, "alter_user", {"locked": True, "without_password": without_password}, "locked", data, connect, as_json
    )


@app.command()
def unlock(
    names: UsersArgument,
    without_password: WithoutPasswordOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let locked users log in again.

    [b]Example[/b]

        appliance users unlock alice --data /tmp/box
    """
    _alter_each(
        names, "alter_user", {"locked": False, "without_password": without_password}, "unlocked", data, connect, as_json
    )


@app.command()
def kick(
    names: UsersArgument,
    without_password: WithoutPasswordOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """End all connections of users, also at the other appliances of the ensemble.  They may connect again.

    Connections of root and of the service's own user through the socket in the data directory stay.

    [b]Example[/b]

        appliance users kick alice --data /tmp/box
    """
    change = {"kick": True, "without_password": without_password}
    _alter_each(names, "alter_user", change, "ended the connections of", data, connect, as_json)


@app.command()
def expire(
    names: UsersArgument,
    after: Annotated[
        str, typer.Option("--after", metavar="TIME", help="A time (2026-12-31), a time from now (90d), or `never`.")
    ],
    without_password: WithoutPasswordOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let users expire: from then on they are refused, and their connections end.

    [b]Examples[/b]

        appliance users expire contractor --after 90d --data /tmp/box

        appliance users expire contractor --after never
    """
    expires_ms = parse_expiry(after, datetime.now().astimezone())
    said = f"expires at {output.moment(expires_ms / 1000)}:" if expires_ms else "never expires:"
    change = {"expires_ms": expires_ms, "without_password": without_password}
    _alter_each(names, "alter_user", change, said, data, connect, as_json)


def parse_expiry(text: str, now: datetime) -> int:
    """When a user expires, in ms since 1970; 0: never.

    Raises:
        BadValue: the text is neither a time, nor an amount of it, nor ``never``.
    """
    if text == "never":
        return 0
    length_ms = parse_units(text, {unit: ms for unit, ms in DURATIONS_MS.items() if unit})
    try:
        moment = now + timedelta(milliseconds=length_ms) if length_ms is not None else datetime.fromisoformat(text)
        return min(max(1, round(moment.astimezone().timestamp() * 1000)), EXPIRY_MS_MAX)
    except (ValueError, OverflowError, OSError):
        raise BadValue(
            f"--after {text}: must be a time such as 2026-12-31 or 2026-12-31T18:00, 90d, or never"
        ) from None


def _alter_each(
    names: list[str],
    verb: str,
    arguments: dict[str, Any],
    done: str,
    data: Path | None,
    connect: str | None,
    as_json: bool,
) -> None:
    with cluster(data, connect) as asked:
        for name in names:
            asked.admin(verb, {"name": name, **arguments})
            if not as_json:
                output.say(f"{done} {name}")
    if as_json:
        output.print_json([{"name": name} for name in names])


@app.command()
def delete(
    names: UsersArgument,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete users, whose connections end.  Access rules and roles of the user stay.

    A lock and a time to expire stay, too: they hold for certificates and tokens of the name, and for a user who is
    added with it later. `users unlock` ends a lock, `users expire --after never` the time.

    [b]Example[/b]

        appliance users delete alice --data /tmp/box
    """
    _alter_each(names, "delete_user", {}, "deleted", data, connect, as_json)


def _put(
    name: str, password_file: Path | None, data: Path | None, connect: str | None, as_json: bool, *, new: bool
) -> None:
    from ..security.scram import check_password, encode_verifiers
    from ..security.secret_files import read_given_password

    new_password = read_given_password(password_file, "--password-file") if password_file else _ask(name)
    check_password(new_password)
    verifiers = encode_verifiers(new_password.encode())
    no_login = False
    with cluster(data, connect) as asked:
        asked.admin("put_user", {"name": name, "verifiers": verifiers, "new": new})
        with contextlib.suppress(NotPermitted):
            no_login = new and not any("SASL_" in text for text in asked.admin("status", {})["listeners"].values())
    if as_json:
        output.print_json({"name": name})
    else:
        output.say(f"added {name}" if new else f"changed the password of {name}")
    if no_login:
        output.remark(
            'no listener asks clients for a login yet: kafka.listen = "SASL_SSL://HOST:9093" makes one that does'
        )


def _ask(name: str) -> str:
    """The password, typed twice without being shown.

    Raises:
        BadValue: there is no terminal, or the two do not agree.
    """
    import getpass

    if not sys.stdin.isatty():
        raise BadValue("there is no terminal to read the password from: give --password-file FILE")
    for _ in range(ATTEMPTS_MAX):
        typed = getpass.getpass(f"Password of {output.safe(name)}: ")
        if not typed:
            output.remark("a password is not empty")
        elif typed == getpass.getpass("Again: "):
            return typed
        else:
            output.remark("the two are different")
    raise BadValue("no password was given")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="users", rich_help_panel="Who may do what")

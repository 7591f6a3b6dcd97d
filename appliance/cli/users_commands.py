"""``appliance users``: add, list and delete users, and change their passwords.

A password comes from a file or from the terminal, never from arguments or the environment, which other programs can
see.  It does not leave this process: the appliance gets verifiers made from it (``security/scram.py``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ..errors import BadValue
from . import output
from .live_names import complete_users
from .target import Connect, Data, Json, cluster

app = typer.Typer(no_args_is_help=True, help="Add, list and delete users; change their passwords.")

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_users, help="Name of the user.")]
PasswordFile = Annotated[
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
    name: Name,
    password_file: PasswordFile = None,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Add a user, who can log in with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

    [b]Examples[/b]

        appliance users add alice --data /tmp/box

        appliance users add shipper --password-file shipper.password --data /tmp/box
    """
    _put(name, password_file, data, connect, as_json, new=True)


@app.command()
def password(
    name: Name,
    password_file: PasswordFile = None,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Change the password of a user.  Connections that are logged in stay so.

    [b]Example[/b]

        appliance users password alice --data /tmp/box
    """
    _put(name, password_file, data, connect, as_json, new=False)


@app.command(name="list")
def list_(data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """List users, with the mechanisms that they can log in with.

    [b]Example[/b]

        appliance users list --data /tmp/box
    """
    with cluster(data, connect) as asked:
        users = asked.admin("users", {})
    output.print_rows(users, ["name", "mechanisms"], as_json=as_json)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_users, help="Users.")],
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Delete users.  Connections that are logged in stay so; access rules of the user stay, too.

    [b]Example[/b]

        appliance users delete alice --data /tmp/box
    """
    with cluster(data, connect) as asked:
        for name in names:
            asked.admin("delete_user", {"name": name})
            if not as_json:
                output.say(f"deleted {name}")
    if as_json:
        output.print_json([{"name": name} for name in names])


def _put(
    name: str, password_file: Path | None, data: Path | None, connect: str | None, as_json: bool, *, new: bool
) -> None:
    from ..security.scram import MECHANISMS, encode_verifier, make_verifier
    from ..security.secret_files import read_given_password

    given = read_given_password(password_file, "--password-file") if password_file else _ask(name)
    verifiers = {mechanism: encode_verifier(make_verifier(mechanism, given.encode())) for mechanism in MECHANISMS}
    with cluster(data, connect) as asked:
        asked.admin("put_user", {"name": name, "verifiers": verifiers, "new": new})
    if as_json:
        output.print_json({"name": name})
    else:
        output.say(f"added {name}" if new else f"changed the password of {name}")


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

"""``appliance contexts``: names for appliances, and which one commands are about."""

from __future__ import annotations

from typing import Annotated

import typer

from ..addresses import parse_listeners
from . import contexts, output
from .contexts import Context
from .target import ConnectOption, DataOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="Name several appliances, and choose the one that commands are about.")


def _complete(incomplete: str) -> list[str]:
    return [name for name in sorted(contexts.load().contexts) if name.startswith(incomplete)]


ContextArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_complete, help="Name of a context.")]


@app.command(name="list")
def list_(as_json: JsonOption = False) -> None:
    """List contexts, and which one is in use.

    [b]Example[/b]

        appliance contexts list --json
    """
    saved = contexts.load()
    rows = [
        {"name": name, "data": context.data, "connect": context.connect, "in_use": name == saved.in_use}
        for name, context in sorted(saved.contexts.items())
    ]
    output.print_rows(rows, ["name", "data", "connect", "in_use"], as_json=as_json)


@app.command()
def add(
    name: ContextArgument,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the appliance of --data or --connect, or give that name to another one.

    [b]Examples[/b]

        appliance contexts add box --data /var/lib/appliance --use

        appliance contexts add far --connect SSL://logs.example.net:9091
    """
    if (data is None) == (connect is None):
        raise typer.BadParameter("give --data or --connect, one of them")
    if connect is not None:
        try:
            parse_listeners("native", connect)
        except ValueError as error:
            raise typer.BadParameter(f"--connect {error}") from None
    saved = contexts.load()
    saved.contexts[name] = Context(str(data.absolute()) if data else "", connect or "")
    if use:
        saved.current = name
    contexts.store(saved)
    _say(name, as_json)


@app.command()
def use(name: ContextArgument, as_json: JsonOption = False) -> None:
    """Let commands be about the appliance of a context, where they say nothing else.

    --data, --connect, APPLIANCE_DATA, APPLIANCE_CONNECT and APPLIANCE_CONTEXT go before it.

    [b]Example[/b]

        appliance contexts use far
    """
    saved = contexts.load()
    saved.find(name)
    saved.current = name
    contexts.store(saved)
    _say(name, as_json)


@app.command()
def remove(name: ContextArgument, as_json: JsonOption = False) -> None:
    """Forget a name; the appliance is not touched.  If it was in use, none is.

    [b]Example[/b]

        appliance contexts remove far
    """
    saved = contexts.load()
    saved.find(name)
    del saved.contexts[name]
    if saved.current == name:
        saved.current = ""
    contexts.store(saved)
    _say(name, as_json)


def _say(name: str, as_json: bool) -> None:
    saved = contexts.load()
    if as_json:
        output.print_json({"name": name, "in_use": saved.current})
    else:
        output.say(f"in use: {saved.current or 'none'}")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="contexts", rich_help_panel="Running one")

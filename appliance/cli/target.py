"""Chooses the appliance for a command: ``--data DIR``, ``--connect HOST:PORT``, or the default listener.

``--data`` connects to the Unix socket in that directory, where the appliance sees which user of the system runs the
command.  Root reads the directory as its owner does (``owners``).  A user who may not open that socket is connected to
the native listener; its address is in
``<data>/state.json``, which the supervisor writes while it runs.  Raises :class:`BrokerAway` when nothing serves there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..addresses import PLAINTEXT, UNIX, address_text, first_with, parse_addresses, parse_listeners
from ..config import KEYS, TopicSettings
from ..errors import ApplianceError, BrokerAway, ProtocolFault, UnknownGroup, UnknownPartition, UnknownUser
from ..owners import acting_as_owner
from ..wire.sockets import LOCAL_SOCKET
from . import output
from .known_names import did_you_mean

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster


def _complete_settings(incomplete: str) -> list[str]:
    return [f"{name}=" for name in TopicSettings().as_kafka() if name.startswith(incomplete)]


def directory_path(text: str) -> Path:
    """The path of a data directory.

    Raises:
        BadParameter: nothing, as from a variable that is not set, which would be the working directory; or not UTF-8,
            which state.json and the configuration of ZooKeeper are.
    """
    if not text:
        raise typer.BadParameter("name a directory; the working directory is .")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!r} is not UTF-8") from None
    return Path(text)


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        readable=False,
        parser=directory_path,
        help="Data directory of an appliance on this host [dim](or APPLIANCE_DATA)[/dim].",
    ),
]
ConnectOption = Annotated[
    str | None,
    typer.Option(
        "--connect",
        metavar="HOST:PORT",
        help="Native listener of an appliance, SSL:// or SASL_SSL://HOST:PORT with TLS and a login, which is that of "
        "APPLIANCE_USER and APPLIANCE_PASSWORD_FILE "
        f"[dim](or APPLIANCE_CONNECT; else {KEYS['native.listen'].default})[/dim].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
TopicSettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="KEY=VALUE",
        autocompletion=_complete_settings,
        help="A setting of the topic, such as retention.ms=7d; repeatable.",
    ),
]


def data_dir(data: Path | None) -> Path | None:
    """The data directory from the command line or the environment."""
    named = os.environ.get("APPLIANCE_DATA")
    return data or (directory_path(named) if named else None)


_VERBS: dict[type[ApplianceError], str] = {UnknownPartition: "topics", UnknownGroup: "groups", UnknownUser: "users"}
"""The command that lists the existing names, by the error about a name that does not exist."""


def running_dir(data: Path | None) -> Path:
    """As :func:`data_dir`, for what only the data directory of a running appliance has."""
    directory = data_dir(data)
    if directory is None:
        raise typer.BadParameter("--data DIR: name the data directory of a running appliance")
    return directory


LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def address(data: Path | None, connect: str | None) -> str:
    """The native listener to use, as text.  The command line wins over the environment.

    Raises:
        BadParameter: the address is invalid, or both options were given.
        BrokerAway: nothing serves that data directory.
    """
    if data is not None and connect is not None:
        raise typer.BadParameter("--data and --connect: give one of them")
    if data is None and connect is None:
        connect = os.environ.get("APPLIANCE_CONNECT")
        data = None if connect else data_dir(None)
    if connect is not None:
        try:
            listeners = parse_listeners("native", connect)
        except ValueError as error:
            raise typer.BadParameter(f"--connect {error}") from None
        if os.environ.get("APPLIANCE_USER") and not any(listener.sasl or listener.unix for listener in listeners):
            output.remark(f"APPLIANCE_USER is not used: {connect} asks for no login, SASL_SSL://HOST:PORT would")
        return connect
    if data is None:
        return str(KEYS["native.listen"].default)
    from ..status import read_state

    with acting_as_owner(data):
        state = read_state(data)
        # Where the file says, but in this directory: a program that may write the file may not send root elsewhere.
        local = data.absolute() / LOCAL_SOCKET
        open_to_us = os.access(local, os.R_OK | os.W_OK, effective_ids=True)
    if state is None:
        raise BrokerAway(f"no appliance serves {data}")
    if open_to_us and state["listeners"].get("local"):
        return f"{UNIX}{local}"
    listener = first_with(PLAINTEXT, parse_listeners("native", str(state["listeners"].get("native", ""))))
    if not listener:
        raise BrokerAway(
            f"the appliance of {data} is {state.get('state', 'starting')}: its native listener is not open"
        )
    host, port = parse_addresses(listener)[0]
    return address_text((LOOPBACK.get(host, host), port))


@contextlib.contextmanager
def cluster(data: Path | None, connect: str | None, *, timeout_ms: int | None = None) -> Iterator[Cluster]:
    """A connection to the appliance, closed at the end.

    Args:
        timeout_ms: for connecting, and for each request; by default those of the client.

    Raises:
        ProtocolFault: the address is that of a Kafka broker, or of the Kafka listener of an appliance.
    """
    from ..client.broker_connection import speaks_kafka
    from ..client.cluster_client import Cluster

    listener = address(data, connect)
    timeouts: dict[str, Any] = (
        {} if timeout_ms is None else {"connect_timeout_ms": timeout_ms, "request_timeout_ms": timeout_ms}
    )
    asked = Cluster(listener, client_name="appliance-cli", **timeouts)
    try:
        yield asked
    except BrokerAway:
        for parsed in parse_listeners("native", listener):
            if parsed.security == PLAINTEXT and not parsed.unix and speaks_kafka(parse_addresses(parsed.address)[0]):
                raise ProtocolFault(
                    f"{parsed} speaks Kafka's protocol: name the address of native.listen, or the data directory"
                ) from None
        raise
    except (UnknownPartition, UnknownGroup, UnknownUser) as error:
        near = did_you_mean(asked, _VERBS[type(error)], str(error))
        if not near:
            raise
        raise type(error)(f"{error}: did you mean {near!r}?") from None
    finally:
        asked.close()


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    """``["retention.ms=7d"]`` as a dictionary.  The appliance checks names and values.

    Raises:
        BadParameter: not of the form key=value.
    """
    settings = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--setting {text}: must be KEY=VALUE, such as retention.ms=7d")
        settings[name] = value
    return settings

"""Names for appliances, as kubectl's contexts: kept in a file of the user, one of them is in use.

``$XDG_CONFIG_HOME/appliance/contexts.json`` (by default below ``~/.config``)::

    {"version": 1, "current": "box", "contexts": {"box": {"data": "/srv/logs"}, "far": {"connect": "far:9091"}}}

The one in use stands for ``--data`` or ``--connect`` where neither they nor their variables of the environment are
given; ``APPLIANCE_CONTEXT`` names another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ..errors import BadValue
from ..owners import open_as_owner

NAME_PATTERN: Final = "^[A-Za-z0-9._-]{1,64}$"
VARIABLE: Final = "APPLIANCE_CONTEXT"
CONTEXTS_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 8 << 20


class Context(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an appliance is: one of both."""

    data: str = ""
    connect: str = ""


class Contexts(Struct, forbid_unknown_fields=True):
    """All that a user has named; ``current``: "" for none."""

    version: Literal[1] = 1
    current: str = ""
    contexts: Annotated[dict[Annotated[str, Meta(pattern=NAME_PATTERN)], Context], Meta(max_length=CONTEXTS_MAX)] = {}

    @property
    def in_use(self) -> str:
        """The name of the one in use, "" for none."""
        return os.environ.get(VARIABLE) or self.current

    def find(self, name: str) -> Context:
        """Raises BadValue: there is no such context."""
        if name not in self.contexts:
            raise BadValue(f"there is no context {name!r}: `appliance contexts list` shows them")
        return self.contexts[name]


def path() -> Path:
    """The file of this user."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "appliance" / "contexts.json"


def load() -> Contexts:
    """What is in the file; nothing without one.

    Raises:
        BadValue: it is no such file.
    """
    try:
        with open_as_owner(path()) as file:
            content = file.read(FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: the user has no home
        return Contexts()
    try:
        return msgspec.json.decode(content, type=Contexts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadValue(f"{path()}: {error}: mend it, or remove it") from None


def store(contexts: Contexts) -> None:
    """Replace the file.

    Raises:
        BadValue: a name is none, or there are too many.
        OSError: it cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(contexts), indent=1) + b"\n"
    try:
        msgspec.json.decode(content, type=Contexts)
    except msgspec.ValidationError:
        raise BadValue(
            f"a context has a name of letters, digits and ._-, and there are {CONTEXTS_MAX} at most"
        ) from None
    from ..durable_files import replace_file  # few commands store, and ctypes takes time

    path().parent.mkdir(parents=True, exist_ok=True)
    replace_file(path(), content)


def variables() -> dict[str, str]:
    """The variables of the environment that the context in use stands for; none without one.

    Raises:
        BadValue: the file is damaged, or APPLIANCE_CONTEXT names none.
    """
    saved = load()
    if not saved.in_use:
        return {}
    chosen = saved.find(saved.in_use)
    return {"APPLIANCE_DATA": chosen.data} if chosen.data else {"APPLIANCE_CONNECT": chosen.connect}

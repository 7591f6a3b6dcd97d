"""Says how a command line is written that is right but for a spelling that another command has.

Where one option stands for what the command calls otherwise, as ``--from`` of consume for ``--since`` of tail, it is
:data:`MEANT`.  Where keys and values are apart and it wants ``=``, or the other way round: ``config set`` takes two
words, and ``--set``, ``--setting``, ``--header`` and others take one with ``=`` in it.  Whoever knows one of them
writes the others so, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer.exceptions

MEANT: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "--from": (("--since",),),
    "--since": (("--from",), ("--at",)),
    "--once": (("--count", "1"),),
    "--max": (("--lines",),),
    "--lines": (("--max",),),
    "--count": (("--max",), ("--lines",)),
}
"""Option -> what it is called by commands that do not have it, with the value that says it."""


def respelled(root: Any, words: Sequence[str]) -> str:
    """The command line as it should be written; "" if the words are right, or wrong in another way."""
    command, path, rest = root, ["appliance"], list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return ""
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    if _is_right(command, rest):
        return ""
    for changed in (_renamed(command, rest), _joined(command, rest), _split(command, rest)):
        if changed != rest and _is_right(command, changed):
            return shlex.join([*path, *changed])
    return ""


def _is_right(command: Any, words: Sequence[str]) -> bool:
    try:
        command.make_context(command.name, list(words))
    except (typer.exceptions.TyperException, typer.Exit):
        return False
    return True


def _renamed(command: Any, words: Sequence[str]) -> list[str]:
    """With the command's own option in the place of one that another command has for that."""
    own = {name for param in command.params for name in param.opts}
    changed: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        meant = next((meant for meant in MEANT.get(name, ()) if meant[0] in own and name not in own), None)
        changed += [word] if meant is None else [meant[0] + equals + value, *meant[1:]]
    return changed


def _joined(command: Any, words: Sequence[str]) -> list[str]:
    """With ``KEY VALUE`` and ``KEY = VALUE`` as one word behind options that want ``KEY=VALUE``."""
    wanting = {name for param in command.params if "=" in (param.metavar or "") for name in param.opts}
    changed: list[str] = []
    rest = list(words)
    while rest:
        name, equals, key = rest.pop(0).partition("=")
        if name not in wanting:
            changed.append(name + equals + key)
            continue
        key = key if equals else rest.pop(0) if rest else ""
        pair = list(_pair(key, rest))
        changed += [name, "=".join(pair)]
    return changed


def _split(command: Any, words: Sequence[str]) -> list[str]:
    """With ``KEY=VALUE`` and ``KEY = VALUE`` as two words, for a command that wants two."""
    wanted = [param for param in command.params if param.param_type_name == "argument" and param.required]
    with_value = {name for param in command.params if not getattr(param, "is_flag", True) for name in param.opts}
    changed: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        changed.append(word)
        if word in with_value and rest:
            changed.append(rest.pop(0))
        elif len(wanted) == 2 and not word.startswith("-") and ("=" in word or rest[:1] == ["="]):
            changed[-1:] = _pair(word, rest)
    return changed


def _pair(word: str, rest: list[str]) -> Iterator[str]:
    """The key and the value that begin with a word, and may go on in the next ones, which are taken away."""
    key, equals, value = word.partition("=")
    yield key
    if not equals and rest[:1] == ["="]:
        rest.pop(0)
    elif not equals and rest and rest[0].startswith("="):
        value = rest.pop(0)[1:]
    yield value or (rest.pop(0) if rest else "")

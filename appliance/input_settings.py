"""The tables ``[inputs.NAME]`` of the configuration: one struct for each type of input, chosen by the key ``type``.

A struct is described as those of other tables: name, default, bounds and text of each key.  :func:`parse_inputs` makes
them from what a file says, :func:`fault_of` checks the keys of one against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from .addresses import PLAINTEXT, Listener, address_text, parse_addresses, parse_networks
from .config_keys import KIB, MIB, Key, Value, keys_of, nearest
from .errors import BadValue, UnknownKey
from .names import is_topic
from .security.configuration import Tls, is_loopback

TABLE: Final = "inputs"
INPUTS_MAX: Final = 100
"""Each input is at least one process."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
WANTED_NAME: Final = "must be up to 31 of a-z, 0-9, _ and -, the first one a letter or digit"
TOPIC_FIELDS: Final = {
    "files": ("file", "directory"),
    "http": ("app", "host"),
    "journal": (),
    "syslog": ("app", "host", "facility", "severity"),
}
"""What a template of ``topic`` may name, by type."""
MATCH: Final = re.compile(r"[A-Z0-9_]{1,64}=[^\0]*|\+")
"""A match as journalctl takes it: a field and its value, or what stands between alternatives."""


class Files(Struct, frozen=True, tag="files", tag_field="type"):
    include: Annotated[
        tuple[str, ...], Meta(description='patterns of paths, such as ["/var/log/*.log"]; ** is any')
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of paths or names of files that are left out")] = ()
    topic: Annotated[str, Meta(description='topic, such as "disk" or "logs-{file}"; also {directory}')] = ""
    topics_max: Annotated[int, Meta(ge=1, le=10_000, description="topics that a template may make; others wait")] = 100
    start: Annotated[
        Literal["beginning", "end"], Meta(description="where files begin that are there at the first start")
    ] = "beginning"
    encoding: Annotated[
        Literal["utf-8", "utf-16", "latin-1"], Meta(description="of the files; utf-8 keeps every byte as it is")
    ] = "utf-8"
    event_start: Annotated[
        str,
        Meta(description="pattern (RE2) of lines that begin a message; others belong to it; none: all do"),
    ] = ""
    event_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="a message of several lines ends when no line has come for so long")
    ] = 5_000
    message_bytes_max: Annotated[
        int, Meta(ge=KIB, le=64 * MIB, description="longer lines become several messages, with a header part")
    ] = 512 * KIB
    scan_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="how often all files are looked at, beside what inotify says")
    ] = 10_000
    rotate_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="how long a file that was renamed or removed is read on")
    ] = 5_000
    files_max: Annotated[int, Meta(ge=1, le=100_000, description="files at a time; others are not read")] = 10_000


# ---- keys of those that listen
TopicsMax = Annotated[int, Meta(ge=1, le=10_000, description="topics that a template may make")]
MessageKey = Annotated[Literal["", "app", "host"], Meta(description="the keys of messages; none: a sender's order")]
Allow = Annotated[tuple[str, ...], Meta(description='networks that may send, such as ["10.0.0.0/8"]; none: all')]
ConnectionsMax = Annotated[int, Meta(ge=1, le=100_000, description="at a time; others are closed")]


class Http(Struct, frozen=True, tag="http", tag_field="type"):
    listen: Annotated[
        tuple[str, ...], Meta(description='addresses, such as "127.0.0.1:8686" or "https://0.0.0.0:8686" with [tls]')
    ] = ()
    topic: Annotated[str, Meta(description='topic, such as "web" or "logs-{app}"; also {host}')] = ""
    topics_max: TopicsMax = 100
    key: MessageKey = ""
    token_file: Annotated[
        str,
        Meta(description="file with tokens, one on each line; a sender has to have one of them"),
    ] = ""
    allow: Allow = ()
    body_bytes_max: Annotated[
        int, Meta(ge=KIB, le=256 * MIB, description="of a request, also after it was unpacked")
    ] = 16 * MIB
    message_bytes_max: Annotated[int, Meta(ge=KIB, le=64 * MIB, description="of a line or record")] = 512 * KIB
    whole_journals: Annotated[
        bool,
        Meta(description="hosts upload all entries of their journals: sequence numbers that are missing are gaps"),
    ] = True
    connections_max: ConnectionsMax = 1_000


PROCESSES_MAX: Final = 16


class Syslog(Struct, frozen=True, tag="syslog", tag_field="type"):
    listen: Annotated[
        tuple[str, ...],
        Meta(description="udp://, tcp://, tls://, relp:// and relps:// with host and port, unix:// with a path"),
    ] = ()
    topic: Annotated[
        str, Meta(description='topic, such as "net" or "logs-{app}"; also {host}, {facility}, {severity}')
    ] = ""
    topics_max: TopicsMax = 100
    key: MessageKey = ""
    allow: Allow = ()
    message_bytes_max: Annotated[
        int, Meta(ge=KIB, le=MIB, description="of a message; a longer one becomes several, with a header part")
    ] = 64 * KIB
    connections_max: ConnectionsMax = 1_000
    processes: Annotated[
        int,
        Meta(ge=1, le=PROCESSES_MAX, description="that take UDP; the kernel gives each sender's port to one of them"),
    ] = 1


class Journal(Struct, frozen=True, tag="journal", tag_field="type"):
    directory: Annotated[
        str, Meta(description="with the files of a journal; none: that of this host, as journald keeps it")
    ] = ""
    matches: Annotated[
        tuple[str, ...],
        Meta(description='entries to take, as journalctl wants it, such as ["_SYSTEMD_UNIT=ssh.service"]; none: all'),
    ] = ()
    topic: Annotated[str, Meta(description="topic; all entries go to one partition of it, in their order")] = ""
    start: Annotated[Literal["beginning", "end"], Meta(description="where the journal is begun at the first start")] = (
        "beginning"
    )
    message_bytes_max: Annotated[
        int, Meta(ge=4 * KIB, le=64 * MIB, description="of an entry; fields that do not fit are null")
    ] = 512 * KIB


InputSettings = Files | Http | Journal | Syslog
"""Of any type."""
TYPES: Final[Mapping[str, type[InputSettings]]] = {"files": Files, "http": Http, "journal": Journal, "syslog": Syslog}
SCHEMES: Final = {"http": ("http", "https"), "syslog": ("udp", "tcp", "tls", "relp", "relps", "unix")}
"""What the addresses of a type begin with; the first of "http" may be left out."""
TYPE_KEYS: Final = {kind: {key.name: key for key in keys_of("", struct)} for kind, struct in TYPES.items()}


class InputAddress(NamedTuple):
    """An address of ``listen``: of an interface, or the path of a Unix socket."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_datagram(self) -> bool:
        return self.scheme in ("udp", "unix")

    @property
    def is_relp(self) -> bool:
        return self.scheme in ("relp", "relps")

    @property
    def is_secured(self) -> bool:
        """Whether it needs the certificate of ``[tls]``."""
        return self.scheme in ("https", "relps", "tls")


def parse_address(text: str) -> InputAddress:
    """``udp://127.0.0.1:5514``, ``unix:///run/log``.

    Raises:
        BadValue: it is none.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    if scheme == "unix":
        if not rest.startswith("/"):
            raise BadValue(f"{text!r}: must be such as unix:///run/log.sock")
        return InputAddress(scheme, "", 0, rest)
    problem = f"{text!r}: must be one address with a port, such as {scheme}://127.0.0.1:5514"
    try:
        addresses = parse_addresses(rest)
    except ValueError as error:
        raise BadValue(f"{problem}: {error}" if ":" in rest else problem) from None
    if len(addresses) != 1:
        raise BadValue(problem)
    return InputAddress(scheme, *addresses[0], "")


def listen_of(settings: InputSettings) -> tuple[str, ...]:
    """The addresses at which an input is reached."""
    listen: tuple[str, ...] = getattr(settings, "listen", ())
    return listen


def shared_addresses(settings: InputSettings) -> tuple[str, ...]:
    """The addresses of an input that each of its processes has a socket for; others are those of the first."""
    return tuple(text for text in listen_of(settings) if parse_address(text).scheme == "udp")


def processes_of(settings: InputSettings) -> int:
    """How many processes an input has."""
    return settings.processes if isinstance(settings, Syslog) else 1


def open_addresses(settings: InputSettings, tls: Tls) -> list[str]:
    """The addresses of an input at which anybody on other hosts may write, without saying who they are."""
    if isinstance(settings, Files | Journal) or settings.allow:
        return []
    knows_senders = tls.client_auth == "required" or bool(getattr(settings, "token_file", ""))
    return [
        text
        for text in settings.listen
        for address in [parse_address(text)]
        if not address.path
        and not (knows_senders and address.is_secured)
        and not is_loopback(Listener(address.scheme, PLAINTEXT, address_text((address.host, address.port))))
    ]


def secured_addresses(settings: InputSettings) -> list[str]:
    """The addresses of an input that need the certificate of ``[tls]``."""
    return [text for text in listen_of(settings) if parse_address(text).is_secured]


class InputValue(NamedTuple):
    """A value that a file (``where``) or an option says for the key ``name`` of the input ``table``."""

    table: str
    name: str
    value: object
    where: str

    @property
    def full_name(self) -> str:
        return f"{TABLE}.{self.table}.{self.name}" if self.name else f"{TABLE}.{self.table}"


def input_value(name: str, value: object, where: str) -> InputValue:
    """``name``: the dotted name of a key below ``inputs.``."""
    table, _, inner = name.removeprefix(f"{TABLE}.").partition(".")
    return InputValue(table, inner, value, where)


def parse_inputs(values_set: Iterable[InputValue]) -> tuple[dict[str, InputSettings], list[UnknownKey | BadValue]]:
    """The inputs by name, and what is wrong."""
    tables: dict[str, list[InputValue]] = {}
    for value in values_set:
        tables.setdefault(value.table, []).append(value)
    inputs: dict[str, InputSettings] = {}
    faults: list[UnknownKey | BadValue] = []
    for table, rows in tables.items():
        where = rows[0].where
        kind = next((row.value for row in reversed(rows) if row.name == "type"), None)
        if not NAME.fullmatch(table):
            faults.append(BadValue(f"{where}{TABLE}.{table}: the name of an input {WANTED_NAME}"))
        elif not isinstance(kind, str) or kind not in TYPES:
            told = f"type = {kind!r}" if kind is not None else "type is missing"
            faults.append(BadValue(f"{where}{TABLE}.{table}.{told}: must be one of {', '.join(TYPES)}"))
        else:
            values, wrong = _parse_table(rows, TYPE_KEYS[kind])
            faults += wrong
            if not wrong:
                settings = TYPES[kind](**values)  # type: ignore[arg-type]  # each value was parsed by its key
                if fault := fault_of(kind, settings):
                    faults.append(BadValue(f"{where}{TABLE}.{table}.{fault}"))
                inputs[table] = settings
    if len(inputs) > INPUTS_MAX:
        faults.append(BadValue(f"{TABLE}: {len(inputs)} of them: must be at most {INPUTS_MAX}"))
    return inputs, faults


def _parse_table(
    rows: list[InputValue], keys: Mapping[str, Key]
) -> tuple[dict[str, Value], list[UnknownKey | BadValue]]:
    values: dict[str, Value] = {}
    faults: list[UnknownKey | BadValue] = []
    for row in rows:
        if row.name == "type":
            continue
        key = keys.get(row.name)
        if key is None:
            faults.append(UnknownKey(f"{row.where}unknown key {row.full_name!r}{nearest(row.name, keys)}"))
            continue
        try:
            values[key.attribute] = key.parse(row.value)
        except ValueError as error:
            faults.append(BadValue(f"{row.where}{row.full_name} = {row.value!r}: {error}"))
    return values, faults


def fault_of(kind: str, settings: InputSettings) -> str:
    """What is wrong with an input beyond single values, as ``key = value: what is right``; "" if all is well."""
    match settings:
        case Files():
            fault = _files_fault(settings)
        case Journal():
            fault = _journal_fault(settings)
        case Http() | Syslog():
            fault = _listener_fault(kind, settings)
    if fault:
        return fault
    fields = TOPIC_FIELDS[kind]
    sample = fill_topic(settings.topic, dict.fromkeys(fields, "x"))
    if not is_topic(sample):
        named = " and ".join(f"{{{field}}}" for field in fields)
        more = f", which may contain {named}" if named else ""
        return f"topic = {settings.topic!r}: must be the name of a topic{more}"
    return ""


def _files_fault(settings: Files) -> str:
    if not settings.include:
        return 'include is missing: must be a list of patterns, such as ["/var/log/*.log"]'
    for pattern in (*settings.include, *settings.exclude):
        if not pattern or "\0" in pattern:
            return f"include = {pattern!r}: must be a pattern of paths"
    try:
        if settings.event_start:
            event_starts(settings.event_start)
    except BadValue as error:
        return f"event_start = {settings.event_start!r}: {error}"
    relative = next((pattern for pattern in settings.include if not pattern.startswith("/")), "")
    return f"include = {relative!r}: must begin with /" if relative else ""


def _journal_fault(settings: Journal) -> str:
    if settings.directory and not settings.directory.startswith("/"):
        return f"directory = {settings.directory!r}: must begin with /"
    wrong = next((match for match in settings.matches if not MATCH.fullmatch(match)), None)
    return f"matches = {wrong!r}: must be such as _SYSTEMD_UNIT=ssh.service" if wrong is not None else ""


def event_starts(pattern: str) -> Callable[[bytes], bool]:
    """Whether a line matches; in time linear in the line, whatever the pattern.

    Raises:
        BadValue: it is no pattern.
    """
    import re2  # where it is needed: every command reads the configuration

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern.encode(), options=options)
    except re2.error as error:
        raise BadValue(f"must be a pattern of RE2: {error.args[0].decode(errors='replace')}") from None
    return lambda line: compiled.search(line) is not None


def _listener_fault(kind: str, settings: Http | Syslog) -> str:
    schemes = SCHEMES[kind]
    if not settings.listen:
        example = "127.0.0.1:8686" if kind == "http" else "udp://127.0.0.1:5514"
        return f'listen is missing: must be a list of addresses, such as ["{example}"]'
    try:
        for text in settings.listen:
            if parse_address(text).scheme not in schemes:
                return (
                    f"listen = {text!r}: must begin with one of {', '.join(f'{accepted}://' for accepted in schemes)}"
                )
    except BadValue as error:
        return f"listen = {error}"
    if isinstance(settings, Syslog) and settings.processes > 1 and not shared_addresses(settings):
        return f"processes = {settings.processes}: only UDP has several: listen must have an address udp://"
    try:
        parse_networks(",".join(settings.allow))
    except ValueError as error:
        return f"allow = {','.join(settings.allow)}: {error}"
    return ""


def fill_topic(template: str, fields: Mapping[str, str]) -> str:
    """A template with the fields filled in, in which ``_`` stands for characters that no topic may have."""
    return re.sub(
        r"\{(\w+)\}",
        lambda field: re.sub(r"[^A-Za-z0-9._-]", "_", fields[field[1]]) if field[1] in fields else field[0],
        template,
    )


def flat_inputs(inputs: Mapping[str, InputSettings]) -> dict[str, Value]:
    """Every key of every input by its dotted name, with its value."""
    return {
        f"{TABLE}.{name}.{inner}": value for name, settings in inputs.items() for inner, value in values_of(settings)
    }


def values_of(settings: InputSettings) -> list[tuple[str, Value]]:
    """The keys of an input, ``type`` first, with their values."""
    kind = kind_of(settings)
    return [("type", kind), *((key.name, getattr(settings, key.attribute)) for key in TYPE_KEYS[kind].values())]


def kind_of(settings: InputSettings) -> str:
    return next(kind for kind, struct in TYPES.items() if type(settings) is struct)

"""Defines the formats of logs that are known by name, and that are not fields with names: one parser for each::

    syslog              RFC 3164 as sent (<PRI>), and as files hold it, also with an ISO time: facility, pid
    syslog5424          RFC 5424: facility, pid, msgid, structured
    access              nginx and Apache, common and combined: client, user, method, path, status, bytes, ...
    nginx_error, apache_error   the error logs of these: client, pid, ...
    postgresql          what PostgreSQL writes with its own log_line_prefix, or Debian's
    java                Log4j, Logback, Spring Boot, Tomcat, Kafka in their usual patterns: thread, logger, exception
    dpkg, alternatives  what Debian's tools write to /var/log: action, state, package, version, ...
    cri                 what Kubernetes' container runtimes write to /var/log/pods: stream, partial
    iis                 W3C's extended format with the fields that IIS writes: client, method, path, status, ...

The groups of the two hot formats are cut out at computed positions (``text_slices``); a test compares them with the
regular expressions, which say what the formats are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import SEVERITIES, as_mask, integers, levels, no_dash
from .regex_parser import Extract, Groups, Regex, extract_groups
from .text_slices import Lines
from .times import Times

QUOTE, BLANK, BACKSLASH, NEWLINE = b'" \\\n'
FACILITIES: Final = pa.array(
    [
        *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
        *("ntp", "audit", "alert", "clock"),
        *(f"local{number}" for number in range(8)),
    ]
)
_TIME3164 = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?|\d{4}-\d\d-\d\dT\S+"
_IPV6 = r"[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*"
_SYSLOG_TIME = rf"^(?:<(?P<pri>\d{{1,3}})>)?(?P<time>{_TIME3164}) "
_SYSLOG_HEAD = rf"{_SYSLOG_TIME}(?P<host>[^\s:\[\]]+|{_IPV6}) (?P<service>[^\s\[:]+)"
_SYSLOG_TAIL = r"^(?:\[(?P<pid>\d+)\])?:"
SYSLOG: Final = _SYSLOG_HEAD + r"(?:\[(?P<pid>\d+)\])?: ?(?P<message>(?s:.*))$"
_SYSLOG_UNTAGGED = (
    rf"{_SYSLOG_TIME}(?P<host>[^\s:\[\]]+|{_IPV6}) (?P<message>"
    r"(?:(?P<service>[^\s\[\]:]+)\[(?:(?P<pid>\d+)|[^\]]*[^\]\d][^\]]*)\](?s:.*))|(?s:.*))$"
)
"""What programs write in their own ways behind the host: all of it is the message, also a tag that it begins with."""
SYSLOG5424: Final = (
    r"^<(?P<pri>\d{1,3})>1 (?P<time>\S+) (?P<host>\S+) (?P<service>\S+) (?P<pid>\S+) "
    r'(?P<msgid>\S+) (?P<structured>-|(?:\[[^ \]="]+(?: [^ \]="]+="(?:[^"\\\]]|\\.)*")*\])+)'
    r"(?: \x{FEFF}?(?P<message>(?s:.*)))?$"
)
_ACCESS_HEAD = r"^(?P<client>\S+) (?P<ident>\S+) (?P<user>[^\"\n]+?) \[(?P<time>[^\]]+)\] "
_ACCESS_MIDDLE = r" (?P<status>\d{3}) (?P<bytes>\d+|-)"
ACCESS: Final = (
    _ACCESS_HEAD + r'"(?P<request>(?:[^"\\]|\\.)*)"' + _ACCESS_MIDDLE + r'(?: "(?P<referer>(?:[^"\\]|\\.)*)" '
    r'"(?P<agent>(?:[^"\\]|\\.)*)"(?P<extra> .*)?)?$'
)
_REQUEST = r"^(?P<method>[A-Z]+) (?P<path>\S+)(?: (?P<protocol>HTTP/[\d.]+))?$"
_NGINX_ERROR = (
    r"^(?P<time>\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) \[(?P<level>\w+)\] (?P<pid>\d+)#\d+: "
    r"(?:\*(?P<connection>\d+) )?(?P<message>(?s:.*))$"
)
_NGINX_ADDED = (
    r', client: (?P<client>[^,\s]+)(?:, server: [^,"]*)?(?:, request: "(?P<request>[^"]*)")?'
    r'(?:, (?:subrequest|upstream|host|referrer|login): "[^"]*")*(?:, bytes from/to \w+:\d+/\d+)*'
)
_NGINX_REQUEST = _NGINX_ADDED + r'(?:, \w+: "[^"]*)?$'
"""What nginx adds at the end, up to where it cuts the line: a text before it may look alike, as that of an upstream."""
_NGINX_SPOKEN = re.compile(_NGINX_ADDED + r'(?:, referrer: "(?s:.*)|, \w+: "[^"]*)?')
"""The same, where the referrer, which a client chooses and nothing escapes, may look like anything."""
_NGINX_CLIENT = ", client: "
_NGINX_CLIENTS_MAX = 8
_MANY_CLIENTS = "one, or another"
_APACHE_ERROR = (
    r"^\[(?P<time>[^\]]+)\] \[(?:\w*:)?(?P<level>\w+)\](?: \[pid (?P<pid>\d+)(?::tid \d+)?\])?"
    r"(?: (?P<cause>\(\d+\)[^:\[]+:))?(?: \[(?:client|remote) (?P<client>[^\]]+)\])? (?P<message>(?s:.*))$"
)
_POSTGRESQL = (
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \S+) \[(?P<pid>\d+)\] "
    r"(?:(?P<user>\S*)@(?P<database>\S*) )?"
    r"(?P<level>DEBUG[1-5]|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC|DETAIL|HINT|STATEMENT|CONTEXT|QUERY|LOCATION):  "
    r"(?P<message>(?s:.*))$"
)
_JAVA = (
    r"^\[?(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|"
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d|\d\d-[A-Z][a-z]{2}-\d{4} \d\d:\d\d:\d\d\.\d{1,6})\]?\s+"
    r"(?:\[(?P<thread>[^\]]*)\]\s+)?(?:- )?"
    r"(?P<level>TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|SEVERE|FINE|FINER|FINEST|CONFIG)\s+(?P<message>(?s:.*))$"
)
_JAVA_LOGGER = r"^(?:\d+ --- )?(?:\[[^\]]*\]\s+)*(?P<logger>[\w.$/]+)(?:\s+-|\s*:)\s"
_JAVA_BRACKETS = r"^\[(?:.*?[:\s])?(?P<logger>[\w.$]+)@\d+\] - "
_JAVA_METHOD = r"^\[[^\]]*\] (?P<logger>(?:[a-z]\w*\.)+[A-Z][\w$]*)\.[\w$<>]+\s"
"""Tomcat's: the class, and the method that says it."""
_JAVA_END = r"^[^\n]*\((?P<logger>[\w$]+(?:\.[\w$]+)+)\)(?:\n|$)"
"""Kafka's: at the end of the line."""
_JAVA_LOGGERS = (_JAVA_LOGGER, _JAVA_BRACKETS, _JAVA_METHOD, _JAVA_END)
_JAVA_THROWN = r"(?m)^(?:\S+: )?(?P<exception>(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable))\b"
_DPKG = (
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<message>(?:startup \S+ \S+)|"
    r"(?:(?P<status>status) (?P<state>\S+)|"
    r"(?P<action>install|upgrade|configure|trigproc|triggers|remove|purge|disappear))"
    r" (?P<package>\S+) (?P<version>\S+)(?: (?P<new>\S+))?|conffile \S+ \S+)$"
)
_ALTERNATIVES = r"^(?P<service>update-alternatives) (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d): (?P<message>.*)$"
_CRI = r"^(?P<time>\d{4}-\d\d-\d\dT\S+) (?P<stream>stdout|stderr) (?P<tags>[PF](?::\S*)?)(?: (?P<message>(?s:.*)))?$"
"""The kubelet's *CRI logging format*: tag P if the line goes on in the next one, F if it ends here."""
_IIS = (
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<server>\S+) (?P<method>\S+) (?P<path>\S+) (?P<query>\S+) "
    r"(?P<port>\d{1,5}) (?P<user>\S+) (?P<client>\S+) (?P<agent>\S+)(?: (?P<referer>\S+))? (?P<status>\d{3}) "
    r"(?P<substatus>\d{1,5}) (?P<win32_status>\d{1,10})(?: (?P<taken_ms>\d{1,15}))?$|"
    r"^(?P<directive>#[A-Z][A-Za-z-]*: .*)$"
)
"""Fields as IIS 6 to 10 write them when nobody has chosen others; and the lines about the file that begin with #."""


# ---- groups of the hot formats


def extract_syslog(lines: pa.Array) -> tuple[pa.Array, Groups]:
    """As the pattern SYSLOG.  What follows the service is cut off where the groups before it end."""
    matched, groups = extract_groups(lines, _SYSLOG_HEAD)
    if not matched.true_count:
        return matched, groups
    hit = as_mask(matched)
    whole = Lines(lines)
    pri, time, host, service = (_lengths(groups[name]) for name in ("pri", "time", "host", "service"))
    head = np.where(pri > 0, pri + 2, 0) + time + host + service + 2
    starts = np.where(hit, whole.starts + head, whole.stops).astype(np.int32)
    ended, tail = extract_groups(whole.cut(starts, whole.stops), _SYSLOG_TAIL)
    hit &= as_mask(ended)
    pid = _lengths(tail["pid"])
    starts = np.where(hit, starts + np.where(pid > 0, pid + 2, 0) + 1, whole.stops).astype(np.int32)
    some = starts < whole.stops
    starts[some] += whole.bytes[starts[some]] == BLANK
    return pa.array(hit), {**groups, **tail, "message": whole.cut(starts, whole.stops)}


def extract_any_syslog(lines: pa.Array) -> tuple[pa.Array, Groups]:
    """As :func:`extract_syslog`, and lines that have no tag and colon where that expects them."""
    matched, groups = extract_syslog(lines)
    hit = as_mask(matched)
    unmatched = np.flatnonzero(~hit)
    untagged, more = (
        extract_groups(lines.take(pa.array(unmatched)), _SYSLOG_UNTAGGED) if len(unmatched) else (matched, {})
    )
    if not len(unmatched) or not untagged.true_count:
        return matched, groups
    index = np.full(len(lines), -1, np.int64)
    index[unmatched] = np.arange(len(unmatched))
    place = pa.array(index, mask=index < 0)
    nothing = pa.nulls(len(lines), pa.string())
    joined = {name: pc.if_else(hit, groups.get(name, nothing), texts.take(place)) for name, texts in more.items()}
    hit[unmatched] = as_mask(untagged)
    return pa.array(hit), joined


def _lengths(texts: pa.Array) -> np.ndarray:
    """Lengths in bytes; 0 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))


def extract_access(lines: pa.Array) -> tuple[pa.Array, Groups]:
    """As the pattern ACCESS.  Combined lines without escapes are cut at their first six quotes, others are matched."""
    whole = Lines(lines)
    quotes = whole.find(QUOTE)
    first, count = whole.first_at(quotes)
    odd = np.zeros(len(whole), bool)
    for byte in (BACKSLASH, NEWLINE):
        if len(places := whole.find(byte)):
            odd |= whole.first_at(places)[1] > 0
    regular = (count >= 6) & ~odd
    if regular.all() and len(regular):
        cut = _cut_access(whole, quotes[first[:, None] + np.arange(6, dtype=np.int32)])
        regular = as_mask(cut[0])
        if regular.all():
            return cut  # else the others may have quotes before the request, in what is called a client
    if not regular.any():
        return extract_groups(lines, ACCESS)
    fast, slow = (pa.array(np.flatnonzero(chosen)) for chosen in (regular, ~regular))
    halves = extract_access(lines.take(fast)), extract_groups(lines.take(slow), ACCESS)
    place = pa.array(np.argsort(np.concatenate((fast, slow)), kind="stable"))
    joined = {name: pa.concat_arrays([groups[name] for _, groups in halves]).take(place) for name in halves[0][1]}
    return pa.concat_arrays([matched for matched, _ in halves]).take(place), joined


def _cut_access(whole: Lines, quotes: Any) -> tuple[pa.Array, Groups]:
    after = quotes + 1
    head, groups = extract_groups(whole.cut(whole.starts, quotes[:, 0]), _ACCESS_HEAD + "$")
    middle, more = extract_groups(whole.cut(after[:, 1], quotes[:, 2]), _ACCESS_MIDDLE + " $")
    hit = as_mask(head) & as_mask(middle)
    hit &= (after[:, 3] + 1 == quotes[:, 4]) & (whole.bytes[quotes[:, 4] - 1] == BLANK)
    some = after[:, 5] < whole.stops
    hit[some] &= whole.bytes[after[some, 5]] == BLANK
    quoted = {
        name: whole.cut(after[:, at], quotes[:, at + 1]) for at, name in ((0, "request"), (2, "referer"), (4, "agent"))
    }
    return pa.array(hit), {**groups, **more, **quoted, "extra": whole.cut(after[:, 5], whole.stops)}


# ---- columns that do not follow from one group each


def _priorities(texts: pa.Array) -> pa.Array:
    """Numbers of priorities; null for those above 191, the largest."""
    numbers = integers(texts)
    return pc.if_else(pc.less_equal(numbers, 191), numbers, None)


def _priority(columns: Groups) -> Groups:
    """Replaces a syslog priority by facility and level."""
    number = columns.pop("pri")
    severity, facility = pc.bit_wise_and(number, 7), pc.shift_right(number, 3)
    return columns | {"level": SEVERITIES.take(severity), "facility": FACILITIES.take(facility)}


def _requests(columns: Groups) -> Groups:
    """Replaces a request line by its parts.  Requests repeat, so each different one is parsed once."""
    requests = columns.pop("request").dictionary_encode()
    words = pc.extract_regex(requests.dictionary, _REQUEST)
    whole = pc.is_valid(words)
    for index, name in enumerate(("method", "path", "protocol")):
        columns[name] = pc.if_else(whole, no_dash(pc.struct_field(words, [index])), None).take(requests.indices)
    return columns


def _with_status(columns: Groups) -> Groups:
    """Sets the level from the status."""
    status = columns["status"]
    level = pc.if_else(
        pc.greater_equal(status, 500), "error", pc.if_else(pc.greater_equal(status, 400), "warning", "info")
    )
    return columns | {"level": level}


def _of_access(columns: Groups) -> Groups:
    """Sets the level from the status and the message to the request line."""
    request = columns["request"]
    return _requests(_with_status(_of_virtual_hosts(columns))) | {"message": request}


def _of_virtual_hosts(columns: Groups) -> Groups:
    """Apache's vhost_combined, Debian's own, has the virtual host and its port before the client."""
    host, client, user = columns["client"], columns.pop("ident"), columns["user"]
    if not pc.any(pc.match_substring(host, ":")).as_py():  # as nearly always
        return columns
    moved = pc.fill_null(pc.match_substring_regex(host, r"^[^:\[\]]+:\d{1,5}$"), False)
    if not moved.true_count:
        return columns
    moved = pc.and_(moved, pc.and_(pc.is_valid(client), pc.fill_null(pc.match_substring(user, " "), False)))
    return columns | {
        "host": pc.if_else(moved, pc.replace_substring_regex(host, r":\d+$", ""), None),
        "client": pc.if_else(moved, client, host),
        "user": pc.if_else(moved, no_dash(pc.replace_substring_regex(user, r"^\S+ ", "")), user),
    }


def _constant(text: str, like: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(like), text, pa.scalar(None, pa.string()))


def _found(texts: pa.Array, pattern: str) -> Groups:
    """Groups of a pattern that some texts match; null for the others."""
    matched, groups = extract_groups(texts, pattern)
    return {name: pc.if_else(matched, no_dash(group), None) for name, group in groups.items()}


def _extract_nginx(lines: pa.Array) -> tuple[pa.Array, Groups]:
    """With all that may be the client, in one text, and the request if there is no doubt.

    A path, an upstream or a referrer can say ``, client: `` as nginx does.
    """
    matched, groups = extract_groups(lines, _NGINX_ERROR)
    message = groups["message"]
    found = _found(message, _NGINX_REQUEST)
    several = np.flatnonzero(as_mask(pc.fill_null(pc.greater(pc.count_substring(message, _NGINX_CLIENT), 1), False)))
    if len(several):
        clients, requests = (found[name].to_pylist() for name in ("client", "request"))
        for line in several:
            clients[line], requests[line] = _spoken(message[int(line)].as_py())
        found = {"client": pa.array(clients, pa.string()), "request": pa.array(requests, pa.string())}
    return matched, groups | found


def _spoken(message: str) -> tuple[str | None, str | None]:
    """The clients, and the request, of all places where the end of nginx's own text may begin."""
    places = [place.start() for place in re.finditer(_NGINX_CLIENT, message)]
    if len(places) > _NGINX_CLIENTS_MAX:  # only who forges says it so often
        return _MANY_CLIENTS, None
    found = [_NGINX_SPOKEN.fullmatch(message, at) for at in places]
    clients = dict.fromkeys(match["client"] for match in found if match is not None)
    requests = {match["request"] for match in found if match is not None}
    return ", ".join(clients) or None, requests.pop() if len(requests) == 1 and len(clients) == 1 else None


def _one(texts: pa.Array) -> pa.Array:
    """Null where there are several."""
    return no_dash(pc.if_else(pc.match_substring(texts, ", "), None, texts))


def _nginx_error(columns: Groups) -> Groups:
    return _requests(columns) | {"service": _constant("nginx", columns["time"])}


def _apache_error(columns: Groups) -> Groups:
    """Takes the port from the client: 2.4 writes one, and the process before it; before that there was neither."""
    cause, client = columns.pop("cause"), columns["client"]
    colons = pc.count_substring(client, ":")
    whole = pc.and_(pc.equal(colons, 7), pc.invert(pc.match_substring(client, "::")))
    has_port = pc.or_(pc.and_(pc.is_valid(columns["pid"]), pc.invert(whole)), pc.equal(colons, 1))
    columns["client"] = pc.if_else(has_port, pc.replace_substring_regex(client, r":\d+$", ""), client)
    message = pc.if_else(
        pc.is_valid(cause),
        pc.binary_join_element_wise(cause, columns["message"], " ", null_handling="skip"),
        columns["message"],
    )
    return columns | {"message": message, "service": _constant("apache", columns["time"])}


def _postgresql(columns: Groups) -> Groups:
    return columns | {"service": _constant("postgresql", columns["time"])}


def _postgresql_levels(texts: pa.Array) -> pa.Array:
    more = dict.fromkeys(("detail", "hint", "statement", "context", "query", "location"), "info")
    return levels(texts, more | {f"debug{number}": "debug" for number in range(1, 6)})


def _java(columns: Groups) -> Groups:
    message = columns["message"]
    loggers = [_found(message, pattern)["logger"] for pattern in _JAVA_LOGGERS]
    return columns | {"logger": pc.coalesce(*loggers)} | _found(message, _JAVA_THROWN)


def _dpkg(columns: Groups) -> Groups:
    action = pc.coalesce(columns["action"], columns.pop("status"))
    service = _constant("dpkg", columns["time"])
    return columns | {"action": action, "service": service, "version_new": columns.pop("new")}


def _cri(columns: Groups) -> Groups:
    """A line that goes on is partial."""
    return columns | {"partial": pc.starts_with(columns.pop("tags"), "P")}


def _iis(columns: Groups) -> Groups:
    """The level follows from the status, as in access logs; blanks of an agent are written as plus signs."""
    directive = columns.pop("directive")
    request = pc.binary_join_element_wise(columns["method"], columns["path"], " ")
    return _with_status(columns) | {
        "agent": pc.replace_substring(columns["agent"], "+", " "),
        "service": pc.if_else(pc.is_valid(columns["method"]), "iis", pa.scalar(None, pa.string())),
        "message": pc.coalesce(request, directive),
    }


def _extract_iis(lines: pa.Array) -> tuple[pa.Array, Groups]:
    """As the pattern.  Its times are in UTC, whatever the zone of the source."""
    matched, groups = extract_groups(lines, _IIS)
    time = groups["time"]
    return matched, groups | {"time": pc.if_else(pc.equal(time, ""), "", pc.binary_join_element_wise(time, "Z", ""))}


class Format(NamedTuple):
    extract: Extract
    formats: tuple[str, ...]
    """Of its times."""
    fields: Mapping[str, pa.DataType] = {}
    convert: Mapping[str, Callable[[pa.Array], pa.Array]] = {}
    after: Callable[[Groups], Groups] = lambda columns: columns
    wrong: Mapping[str, str] = {}
    """What is wrong with texts of fields that are converted to null; of integers, that they are no numbers."""

    def parser(self, name: str, times: Times) -> Regex:
        wrong = {field: "is not a number" for field, kind in self.fields.items() if pa.types.is_integer(kind)}
        return Regex(name, self.extract, times, self.convert, self.fields, self.after, wrong | dict(self.wrong))


def _texts(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, pa.string())


_PID = {"pid": pa.int64()}
_ISO = ("iso",)
_ABOVE = {"pri": "is above 191"}
_REQUESTED = _texts("client", "method", "path", "protocol")
_NUMBERED = {"pid": integers, "level": levels}
FORMATS: Final[dict[str, Format]] = {
    "syslog": Format(
        extract_any_syslog,
        ("rfc3164", "iso"),
        _texts("facility") | _PID,
        {"pid": integers, "pri": _priorities},
        _priority,
        _ABOVE,
    ),
    "syslog5424": Format(
        partial(extract_groups, pattern=SYSLOG5424),
        _ISO,
        _texts("facility") | _PID | _texts("msgid", "structured"),
        {"pid": integers, "pri": _priorities},
        _priority,
        _ABOVE,
    ),
    "access": Format(
        extract_access,
        ("clf",),
        _texts("client", "user", "method", "path", "protocol")
        | {"status": pa.int64(), "bytes": pa.int64()}
        | _texts("referer", "agent", "extra"),
        {"status": integers, "bytes": integers},
        _of_access,
    ),
    "nginx_error": Format(
        _extract_nginx,
        ("nginx_error",),
        _PID | {"connection": pa.int64()} | _REQUESTED,
        _NUMBERED | {"connection": integers, "client": _one},
        _nginx_error,
        {"client": "is one of several"},
    ),
    "apache_error": Format(
        partial(extract_groups, pattern=_APACHE_ERROR),
        ("apache_error",),
        _PID | _texts("client"),
        _NUMBERED,
        _apache_error,
    ),
    "postgresql": Format(
        partial(extract_groups, pattern=_POSTGRESQL),
        _ISO,
        _PID | _texts("user", "database"),
        {"pid": integers, "level": _postgresql_levels},
        _postgresql,
    ),
    "java": Format(
        partial(extract_groups, pattern=_JAVA),
        ("iso", "%y/%m/%d %H:%M:%S", "%d-%b-%Y %H:%M:%S.%f"),
        _texts("thread", "logger", "exception"),
        {"level": levels},
        _java,
    ),
    "dpkg": Format(
        partial(extract_groups, pattern=_DPKG),
        _ISO,
        _texts("action", "state", "package", "version", "version_new"),
        after=_dpkg,
    ),
    "alternatives": Format(partial(extract_groups, pattern=_ALTERNATIVES), _ISO),
    "cri": Format(partial(extract_groups, pattern=_CRI), _ISO, _texts("stream") | {"partial": pa.bool_()}, after=_cri),
    "iis": Format(
        _extract_iis,
        _ISO,
        _texts("server", "client", "user", "method", "path", "query", "agent", "referer")
        | dict.fromkeys(("port", "status", "substatus", "win32_status", "taken_ms"), pa.int64()),
        dict.fromkeys(("port", "status", "substatus", "win32_status", "taken_ms"), integers),
        _iis,
    ),
}

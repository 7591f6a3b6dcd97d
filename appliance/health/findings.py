"""The judge: finds which of the :mod:`.conditions` hold now, from what is known about an appliance.

:class:`Seen` has what is known.  What a look of a moment knows decides alone what has an exit status, so ``health``,
``status``, ``/ready``, the console and ``doctor`` agree.  ``doctor`` and the console know more: rates between two
looks, and groups.  What is not known is left out, and nothing is found about it.

Each rule is a function from what is seen to findings.  Pure, and bounded: one cause is one finding, and of one
condition at most NAMED_MAX are named.  The remedy is computed from the case, with the arguments of its commands.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ..config import ARENA_BYTES_MAX, KEYS
from ..config_keys import GIB, MIB
from ..launch import Launch
from ..machine_limits import CONNECTIONS_MAX, DESCRIPTORS, DISK, PER_ADDRESS_MAX
from ..names import PIPELINE_NOTE
from ..partition_states import DAMAGED, DISK_FULL, OFFLINE, OPENING, STATE_NAMES, damage_text
from ..security.audit_log import Reason
from ..security.principals import ANONYMOUS
from ..units import counted, duration, size
from . import conditions
from .conditions import CONDITIONS, CRITICAL, Condition
from .host import Host, LogUse

OWN_COMMAND: Final = re.compile("`" + r"appliance ([^`]+)`")
"""A command of ours in a text, which does not name the data directory."""
NAMED_MAX: Final = 10
GROUPS_MAX: Final = 200
"""Groups of a finding that pages can look up."""
LISTED_MAX: Final = 3
"""Names that one finding lists."""
SEGMENTS_KEPT: Final = 4
"""Files of a log that a proposed retention.bytes has room for: only whole ones are removed, and never the last."""
WHY_READ_ONLY: Final = "dmesg -T | grep -iE 'remount|I/O error|EXT4-fs|XFS'"
SEGMENT_BYTES_MAX: Final = int(KEYS["topics.segment.bytes"].most or GIB)
"""What a proposed segment.bytes may be."""
FULL_BYTES: Final = 1 << 16
"""A disk with less free than this is full, whether somebody writes or not."""
PLACES_SHARE: Final = 4
"""An address may have one part in so many of the places, where it has taken them from others."""
REQUESTS_LEFT: Final = 100
"""Requests a second that are left to a client that floods: enough for any that sends batches."""
ANONYMOUS_NAME: Final = ANONYMOUS.removeprefix("User:")
STANDS_STILL: Final = ("T", "t")
_RECEIVERS: Final = {"webhook": "alerts.webhook", "mail": "those in alerts.mail_to"}
_REACHED: Final = {
    "webhook": "see that alerts.webhook can be reached from this host",
    "mail": "see that alerts.sendmail sends mail",
}
IDLE_ROLES: Final = ("metrics", "console", "alerts")
"""Roles that rest while nobody looks."""
JOBS: Final = ("opener", "remover", "cleaner", "repairer", "compactor", "scrubber")
"""Roles that work as fast as they may until they are done, and beside the others."""
_OF_CERTIFICATES: Final = (Reason.CERTIFICATE, Reason.TLS_HANDSHAKE, Reason.PLAIN_ON_TLS, Reason.TLS_ON_PLAIN)
_OF_FLOODS: Final = (Reason.THROTTLED, Reason.CONNECTIONS_PER_ADDRESS, Reason.CONNECTIONS_PER_USER)


class Finding(NamedTuple):
    """A condition that holds: what is wrong, why, and what to do about it here."""

    condition: Condition
    what: str
    why: str
    todo: str
    page: str
    groups: tuple[str, ...] = ()
    """Those that it is about, the worst first, GROUPS_MAX of them."""

    @property
    def exit_status(self) -> int:
        return self.condition.exit_status

    @property
    def text(self) -> str:
        """What is wrong and why, on one line."""
        return f"{self.what}{': ' if self.why else ''}{self.why}"

    def as_json(self) -> dict[str, str]:
        """The alert as an object for programs and pages."""
        condition = self.condition
        named = {"condition": condition.name, "level": condition.level}
        return {**named, "what": self.what, "why": self.why, "todo": self.todo, "page": self.page}


class Rates(NamedTuple):
    """What two looks show.  ``growth``: by how many bytes per second logs grow; ``full_s``: how long the room lasts.

    ``busy``: the share of a core that each process uses, by pid; ``wants``: what it would use if it had a core for
    itself; ``waiting``: the processes that were in state D in the look before.
    """

    growth: float = 0.0
    full_s: float | None = None
    busy: Mapping[int, float] = {}
    wants: Mapping[int, float] = {}
    waiting: frozenset[int] = frozenset()


class GroupsSeen(NamedTuple):
    """What the coordinator says: some groups, as the admin verb ``group``, of how many, and why not of the others.

    ``unknown`` is "" when only time was lacking for the others.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    total: int = 0
    unknown: str = ""


class Seen(NamedTuple):
    """What is known of an appliance.

    ``state``: what the supervisor has written; None: nothing runs, and ``ended`` is the status.  ``partitions``: state
    and reason by name of those that are not online, see :func:`partitions_of`.  ``now_s``: since 1970, to judge what
    was.  ``at``: the options that commands about this appliance need, such as --data.  ``host``, ``rates``, ``groups``:
    None where they are not known.
    ``peers``: number of connections by address.  ``clients``: who moves how much (:mod:`appliance.connected_clients`).
    ``largest``: the topic that has most, its bytes and its partitions.
    ``workers``: the gauges of each network worker, by name (``shared/counters.py``).
    """

    state: Mapping[str, Any] | None
    partitions: Mapping[str, tuple[str, str]] = {}
    now_s: float | None = None
    at: Sequence[str] = ()
    host: Host | None = None
    rates: Rates | None = None
    groups: GroupsSeen | None = None
    peers: Mapping[str, int] = {}
    clients: Sequence[Mapping[str, Any]] = ()
    largest: tuple[str, int, int] | None = None
    workers: Mapping[str, Mapping[str, int]] = {}
    ended: Mapping[str, Any] = {}

    def command(self, *words: object) -> str:
        """A command about this appliance, in backticks."""
        return f"`{shlex.join(['appliance', *map(str, words), *self.at])}`"

    @property
    def launch(self) -> Launch:
        """How it was started last."""
        return msgspec.convert((self.state or self.ended).get("launch") or {}, Launch, strict=False)


FindingRule = Callable[[Seen], Iterator[Finding]]


def partitions_of(state: Mapping[str, Any] | None, states: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """State and reason of partitions, from those of the tables and what the supervisor has written."""
    if state is None:
        return {}
    full = state.get("full") or {}
    with_reasons = {
        name: (condition, full.get(name, "") if condition == STATE_NAMES[DISK_FULL] else "")
        for name, condition in states.items()
    }
    with_reasons |= {name: (STATE_NAMES[DISK_FULL], reason) for name, reason in full.items() if name not in states}
    with_reasons |= {name: (DAMAGED, damage_text(ranges)) for name, ranges in (state.get("damaged") or {}).items()}
    return with_reasons | {
        name: (STATE_NAMES[OFFLINE], reason) for name, reason in (state.get("offline") or {}).items()
    }


def judge(seen: Seen) -> list[Finding]:
    """All findings, the worst first; none when all is well."""
    if seen.state is None or seen.state.get("state") in (None, "stopped"):
        return [_down(seen)]
    findings = [finding for rule in RULES for finding in rule(seen)]
    return sorted(
        findings,
        key=lambda finding: (not finding.condition.stops_all, finding.exit_status or 100, not _critical(finding)),
    )


def _down(seen: Seen) -> Finding:
    """It does not run: why its last start has failed, or how it has ended."""
    start = seen.launch.start or (f"`{shlex.join(['appliance', 'start', *seen.at])}`" if seen.at else "start it")
    if failed := seen.ended.get("failed_start"):
        ago = f"{duration(max(0, seen.now_s - failed['at']))} ago, " if seen.now_s is not None else ""
        why = f"its last start has failed ({ago}exit status {failed['exit_status']}): {failed['message']}"
        todo = f"{failed['remedy'] or 'mend that'}; then {start}"
        return _finding(conditions.DOWN, "the appliance does not run", why, todo)
    if seen.ended.get("killed"):
        why = "it was killed, or its machine has stopped: it has not ended in order"
        todo = f"{start}; {seen.launch.read_kernel_log}"
        return _finding(conditions.DOWN, "the appliance does not run", why, todo)
    why = "it was stopped in order, or never started" if "killed" in seen.ended else ""
    return _finding(conditions.DOWN, "the appliance does not run", why, start)


def wrong(seen: Seen) -> list[Finding]:
    """The findings with an exit status: they keep the appliance from serving everything, or soon will."""
    return [finding for finding in judge(seen) if finding.exit_status]


def exit_status(all_findings: Iterable[Finding]) -> int:
    """0, 75 or 74: see :mod:`.conditions`."""
    return min((finding.exit_status for finding in all_findings if finding.exit_status), default=0)


def status_line(state: Mapping[str, Any], partitions: int, now_s: float) -> str:
    """One line for the service manager: what is served, then what is wrong, the worst first."""
    served = (
        f"{state['state']} {counted(partitions, 'partition')}" if state["state"] == "serving" else str(state["state"])
    )
    texts = [
        finding.text
        for finding in wrong(Seen(state, partitions_of(state, {}), now_s))
        if not finding.condition.stops_all
    ]
    insecure = [f"INSECURE: {', '.join(state['insecure'])}"] if state["insecure"] else []
    return "; ".join([served, *insecure, *texts])


def _critical(finding: Finding) -> bool:
    return finding.condition.level == CRITICAL


def _finding(condition: Condition, what: str, why: str = "", todo: str = "", page: str = "") -> Finding:
    assert condition in CONDITIONS
    return Finding(condition, what, why, todo or condition.todo, page or condition.page)


def _bounded(findings: Sequence[Finding], others: str) -> Iterator[Finding]:
    """At most NAMED_MAX findings of one condition; the rest is counted, as bad as they are: "7 more OTHERS"."""
    yield from findings[:NAMED_MAX]
    if rest := findings[NAMED_MAX:]:
        groups = tuple(group for finding in rest for group in finding.groups)[:GROUPS_MAX]
        why = _listed([finding.what for finding in rest])
        yield rest[0]._replace(what=f"{len(rest)} more {others}", why=why, groups=groups)


# ---- rules: of what the supervisor has written


def _state(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    state, roles = seen.state["state"], {row["role"] for row in seen.state["processes"]}
    if state != "serving":
        whys = {"starting": "its logs are opened, or ZooKeeper is not there yet", "stopping": "somebody has stopped it"}
        wait = f"wait; {seen.launch.read_log()} says what for"
        yield _finding(conditions.NOT_SERVING, f"the appliance is {state}", whys.get(state, ""), wait)
        return
    if "network" not in roles:
        why = f"{seen.launch.read_log('network')} says why"
        yield _finding(conditions.NOT_SERVING, "no network worker runs", "clients are not answered", why)
    if faults := seen.state["faults"]:
        for row in faults:
            yield _finding(conditions.FILE_DAMAGED, f"the {row['role']} cannot start", row["reason"], row["todo"])
    elif "coordinator" not in roles:
        why = "groups and changes of topics wait"
        todo = f"wait for some seconds; {seen.launch.read_log('coordinator')} says why"
        yield _finding(conditions.COORDINATOR_AWAY, "the coordinator is being started again", why, todo)


def _partitions(seen: Seen) -> Iterator[Finding]:
    for bad, condition, others in (
        (STATE_NAMES[OFFLINE], conditions.PARTITION_OFFLINE, "partitions are offline"),
        (DAMAGED, conditions.PARTITION_DAMAGED, "partitions are damaged"),
    ):
        names = _names_in_state(seen, bad)
        findings = [
            _finding(condition, f"{name} is {bad}", seen.partitions[name][1], _mend(seen, name)) for name in names
        ]
        yield from _bounded(findings, others)
    if names := _names_in_state(seen, STATE_NAMES[OPENING]):
        yield _finding(conditions.PARTITION_OPENING, f"{_listed(names)}: being opened", "not served yet")


def _inputs(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    waiting = [(name, row) for name, row in seen.state.get("inputs", {}).items() if row["trouble"]]
    findings = [
        _finding(conditions.INPUT_WAITS, f"input {name} waits", row["trouble"], row["todo"]) for name, row in waiting
    ]
    yield from _bounded(findings, "inputs wait")
    findings = [
        _finding(
            conditions.INPUT_REFUSES,
            f"input {name} refuses what is sent",
            f"{row['refused_lately']:,} times in the last 5 minutes; the last was {row['refusing']}",
        )
        for name, row in seen.state.get("inputs", {}).items()
        if row["refused_lately"] >= conditions.INPUT_REFUSALS_MIN
    ]
    yield from _bounded(findings, "inputs refuse what is sent")


def _uncompacted(seen: Seen) -> Iterator[Finding]:
    """Logs that are damaged are named as such; here is why the others are not compacted."""
    assert seen.state is not None
    findings = [
        _finding(
            conditions.UNCOMPACTED,
            f"{row['log']} cannot be compacted",
            row["reason"],
            f"{seen.command('log', 'verify', row['log'])} says whether its files are sound; it is tried again",
        )
        for row in seen.state.get("uncompacted", ())
    ]
    yield from _bounded(findings, "logs cannot be compacted")


def _names_in_state(seen: Seen, state: str) -> list[str]:
    return sorted(name for name, (partition_state, _) in seen.partitions.items() if partition_state == state)


def _mend(seen: Seen, name: str) -> str:
    """What to do about the log of a partition that cannot be trusted, or whose reason says it."""
    if own := re.search(r"`[^`]+`.*?(?=: the offsets |$)", seen.partitions[name][1]):
        return OWN_COMMAND.sub(lambda found: seen.command(*found[1].split()), own[0])
    shows, mends = seen.command("log", "verify", name), seen.command("log", "repair", name)
    return (
        f"{shows} shows the damage, {seen.command('log', 'repair', name, '--dry-run')} what can be kept, {mends} mends"
    )


def _limits(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    for row in seen.state["limits"]:
        if row["limit"] != DISK:
            use = "" if row.get("in_use") is None else f"{row['in_use']:,} of "
            why = f"{use}{row['value']:,}" if row.get("value") is not None else ""
            where = f" of {row['process']}" if row["process"] else ""
            todo = _raise_limit(seen, row) or row["advice"]
            yield _finding(conditions.LIMIT_REACHED, f"limit reached: {row['limit']}{where}", why, todo)
    for row in seen.state.get("low", ()):
        what = f"few {row['limit']} are granted: {row['value']:,}"
        yield _finding(conditions.LIMIT_LOW, what, f"they allow {row['allows']}", row["advice"])
    for row in seen.state["refused"]:
        if row.get("limit") != DISK:
            why = f"{row['reason']} ({row['attempts']} attempts)" if "attempts" in row else row["reason"]
            yield _finding(conditions.ACTION_REFUSED, f"the machine refuses to {row['action']}", why)


def _raise_limit(seen: Seen, row: Mapping[str, Any]) -> str:
    """How a limit of the configuration is doubled; "" for one of the machine, or that is as high as it may be."""
    key, value = KEYS.get(row["limit"]), row.get("value")
    most = key.most if key is not None and key.most is not None else 0
    if not value or value >= most:
        return ""
    return f"{row['advice']}: {seen.launch.set_key(row['limit'], min(2 * value, most), seen.at)}"


def _cluster(seen: Seen) -> Iterator[Finding]:
    """What the coordinator has found out about other brokers, and about what ZooKeeper should have."""
    assert seen.state is not None
    cluster = seen.state["cluster"]
    if rival := cluster.get("rival"):
        what = f"another appliance has broker.id = {rival['broker']}"
        why = f"on {rival['host']} ({rival['native']}), for {_ago(seen, rival['since'])}"
        todo = f"stop one of the two; or give it another id in [broker], and an empty directory: {rival['host']} has"
        yield _finding(conditions.BROKER_ID_TAKEN, what, why, f"{todo} data of its own")
    for row in cluster.get("leaderless", ()):
        where = f" on {row['host']}" if row["host"] else ""
        count = counted(row["partitions"], "partition has", "partitions have")
        what = f"{count} no leader: {_listed(row['names'], row['partitions'])}"
        why = f"broker {row['broker']}{where} is away for {_ago(seen, row['since'])}"
        todo = f"start the appliance with broker.id = {row['broker']}{where}; if its disk is lost, a backup of it"
        yield _finding(conditions.LEADERS_AWAY, what, why, f"{todo}, with the same id")
    if lost := cluster.get("offsets_lost"):
        yield _offsets_lost(seen, lost)
    if foreign := seen.state["foreign"]:
        owner = min(foreign.values())
        count = counted(len(foreign), "partition here is", "partitions here are")
        what = f"{count} of broker {owner}: {_listed(sorted(foreign))}"
        todo = f"move their directories to the appliance with broker.id = {owner}, or away"
        yield _finding(conditions.PARTITIONS_FOREIGN, what, "nobody serves them", todo)


def _offsets_lost(seen: Seen, lost: Mapping[str, Any]) -> Finding:
    """ZooKeeper has lost the committed offsets of groups: which, and how they come back."""
    groups = sorted(lost["groups"])
    first, topics = groups[0], lost["groups"][groups[0]]
    count = counted(lost["count"], "group")
    what = f"ZooKeeper has lost the committed offsets of {count}: {_listed(groups, lost['count'])}"
    ago = _ago(seen, lost["at"])
    if lost["found"]:
        why = f"{ago} ago it had the data of cluster {lost['found']}, not of {lost['cluster']} as before"
    else:
        why = f"{ago} ago its data were gone"
    why += f"; {first} read {_listed(topics)}"
    reset = seen.command(
        "groups", "reset", first, "--topic", topics[0] if topics else "TOPIC", "--to", "latest", "--new"
    )
    delete = seen.command("groups", "delete", first)
    if seen.at[:1] == ("--data",) and lost["local"]:
        here = shlex.quote(f"{seen.at[1]}/zookeeper")
        restore = f"stop it, `rm -r {here}`, `cp -a BACKUP/zookeeper {here}`, start it"
    elif lost["found"] and not lost["local"]:
        restore = f"if zookeeper.connect names another ensemble than before, name that of cluster {lost['cluster']}"
    else:
        restore = "restore the data of the ensemble, and start it again"
    todo = f"{restore}; without a backup, of each group: {reset}, or {delete} if nobody needs it"
    return _finding(conditions.OFFSETS_LOST, what, why, todo)


def _ago(seen: Seen, at_s: float) -> str:
    return duration(max(0, (seen.now_s or at_s) - at_s))


def _clock_jump(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    clock = seen.state.get("clock")
    if not clock:
        return
    jump_ms, kept = clock["jump_ms"], clock["kept_bytes"]
    span = duration(abs(jump_ms) / 1000)
    when = f"believed in {duration(max(0, clock['believed'] - seen.now_s))}" if seen.now_s is not None else ""
    why = f"{size(kept)} of messages that are old only by it are kept" if kept else "nothing is deleted by it"
    what = f"the clock has jumped {'ahead' if jump_ms > 0 else 'back'} by {span}"
    todo = f"set it if `date -u` is wrong: `timedatectl set-ntp true`; if it is right: {seen.command('accept-clock')}"
    yield _finding(conditions.CLOCK_JUMPED, what, "; ".join(filter(None, (why, when))), todo)


def _transactions(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    transactions = seen.state.get("transactions") or {}
    oldest = transactions.get("oldest")
    if not oldest:
        return
    others = f", as are {transactions['late'] - 1} more" if transactions["late"] > 1 else ""
    what = f"transaction {oldest['id']} stays open{others}"
    open_for = f" for {duration(max(0, seen.now_s - oldest['since']))}" if seen.now_s is not None else ""
    why = f"it is {oldest['state']}{open_for}: who reads committed messages gets nothing behind its beginning"
    ending = oldest["state"].startswith("Prepare")
    todo = f"see why a partition of it does not answer: {seen.command('transactions', 'describe', oldest['id'])}"
    if not ending:
        todo = f"end it in its producer, or {seen.command('transactions', 'abort', oldest['id'])}"
    yield _finding(conditions.TRANSACTION_LATE, what, why, todo)


def _hanging(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    transactions = seen.state.get("transactions") or {}
    names, count = transactions.get("hanging_in", ()), transactions.get("hanging", 0)
    why = "no coordinator knows of it, so nobody will end it: who reads committed messages gets nothing behind it"
    findings = [
        _finding(
            conditions.TRANSACTION_HANGS,
            f"a transaction hangs in {name}",
            why,
            f"{seen.command('transactions', 'abort-hanging', name, '--dry-run')} shows it; if what ZooKeeper has lost"
            f" cannot be restored, {seen.command('transactions', 'abort-hanging', name)} aborts it",
        )
        for name in names
    ]
    yield from _bounded(findings, f"of {count:,} partitions in which a transaction hangs")


def _zookeeper(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    zookeeper = seen.state["zookeeper"].get("state", "off")
    if zookeeper in ("off", "connected", "stopped"):
        return
    nodes = [row for row in seen.state["processes"] if row["role"] == "zookeeper"]
    down = [row for row in nodes if not row.get("pid") or _process_state(seen, row["pid"]) in "TtZ"]
    why, todo = "groups and changes of topics wait", ""
    if nodes:
        todo = f"wait: its nodes are started again; {seen.launch.read_log('ZooKeeper')} says why they end"
        pids = " ".join(str(row["pid"]) for row in down)
        why += f"; {len(nodes) - len(down)} of {len(nodes)} local nodes run" + (f", stopped are {pids}" if down else "")
        todo = f"`kill -CONT {pids}`" if down else todo
    elif connect := seen.state["zookeeper"].get("connect"):
        todo = f"look at the ensemble at {connect}: `echo srvr | nc HOST PORT` for each of its nodes"
    yield _finding(conditions.ZOOKEEPER_AWAY, f"no quorum: ZooKeeper is {zookeeper}", why, todo)


def _process_state(seen: Seen, pid: int) -> str:
    process = seen.host.processes.get(pid) if seen.host is not None else None
    return process.state if process is not None else "S"


def _deaths(seen: Seen) -> Iterator[Finding]:
    """Processes that ended by themselves lately, once or again and again."""
    assert seen.state is not None
    now_s = seen.now_s
    if now_s is None:
        return
    again, once = [], []
    explained = {row["role"] for row in seen.state["faults"]}
    for row in seen.state["deaths"]:
        if row["role"] in explained:
            continue
        times = [at_s for at_s in row["times"] if now_s - at_s < conditions.RESTARTED_WITHIN_S]
        if not times:
            continue
        count = f"{len(times)} times in {duration(conditions.RESTARTED_WITHIN_S)}" if len(times) > 1 else "once"
        why = f"{count}; the last time {duration(now_s - times[-1])} ago{_ending(row['status'])}"
        if len(times) >= conditions.DIES_AGAIN:
            what = f"{_name(row)} dies again and again"
            again.append(_finding(conditions.PROCESS_DIES, what, why, _advice_after_death(seen, row)))
        else:
            once.append(
                _finding(
                    conditions.PROCESS_RESTARTED,
                    f"{_name(row)} was started again",
                    why,
                    _advice_after_death(seen, row),
                )
            )
    yield from _bounded(again, "processes die again and again")
    yield from _bounded(once, "processes were started again")


def _ending(status: int | None) -> str:
    if status is None:
        return ""
    return f", killed by signal {-status}" if status < 0 else f", with status {status}"


def _advice_after_death(seen: Seen, row: Mapping[str, Any]) -> str:
    says = f"{seen.launch.read_log(row['role'])} says why it ended"
    return f"{seen.launch.read_kernel_log}; else {says}" if row["status"] == -signal.SIGKILL else says


def _insecure(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    if insecure := seen.state["insecure"]:
        why = f"other hosts reach {', '.join(insecure)}"
        yield _finding(conditions.INSECURE, "a listener has no TLS and no authentication", why)
    if without_rules := seen.state["without_rules"]:
        why = f"other hosts reach {', '.join(without_rules)}"
        rule = ("acl", "add", "--principal", "User:NAME", "--operation", "Write", "--topic", "TOPIC")
        first = seen.launch.set_key("security.authorizer", "acl", seen.at)
        todo = f"{first}: then nobody may do anything but what {seen.command(*rule)} and its like allow"
        what = "whoever can log in may do everything: there are no access rules"
        yield _finding(conditions.WITHOUT_RULES, what, why, todo)


def _reload(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    if error := seen.state["reload"]["error"]:
        todo = f"mend it, since it keeps it from starting again, too; then {seen.command('reload')}"
        yield _finding(conditions.RELOAD_FAILED, "the last reload has failed, and changed nothing", error, todo)


def _certificates(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    tls = seen.state.get("tls") or {"error": "", "files": []}
    if tls["error"]:
        yield _finding(conditions.CERTIFICATE_UNUSABLE, "new files of tls.* cannot be used", tls["error"])
    for row in tls["files"] if seen.now_s is not None else ():
        left_s = row["expires"] - (seen.now_s or 0)
        where = f"{row['key']} = {row['file']}"
        todo = f"put a renewed one in the place of {row['file']}: it is taken within seconds, without a reload"
        if left_s <= 0:
            what = f"a certificate expired {duration(-left_s)} ago"
            yield _finding(conditions.CERTIFICATE_EXPIRED, what, where, todo)
        elif left_s < conditions.EXPIRES_WITHIN_S:
            what = f"a certificate expires in {duration(left_s)}"
            yield _finding(conditions.CERTIFICATE_EXPIRES, what, where, todo)


def _refusals(seen: Seen) -> Iterator[Finding]:
    """What was refused to clients lately: it ends when the refusals do."""
    assert seen.state is not None
    now_s = seen.now_s
    for reason, row in seen.state["refusals_recent"].items() if now_s is not None else ():
        assert now_s is not None
        ago_s = max(0, now_s - row["last"])
        if ago_s >= conditions.REFUSED_WITHIN_S:
            continue
        why = f"{row['count']:,} in {duration(conditions.REFUSED_WITHIN_S)}, the last one {duration(ago_s)} ago"
        todo, page = f"{seen.launch.read_log(f'audit.*{reason}')} says who", ""
        if reason in _OF_CERTIFICATES:
            page = "listeners-and-tls"
        elif reason in _OF_FLOODS:
            todo, page = f"{todo}; {seen.command('top')} shows how much", conditions.FLOOD.page
        yield _finding(conditions.CLIENTS_REFUSED, f"clients are refused: {reason}", why, todo, page)


# ---- rules: of what its host knows


def _disk(seen: Seen) -> Iterator[Finding]:
    """The disk of the logs: full, low, or soon full, whichever is the worst."""
    assert seen.state is not None
    names = _names_in_state(seen, STATE_NAMES[DISK_FULL])
    lacking = [row["reason"] for row in seen.state["refused"] if row.get("limit") == DISK]
    lacking += [row["advice"] for row in seen.state["limits"] if row["limit"] == DISK]
    disk = seen.host.disk if seen.host is not None else None
    free = f"{size(disk.free)} of {size(disk.size)} are free" if disk is not None and disk.size else ""
    trash = _trash_bytes(seen)
    free += f", and {size(trash)} of deleted topics go first" if free and trash else ""
    warn = seen.state["disk"].get("free_bytes_warn", 0)
    if disk is not None and disk.read_only:
        todo = f"`{WHY_READ_ONLY}` says why; then `mount -o remount,rw {shlex.quote(disk.mount)}`"
        what, why = (
            f"nothing can be written to {disk.mount}",
            "it is mounted read-only, so all else that is known is old",
        )
        yield _finding(conditions.DISK_READ_ONLY, what, why, todo)
    elif disk is not None and disk.files and not disk.files_free:
        why = f"all {disk.files:,} inodes are taken, {free}"
        yield _finding(conditions.DISK_FULL, "the disk is full: it takes no more files", why, _make_files(seen))
    elif names or lacking or (disk is not None and disk.size and disk.free < FULL_BYTES):
        reasons = [reason for name in names if (reason := seen.partitions[name][1])]
        what = f"the disk is full: {_listed(names)}: producers are refused" if names else "the disk is full"
        why = reasons[0] if reasons else free or (lacking[0] if lacking else "they can be read, not written")
        yield _finding(conditions.DISK_FULL, what, why, _make_room(seen))
    elif disk is not None and disk.size and disk.free < warn:
        what = f"less than disk.free_bytes_warn ({size(warn)}) is free on the disk"
        yield _finding(conditions.DISK_LOW, what, free, _make_room(seen))
    elif disk is not None and disk.size:
        rates = seen.rates or Rates()
        full_s = rates.full_s if rates.full_s is not None else float("inf")
        if full_s < conditions.FULL_WITHIN_S or disk.free + trash < conditions.FREE_SHARE * disk.size:
            grows = f", logs grow by {size(int(rates.growth))}/s" if rates.growth else ""
            soon = full_s < conditions.FULL_WITHIN_S
            until = f" in {duration(full_s)} at this rate" if soon else " soon"
            todo = _make_room(seen) + (f"; {seen.command('clients')} shows who sends how much" if soon else "")
            yield _finding(conditions.DISK_FILLS_UP, f"the disk is full{until}", free + grows, todo)


def _make_room(seen: Seen) -> str:
    """Which log to trim, up to where, and what to keep from now on, so that the disk has room again."""
    host, limits = seen.host, seen.state["disk"] if seen.state is not None else {}
    if host is None or not host.disk.size:
        return conditions.ROOM
    free_bytes_needed = max(
        limits.get("free_bytes_warn", 0), limits.get("free_bytes_min", 0), int(conditions.FREE_SHARE * host.disk.size)
    )
    lacking = free_bytes_needed - host.disk.free - _trash_bytes(seen)
    if lacking <= 0:  # it is not full yet
        return _keep_less(seen, *seen.largest, -lacking) if seen.largest is not None else conditions.ROOM
    if host.logs_size < lacking:
        return (
            f"all logs together have {size(host.logs_size)} of the {size(lacking)} that are lacking: something else"
            f" fills the disk; `du -xh --max-depth=2 {shlex.quote(host.disk.mount)} | sort -h | tail` shows what"
        )
    for log in host.logs:
        if (offset := _boundary(log, lacking)) is not None:
            freed = sum(count for base, count in log.segments if base < offset)
            trim = seen.command("topics", "trim", log.topic, "--partition", log.partition, "--before", offset)
            return f"{trim} frees {size(freed)}; {_keep_less(seen, *_topic(host, log.topic), -lacking)}"
    topic, total, partitions = max(
        (_topic(host, log.topic) for log in host.logs), key=lambda topic_total: topic_total[1]
    )
    more = "" if total >= lacking else f", of {size(lacking)} that are lacking"
    trim = seen.command("topics", "trim", topic, "--before", "latest")
    return f"{trim} frees {size(total)}{more}, all that it has; {_keep_less(seen, topic, total, partitions, -lacking)}"


def _trash_bytes(seen: Seen) -> int:
    """The room that deleted topics give before any log has to."""
    return int((seen.state or {}).get("trash", {}).get("bytes", 0))


def _topic(host: Host, topic: str) -> tuple[str, int, int]:
    """A topic, the bytes of its logs, and how many they are."""
    logs = [log for log in host.logs if log.topic == topic]
    return topic, sum(log.size for log in logs), len(logs)


def _make_files(seen: Seen) -> str:
    """Which log to trim, and how large its files should be, so that the disk takes more files."""
    if seen.host is None or not seen.host.logs:
        return conditions.ROOM
    log = max(seen.host.logs, key=lambda log: len(log.segments))
    last, bytes_each = log.segments[-1][0], min(4 * max(log.size // len(log.segments), 16 << 20), SEGMENT_BYTES_MAX)
    trim = seen.command("topics", "trim", log.topic, "--partition", log.partition, "--before", last)
    alter = seen.command("topics", "alter", log.topic, "--setting", f"segment.bytes={bytes_each}")
    return f"{trim} removes {counted(len(log.segments) - 1, 'segment')}; {alter} makes fewer files from now on"


def _boundary(log: LogUse, lacking: int) -> int | None:
    """The first offset before which whole segments, not the last one, have so many bytes; None: there is none."""
    freed = 0
    for (_, count), (base, _) in zip(log.segments, log.segments[1:], strict=False):
        freed += count
        if freed >= lacking:
            return base
    return None


def _keep_less(seen: Seen, topic: str, total: int, partitions: int, room: int) -> str:
    """How much each partition of a topic may keep, so that the disk has room for all of them.

    Args:
        total: bytes that they have now.
        room: bytes that the disk has besides, less than 0 for what it lacks.
    """
    keep = max((total + room) // partitions, SEGMENTS_KEPT << 20)
    settings = (f"retention.bytes={keep}", f"segment.bytes={min(keep // SEGMENTS_KEPT, SEGMENT_BYTES_MAX)}")
    alter = seen.command("topics", "alter", topic, *(word for text in settings for word in ("--setting", text)))
    return f"{alter} keeps {size(keep)} of each of its partitions from now on"


def _shared_memory(seen: Seen) -> Iterator[Finding]:
    if seen.host is not None and seen.host.shm.size and seen.host.shm.free < conditions.SHM_FREE_MIN:
        shm = seen.host.shm
        todo = f"`mount -o remount,size={2 * shm.size >> 20}m /dev/shm`, or delete topics, or lower network.arena_bytes"
        why = f"{size(shm.free)} of {size(shm.size)} are free: no topic can be made"
        yield _finding(conditions.SHM_FULL, "/dev/shm is full", why, todo)


def _processes(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    rates, findings = seen.rates or Rates(), []
    for row in seen.state["processes"]:
        pid, busy = row["pid"], rates.busy.get(row["pid"], 0.0)
        state, uses = _process_state(seen, pid), f"process {pid} uses {busy:.0%} of a core"
        if state in STANDS_STILL and row["role"] != "zookeeper":
            todo = f"`kill -CONT {pid}`, or `kill -9 {pid}`; it is killed and started again after liveness.timeout_ms"
            why = f"process {pid} is stopped (SIGSTOP or a debugger)"
            findings.append(_finding(conditions.PROCESS_HANGS, f"{_name(row)} hangs", why, todo))
        elif state == "D" and pid in rates.waiting:
            findings.append(
                _finding(conditions.PROCESS_WAITS, f"{_name(row)} waits for a disk", f"process {pid} is in state D")
            )
        elif (wants := rates.wants.get(pid, 0.0)) >= conditions.SPINS and row["role"] in IDLE_ROLES:
            todo = f"`kill -9 {pid}`: it is started again, and clients do not notice; then report it"
            findings.append(
                _finding(
                    conditions.PROCESS_SPINS,
                    f"{_name(row)} spins",
                    f"{uses}, wants {wants:.0%}, and has little to do",
                    todo,
                )
            )
        elif wants >= conditions.BUSY and row["role"] not in JOBS:
            uses += f", wants {wants:.0%}: others have the processors" if busy < conditions.BUSY else ""
            todo = f"{seen.command('top')} shows which topics, {seen.command('clients')} who"
            findings.append(_finding(conditions.PROCESS_BUSY, f"{_name(row)} is busy", uses, todo))
    for condition, others in (
        (conditions.PROCESS_HANGS, "processes hang"),
        (conditions.PROCESS_WAITS, "processes wait for a disk"),
        (conditions.PROCESS_SPINS, "processes spin"),
        (conditions.PROCESS_BUSY, "processes are busy"),
    ):
        yield from _bounded([finding for finding in findings if finding.condition is condition], others)


def _clock(seen: Seen) -> Iterator[Finding]:
    if seen.host is not None and seen.host.synchronised is False:
        yield _finding(conditions.CLOCK_FREE, "the clock is not synchronised", "timestamps and retention follow it")


def _undelivered(seen: Seen) -> Iterator[Finding]:
    for receiver, row in seen.host.undelivered.items() if seen.host is not None else ():
        since = f", for {duration(max(0, seen.now_s - row.since))}" if seen.now_s is not None else ""
        what = f"alerts do not reach {_RECEIVERS.get(receiver, receiver)}{since}"
        todo = f"{_REACHED.get(receiver, 'see why')}; it is tried again by itself, after 5 minutes at most"
        told = f"{todo}; {seen.launch.read_log('alert')} says what was not told"
        yield _finding(conditions.ALERTS_UNDELIVERED, what, row.why, told)


def _floods(seen: Seen) -> Iterator[Finding]:
    """One address that harms others: it has the places that they lack, or it moves what their workers are busy with.

    How many connections it has, and how much it moves, alone says nothing: it may be a proxy, or hundreds of shippers
    behind one address.
    """
    crowd, load = _crowd(seen), _load(seen)
    for address, (why, mends) in {**load, **crowd}.items():
        todo = f"{seen.command('clients', address)} says who they are; {mends}"
        yield _finding(conditions.FLOOD, f"{address} floods the listeners", why, todo)


def _crowd(seen: Seen) -> dict[str, tuple[str, str]]:
    """The address that has most connections of all, where others find no place: why, and what mends it."""
    assert seen.state is not None
    lacking = [row for row in seen.state["limits"] if row["limit"] in (CONNECTIONS_MAX, DESCRIPTORS)]
    of_workers = [row for row in lacking if row["process"].startswith("network") and row.get("value")]
    address, count = max(seen.peers.items(), key=lambda peer: peer[1], default=("", 0))
    total = sum(seen.peers.values())
    if not of_workers or 2 * count <= total:
        return {}
    row = of_workers[0]
    why = f"{count:,} of {total:,} connections are from it, and others find no place ({row['limit']}: {row['value']:,})"
    fewer = seen.launch.set_key(PER_ADDRESS_MAX, max(1, row["value"] // PLACES_SHARE), seen.at)
    return {address: (why, f"it leaves others room after {fewer}")}


def _load(seen: Seen) -> dict[str, tuple[str, str]]:
    """The address that moves most of all bytes, where workers are busy or wait, and others use them."""
    assert seen.state is not None
    wants = (seen.rates or Rates()).wants
    workers = [row["pid"] for row in seen.state["processes"] if row["role"] == "network"]
    is_busy = any(wants.get(pid, 0.0) >= conditions.BUSY for pid in workers)
    awaited = any(row["memory_wait_ms"] > conditions.MEMORY_WAIT_S * 1_000 for row in seen.workers.values())
    rates: dict[str, float] = {}
    for client in seen.clients:
        rates[client["host"]] = rates.get(client["host"], 0.0) + client["in_s"] + client["out_s"]
    address, rate = max(rates.items(), key=lambda host: host[1], default=("", 0.0))
    if not (is_busy or awaited) or not address or len(rates) < 2 or 2 * rate <= sum(rates.values()):
        return {}
    harm = "network workers are busy" if is_busy else "others wait for memory"
    why = f"it moves {size(int(rate))} of {size(int(sum(rates.values())))} per second, and {harm}"
    mine = [client for client in seen.clients if client["host"] == address]
    return {address: (why, _slow_down(seen, max(mine, key=lambda client: client["in_s"] + client["out_s"])))}


def _slow_down(seen: Seen, client: Mapping[str, Any]) -> str:
    """A quota for a client: half of what it moves now."""
    user = client["user"].removeprefix("User:")
    whose = ["--client-id", client["client_id"]] if user == ANONYMOUS_NAME else ["--user", user]
    rates = [("--in", client["in_s"]), ("--out", client["out_s"])]
    limits = [word for option, rate in rates if rate >= 2 for word in (option, str(int(rate / 2)))]
    if not whose[1]:
        return "a quota needs a user or a client id, and it has none: end it where it runs, or close its way here"
    return f"{seen.command('quotas', 'set', *whose, *limits, '--requests', REQUESTS_LEFT)} slows it down"


def _memory(seen: Seen) -> Iterator[Finding]:
    """Connections that wait for memory, whatever share of it is taken: that of unfinished requests gives way."""
    findings = []
    for worker, row in seen.workers.items():
        if row["memory_wait_ms"] <= conditions.MEMORY_WAIT_S * 1_000:
            continue
        at_writers = row["starved"] + row["stalled"]
        count = at_writers + row["parked"]
        arena_bytes, in_hand_bytes = row["arena_bytes"], min(row["in_hand_bytes"], row["arena_used_bytes"])
        why = (
            f"the longest for {duration(row['memory_wait_ms'] / 1000)}: writers have {size(in_hand_bytes)} of"
            f" {size(arena_bytes)} in hand, unfinished requests {size(row['reserved_bytes'])} beside it"
        )
        enough = _whole_mib(2 * (row["arena_used_bytes"] + row["wanted_bytes"]))  # up to half of it nobody waits
        larger = min(max(2 * arena_bytes, enough), ARENA_BYTES_MAX)
        todo = [*(_still_writers(seen) if at_writers else ()), *_larger_arenas(seen, larger, arena_bytes)]
        waiting = counted(count, f"connection of worker {worker} waits", f"connections of worker {worker} wait")
        what = f"{waiting} for memory"
        findings.append(_finding(conditions.MEMORY_AWAITED, what, why, "; or ".join([*todo, *_fewer_clients(seen)])))
    yield from _bounded(findings, "workers have connections that wait for memory")


def _still_writers(seen: Seen) -> Iterator[str]:
    """What to do first, where a writer stands still: it gives no memory back."""
    assert seen.state is not None
    pids = [row["pid"] for row in seen.state["processes"] if row["role"] == "writer"]
    if stopped := [pid for pid in pids if _process_state(seen, pid) in STANDS_STILL]:
        yield f"`kill -CONT {' '.join(map(str, stopped[:LISTED_MAX]))}`: writers that stand still keep memory"
    elif any(_process_state(seen, pid) == "D" for pid in pids):
        yield "`iostat -x 1`: a writer waits for its disk, and keeps memory"


def _whole_mib(count: int) -> int:
    return -(-count // MIB) * MIB


def _larger_arenas(seen: Seen, larger: int, arena_bytes: int) -> Iterator[str]:
    """So much room, where the configuration allows it; first of all in /dev/shm, if that has too little."""
    if larger <= arena_bytes:
        return
    set_it = seen.launch.set_key("network.arena_bytes", larger, seen.at)
    more, first = (larger - arena_bytes) * len(seen.workers), ""
    if seen.host is not None and seen.host.shm.size and seen.host.shm.free < more + conditions.SHM_FREE_MIN:
        enough = _whole_mib(seen.host.shm.size + more + conditions.SHM_FREE_MIN)
        first = f"`mount -o remount,size={enough // MIB}m /dev/shm`, then "
    yield f"{first}{set_it}: requests have {size(larger)} of room, for {size(more)} more of /dev/shm"


def _fewer_clients(seen: Seen) -> Iterator[str]:
    address, count = max(seen.peers.items(), key=lambda peer: peer[1], default=("", 0))
    who = (
        f"{count:,} of {counted(sum(seen.peers.values()), 'connection is', 'connections are')} from {address}, and "
        if address
        else ""
    )
    yield f"{who}{seen.command('clients', *[address] if address else [])} says who sends most"


# ---- rules: of what its coordinator knows


class _Late(NamedTuple):
    """A group that is late: where it is furthest behind, and how far in all."""

    group: Mapping[str, Any]
    worst: Mapping[str, Any]
    messages: int
    seconds: float

    @property
    def text(self) -> str:
        return f"{counted(self.messages, 'message')}, {duration(self.seconds)}"


def _groups(seen: Seen) -> Iterator[Finding]:
    if seen.groups is None:
        return
    if seen.groups.unknown:
        todo = f"{seen.command('groups', 'list')}, and this again when the machine is calm"
        yield _finding(conditions.GROUPS_UNKNOWN, "groups cannot be asked for", seen.groups.unknown, todo)
    late = sorted(
        filter(None, map(_late, seen.groups.rows)), key=lambda late_group: (-late_group.messages, -late_group.seconds)
    )
    if not late:
        return
    group, worst = late[0].group, late[0].worst
    owner = next((member for member in group["members"] if member["id"] == worst["owner"]), None)
    if owner is not None:
        reader = f"read by {owner['client'] or owner['id']} at {owner['host'].removeprefix('/')}"
    else:
        reader = "which no member reads" if group["members"] else "and it has no members"
    what = f"group {group['group']} lags by {late[0].text}"
    why = f"most in {worst['topic']}-{worst['partition']}, {reader}"
    if len(late) > 1:
        what = f"{len(late)} groups lag, {group['group']} the most: by {late[0].text}"
        others = [f"{late_group.group['group']} by {late_group.text}" for late_group in late[1:]]
        why += f"; then {_listed(others)}"
    describe = seen.command("groups", "describe", group["group"])
    todo = f"{describe} says why; then {_remedy_of_lag(group, owner)}"
    names = tuple(late_group.group["group"] for late_group in late[:GROUPS_MAX])
    yield _finding(conditions.GROUP_LAGS, what, why, todo)._replace(groups=names)


def _remedy_of_lag(group: Mapping[str, Any], owner: Mapping[str, Any] | None) -> str:
    if not group["members"]:
        return "start its consumers"
    if owner is None:
        return "start a consumer that reads this topic"
    return "look at the log of this consumer if it has stopped; if it is too slow, start more consumers"


def _is_late(row: Mapping[str, Any]) -> bool:
    """By time: how many unread messages are normal depends on how many come.  By number where there is no time: 0 s."""
    seconds = row["lag_seconds"] or 0
    return bool(seconds >= conditions.LAG_S or (not seconds and row["lag_messages"] >= conditions.LAG_MESSAGES))


def _late(group: Mapping[str, Any]) -> _Late | None:
    behind = [row for row in group["partitions"] if row["lag_messages"]]
    late = [row for row in behind if _is_late(row)]
    if not late:
        return None
    worst = max(late, key=lambda row: row["lag_messages"])
    seconds = max(row["lag_seconds"] or 0 for row in late)
    return _Late(group, worst, sum(row["lag_messages"] for row in behind), seconds)


def _lost(seen: Seen) -> Iterator[Finding]:
    for group in seen.groups.rows if seen.groups is not None else ():
        lost: dict[str, int] = {}
        for row in group["partitions"]:
            if row.get("lost_bytes"):
                lost[row["topic"]] = lost.get(row["topic"], 0) + row["lost_bytes"]
        for topic, count in lost.items():
            what = f"{size(count)} of {topic} were removed before group {group['group']} had read them"
            why = "it has members: this ends when they commit" if group["members"] else "it has no members"
            reset = seen.command("groups", "reset", group["group"], "--topic", topic, "--to", "earliest")
            found = _finding(conditions.GROUP_LOST, what, why, f"keep more; it ends with {reset}")
            yield found._replace(groups=(group["group"],))


def _pipelines(seen: Seen) -> Iterator[Finding]:
    """Pipelines say what they leave undone in the notes of their offsets."""
    findings = []
    for group in seen.groups.rows if seen.groups is not None else ():
        notes = dict.fromkeys(row.get("note", "") for row in group["partitions"])
        for note in notes:
            if note.startswith(PIPELINE_NOTE):
                name, _, why = note.removeprefix(PIPELINE_NOTE).partition(": ")
                delete = seen.command("groups", "delete", group["group"])
                todo = (
                    "mend what the reason names; a pipeline that runs tries again by itself, else `appliance pipeline"
                    f" refresh CONFIG.toml` does; if nobody runs it any more: {delete}"
                )
                found = _finding(conditions.PIPELINE_INCOMPLETE, f"pipeline {name} leaves work undone", why, todo)
                findings.append(found._replace(groups=(group["group"],)))
    yield from _bounded(findings, "pipelines leave work undone")


RULES: Final[tuple[FindingRule, ...]] = (
    *(
        _state,
        _cluster,
        _partitions,
        _uncompacted,
        _inputs,
        _limits,
        _disk,
        _shared_memory,
        _clock_jump,
        _transactions,
        _hanging,
        _zookeeper,
        _processes,
        _deaths,
    ),
    *(_refusals, _floods, _memory, _groups, _lost, _pipelines, _reload),
    *(_insecure, _certificates, _clock, _undelivered),
)


def _name(row: Mapping[str, Any]) -> str:
    if row["role"] == "zookeeper":
        return f"ZooKeeper node {row['node']}" if "node" in row else "ZooKeeper"
    return f"writer of {row['topic']}-{row['partition']}" if row["role"] == "writer" else str(row["role"])


def _listed(names: Sequence[str], count: int = 0) -> str:
    """Some of the names; ``count``: how many there are in all, if that is more."""
    unnamed = max(count, len(names)) - LISTED_MAX
    more = f" and {unnamed:,} more" if unnamed > 0 else ""
    return ", ".join(names[:LISTED_MAX]) + more

"""Lists what can be wrong with an appliance: the name, how bad it is, what to do, and the page that explains it.

A condition is found in one of two ways, or in both: :mod:`.findings` looks at the appliance as it is now; Prometheus
looks at its metrics over some time (``rule``), under the name with "Appliance" before it.

Two are found by Prometheus only, since they are rates that mean something over minutes, which ``status`` and ``doctor``
do not wait for.  RequestErrors: any client can cause some at any moment; ``status`` shows their rate of this moment
without a judgement.  SlowFlushes: the slowest of the few flushes that a look of a second sees is not their 99th
percentile; ``doctor`` sees a disk that does not answer at all as ProcessWaitsForDisk.

``level`` is "critical" when something does not work now, and "warning" when it may soon, or works with less safety.
``exit_status`` is that of ``appliance health``, ``status`` and ``doctor``:

============  ======================================================================================
exit status   meaning
============  ======================================================================================
0             everything is served
75            something passes or waits for room: not running, starting, stopping, ZooKeeper away, a full disk, a limit
              that is reached, a step that the machine refuses, a process that hangs, an expired certificate
74            a partition is offline or has damaged ranges, because its files cannot be trusted: a person has to look
============  ======================================================================================

``page`` is a part of systemd/README.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import StorageFault, Unavailable

CRITICAL: Final = "critical"
WARNING: Final = "warning"
NOT_NOW: Final = Unavailable.exit_status
UNTRUSTED: Final = StorageFault.exit_status

LAG_S: Final = 60
LAG_MESSAGES: Final = 10_000
LAG_ALERT_S: Final = 600
"""A person who asks is interested in less than what should wake somebody."""
FREE_SHARE: Final = 0.05
FULL_WITHIN_S: Final = 24 * 3600
RESTARTED_WITHIN_S: Final = 600
BUSY: Final = 0.9
"""The share of a core from which on a process is busy."""
ARENA_FULL: Final = 0.9
CONNECTIONS: Final = 500
"""So many connections from one address are a flood."""
SLOW_FLUSH_S: Final = 1
EXPIRES_WITHIN_S: Final = 14 * 86_400
"""Programs that renew certificates do so earlier."""

ROOM: Final = "make room, or keep less: appliance topics alter NAME --setting retention.bytes=10GiB"
RENEW: Final = "put renewed files in the place of those of tls.*: they are taken within seconds, without a reload"
JOURNAL: Final = "journalctl -u appliance"


class Rule(NamedTuple):
    """A rule of Prometheus: the expression, for how long it has to hold ("" = at once), and the text of the alert."""

    expr: str
    wait: str
    summary: str


class Condition(NamedTuple):
    """``todo``: what to do.  ``stops_all``: nobody is served."""

    name: str
    level: str
    page: str
    todo: str
    exit_status: int = 0
    stops_all: bool = False
    rule: Rule | None = None


DOWN = Condition(
    *("Down", CRITICAL, "start-stop-reload", f"systemctl start appliance; {JOURNAL} -n 50 says why it ended"),
    exit_status=NOT_NOW,
    stops_all=True,
    rule=Rule('up{job=~".*appliance.*"} == 0', "1m", "{{ $labels.instance }} does not answer"),
)
NOT_SERVING = Condition(
    *("NotServing", CRITICAL, "start-stop-reload", f"appliance status shows what it waits for; {JOURNAL} -n 50"),
    exit_status=NOT_NOW,
    stops_all=True,
    rule=Rule(
        'max by (instance) (appliance_state{state="serving"}) == 0',
        "2m",
        "{{ $labels.instance }} runs and does not serve",
    ),
)
COORDINATOR_AWAY = Condition(
    "CoordinatorAway", WARNING, "faults", f"wait for some seconds; {JOURNAL} -g coordinator says why", NOT_NOW
)
PARTITION_OFFLINE = Condition(
    *("PartitionOffline", CRITICAL, "damage-and-repair"),
    "appliance log verify NAME shows the damage, appliance log repair NAME --dry-run what can be kept",
    exit_status=UNTRUSTED,
    rule=Rule(
        'appliance_partitions{state="offline"} > 0',
        "",
        "{{ $value }} partitions of {{ $labels.instance }} are offline: their files cannot be trusted",
    ),
)
PARTITION_DAMAGED = Condition(
    *("PartitionDamaged", CRITICAL, "damage-and-repair"),
    "appliance log verify NAME shows the damage, appliance log repair NAME --dry-run what can be kept",
    exit_status=UNTRUSTED,
    rule=Rule(
        "appliance_partition_damaged_bytes > 0",
        "",
        "{{ $value | humanize1024 }}B of {{ $labels.topic }}-{{ $labels.partition }} on {{ $labels.instance }}"
        " are damaged and not served",
    ),
)
PARTITION_OPENING = Condition(
    "PartitionOpening", WARNING, "faults", "wait: its log is opened, after a crash it is recovered", NOT_NOW
)
DISK_FULL = Condition(
    *("DiskFull", CRITICAL, "disk", ROOM),
    exit_status=NOT_NOW,
    rule=Rule(
        'appliance_partitions{state="disk full"} > 0',
        "",
        "{{ $labels.instance }} refuses to write to {{ $value }} partitions: the disk is full",
    ),
)
DISK_LOW = Condition(
    *("DiskLow", WARNING, "disk", ROOM),
    exit_status=NOT_NOW,
    rule=Rule(
        'appliance_limit_reached{limit="disk.free_bytes_warn"} > 0',
        "",
        "{{ $labels.instance }} has less than disk.free_bytes_warn free",
    ),
)
DISK_FILLS_UP = Condition(
    *("DiskFillsUp", WARNING, "disk", ROOM),
    rule=Rule(
        f"appliance_disk_seconds_until_full < {FULL_WITHIN_S}",
        "15m",
        "{{ $labels.instance }} has room for {{ $value | humanizeDuration }} at the rate of the last day",
    ),
)
CLOCK_JUMPED = Condition(
    *(
        "ClockJumped",
        WARNING,
        "clock",
        "set it if `date -u` is wrong: timedatectl set-ntp true; if it is right: appliance accept-clock",
    ),
    exit_status=NOT_NOW,
    rule=Rule(
        "appliance_clock_jump_seconds != 0",
        "",
        "the clock of {{ $labels.instance }} has jumped by {{ $value | humanizeDuration }}: ages go on as before",
    ),
)
ZOOKEEPER_AWAY = Condition(
    *("ZooKeeperAway", CRITICAL, "faults", f"see the processes of appliance status; {JOURNAL} -g ZooKeeper"),
    exit_status=NOT_NOW,
    rule=Rule(
        'appliance_zookeeper_state{state=~"connecting|suspended|lost"} == 1',
        "2m",
        "{{ $labels.instance }} has no ZooKeeper: groups and changes of topics wait",
    ),
)
LIMIT_REACHED = Condition(
    *("LimitReached", CRITICAL, "faults", "appliance status says what to do about it"),
    exit_status=NOT_NOW,
    rule=Rule(
        'appliance_limit_reached{limit!~"disk.*"} > 0',
        "1m",
        "{{ $labels.instance }} has reached a limit: {{ $labels.limit }}",
    ),
)
LIMIT_LOW = Condition("LimitLow", WARNING, "faults", "raise the limit of the machine, or lower the key")
ACTION_REFUSED = Condition(
    *("ActionRefused", CRITICAL, "faults", "appliance status shows the limit that is reached; it is tried again"),
    exit_status=NOT_NOW,
    rule=Rule("appliance_actions_refused > 0", "1m", "{{ $labels.instance }} cannot {{ $labels.action }}"),
)
PROCESS_HANGS = Condition(
    *("ProcessHangs", CRITICAL, "faults", f"{JOURNAL} -g 'has not moved'; it is killed after liveness.timeout_ms"),
    exit_status=NOT_NOW,
    rule=Rule(
        "increase(appliance_process_hangs_total[15m]) > 0",
        "",
        "processes of role {{ $labels.role }} on {{ $labels.instance }} hung and were killed",
    ),
)
PROCESS_RESTARTED = Condition(
    *("ProcessRestarted", WARNING, "faults", f"{JOURNAL} -g 'ended with status' says why it ended"),
    rule=Rule(
        "increase(appliance_process_restarts_total[15m]) > 3",
        "",
        "processes of role {{ $labels.role }} on {{ $labels.instance }} end again and again",
    ),
)
PROCESS_WAITS = Condition("ProcessWaitsForDisk", WARNING, "faults", "iostat -x 1: the disk is shared, or fails")
PROCESS_BUSY = Condition("ProcessBusy", WARNING, "a-bad-day", "appliance top shows which topics")
CLIENTS_REFUSED = Condition(
    *("ClientsRefused", WARNING, "security", f"{JOURNAL} -g audit: says who"),
    rule=Rule(
        "increase(appliance_client_refusals_total[5m]) > 100",
        "5m",
        "{{ $labels.instance }} refuses clients: {{ $labels.reason }}",
    ),
)
FLOOD = Condition(
    "Flood", WARNING, "access-rules-and-quotas", "ss -tnp dst ADDRESS; quotas and network.connections_max limit it"
)
GROUP_LAGS = Condition(
    *("GroupLags", WARNING, "groups", "appliance groups describe GROUP; more members, or look at that one"),
    rule=Rule(
        f"appliance_group_lag_seconds > {LAG_ALERT_S} and appliance_group_lag_messages > 0",
        "5m",
        "group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
    ),
)
GROUP_LOST = Condition(
    *(
        "GroupLost",
        WARNING,
        "groups",
        "keep more; it ends with appliance groups reset GROUP --topic TOPIC --to earliest",
    ),
    rule=Rule(
        "appliance_group_lost_bytes > 0",
        "",
        "{{ $value | humanize1024 }}B of {{ $labels.topic }} were removed unread by group {{ $labels.group }}",
    ),
)
GROUPS_UNKNOWN = Condition("GroupsUnknown", WARNING, "groups", "appliance groups list")
INSECURE = Condition(
    *("InsecureListener", WARNING, "security", "use SASL_SSL, or SSL with tls.client_auth, or listen on loopback"),
    rule=Rule(
        "appliance_insecure_listeners > 0",
        "",
        "{{ $labels.instance }} is open to other hosts without TLS and authentication",
    ),
)
CERTIFICATE_EXPIRED = Condition(
    *("CertificateExpired", CRITICAL, "listeners-and-tls", RENEW),
    exit_status=NOT_NOW,
    rule=Rule(
        "appliance_certificate_expiry_timestamp_seconds < time()",
        "",
        "a certificate in {{ $labels.file }} of {{ $labels.instance }} has expired: clients cannot connect",
    ),
)
CERTIFICATE_EXPIRES = Condition(
    *("CertificateExpires", WARNING, "listeners-and-tls", RENEW),
    rule=Rule(
        f"0 < appliance_certificate_expiry_timestamp_seconds - time() < {EXPIRES_WITHIN_S}",
        "1h",
        "a certificate in {{ $labels.file }} of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
    ),
)
CERTIFICATE_UNUSABLE = Condition(
    *("CertificateUnusable", WARNING, "listeners-and-tls"),
    "mend the file; it is looked at again every two seconds, and new connections get the old certificate until then",
    rule=Rule(
        "appliance_certificates_unusable > 0",
        "5m",
        "{{ $labels.instance }} cannot use new files of tls.*: connections get the old certificate",
    ),
)
REQUEST_ERRORS = Condition(
    *("RequestErrors", WARNING, "look-at-it", f"{JOURNAL}; appliance health"),
    rule=Rule(
        "rate(appliance_request_errors_total[5m]) > 1",
        "10m",
        "{{ $value | humanize }} errors a second of {{ $labels.api }} on {{ $labels.listener }}",
    ),
)
SLOW_FLUSHES = Condition(
    *("SlowFlushes", WARNING, "durability", "iostat -x 1; the disk is shared, or fails"),
    rule=Rule(
        f"histogram_quantile(0.99, sum by (instance, le) (rate(appliance_flush_seconds_bucket[5m]))) > {SLOW_FLUSH_S}",
        "10m",
        "1 % of the flushes of {{ $labels.instance }} take more than {{ $value | humanizeDuration }}",
    ),
)
ARENA_NEARLY_FULL = Condition(
    *("ArenaFull", WARNING, "a-bad-day", "raise network.arena_bytes, or look for a client that floods: appliance top"),
    rule=Rule(
        f"appliance_arena_used_bytes / appliance_arena_bytes > {ARENA_FULL}",
        "5m",
        "worker {{ $labels.worker }} of {{ $labels.instance }} has hardly room for requests: producers wait",
    ),
)
OTHERS = Condition("Others", WARNING, "look-at-it", "appliance status shows all of them")
"""Stands for findings that are counted and not named."""

CONDITIONS: Final = (
    *(DOWN, NOT_SERVING, COORDINATOR_AWAY, PARTITION_OFFLINE, PARTITION_DAMAGED, PARTITION_OPENING),
    *(DISK_FULL, DISK_LOW, DISK_FILLS_UP, CLOCK_JUMPED, ZOOKEEPER_AWAY, LIMIT_REACHED, LIMIT_LOW, ACTION_REFUSED),
    *(PROCESS_HANGS, PROCESS_RESTARTED, PROCESS_WAITS, PROCESS_BUSY, CLIENTS_REFUSED, FLOOD),
    *(GROUP_LAGS, GROUP_LOST, GROUPS_UNKNOWN, INSECURE, CERTIFICATE_EXPIRED, CERTIFICATE_EXPIRES, CERTIFICATE_UNUSABLE),
    *(REQUEST_ERRORS, SLOW_FLUSHES, ARENA_NEARLY_FULL, OTHERS),
)

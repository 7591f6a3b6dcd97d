"""The table of all that can be wrong: what people notice, how it is seen, how bad it is, and what to do.

A condition is found in one of two ways, or in both: :mod:`.findings` looks at the appliance as it is now; Prometheus
looks at its metrics over some time (``rule``), under the name with "Appliance" before it.  From this table come
``doctor``, ``health``, ``status``, the console, ``/ready``, systemd's status line, ``alerts.yml``
(:mod:`.alert_rules`) and the table of systemd/README.md (:mod:`.bad_days`).  ``tests/behaviour/test_bad_day.py`` makes
each of them happen and lets the remedy mend it.

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
74            a partition is offline or has damaged ranges, because its files cannot be trusted; a small file is
              damaged; committed offsets are lost: a person has to look
============  ======================================================================================

A condition with an exit status is seen in one look, without groups: whoever asks gets the same.
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
"""Longer than LAG_S: whoever asks wants to see a lag that need not wake anybody."""
FREE_SHARE: Final = 0.05
FULL_WITHIN_S: Final = 24 * 3600
RESTARTED_WITHIN_S: Final = 600
DIES_AGAIN: Final = 3
"""So many deaths of a process within RESTARTED_WITHIN_S mean that restarts do not help."""
REFUSED_WITHIN_S: Final = 300
"""For how long a refusal to a client is reported."""
BUSY: Final = 0.9
"""The share of a core from which on a process is busy."""
SPINS: Final = 0.5
"""The share of a core that a process which serves no messages does not need."""
MEMORY_WAIT_S: Final = 1
"""Who waits for memory so long waits for more than one flush."""
SHM_FREE_MIN: Final = 1 << 20
"""Less room than this in /dev/shm counts as none: it is what a topic of 64 partitions takes."""
SLOW_FLUSH_S: Final = 1
EXPIRES_WITHIN_S: Final = 14 * 86_400
"""Programs that renew certificates do so earlier."""

ROOM: Final = (
    "`appliance doctor` names the log that makes enough room: `appliance topics trim NAME --before TIME`, and"
    " `appliance topics alter NAME --setting retention.bytes=SIZE --setting segment.bytes=SIZE` to keep less"
)
RENEW: Final = "put renewed files in the place of those of tls.*: they are taken within seconds, without a reload"
JOURNAL: Final = "journalctl -u appliance"
VERIFY: Final = (
    "`appliance log verify NAME` shows the damage, `appliance log repair NAME --dry-run` what can be kept,"
    " `appliance log repair NAME` mends it, also while it serves"
)


class AlertRule(NamedTuple):
    """A rule of Prometheus: the expression, for how long it has to hold ("" = at once), and the text of the alert."""

    expr: str
    wait: str
    summary: str


class Condition(NamedTuple):
    """One row of the table.

    ``page``: a part of systemd/README.md.  ``todo``: the remedy in general, for alerts and the page, with capitals for
    what a case has; a finding has that of its case.  ``stops_all``: nobody is served.  ``symptom``: what people notice.
    ``seen``: from what it is found.
    """

    name: str
    level: str
    page: str
    todo: str
    exit_status: int = 0
    stops_all: bool = False
    rule: AlertRule | None = None
    symptom: str = ""
    seen: str = ""


DOWN = Condition(
    *("Down", CRITICAL, "start-stop-reload"),
    f"`systemctl start appliance`; `{JOURNAL} -n 50` says why it ended",
    exit_status=NOT_NOW,
    stops_all=True,
    rule=AlertRule('up{job=~".*appliance.*"} == 0', "1m", "{{ $labels.instance }} does not answer"),
    symptom="clients cannot connect",
    seen="nobody holds the lock of the data directory; the last start has left there why it failed",
)
NOT_SERVING = Condition(
    *("NotServing", CRITICAL, "start-stop-reload"),
    f"wait: it opens its logs, or waits for ZooKeeper; `{JOURNAL} -n 50` says which",
    exit_status=NOT_NOW,
    stops_all=True,
    rule=AlertRule(
        'max by (instance) (appliance_state{state="serving"}) == 0',
        "2m",
        "{{ $labels.instance }} runs and does not serve",
    ),
    symptom="clients connect, or not, and get nothing",
    seen="the state that the supervisor writes; its workers",
)
COORDINATOR_AWAY = Condition(
    *("CoordinatorAway", WARNING, "faults"),
    f"wait for some seconds; `{JOURNAL} -g coordinator` says why",
    NOT_NOW,
    symptom="groups and changes of topics wait",
    seen="the processes that the supervisor knows",
)
FILE_DAMAGED = Condition(
    *("FileDamaged", CRITICAL, "damage-and-repair"),
    "restore the file from a backup, or `mv FILE FILE.damaged`: with ZooKeeper what was in it comes back",
    exit_status=UNTRUSTED,
    rule=AlertRule(
        "appliance_process_faults > 0",
        "",
        "{{ $labels.role }} of {{ $labels.instance }} cannot start: a file of the data directory is damaged",
    ),
    symptom="groups and changes of topics wait; nobody can log in after the next start",
    seen="what the coordinator says that cannot start; a start checks catalog.json, security.json, format.json",
)
PARTITIONS_FOREIGN = Condition(
    *("PartitionsForeign", WARNING, "several-appliances"),
    "set `broker.id` to what it was, or move the directories to the appliance that has this id",
    symptom="topics have fewer messages than before",
    seen="logs in the data directory that the catalog gives to another broker",
)
LEADERS_AWAY = Condition(
    *("LeadersAway", CRITICAL, "several-appliances"),
    "start the appliance with this broker.id on HOST; a host that is lost: a backup of it on another",
    exit_status=NOT_NOW,
    rule=AlertRule(
        "appliance_partitions_without_leader > 0",
        "1m",
        "{{ $value }} partitions have no leader: {{ $labels.instance }} does not see broker {{ $labels.broker }}",
    ),
    symptom="some topics, or parts of them, can be neither read nor written",
    seen="the brokers that are registered in ZooKeeper, and which of them topics need",
)
BROKER_ID_TAKEN = Condition(
    *("BrokerIdTaken", CRITICAL, "several-appliances"),
    "stop one of the two, or give it another broker.id and an empty directory",
    exit_status=NOT_NOW,
    rule=AlertRule(
        "appliance_broker_id_taken > 0", "1m", "another appliance has the broker.id of {{ $labels.instance }}"
    ),
    symptom="topics cannot be made, clients are sent to another appliance",
    seen="a registration of this broker.id that outlives the session of an earlier run",
)
OFFSETS_LOST = Condition(
    *("OffsetsLost", CRITICAL, "backup-and-moving"),
    "stop it, put `zookeeper/` of the last backup in the place of the present one, start it; without a backup"
    " `appliance groups reset GROUP --topic TOPIC --to TIME`, or `appliance groups delete GROUP` if nobody needs it",
    exit_status=UNTRUSTED,
    rule=AlertRule(
        "appliance_groups_without_offsets > 0",
        "",
        "ZooKeeper has lost the committed offsets of {{ $value }} groups, which {{ $labels.instance }} knew",
    ),
    symptom="groups read everything again, or skip what they have not read",
    seen="ZooKeeper has not the id of the cluster any more, and `groups.json` has groups that ZooKeeper has not",
)
PARTITION_OFFLINE = Condition(
    *("PartitionOffline", CRITICAL, "damage-and-repair", VERIFY),
    exit_status=UNTRUSTED,
    rule=AlertRule(
        'appliance_partitions{state="offline"} > 0',
        "",
        "{{ $value }} partitions of {{ $labels.instance }} are offline: their files cannot be trusted",
    ),
    symptom="a partition is gone after a crash",
    seen="what its opener or writer says of its files",
)
PARTITION_DAMAGED = Condition(
    *("PartitionDamaged", CRITICAL, "damage-and-repair", VERIFY),
    exit_status=UNTRUSTED,
    rule=AlertRule(
        "appliance_partition_damaged_bytes > 0",
        "",
        "{{ $value | humanize1024 }}B of {{ $labels.topic }}-{{ $labels.partition }} on {{ $labels.instance }}"
        " are damaged and not served",
    ),
    symptom="a consumer stands still at an offset",
    seen="what the scrubber has read",
)
PARTITION_OPENING = Condition(
    *("PartitionOpening", WARNING, "faults", "wait: its log is opened, after a crash it is recovered"),
    NOT_NOW,
    symptom="a partition is not there yet",
    seen="its table, and what the supervisor opens",
)
UNCOMPACTED = Condition(
    *("CompactionFails", WARNING, "disk", VERIFY),
    symptom="a compacted topic grows and grows",
    seen="the last pass over its log has failed; it is tried again at each `disk.check_ms`",
)
DISK_FULL = Condition(
    *("DiskFull", CRITICAL, "disk", ROOM),
    exit_status=NOT_NOW,
    rule=AlertRule(
        'appliance_partitions{state="disk full"} > 0',
        "",
        "{{ $labels.instance }} refuses to write to {{ $value }} partitions: the disk is full",
    ),
    symptom="producers wait: the disk is full",
    seen="what writers say, who look every second whether there is room again; the free bytes of this moment",
)
DISK_READ_ONLY = Condition(
    *("DiskReadOnly", CRITICAL, "disk"),
    "`dmesg -T | grep -iE 'remount|I/O error|EXT4-fs|XFS'` says why; then `mount -o remount,rw MOUNT`",
    exit_status=NOT_NOW,
    symptom="topics cannot be made, producers wait; what the appliance says of itself is old",
    seen="the flags of the file system of the logs: nothing that the supervisor has to say can be written there",
)
DISK_LOW = Condition(
    *("DiskLow", WARNING, "disk", ROOM),
    exit_status=NOT_NOW,
    rule=AlertRule(
        "appliance_disk_free_bytes < appliance_disk_free_warn_bytes",
        "",
        "{{ $labels.instance }} has less than disk.free_bytes_warn free",
    ),
    symptom="nothing yet: the disk has less free than disk.free_bytes_warn",
    seen="the free bytes of this moment",
)
DISK_FILLS_UP = Condition(
    *("DiskFillsUp", WARNING, "disk", ROOM),
    rule=AlertRule(
        f"appliance_disk_seconds_until_full < {FULL_WITHIN_S}",
        "15m",
        "{{ $labels.instance }} has room for {{ $value | humanizeDuration }} at the rate of the last day",
    ),
    symptom="nothing yet: the disk fills",
    seen="free bytes, and how fast the logs grow between two looks",
)
SHM_FULL = Condition(
    *("SharedMemoryFull", CRITICAL, "shared-memory"),
    "enlarge it (`mount -o remount,size=SIZE /dev/shm`), or lower network.arena_bytes or network.workers, or delete"
    " topics",
    exit_status=NOT_NOW,
    rule=AlertRule(
        f"appliance_shared_memory_free_bytes < {SHM_FREE_MIN}",
        "1m",
        "/dev/shm of {{ $labels.instance }} is full: no topic can be made",
    ),
    symptom="topics cannot be made",
    seen="the free bytes of its /dev/shm",
)
CLOCK_JUMPED = Condition(
    *(
        "ClockJumped",
        WARNING,
        "clock",
        "set it if `date -u` is wrong: `timedatectl set-ntp true`; if it is right: `appliance accept-clock`",
    ),
    exit_status=NOT_NOW,
    rule=AlertRule(
        "appliance_clock_jump_seconds != 0",
        "",
        "the clock of {{ $labels.instance }} has jumped by {{ $value | humanizeDuration }}: ages go on as before",
    ),
    symptom="nothing: ages go on as before the jump, so nothing is deleted by it",
    seen="the wall clock, compared with the clock of the machine and with the newest messages",
)
ZOOKEEPER_AWAY = Condition(
    *("ZooKeeperAway", CRITICAL, "faults"),
    f"wait: its nodes are started again; `{JOURNAL} -g ZooKeeper` says why they end",
    exit_status=NOT_NOW,
    rule=AlertRule(
        'appliance_zookeeper_state{state=~"connecting|suspended|lost"} == 1',
        "2m",
        "{{ $labels.instance }} has no ZooKeeper: groups and changes of topics wait",
    ),
    symptom="groups do not rebalance, topics cannot be made",
    seen="the session of the coordinator, and the processes of the local nodes",
)
LIMIT_REACHED = Condition(
    *("LimitReached", CRITICAL, "faults", "raise the limit that `appliance doctor` names, to what it names"),
    exit_status=NOT_NOW,
    rule=AlertRule(
        'appliance_limit_reached{limit!~"disk.*"} > 0',
        "1m",
        "{{ $labels.instance }} has reached a limit: {{ $labels.limit }}",
    ),
    symptom="connections, or changes, are refused",
    seen="what workers and the supervisor were refused, under the name of the limit",
)
LIMIT_LOW = Condition(
    *("LimitLow", WARNING, "faults", "raise the limit of the machine, or lower the key"),
    symptom="nothing yet: a limit of the machine is below what the configuration allows",
    seen="the limits that the supervisor was started with",
)
ACTION_REFUSED = Condition(
    *("ActionRefused", CRITICAL, "faults", "mend what the reason names; it is tried again by itself"),
    exit_status=NOT_NOW,
    rule=AlertRule("appliance_actions_refused > 0", "1m", "{{ $labels.instance }} cannot {{ $labels.action }}"),
    symptom="a part of the appliance does not come up",
    seen="the steps that the supervisor tries again",
)
PROCESS_HANGS = Condition(
    *("ProcessHangs", CRITICAL, "faults"),
    "`kill -CONT PID`, or `kill -9 PID`; it is killed and started again after liveness.timeout_ms",
    exit_status=NOT_NOW,
    rule=AlertRule(
        "increase(appliance_process_hangs_total[15m]) > 0",
        "",
        "processes of role {{ $labels.role }} on {{ $labels.instance }} hung and were killed",
    ),
    symptom="some clients stand still for seconds",
    seen="the states of its processes in /proc",
)
PROCESS_RESTARTED = Condition(
    *("ProcessRestarted", WARNING, "faults", f"`{JOURNAL} -g 'ended with status'` says why it ended"),
    symptom="connections broke, once",
    seen="the deaths of the last 10 minutes",
)
PROCESS_DIES = Condition(
    *("ProcessDies", CRITICAL, "faults", f"`{JOURNAL} -g 'ended with status'` says why it ends"),
    exit_status=NOT_NOW,
    rule=AlertRule(
        "increase(appliance_process_restarts_total[15m]) > 3",
        "",
        "processes of role {{ $labels.role }} on {{ $labels.instance }} end again and again",
    ),
    symptom="connections break again and again",
    seen=f"{DIES_AGAIN} deaths of a process or more in the last 10 minutes",
)
PROCESS_WAITS = Condition(
    *("ProcessWaitsForDisk", WARNING, "faults", "`iostat -x 1` (package sysstat): the disk is shared, or fails"),
    symptom="all that needs the disk is slow",
    seen="a process that is in state D in two looks",
)
PROCESS_BUSY = Condition(
    *("ProcessBusy", WARNING, "a-bad-day", "`appliance top` shows which topics, `appliance clients` who"),
    symptom="everything is slow",
    seen=f"a process that wants {BUSY:.0%} of a core between two looks, whether it gets it or not",
)
PROCESS_SPINS = Condition(
    *(
        "ProcessSpins",
        WARNING,
        "a-bad-day",
        "`kill -9 PID`: it is started again, and clients do not notice; then report it",
    ),
    rule=AlertRule(
        f'rate(appliance_process_cpu_seconds_total{{role=~"metrics|console"}}[5m]) > {SPINS}',
        "10m",
        "{{ $labels.role }} of {{ $labels.instance }} uses {{ $value | humanizePercentage }} of a core,"
        " and has nothing to do",
    ),
    symptom="the machine is warm, and nobody uses it",
    seen=f"console or metrics want {SPINS:.0%} of a core between two looks",
)
CLIENTS_REFUSED = Condition(
    *("ClientsRefused", WARNING, "security", f"`{JOURNAL} -g audit:` says who"),
    rule=AlertRule(
        "increase(appliance_client_refusals_total[5m]) > 100",
        "5m",
        "{{ $labels.instance }} refuses clients: {{ $labels.reason }}",
    ),
    symptom="a shipper cannot connect since the renewal",
    seen="what was refused in the last 5 minutes, by reason",
)
FLOOD = Condition(
    *("Flood", WARNING, "access-rules-and-quotas"),
    "`appliance clients ADDRESS` says who they are; `network.connections_per_address_max`, or `appliance quotas set"
    " --user NAME --in SIZE`, leaves others room",
    symptom="everything is slow, or clients find no place: one floods",
    seen="most connections are from one address, and others find no place; or it moves most, and workers are busy",
)
GROUP_LAGS = Condition(
    *("GroupLags", WARNING, "groups", "`appliance groups describe GROUP` says why; start consumers, or more of them"),
    rule=AlertRule(
        f"appliance_group_lag_seconds + on (instance) group_left () appliance_group_lag_age_seconds > {LAG_ALERT_S}"
        " and appliance_group_lag_messages > 0",
        "5m",
        "group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
    ),
    symptom="a report is late, a consumer lags",
    seen=f"committed offsets against the ends of the logs: {LAG_S} s; {LAG_MESSAGES:,} messages without a time",
)
TRANSACTION_LATE = Condition(
    *("TransactionLate", WARNING, "groups"),
    "see why its producer does not end it, or `appliance transactions abort ID`; one that ends waits for a partition",
    rule=AlertRule(
        "appliance_transactions_late > 0",
        "1m",
        "{{ $value }} transactions of {{ $labels.instance }} stay open: readers of committed messages wait",
    ),
    symptom="who reads with isolation.level=read_committed gets nothing new",
    seen="transactions that have been open for longer than transactions.open_ms_warn",
)
TRANSACTION_HANGS = Condition(
    *("TransactionHangs", WARNING, "groups"),
    "restore what ZooKeeper has lost, if there is a backup of it; else `appliance transactions abort-hanging TOPIC-N`",
    rule=AlertRule(
        "appliance_transactions_hanging > 0",
        "1m",
        "nobody will end a transaction in {{ $value }} partitions of {{ $labels.instance }}: readers of committed "
        "messages wait",
    ),
    symptom="who reads with isolation.level=read_committed gets nothing new, and no transaction is open",
    seen="a last stable offset that stands still, for a transaction that no coordinator knows of",
)
GROUPS_UNKNOWN = Condition(
    *("GroupsUnknown", WARNING, "groups", "`appliance groups list`, and this again when the machine is calm"),
    symptom="nobody knows how far groups are behind",
    seen="the coordinator does not say in time which groups there are",
)
GROUP_LOST = Condition(
    *(
        "GroupLost",
        WARNING,
        "groups",
        "keep more; it ends with `appliance groups reset GROUP --topic TOPIC --to earliest`",
    ),
    rule=AlertRule(
        "appliance_group_lost_bytes > 0",
        "",
        "{{ $value | humanize1024 }}B of {{ $labels.topic }} were removed unread by group {{ $labels.group }}",
    ),
    symptom="a group has gaps",
    seen="committed offsets before the log start, with the lag of `groups describe`",
)
INSECURE = Condition(
    *("InsecureListener", WARNING, "security", "use SASL_SSL, or SSL with tls.client_auth, or listen on loopback"),
    rule=AlertRule(
        "appliance_insecure_listeners > 0",
        "",
        "{{ $labels.instance }} is open to other hosts without TLS and authentication",
    ),
    symptom="nothing: everybody may do everything",
    seen="the listeners of the configuration",
)
WITHOUT_RULES = Condition(
    *("NoAccessRules", WARNING, "access-rules-and-quotas"),
    'set security.authorizer = "acl", restart, and `appliance acl add --principal User:NAME --operation Write --topic'
    " TOPIC` what each user may do",
    rule=AlertRule(
        "appliance_listeners_without_rules > 0",
        "",
        "whoever can log in to {{ $labels.instance }} may do everything",
    ),
    symptom="nothing: whoever has a password or a certificate may delete topics and change passwords",
    seen="the listeners of the configuration, and security.authorizer",
)
RELOAD_FAILED = Condition(
    *("ReloadFailed", WARNING, "start-stop-reload"),
    "mend the configuration, which keeps it from starting again, too; then `appliance reload`",
    symptom="nothing: what was changed in the configuration is not so, and a restart fails",
    seen="the error of the last reload",
)
CERTIFICATE_EXPIRED = Condition(
    *("CertificateExpired", CRITICAL, "listeners-and-tls", RENEW),
    exit_status=NOT_NOW,
    rule=AlertRule(
        "appliance_certificate_expiry_timestamp_seconds < time()",
        "",
        "a certificate in {{ $labels.file }} of {{ $labels.instance }} has expired: clients cannot connect",
    ),
    symptom="clients with TLS cannot connect",
    seen="the dates in the files of tls.*",
)
CERTIFICATE_EXPIRES = Condition(
    *("CertificateExpires", WARNING, "listeners-and-tls", RENEW),
    rule=AlertRule(
        f"0 < appliance_certificate_expiry_timestamp_seconds - time() < {EXPIRES_WITHIN_S}",
        "1h",
        "a certificate in {{ $labels.file }} of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
    ),
    symptom="nothing yet: a certificate expires within 14 days",
    seen="the dates in the files of tls.*",
)
CERTIFICATE_UNUSABLE = Condition(
    *("CertificateUnusable", WARNING, "listeners-and-tls"),
    "mend the file; it is looked at again every two seconds, and new connections get the old certificate until then",
    rule=AlertRule(
        "appliance_certificates_unusable > 0",
        "5m",
        "{{ $labels.instance }} cannot use new files of tls.*: connections get the old certificate",
    ),
    symptom="the renewed certificate is not used",
    seen="what the supervisor says of the new files",
)
CLOCK_FREE = Condition(
    *("ClockNotSynchronised", WARNING, "faults", "`timedatectl set-ntp true`, or install chrony"),
    symptom="nothing yet: timestamps and retention follow a clock that nobody keeps right",
    seen="adjtimex(2)",
)
REQUEST_ERRORS = Condition(
    *("RequestErrors", WARNING, "look-at-it", f"`{JOURNAL}`; `appliance health`"),
    rule=AlertRule(
        "rate(appliance_request_errors_total[5m]) > 1",
        "10m",
        "{{ $value | humanize }} errors a second of {{ $labels.api }} on {{ $labels.listener }}",
    ),
    symptom="clients get errors",
    seen="Prometheus: more than one error a second for 10 minutes",
)
SLOW_FLUSHES = Condition(
    *("SlowFlushes", WARNING, "durability", "`iostat -x 1` (package sysstat): the disk is shared, or fails"),
    rule=AlertRule(
        f"histogram_quantile(0.99, sum by (instance, le) (rate(appliance_flush_seconds_bucket[5m]))) > {SLOW_FLUSH_S}",
        "10m",
        "1 % of the flushes of {{ $labels.instance }} take more than {{ $value | humanizeDuration }}",
    ),
    symptom="producers with acks=all are slow",
    seen="Prometheus: the slowest of 100 flushes take more than a second for 10 minutes",
)
MEMORY_AWAITED = Condition(
    *("ClientsWaitForMemory", WARNING, "a-bad-day"),
    "see why a writer stands still, if one does; else `appliance config set network.arena_bytes TWICE --config FILE`"
    " and restart; or look who floods: `appliance clients ADDRESS` says who sends most",
    rule=AlertRule(
        f"appliance_memory_wait_seconds > {MEMORY_WAIT_S}",
        "5m",
        "clients of worker {{ $labels.worker }} of {{ $labels.instance }} wait for memory, one of them for"
        " {{ $value | humanizeDuration }}",
    ),
    symptom="producers wait",
    seen=f"what the workers count: a connection that waits for memory for more than {MEMORY_WAIT_S} s",
)
INPUT_WAITS = Condition(
    *("InputWaits", WARNING, "inputs", "mend what the reason names; it is tried again by itself"),
    rule=AlertRule("appliance_input_waits > 0", "5m", "input {{ $labels.input }} of {{ $labels.instance }} waits"),
    symptom="lines of a file, or of a sender, do not come",
    seen="what the inputs say that is in their way; addresses that the supervisor cannot bind",
)
PIPELINE_INCOMPLETE = Condition(
    *("PipelineIncomplete", WARNING, "groups"),
    "mend what the reason names: the file of a view, the webhook of an alert, the topic of dead letters; a pipeline"
    " that runs tries again by itself, else `appliance pipeline refresh CONFIG.toml` does; if nobody runs it any more:"
    " `appliance groups delete GROUP`",
    symptom="a table of a pipeline has no newer rows, or nobody is told of its alerts",
    seen="what a pipeline says, in the note of its committed offsets, that it could not do after a commit",
)
INPUT_REFUSALS_MIN: Final = 10
"""Refusals in 5 minutes that are a condition: a sender that is set up wrongly comes to it, one bad line does not."""
INPUT_REFUSES = Condition(
    *("InputRefuses", WARNING, "inputs", "mend the sender that is named; the input takes what others send"),
    rule=AlertRule(
        f"appliance_input_refused_lately >= {INPUT_REFUSALS_MIN}",
        "5m",
        "input {{ $labels.input }} of {{ $labels.instance }} refuses what is sent",
    ),
    symptom="lines of one sender do not come",
    seen=f"{INPUT_REFUSALS_MIN} or more lines, requests or connections that an input has refused in 5 minutes",
)
ALERTS_UNDELIVERED = Condition(
    *("AlertsUndelivered", WARNING, "alerts-without-prometheus"),
    "see that alerts.webhook can be reached from this host, or that alerts.sendmail sends mail; it is tried again by"
    f" itself, after 5 minutes at most; `{JOURNAL} -g alert` says what was not told",
    symptom="something was wrong for hours, and nobody was told",
    seen="what the process that tells of alerts has noted of the last try at each receiver",
)

CONDITIONS: Final = (
    *(DOWN, NOT_SERVING, COORDINATOR_AWAY, FILE_DAMAGED, OFFSETS_LOST, BROKER_ID_TAKEN, LEADERS_AWAY),
    *(PARTITIONS_FOREIGN, PARTITION_OFFLINE, PARTITION_DAMAGED, PARTITION_OPENING, UNCOMPACTED),
    *(DISK_FULL, DISK_READ_ONLY, DISK_LOW, DISK_FILLS_UP, SHM_FULL, CLOCK_JUMPED, ZOOKEEPER_AWAY),
    *(LIMIT_REACHED, LIMIT_LOW, ACTION_REFUSED),
    *(PROCESS_HANGS, PROCESS_DIES, PROCESS_RESTARTED, PROCESS_WAITS, PROCESS_BUSY, PROCESS_SPINS),
    *(CLIENTS_REFUSED, FLOOD, GROUP_LAGS, GROUP_LOST, GROUPS_UNKNOWN, TRANSACTION_LATE, TRANSACTION_HANGS),
    *(INPUT_WAITS, INPUT_REFUSES, PIPELINE_INCOMPLETE, RELOAD_FAILED, INSECURE, WITHOUT_RULES),
    *(CERTIFICATE_EXPIRED, CERTIFICATE_EXPIRES, CERTIFICATE_UNUSABLE, CLOCK_FREE, ALERTS_UNDELIVERED),
    *(REQUEST_ERRORS, SLOW_FLUSHES, MEMORY_AWAITED),
)

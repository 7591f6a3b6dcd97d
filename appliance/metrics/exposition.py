"""Turns a reading into the metrics of Prometheus.

Names follow Prometheus' conventions: base units (seconds, bytes), ``_total`` for what only grows.  Labels have few
values: kinds of listeners, Kafka's APIs, states; topics, of which TOPICS_MAX are shown (the first by name), the others
together as OTHERS; damaged partitions (DAMAGED_MAX); groups (:mod:`.lag_watch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ..health.host import DiskRoom, Host
from ..partition_states import DAMAGED, STATE_NAMES
from ..retention import REASONS
from ..shared.counters import BOUNDS_S, RequestCounts
from .lag_watch import Lags
from .readings import Readings, TopicReading

TOPICS_MAX: Final = 300
DAMAGED_MAX: Final = 100
"""Damaged partitions that are shown each; the damage of the others is added up as OTHERS."""
OTHERS: Final = "(others)"
"""No topic can be called that."""
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
STATES: Final = ("starting", "serving", "stopping")
TRANSACTIONS: Final = {
    "ids": "Transactional ids that are known.",
    "open": "Transactions that are open, or end at the moment.",
    "late": "Transactions that have been open for longer than transactions.open_ms_warn.",
    "hanging": "Partitions with a transaction that is open and that nobody will end.",
}
INPUT_COUNTERS: Final = {
    "lines": "Lines that were read and are flushed",
    "bytes": "Bytes that were read and are flushed",
    "messages": "Messages that were flushed",
    "refused": "Lines that were refused",
    "gaps": "Losses before anything could be read",
}
ZOOKEEPER_STATES: Final = ("off", "connecting", "connected", "suspended", "lost")

Samples = Iterable[tuple[Sequence[str], float]]


class Watched(NamedTuple):
    """What a reading does not have: lag with its age, the forecast of the disk, ages of beats by role, the machine."""

    lags: Lags | None = None
    lag_age_s: float = 0.0
    until_full_s: float | None = None
    heartbeat_s: Mapping[str, float] = {}
    host: Host | None = None


class ReadingCollector(Collector):
    """One reading as metrics."""

    def __init__(self, readings: Readings, watched: Watched) -> None:
        self._readings, self._watched = readings, watched

    def collect(self) -> Iterator[Metric]:
        yield from self._appliance()
        yield from self._requests()
        yield from self._topics()
        yield from self._workers()
        yield from self._lag()
        yield from self._disk()

    # ---- parts

    def _appliance(self) -> Iterator[Metric]:
        state = self._readings.state or {}
        yield _gauge("build_info", "Always 1; the version is a label.", ["version"], [([str(state.get("version"))], 1)])
        yield _gauge("start_time_seconds", "When it was started, since 1970.", [], [([], state.get("started") or 0)])
        now = state.get("state", "stopped")
        yield _gauge("state", "1 for the present state.", ["state"], [([name], name == now) for name in STATES])
        zookeeper = str(state.get("zookeeper", {}).get("state", "off"))
        rows = [([name], name == zookeeper) for name in sorted({*ZOOKEEPER_STATES, zookeeper})]
        yield _gauge("zookeeper_state", "1 for the present state of the session.", ["state"], rows)
        processes: dict[str, int] = {}
        for row in state.get("processes", ()):
            processes[row["role"]] = processes.get(row["role"], 0) + 1
        yield _gauge("processes", "Processes that run.", ["role"], _by(processes))
        about = "Processes that ended by themselves and were replaced."
        yield _counter(
            "process_restarts", about, ["role"], _by(dict.fromkeys(processes, 0) | state.get("restarts", {}))
        )
        about = "Processes that were killed because their heartbeat stopped (liveness.timeout_ms)."
        yield _counter("process_hangs", about, ["role"], _by(dict.fromkeys(processes, 0) | state.get("hangs", {})))
        about = "Time since the last beat of a process; the longest of a role."
        yield _gauge("process_heartbeat_age_seconds", about, ["role"], _by(self._watched.heartbeat_s))
        yield from self._processor_time(state.get("processes", ()))
        about = "1 for each limit of machine or configuration that is reached now."
        names = sorted({row["limit"] for row in state.get("limits", ())})  # several processes may have reached one
        yield _gauge("limit_reached", about, ["limit"], [([name], 1) for name in names])
        yield from self._inputs(state.get("inputs", {}))
        yield from self._cluster(state)
        about = "Steps that the machine refuses now."
        rows = [([row["action"]], row["waiting"]) for row in state.get("refused", ())]
        yield _gauge("actions_refused", about, ["action"], rows)
        about = "What was refused to clients: logins, rights, quotas, TLS."
        yield _counter("client_refusals", about, ["reason"], _by(state.get("refusals", {})))
        about = (
            "Bytes of logs that retention has removed: too old, beyond retention.bytes, or to make room on the disk."
        )
        removed = dict.fromkeys(REASONS, 0) | state.get("retention", {})
        yield _counter("retention_removed_bytes", about, ["reason"], _by(removed))
        about = "The wall clock minus the time by which ages are judged, while a jump is not believed; else 0."
        rows = [([], ((state.get("clock") or {}).get("jump_ms", 0)) / 1000)]
        yield _gauge("clock_jump_seconds", about, [], rows)
        transactions = state.get("transactions", {})
        for key, about in TRANSACTIONS.items():
            yield _gauge(f"transactions_{key}", about, [], [([], transactions.get(key, 0))])
        about = "Listeners that other hosts reach without TLS and authentication."
        yield _gauge("insecure_listeners", about, [], [([], len(state.get("insecure", ())))])
        about = "Listeners that other hosts reach with a login or a certificate, where no access rules hold."
        yield _gauge("listeners_without_rules", about, [], [([], len(state.get("without_rules", ())))])

        tls = state.get("tls") or {"error": "", "files": []}
        about = "When the first certificate of a file of tls.* expires, since 1970."
        rows = [([row["file"]], row["expires"]) for row in tls["files"]]
        yield _gauge("certificate_expiry_timestamp_seconds", about, ["file"], rows)
        about = "1 while newer files of tls.* cannot be used."
        yield _gauge("certificates_unusable", about, [], [([], bool(tls["error"]))])

    def _inputs(self, inputs: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
        yield _gauge("input_up", "1 while the process of an input runs.", ["input"],
                     [([name], row["state"] == "running") for name, row in inputs.items()])  # fmt: skip
        yield _gauge("input_waits", "1 while an input waits, or cannot read a source.", ["input"],
                     [([name], bool(row["trouble"])) for name, row in inputs.items()])  # fmt: skip
        yield _gauge("input_refuses", "1 for 5 minutes after an input has refused a sender.", ["input"],
                     [([name], bool(row["refusing"])) for name, row in inputs.items()])  # fmt: skip
        about = "Lines, requests and connections that an input has refused in the last 5 minutes."
        yield _gauge("input_refused_lately", about, ["input"],
                     [([name], row["refused_lately"]) for name, row in inputs.items()])  # fmt: skip
        yield _gauge("input_sources", "Files, or senders, of an input.", ["input"],
                     [([name], row["sources"]) for name, row in inputs.items()])  # fmt: skip
        for key, about in INPUT_COUNTERS.items():
            rows = [([name], row[key]) for name, row in inputs.items()]
            yield _counter(f"input_{key}", f"{about}, since the process of the input began.", ["input"], rows)

    def _cluster(self, state: Mapping[str, Any]) -> Iterator[Metric]:
        cluster = state.get("cluster", {})
        about = "Partitions whose broker is away, by broker."
        rows = [([str(row["broker"])], row["partitions"]) for row in cluster.get("leaderless", ())]
        yield _gauge("partitions_without_leader", about, ["broker"], rows)
        about = "1 while another appliance has the same broker.id."
        yield _gauge("broker_id_taken", about, [], [([], cluster.get("rival") is not None)])
        about = "Groups whose committed offsets ZooKeeper has lost."
        lost = cluster.get("offsets_lost") or {"count": 0}
        yield _gauge("groups_without_offsets", about, [], [([], lost["count"])])
        about = "1 for each role that cannot start because a file is damaged."
        yield _gauge("process_faults", about, ["role"], [([row["role"]], 1) for row in state.get("faults", ())])

    def _processor_time(self, processes: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
        host, spent = self._watched.host, dict[str, float]()
        for row in processes if host is not None else ():
            if (process := host.processes.get(row["pid"])) is not None:  # type: ignore[union-attr]
                spent[row["role"]] = spent.get(row["role"], 0.0) + process.cpu_s
        about = "Processor time of the processes that run, by role; it falls when one ends."
        yield _counter("process_cpu_seconds", about, ["role"], _by(spent))

    def _requests(self) -> Iterator[Metric]:
        rows = sorted(self._readings.requests.items())
        labels = ["listener", "api"]
        yield _counter("requests", "Requests that were answered.", labels, [(key, row.requests) for key, row in rows])
        about = "Errors in answers; a request with several partitions may have several."
        yield _counter("request_errors", about, labels, [(key, row.errors) for key, row in rows])
        about = "From the arrival of a request to its answer, with the wait of a fetch for messages."
        yield _histogram("request_seconds", about, labels, [(key, row) for key, row in rows if any(row.buckets)])
        traffic = [(name, sizes) for name, sizes in self._readings.traffic.items() if any(sizes)]
        about = "Bytes received from clients."
        yield _counter("listener_received_bytes", about, ["listener"], [([name], got) for name, (got, _) in traffic])
        yield _counter(
            "listener_sent_bytes", "Bytes sent to clients.", ["listener"], [([n], out) for n, (_, out) in traffic]
        )
        yield _histogram("flush_seconds", "Times of fdatasync of a log.", [], [([], self._readings.flushes)])

    def _topics(self) -> Iterator[Metric]:
        topics = _bounded(self._readings.topics)
        for name, about in _TOPIC_COUNTERS.items():
            rows = [([topic], getattr(row, name)) for topic, row in topics]
            yield _counter(f"topic_{name}", about, ["topic"], rows)
        for name, about in _TOPIC_GAUGES.items():
            yield _gauge(f"topic_{name}", about, ["topic"], [([topic], getattr(row, name)) for topic, row in topics])
        states: dict[str, int] = dict.fromkeys(STATE_NAMES, 0)
        for _, row in topics:
            for state, count in row.states.items():
                states[state] += count
        offline = (self._readings.state or {}).get("offline", {})  # some of them have no table
        states["offline"] = max(states["offline"], len(offline))
        damaged = (self._readings.state or {}).get("damaged", {})
        states[DAMAGED] = len(damaged)
        about = "Partitions by state; the damaged ones are among the others, too."
        yield _gauge("partitions", about, ["state"], _by(states))
        labels, rows = ["topic", "partition"], _damage(damaged)
        about = "Ranges of offsets that are not served, because their bytes in the log are damaged."
        yield _gauge("partition_damaged_ranges", about, labels, [(name, ranges) for name, (ranges, _) in rows])
        about = "Bytes of the damaged ranges."
        yield _gauge("partition_damaged_bytes", about, labels, [(name, size) for name, (_, size) in rows])

    def _workers(self) -> Iterator[Metric]:
        gauges = self._readings.gauges.items()
        rows = [
            ([worker, state], row[name])
            for worker, row in gauges
            for state, name in (("open", "connections"), *((name, name) for name in _CONNECTION_STATES))
        ]
        about = (
            "open: served by the worker; of these, muted wait for quotas, and starved, parked and stalled for memory;"
            " handed_over: served by writers."
        )
        yield _gauge("connections", about, ["worker", "state"], rows)
        for name, about in _WORKER_GAUGES.items():
            yield _gauge(name, about, ["worker"], [([worker], row[name]) for worker, row in gauges])
        waits: Samples = [([worker], row["memory_wait_ms"] / 1000) for worker, row in gauges]
        about = "For how long the connection that waits longest for memory has; 0: none waits."
        yield _gauge("memory_wait_seconds", about, ["worker"], waits)
        about = "Connections refused for lack of room."
        yield _counter("connections_refused", about, ["worker"], [([worker], row["refused"]) for worker, row in gauges])

    def _lag(self) -> Iterator[Metric]:
        rows = sorted(self._watched.lags.by_group.items()) if self._watched.lags else []
        for name, about in _LAG_GAUGES.items():
            yield _gauge(
                f"group_lag_{name}", about, ["group", "topic"], [(key, getattr(lag, name)) for key, lag in rows]
            )
        about = "Bytes that were removed before the group has read them, until it commits an offset beyond."
        yield _gauge("group_lost_bytes", about, ["group", "topic"], [(key, lag.lost_bytes) for key, lag in rows])
        about = "Time since lag was last measured."
        yield _gauge("group_lag_age_seconds", about, [], [([], self._watched.lag_age_s)] if self._watched.lags else [])
        about = "Groups whose lag is not measured, because there are too many."
        yield _gauge("groups_left_out", about, [], [([], self._watched.lags.left_out)] if self._watched.lags else [])

    def _disk(self) -> Iterator[Metric]:
        room = self._readings.room
        yield _gauge("disk_size_bytes", "The file system of the data directory.", [], [([], room.size)])
        yield _gauge("disk_free_bytes", "Bytes free for the appliance.", [], [([], room.free)])
        yield _gauge("disk_log_bytes", "Bytes of all logs.", [], [([], room.logs)])
        about = "Bytes of deleted topics that can be brought back; they make room when some is wanted."
        yield _gauge("disk_trash_bytes", about, [], [([], room.trash)])
        topics = (self._readings.state or {}).get("trash", {}).get("topics", 0)
        yield _gauge("trash_topics", "Deleted topics that can be brought back.", [], [([], topics)])
        yield _gauge("disk_log_max_bytes", "disk.bytes_max; absent when 0.", [], [([], room.cap)] if room.cap else [])
        yield _gauge("disk_reserve_bytes", "disk.free_bytes_min.", [], [([], room.reserve)])
        warn = (self._readings.state or {}).get("disk", {}).get("free_bytes_warn", 0)
        yield _gauge("disk_free_warn_bytes", "disk.free_bytes_warn.", [], [([], warn)])
        shm = self._watched.host.shm if self._watched.host is not None else DiskRoom()
        free: Samples = [([], shm.free)] if shm.size else []
        yield _gauge("shared_memory_free_bytes", "Bytes free in its /dev/shm.", [], free)
        about = "How long the room lasts at the rate of the last 24 hours, until old segments go early; or +Inf."
        rows: Samples = [] if self._watched.until_full_s is None else [([], self._watched.until_full_s)]
        yield _gauge("disk_seconds_until_full", about, [], rows)


_TOPIC_COUNTERS: Final = {
    "received_bytes": "Bytes of record batches that were appended.",
    "messages": "Messages that consumers can read, or could before retention, since the log began.",
    "batches": "Record batches that were appended.",
    "produce_requests": "Parts of produce requests for the topic.",
    "refused": "Record batches that were refused.",
    "duplicates": "Record batches that were sent again and are there already.",
    "fetched_bytes": "Bytes of record batches sent to consumers.",
    "fetches": "Parts of fetches for the topic that were answered with data.",
}
_TOPIC_GAUGES: Final = {
    "partitions": "Partitions on this appliance.",
    "log_bytes": "Bytes of the logs on the disk.",
    "unflushed_bytes": "Bytes that consumers cannot read yet, since they are not flushed.",
}
_CONNECTION_STATES: Final = ("handed_over", "handshakes", "muted", "starved", "parked", "stalled")
_WORKER_GAUGES: Final = {
    "fetches_waiting": "Fetches that wait for messages, at each of their partitions.",
    "appends_waiting": "Partitions with produce requests that wait for a writer.",
    "arena_used_bytes": "Memory for received bytes that is taken; that of unfinished requests can be had back.",
    "in_hand_bytes": "Memory for received bytes that writers have not answered for.",
    "arena_bytes": "Memory for received bytes.",
    "private_bytes": "Memory for unfinished requests beside the arena.",
    "reserved_bytes": "Memory beside the arena that unfinished requests have, or may take.",
    "wanted_bytes": "What the connections that wait for memory need.",
}
_LAG_GAUGES: Final = {
    "messages": "Messages behind the end, of all partitions here.",
    "bytes": "Bytes behind the end, of all partitions here.",
    "seconds": "Age of the oldest message that the group has not read.",
}


class Exposition:
    """Writes snapshots as text, one after the other.

    A family whose samples are those of the snapshot before keeps its text: most of the time of a scrape is the writing
    of numbers, and most of the numbers of a thousand partitions stand still.
    """

    def __init__(self) -> None:
        self._written: dict[str, tuple[list[Sample], bytes]] = {}

    def write(self, snapshot: ReadingCollector) -> bytes:
        """The text of /metrics."""
        return b"".join(self._family(metric) for metric in snapshot.collect())

    def _family(self, metric: Metric) -> bytes:
        before = self._written.get(metric.name)
        if before is not None and before[0] == metric.samples:
            return before[1]
        text = generate_latest(_Family(metric))
        self._written[metric.name] = metric.samples, text
        return text


class _Family(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _bounded(topics: dict[str, TopicReading]) -> list[tuple[str, TopicReading]]:
    rows = list(topics.items())
    if len(rows) <= TOPICS_MAX:
        return rows
    rest = [row for _, row in rows[TOPICS_MAX:]]
    states: dict[str, int] = {}
    for row in rest:
        for state, count in row.states.items():
            states[state] = states.get(state, 0) + count
    numbers = {name: sum(getattr(row, name) for row in rest) for name in TopicReading._fields if name != "states"}
    return [*rows[:TOPICS_MAX], (OTHERS, TopicReading(states=states, **numbers))]


def _damage(damaged: Mapping[str, Sequence[Sequence[Any]]]) -> list[tuple[list[str], tuple[int, int]]]:
    """Ranges and bytes of each damaged partition: ([topic, partition], (ranges, bytes)), bounded."""
    sums = [(name, len(ranges), sum(stop - start for start, stop, *_ in ranges)) for name, ranges in damaged.items()]
    sums.sort()
    rows = [([*name.rpartition("-")[::2]], (count, size)) for name, count, size in sums[:DAMAGED_MAX]]
    if rest := sums[DAMAGED_MAX:]:
        rows.append(([OTHERS, ""], (sum(count for _, count, _ in rest), sum(size for *_, size in rest))))
    return rows


def _by(counts: Mapping[str, float]) -> Samples:
    return [([name], count) for name, count in sorted(counts.items())]


def _gauge(name: str, about: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(f"appliance_{name}", about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, about: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(f"appliance_{name}", about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str, about: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], RequestCounts]]
) -> Metric:
    family = HistogramMetricFamily(f"appliance_{name}", about, labels=labels)
    for values, row in rows:
        count, buckets = 0, []
        for bound, number in zip((*map(repr, BOUNDS_S), "+Inf"), row.buckets, strict=True):
            count += number
            buckets.append((bound, count))
        family.add_metric(values, buckets, row.sum_ns / 1e9)
    return family

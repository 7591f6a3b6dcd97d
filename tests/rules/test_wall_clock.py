"""Every reading of the wall clock, or of a time that it has stamped: what it decides, and what a jump does.

A use that is not listed fails, and so does a row without a use.  What deletes something by age is judged by
``processes/coordinator/trusted_clock.py``, whose tests let the clock jump.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .test_tidy import sources, tree

STAMPS = {
    "wall_ms", "wall_s", "file_clock_ns", "CLOCK_REALTIME", "st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns",
    "modified_ms",
}  # fmt: skip
READINGS = {
    ("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("time", "gmtime"), ("time", "ctime"),
    ("time", "strftime"), ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("date", "today"),
}  # fmt: skip

SHOWN = "shown to people; a jump shows another time"
JUDGED = "part of the trusted time: a jump is what it is there for"
STAMPED = "becomes the timestamp of messages or files; a jump gives what is written then another one"
USES = {
    ("bench/connection_crowd.py", "produce_request"): STAMPED,
    ("cli/data_commands.py", "consume"): "`--from -2d`: where reading begins; the next call begins elsewhere",
    ("cli/demo/sandbox.py", "clear_abandoned"): "demos older than some seconds whose lock nobody holds are removed;"
    " a jump ahead takes one that is being made in this moment",
    ("cli/diagnosis/machine_checks.py", "_certificates"): SHOWN,
    ("cli/diagnosis/machine_checks.py", "_clock"): SHOWN,
    ("cli/event_log.py", "_moment"): SHOWN,
    ("cli/groups_commands.py", "reset"): "`--to -2d`: shown before it is asked, and can be moved back",
    ("cli/pipeline_view_commands.py", "moment_us"): "`--since -2d`: from where windows are computed again",
    ("cli/inputs_commands.py", "_timestamp"): "`--since -2d`, `--until -1d`: where reading begins and ends",
    ("console/input_ledgers.py", "_read"): "the last hour of the ledger: where reading begins",
    ("cli/messages/tail_command.py", "tail"): "`--since -2d`: where reading begins",
    ("cli/service_commands.py", "_print_status"): SHOWN,
    ("cli/starting.py", "start"): SHOWN,
    ("cli/subject.py", "CommandSubject.seen"): SHOWN,
    ("cli/subject.py", "CommandSubject.status"): SHOWN,
    ("cli/topics_commands.py", "trim"): "`--before -2d`: a person names it, and sees the offsets and sizes that go",
    ("client/audit.py", "Audit.__init__"): STAMPED,
    ("client/group.py", "GroupConsumer.__init__"): "part of a member's name, which is random besides",
    ("client/producer.py", "Producer.__init__"): STAMPED,
    ("console/console_process.py", "make_console"): SHOWN,
    ("console/history.py", "Recorder.__init__"): SHOWN,
    ("console/observer.py", "Poller.__init__"): SHOWN,
    ("console/topic_rows.py", "TopicRows._load"): "compared for being equal: has the file changed?",
    ("console/visitors.py", "Visitors._refresh"): "compared for being equal: has the file changed?",
    ("data_directory/backup.py", "_Copy._copy"): "a copy keeps the time of its file",
    ("inputs/generation.py", "FileState.of"): "compared for being equal: has the file changed?",
    ("inputs/rotated_files.py", "RotatedFiles.files_to_read"): "which rotated files are younger than the scans before:"
    " a jump between two scans changes nothing, one back while nothing runs leaves out those that no `include` matches",
    ("inputs/files.py", "FilesInput.__init__"): "as files_to_read",
    ("inputs/files.py", "files_input"): "as files_to_read",
    ("inputs/rotation.py", "Looks.begin"): "as files_to_read",
    ("inputs/rotation.py", "Patterns.rotated"): "as files_to_read",
    ("inputs/packed.py", "Packed.looked"): "compared for being equal: has the file changed?",
    ("inputs/packed.py", "Packed.is_ripe"): "as files_to_read; after PACKED_WAIT_MS of another clock whatever it says",
    ("inputs/packed.py", "PackedFiles.look_again"): "compared for being equal: has the file changed?",
    ("inputs/packed.py", "PackedFiles._is_unjudged"): "compared for being equal: has the file changed?",
    ("inputs/rotation.py", "Directories._by_stem"): "compared for being equal: has the directory changed?",
    ("inputs/http.py", "_Access._signature"): "compared for being equal: has the file changed?",
    ("inputs/syslog.py", "_SyslogInput.__init__"): "the year of RFC 3164's times, which have none",
    ("inputs/ledger.py", "Ledger.minute"): "the minute of a row of the ledger; a jump gives rows another one",
    ("log/compaction.py", "LogCompactor.compact_segment"): "a compacted segment keeps the time of the one before it",
    ("log/reader.py", "SegmentFile.__init__"): "compared for being equal: is it another file?",
    ("metrics/lag_watch.py", "LagWatch.measure"): "lag in seconds: wrong by the jump until it is over",
    ("metrics/looks.py", "_stopped"): SHOWN,
    ("console/value_decoding.py", "_decoder"): "compared for being equal: has the file changed?",
    ("metrics/metrics_server.py", "Pages._look"): "compared for being equal: has the file changed?",
    ("metrics/readings.py", "Reader.read"): "for rates between two readings; one is wrong after a jump",
    ("clock.py", "wall_ms"): "the clock itself",
    ("clock.py", "wall_s"): "the clock itself",
    ("processes/coordinator/compaction_enforcer.py", "measure"): "which segments are young: trusted time",
    ("processes/coordinator/coordinator.py", "Coordinator.__init__"): "since when another broker has this id, and when"
    " offsets were lost: shown",
    ("processes/coordinator/coordinator.py", "Coordinator._compose_apis"): "lag in seconds, as above",
    ("processes/coordinator/expiry.py", "Expiry._check"): "offsets of groups expire: by the trusted time",
    ("processes/coordinator/retention_enforcer.py", "RetentionEnforcer._note_growth"): "segments age: trusted time",
    ("processes/coordinator/retention_enforcer.py", "RetentionEnforcer.run"): "what a jump keeps: shown",
    ("processes/coordinator/retention_enforcer.py", "_segments"): "segments grow old: corrected by _note_growth",
    ("processes/coordinator/trusted_clock.py", "Now"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "TrustedClock._take"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "TrustedClock.now_ms"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "TrustedClock.report"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "TrustedClock.wall_ms"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "TrustedClock.written_ms"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "_expected"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "believe"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "first_look"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "look_again"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "newest_log_ms"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "read_clocks"): JUDGED,
    ("processes/coordinator/trusted_clock.py", "written_ms"): JUDGED,
    ("cli/groups_commands.py", "_standing"): SHOWN,
    ("processes/coordinator/registered_groups.py", "RegisteredGroups.committed_ms"): SHOWN,
    ("zookeeper/group_registry.py", "GroupRegistry.owners"): SHOWN,
    ("processes/coordinator/group_standing.py", "GroupStanding.__init__"): SHOWN,
    ("processes/supervisor/actions.py", "Action.refuse"): SHOWN,
    ("processes/supervisor/children.py", "Children.note_lack"): SHOWN,
    ("processes/supervisor/children.py", "Restarts.__init__"): "which deaths are recent: shown",
    ("processes/supervisor/fork.py", "Child.__init__"): SHOWN,
    ("processes/supervisor/inspection.py", "_mark"): "compared for being equal: has the file changed?",
    ("processes/supervisor/nodes.py", "Nodes._start_node"): SHOWN,
    ("processes/supervisor/opening.py", "open_partition"): "the age of the active segment: it is rolled early or late",
    ("processes/supervisor/outages.py", "_repair"): "the age of an empty segment: it is rolled early or late",
    ("processes/supervisor/scrubber.py", "Scrubber._due_s"): "when all logs are read again: at once after a jump ahead,"
    " after one interval at most after one back",
    ("processes/supervisor/scrubber.py", "Scrubber._round"): "as _due_s",
    ("processes/supervisor/status_report.py", "RefusalCounts.__init__"): "which refusals are recent: shown",
    ("processes/supervisor/status_report.py", "StatusReport.__init__"): SHOWN,
    ("processes/supervisor/status_report.py", "StatusReport.write"): SHOWN,
    ("cli/diagnosis/report_command.py", "report"): SHOWN,
    ("processes/supervisor/compactions.py", "Compactions.on_done"): SHOWN,
    ("metrics/alerting.py", "Alerting._look"): SHOWN,
    ("console/visitors.py", "Visitors.__init__"): "whether a user has expired: a person sets the time",
    ("cli/users_commands.py", "expire"): "`--after 90d`: from now on, shown before anything depends on it",
    ("processes/coordinator/security_native_api.py", "SecurityNativeApi.list_users"): SHOWN,
    ("processes/network/revocations.py", "Revocations.__init__"): "whether a user has expired",
    ("processes/network/worker.py", "NetworkWorker.__init__"): "whether a user has expired",
    ("security/bearer_tokens.py", "BearerTokens.__init__"): "which tokens are good, as their provider's clock says",
    ("processes/network/logins.py", "Logins.__init__"): "which tokens are good, as their provider's clock says",
    ("processes/network/logins.py", "Logins._log_in"): "how long a session lasts, on a steady clock",
    ("metrics/alerting.py", "AlertDelivery.__init__"): "how old an alert is: after a jump one that waits is given up",
    ("cli/offsets_command.py", "offsets"): "what an age and a time of today mean to whoever asks",
    ("cli/diagnosis/report_parts.py", "_sizes"): SHOWN,
    ("processes/supervisor/workers.py", "Workers._write_clients"): SHOWN,
    ("processes/supervisor/workers.py", "Workers.on_limits"): SHOWN,
    ("processes/supervisor/writers.py", "Writers._note_full"): SHOWN,
    ("processes/tls_files.py", "_signature"): "compared for being equal: has the file changed?",
    ("processes/writer/writer.py", "Appender.admit_batches"): STAMPED,
    ("processes/writer/writer.py", "open_log"): "the age of the active segment at its opening; then a steady clock",
    ("retention.py", "SegmentUse"): "given by the enforcer: trusted time",
    ("retention.py", "_aged"): "given by the enforcer: trusted time",
    ("retention.py", "_make_room"): "which segment is oldest; room has to be made in any case",
    ("spark/pipeline/compaction.py", "DeltaEvents.vacuum"): "keeps files that letters need for ten days more, or less",
    ("spark/pipeline/pipeline_status.py", "status"): "tells of letters as late that are on their way, or later of them",
    ("spark/pipeline/compaction.py", "Compactor.__init__"): "no vacuum soon after a jump",
    ("spark/pipeline/compaction.py", "Compactor._jumped"): "no vacuum soon after a jump",
    ("spark/pipeline/compaction.py", "compact"): "small files are put together early or late; no row is lost",
    ("spark/pipeline/compaction.py", "DeltaEvents.swap"): STAMPED,
    ("spark/pipeline/delta_store.py", "DeltaStore.commit"): STAMPED,
    ("spark/pipeline/iceberg_table.py", "IcebergTable._expire"): "which snapshots before the latest are kept: they are"
    " lists of files only",
    ("spark/pipeline/pipeline_status.py", "summary"): SHOWN,
    ("spark/pipeline/report.py", "write"): SHOWN,
    ("spark/pipeline/reparse.py", "_Reparsing._exchanged"): STAMPED,
    ("spark/pipeline/view_refresh.py", "Refresher._tell"): "nobody is told of windows that ended long ago:"
    " a jump ahead leaves out some, one back tells of older ones",
    ("spark/pipeline/run.py", "_Run.follow"): "how long a run took: shown",
    ("spark/sink.py", "TaskWriter.__init__"): STAMPED,
    ("spark/sink.py", "TaskWriter.write"): STAMPED,
    ("zookeeper/cluster_identity.py", "drop_marks"): "marks of deleted topics go after 90 days of the trusted time; a"
    " broker that was away for longer brings its topics back",
    ("zookeeper/operations.py", "Node"): "what ZooKeeper says; its users are listed",
}  # fmt: skip
"""(module, function) -> what the reading decides, and what a jump of the clock by days does."""


def uses(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions below a node that read the wall clock or a time stamped by it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = (*inside, node.name)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    if name in STAMPS or (of, name) in READINGS:
        yield ".".join(inside)
    for child in ast.iter_child_nodes(node):
        yield from uses(child, inside)


def found() -> set[tuple[str, str]]:
    words = STAMPS | {name for _, name in READINGS}
    texts = [(module, text) for module, text in sources() if any(word in text for word in words)]
    return {(module, function) for module, text in texts for function in uses(tree(text))}


def test_every_use_of_the_wall_clock_is_listed_with_what_a_jump_does() -> None:
    here = found()
    assert here - USES.keys() == set(), "say what a jump by ten days does there, or take a clock that cannot jump"
    assert USES.keys() - here == set(), "no use any more"


@pytest.mark.parametrize(
    "text",
    [
        "time.time()",
        "datetime.now(UTC)",
        "path.stat().st_mtime",
        "clock or wall_ms",
        "clock_gettime(time.CLOCK_REALTIME)",
    ],
)
def test_the_search_finds_each_kind_of_reading(text: str) -> None:
    assert list(uses(ast.parse(f"class A:\n def f(self): return {text}"))) == ["A.f"]

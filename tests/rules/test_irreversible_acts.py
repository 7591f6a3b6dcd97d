"""Every place that unlinks, truncates or renames away a file, or deletes a node in ZooKeeper, with its evidence.

An act that cannot be undone needs more than one reading that may be wrong: a clock, a name, a file or a node that is
missing, an empty list.  A place that is not listed fails, and so does a row without a place.  A row says what the act
takes, and what it has to know first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .test_tidy import sources, tree

METHODS = {"unlink", "rmtree", "rmdir", "removedirs", "rename", "renameat2", "exchange_paths", "truncate", "ftruncate"}
FUNCTIONS = METHODS | {"remove_file", "delete", "remove_tree"}
"""``remove_file`` of ``durable_files.py``, ``delete`` and ``remove_tree`` of ``zookeeper/operations.py``: called
without a module's name."""

OWN = "a temporary file of its own, in this call or after one that was interrupted"
DERIVED = "is derived: rebuilt from the log"
OURS = "our own node: it has our text, our session, or a name that only we have"
VERSION = "only in the version that was read and judged"
ACTS = {
    ("inputs/service_rights.py", "apply_units"): "files that `appliance inputs rights` has written, which"
    " their first line says; they follow from the configuration",
    # ---- logs
    ("libc.py", "exchange_paths"): "exchanges two files, or directories",
    ("durable_files.py", "remove_file"): "unlinks for its callers, which are listed",
    ("durable_files.py", "replace_file"): OWN,
    ("durable_files.py", "_create"): OWN,
    ("log/index.py", "Builder.store"): DERIVED,
    ("log/index_check.py", "IndexCheck._mend"): DERIVED,
    ("log/index_check.py", "open_to_mend"): "an empty file that it has just made, of a segment that is not there",
    ("log/aborted_check.py", "AbortedIndexCheck._compare"): DERIVED,
    ("log/compaction.py", "LogCompactor.compact_segment"): OWN,
    ("log/compaction.py", "_Target.__init__"): OWN,
    ("log/compaction.py", "remove_unfinished"): OWN,
    ("log/log.py", "Log.swap"): "puts a file that was read to its end, and is durable, in the place of a segment: it"
    " lacks only what a later message of its key, in the same log, replaces",
    ("log/log.py", "Log._remove_marker"): "the mark of a clean stop: without it more is checked",
    ("log/log.py", "Log.unlink_retired"): "segments before the start that retention or a person has moved, after the"
    " others are durable; ages are judged by the trusted time",
    ("log/partition_directory.py", "discard"): "a directory that was set aside: its name has the id",
    ("log/partition_directory.py", "_discard_soon"): "renames what was set aside, for its callers: a topic has left the"
    " trash by the catalog, or a directory takes the place of an earlier one of the same id",
    ("log/partition_directory.py", "discard_trash"): "a copy of a backup under a new id, which nobody has taken",
    ("log/partition_directory.py", "take_back"): "gives a directory in the trash its old name, if nothing has it",
    ("log/partition_directory.py", "set_aside"): "a log whose removal the catalog has noted, if it has the topic's id",
    ("log/recovery.py", "RecoveryPoint.__init__"): "a file of the wrong size: without it more is checked",
    ("log/recovery.py", "_Scanner._truncate"): "a torn write at the end that was never flushed; refused as damage where"
    " something valid follows, or it was flushed. What followed is copied first",
    ("log/recovery.py", "_segments"): "segments before the stored start; " + DERIVED + " (indexes)",
    ("log/recovery.py", "recover"): "what follows a torn write is renamed, and kept",
    ("log/repair.py", "_Repair._end"): "a person repairs; the bytes are kept under another name",
    ("log/repair.py", "_Repair._fill"): "a person repairs; the file grows, and the bytes are kept under another name",
    ("log/repair.py", "_Repair._own"): "a copy takes the place of a file that a backup shares",
    ("log/repair.py", "_Repair._remove"): DERIVED,
    ("log/repair.py", "_Repair._set_aside"): "a person has said --cut; the segment is kept under another name",
    ("log/repair.py", "_Repair._shorten_index"): DERIVED,
    ("log/repair.py", "_Repair._truncate"): "a person repairs; the bytes are kept under another name",
    ("log/segment.py", "Segment.create"): "files that this call has made, and nobody has written to",
    ("log/segment.py", "Segment.restore"): "a write that failed, and was acknowledged to nobody",
    ("log/segment_list.py", "SegmentList._append_rolling"): "segments that this call has made for a write that failed",
    ("log/transactions.py", "AbortedIndex.cut"): "an entry that failed to be written, or whose marker did",
    ("log/transactions.py", "AbortedIndex.remove"): "of a segment that retention has removed, or that there is not",
    ("log/transactions.py", "AbortedIndex.restore"): DERIVED,
    # ---- files of the data directory
    ("data_directory/backup.py", "_stage"): OWN,
    ("data_directory/backup.py", "_Copy._copy"): "its own copy, made as long as what it is of",
    ("data_directory/backup.py", "_Copy.copy_partition"): "its own copy, which retention was faster than",
    ("data_directory/backup.py", "_make"): OWN,
    ("data_directory/backup.py", "_Copy._try_partition"): "its own copy of a segment that was active then",
    ("data_directory/backup.py", "back_up"): OWN,
    ("reserve.py", "_spend"): "holds nothing but room",
    ("reserve.py", "fill"): OWN,
    ("processes/writer/producers.py", "Producers._remove"): "a snapshot of producers, which is taken again: " + DERIVED,
    ("processes/supervisor/supervisor.py", "lock"): "the file holds a process id; the lock on it is held",
    ("cli/query_output.py", "_replacing"): "a file that a person has named, by its successor, and a temporary one",
    ("processes/supervisor/listeners.py", "remove_dead_socket"): "a socket that refuses connections: nobody listens",
    ("processes/supervisor/listeners.py", "remove_sockets"): "sockets that this process has bound",
    ("cli/diagnosis/report_command.py", "_write"): "the new file that it could not write whole",
    ("processes/supervisor/state_file.py", "StateFile.replace"): "exchanges two files of its own",
    ("status.py", "forget_failed_start"): "a note about a start that has failed: one has succeeded since",
    # ---- shared memory
    ("processes/supervisor/opening.py", "Opening.drop"): "the table of a partition: " + DERIVED,
    ("processes/supervisor/workers.py", "Workers._make_arena"): "the arena of a worker that has ended",
    ("shared/memory.py", "create"): "the object that this call has made, for lack of room",
    ("shared/memory.py", "sweep"): "objects of this user's instances whose supervisors have ended: no lock is held",
    ("shared/memory.py", "unlink_all"): "objects of this instance, whose directory lock is held",
    # ---- ZooKeeper
    ("processes/coordinator/member_registration.py", "_delete_own"): OURS,
    ("zookeeper/claims.py", "_claim"): "claims of an earlier session of this broker and instance; " + VERSION,
    ("zookeeper/claims.py", "offset_requests"): "an offset that a client deletes, under a claim on its group",
    ("zookeeper/claims.py", "expire"): "offsets that are old by the trusted time, under a claim; " + VERSION,
    ("zookeeper/claims.py", "save"): "what was stored of members that have gone, under a claim on their group",
    ("zookeeper/claims.py", "vacate"): "likewise: by then the group has no members, also none that are only stored",
    ("zookeeper/claims.py", "release"): OURS,
    ("zookeeper/claims.py", "withdraw"): OURS,
    ("zookeeper/transaction_nodes.py", "NodeChange.request"): "an id that has expired, under the claim; " + VERSION,
    ("zookeeper/cluster_identity.py", "drop_marks"): "marks that are 90 days old by the trusted time; without one a"
    " topic comes back, which a person can undo",
    ("zookeeper/deletion.py", "_forget_offsets"): "offsets that have the id of a deleted topic; " + VERSION,
    ("zookeeper/deletion.py", "forget_deletion"): "copies of offsets, after the topic is back or has left the trash",
    ("zookeeper/deletion.py", "_mark_changed"): "a node that the same request has made",
    ("zookeeper/deletion.py", "_unregister"): "the registration that has the id of a deleted topic; " + VERSION,
    ("zookeeper/ensemble.py", "Ensemble._seed_new_nodes"): OWN + "; what a node has is renamed, and kept",
    ("zookeeper/group_registry.py", "GroupRegistry.prune"): "empty nodes: ZooKeeper refuses others",
    ("zookeeper/native_nodes.py", "put"): "what the next multi has in its place, under the claim; " + VERSION,
    ("zookeeper/native_nodes.py", "remove"): "of a member that has released it or is gone, under the claim; " + VERSION,
    ("zookeeper/operations.py", "hold_ephemeral"): OURS + "; " + VERSION,
    ("zookeeper/operations.py", "remove_tree"): "for its callers, which are listed",
    ("zookeeper/group_settings_nodes.py", "alter_settings"): "what a person has taken back; " + VERSION,
    ("zookeeper/security_nodes.py", "_changes"): "what a person has deleted; " + VERSION,
    # ---- Spark, demo, benchmarks
    ("bench/compiling.py", "_compiled"): OWN,
    ("cli/demo/pipeline_step.py", "tables_directory"): "tables of an earlier demo, in a directory of ours that only"
    " demos use",
    ("cli/demo/sandbox.py", "clear"): "a demo's directory, whose lock nobody holds, or our own",
    ("spark/pipeline/iceberg_table.py", "IcebergTable._expire"): "lists of files that no snapshot of the committed"
    " metadata names, older than all of these; the rows' files are not among them",
    ("console/sql_queries.py", "_remove_abandoned"): "of our user, and no process has the pid in its name",
    ("spark/pipeline/state_directory.py", "PidLock.__enter__"): "the file holds a process id; the lock on it is held",
    ("spark/pipeline/state_directory.py", "State.begin"): "Spark's scratch: the output itself has the offsets",
    ("spark/pipeline/troubles.py", "Troubles.note"): "a note of what a pipeline leaves undone, when it is done",
    ("spark/pipeline/view_refresh.py", "Refresher.__init__"): "what a killed refresh has left: we hold its lock",
    ("spark/pipeline/view_refresh.py", "Refresher._staged"): OWN,
    ("spark/pipeline/view_table.py", "remove_unreadable"): "the table of a view that a person rebuilds, if its log is"
    " damaged and not only closed to us: it follows from the events",
    ("spark/spark_session.py", "build_session"): "scratch of an earlier session, while the pipeline's lock is held",
}  # fmt: skip
"""(module, function) -> what it takes, and what it knows first."""


def acts(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions below a node that call one of these."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = (*inside, node.name)
    if isinstance(node, ast.Call):
        called = node.func
        by_name = isinstance(called, ast.Name) and called.id in FUNCTIONS
        module = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
        method = isinstance(called, ast.Attribute) and (
            called.attr in METHODS or (module, called.attr) == ("os", "remove")
        )
        if by_name or method:
            yield ".".join(inside)
    for child in ast.iter_child_nodes(node):
        yield from acts(child, inside)


def found() -> set[tuple[str, str]]:
    return {(module, function) for module, text in sources() for function in acts(tree(text))}


def test_every_irreversible_act_is_listed_with_its_evidence() -> None:
    here = found()
    assert here - ACTS.keys() == set(), "say what it takes, and what it has to know before"
    assert ACTS.keys() - here == set(), "no such act any more"


@pytest.mark.parametrize(
    "text",
    [
        "path.unlink()",
        "shutil.rmtree(a)",
        "remove_file(path, system)",
        "os.remove(a)",
        "system.ftruncate(1, 0)",
        "delete(a)",
    ],
)
def test_the_search_finds_each_kind_of_act(text: str) -> None:
    assert list(acts(ast.parse(f"class A:\n def f(self): return {text}"))) == ["A.f"]

"""``appliance log``: prints, verifies and repairs the files of partitions.

A partition is named by its directory (``/tmp/box/web-0``) or, with ``--data``, by its name (``web-0``); the name of a
topic (``web``) stands for all of its partitions here.  Dump and
verify only read, and work while the appliance serves.  Repair then lets the appliance do it, because only one process
may write a partition's files.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .. import units
from ..errors import AlreadyRunning, NoDirectory, StorageFault, UnknownPartition
from ..owners import acting_as_owner
from . import output
from .asking import DryRunOption, YesOption, confirm, how_many
from .faults import STORAGE
from .target import DataOption, JsonOption, address, data_dir

if TYPE_CHECKING:
    from ..log.repair import Repaired
    from ..log.tools import DumpedBatch, Report

REPAIR_MS_MAX = 3_600_000
"""How long to wait for the appliance to repair a partition: it reads the whole log."""

app = typer.Typer(no_args_is_help=True, help="Look into the files of partitions, verify and repair them.")

BATCH_COLUMNS = (
    *("offset", "file", "position", "bytes", "messages", "first_timestamp", "max_timestamp", "codec"),
    *("producer_id", "epoch", "sequence"),
)
RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
REPORTED_MAX: Final = 100
"""Places of a partition that a running appliance is told: it finds what is beside them."""

PartitionsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PARTITION]...", help="Directories, or with --data names: web-0, or all of web; all if none."
    ),
]


def directories(names: list[str] | None, data: Path | None, lost: Collection[Path] = ()) -> list[Path]:
    """The directories of the partitions named on the command line, a topic being all of its; of all if none is.

    ``lost``: left out; they may be named.

    Raises:
        FileNotFoundError: a directory does not exist.
        UnknownPartition: the data directory has no such partition or topic.
        NoDirectory: a directory is no partition's, or no appliance has used the data directory.
    """
    from ..log.tools import is_partition
    from ..status import LOCK_FILE

    root = data_dir(data)
    if not names:
        if root is None:
            raise typer.BadParameter("name partitions, or a data directory with --data")
        with acting_as_owner(root):
            if not root.is_dir():
                raise FileNotFoundError(2, "No such file or directory", str(root))
            if not (root / LOCK_FILE).exists():
                raise NoDirectory(
                    f"{root}: no appliance has been started here",
                    remedy="name the directory of `appliance start --data DIR`",
                )
            return [path for path in _partitions(root) if path not in lost]
    names_of_lost = {name for path in lost for name in _names(path)}
    chosen: list[Path] = []
    for name in names:
        path = root / name if root is not None and "/" not in name else Path(name)
        with acting_as_owner(path):
            there = [path] if path.is_dir() else _partitions_of_topic(path)
            paths = [directory for directory in there if directory not in lost]
            if not paths and name in names_of_lost:
                continue
            if not paths and root is not None and "/" not in name:
                raise UnknownPartition(f"{name}: no such partition or topic in {root}{_near(root, name)}")
            if not paths:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            for directory in paths:
                if not is_partition(directory):
                    raise NoDirectory(
                        f"{directory}: no partition's directory: it has neither segments nor a recovery point"
                    )
        chosen += paths
    return list(dict.fromkeys(chosen))


def _partitions(root: Path) -> list[Path]:
    """All of which anything is left: one may have lost its segments."""
    from ..log.tools import is_partition

    numbered = [path for path in root.glob("*-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(path for path in numbered if path.is_dir() and is_partition(path))


def _names(path: Path) -> tuple[str, str]:
    """What a partition may be named by: itself, and its topic."""
    return path.name, path.name.rpartition("-")[0]


def lost_of(names: list[str] | None, data: Path | None) -> dict[Path, str]:
    """The partitions of which nothing is left, with what is missing, of those that are named, or of all."""
    root = data_dir(data)
    if root is None:
        return {}
    with acting_as_owner(root):
        try:
            lost = _lost(root)
        except StorageFault as error:
            output.remark(f"which partitions are gone as a whole is not known: {error}")
            return {}
    return {path: loss for path, loss in sorted(lost.items()) if not names or set(_names(path)) & set(names)}


def _lost(root: Path) -> dict[Path, str]:
    """Those that the appliance says are offline; of a stopped one those of its catalog.

    Topics of one ensemble may be stored by several appliances: it has those with the leader of what is here.
    """
    from ..catalog import Catalog
    from ..log.partition_directory import trash_directory
    from ..log.recovery import loss_of
    from ..status import holder, read_state

    if holder(root) and (state := read_state(root)):
        return {root / name: loss for name in state["offline"] if (loss := loss_of(root / name))}
    leaders = {
        root / f"{topic.name}-{partition}": topic.leader(partition)
        for topic in Catalog.load(root).topics.values()
        for partition in topic.partitions
        if not trash_directory(root, topic.id, partition).exists()  # the next start takes it out of the trash
    }
    lost = {path: loss for path in leaders if (loss := loss_of(path))}
    here = {leader for path, leader in leaders.items() if path not in lost} or set(leaders.values())
    return {path: loss for path, loss in lost.items() if here == {leaders[path]}}


def _partitions_of_topic(path: Path) -> list[Path]:
    """The partitions of a topic, by what their directories are called without the number."""
    numbered = [sibling for sibling in path.parent.glob("*-*") if sibling.name.rpartition("-")[0] == path.name]
    return sorted(
        (sibling for sibling in numbered if sibling.is_dir() and sibling.name.rpartition("-")[2].isdecimal()),
        key=lambda sibling: int(sibling.name.rpartition("-")[2]),
    )


def _near(root: Path, name: str) -> str:
    """The end of a message about a name that there is not."""
    partitions = [path.name for path in _partitions(root)]
    topics = {partition.rpartition("-")[0] for partition in partitions}
    if topic := name.rpartition("-")[0] if name.rpartition("-")[0] in topics else "":
        count = sum(partition.rpartition("-")[0] == topic for partition in partitions)
        return f": {topic} has {count}, from {topic}-0 on"
    near = difflib.get_close_matches(name, [*partitions, *topics], 1)
    return f": did you mean {near[0]!r}?" if near else ": name a TOPIC, or a partition as TOPIC-NUMBER, such as web-0"


@app.command()
def dump(
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="Directory, or with --data a name such as web-0.")
    ],
    start: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="From the batch that has it.")] = 0,
    count_max: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="End after N batches.")] = None,
    records: Annotated[bool, typer.Option("--records", help="Print each record instead of each batch.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the batches in a partition's files; damaged ones, holes and ends of transactions on standard error.

    Prints tab-separated lines, or with --json one object per line.

    [b]Examples[/b]

        appliance log dump /tmp/box/web-0 --max 10

        appliance log dump web-0 --data /tmp/box --from 4711 --records --json
    """
    from ..log import tools
    from ..records.holes import reason_of
    from ..records.markers import read_marker

    chosen = directories([partition], data)
    if len(chosen) > 1:
        raise typer.BadParameter(f"{partition} has {len(chosen)} partitions: name one, such as {chosen[0].name}")
    (directory,) = chosen
    columns = RECORD_COLUMNS if records else BATCH_COLUMNS
    to_row = _record_rows if records else _batch_rows
    if not as_json:
        output.print_fields(columns)
    with acting_as_owner(directory):
        for record in islice(tools.dump(directory, start), count_max):
            where = f"{record.path}:{record.position}"
            if isinstance(record, tools.Damage):
                output.remark(f"{where}: {record.stop - record.position} bytes: {record.reason}")
                continue
            if record.is_hole:
                # Size and offset are those of the hole itself: a small one has no room for more than a word of the
                # reason.
                at = int(record.path.stem) + record.position
                why = reason_of(record.data) or "there was no room for the reason"
                output.remark(f"{where}: a hole: {record.header.size} bytes at offset {at} are missing: {why}")
                continue
            if record.is_marker:
                does, header = "commits" if read_marker(record.data).committed else "aborts", record.header
                output.remark(
                    f"{where}: offset {record.offset} {does} the transaction of producer"
                    f" {header.producer_id}, epoch {header.producer_epoch}"
                )
                continue
            for row in to_row(record):
                if as_json:
                    output.say(output.json_text(row))
                else:
                    output.print_fields([output.field(row[column]) for column in columns])


def _batch_rows(batch: DumpedBatch) -> list[dict[str, Any]]:
    from ..records.batch import CODEC_MASK, CODECS

    header = batch.header
    return [
        {
            "offset": batch.offset,
            "file": batch.path.name,
            "position": batch.position,
            "bytes": header.size,
            "messages": header.count,
            "first_timestamp": header.first_timestamp,
            "max_timestamp": header.max_timestamp,
            "codec": CODECS[header.attributes & CODEC_MASK],
            "producer_id": header.producer_id,
            "epoch": header.producer_epoch,
            "sequence": header.base_sequence,
        }
    ]


def _record_rows(batch: DumpedBatch) -> list[dict[str, Any]]:
    from ..records.decode import decode_batch

    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": {name: _text(value) for name, value in record.headers},
        }
        for record in decode_batch(batch.data, 0)
    ]


def _text(value: bytes | None) -> str | None:
    """Decodes bytes for display; those that are no text are escaped."""
    return None if value is None else value.decode(errors="backslashreplace")


@app.command()
def verify(partitions: PartitionsArgument = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check every byte of partitions: batches, checksums, offsets, indexes.  Exit status 74 when one is damaged.

    A running appliance is told, looks itself, and serves what is damaged no more.

    [b]Examples[/b]

        appliance log verify --data /tmp/box

        appliance log verify web --data /tmp/box

        appliance log verify /tmp/box/web-0 --json
    """
    from ..log import tools

    reports = []
    lost = lost_of(partitions, data)
    for directory in directories(partitions, data, lost):
        with acting_as_owner(directory):
            reports.append(tools.verify(directory))
    for path, loss in lost.items():
        reports.append(tools.Report(path, 0, 0, 0, 0, 0, 0, [tools.Problem(tools.CORRUPT, path, 0, loss)]))
    rows = [_report_row(report) for report in reports]
    columns = ["partition", "segments", "start", "end", "batches", "messages", "holes", "state"]
    output.print_rows(rows, columns, as_json=as_json)
    for report in reports:
        for problem in report.problems:
            output.remark(f"{problem.path}:{problem.position}: {problem.kind}: {problem.reason}")
    if not all(report.sound for report in reports):
        for report in reports:
            _report_damage(report)
        output.remark("`appliance log repair` keeps all that is not damaged; --dry-run shows what it does")
        raise typer.Exit(STORAGE)


def _report_damage(report: Report) -> None:
    """Tell the appliance that serves a partition, if one does, which offsets could not be read."""
    from ..client.admin import Admin
    from ..errors import ApplianceError
    from ..log.files import offset_at
    from ..log.tools import CORRUPT
    from ..status import LOCK_FILE, read_state

    root, (topic, _, number) = report.path.parent, report.path.name.rpartition("-")
    damaged = [offset_at(problem.path, problem.position) for problem in report.problems if problem.kind == CORRUPT]
    offsets = [offset for offset in damaged if offset is not None]
    with acting_as_owner(root):
        state = read_state(root) if offsets and (root / LOCK_FILE).exists() else None
    if state is None or report.path.name in state["offline"]:  # it serves nothing of that partition already
        return
    try:
        with Admin(address(root, None)) as admin:
            for offset in offsets[:REPORTED_MAX]:
                admin.report_damage(topic, int(number), offset, offset + 1)
    except ApplianceError as error:
        output.remark(f"{report.path.name}: the appliance could not be told: {error}")


def _report_row(report: Report) -> dict[str, Any]:
    kinds = sorted({problem.kind for problem in report.problems})
    problems = [
        {"kind": kind, "file": str(path), "position": position, "reason": reason}
        for kind, path, position, reason in report.problems
    ]
    return {
        "partition": report.path.name,
        "segments": report.segments,
        "start": report.start,
        "end": report.end,
        "batches": report.batches,
        "messages": report.records,
        "holes": report.holes,
        "state": " ".join(kinds) or "sound",
        "problems": problems,
    }


@app.command()
def repair(
    partitions: PartitionsArgument = None,
    dry_run: DryRunOption = False,
    cut: Annotated[bool, typer.Option("--cut", help="End the log at damage that cannot be mended; asks.")] = False,
    yes: YesOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repair damaged partitions, and keep all that is not damaged, with its offsets.

    Flipped bits are put back.  What cannot be mended becomes a hole: consumers step over it.  The damaged bytes are
    kept beside the segment (.damaged-POSITION).  A partition of a running appliance is out of service meanwhile, all
    others serve.  Sound partitions are not changed.  Of one whose whole log is gone an empty one begins, where the lost
    one ended as far as that is known; a running appliance does it, and asks.

    [b]Examples[/b]

        appliance log repair --data /var/lib/appliance --dry-run

        appliance log repair web-0 --data /var/lib/appliance

        appliance log repair web-0 --data /var/lib/appliance --cut --dry-run
    """
    lost = lost_of(partitions, data)
    gone, stranded = _gone(lost)
    chosen = directories(partitions, data, lost)
    damaged, planned = _damaged(chosen, plan=cut or dry_run, cut=cut)
    if any(plan.cut_bytes for plan in planned.values()) and not dry_run:
        cut_off = [
            f"{directory.name}: {units.size(plan.cut_bytes)} from offset {plan.end} on"
            for directory, plan in planned.items()
        ]
        confirm(cut_off, f"End {how_many(len(cut_off), 'log')} there?", yes=yes)
    if gone and not dry_run:
        confirm([directory.name for directory in gone], "All messages of these are gone: begin empty logs?", yes=yes)
    plans = {directory: plan._asdict() for directory, plan in planned.items()} | gone
    rows = [
        {"partition": directory.name, **(plans[directory] if dry_run else _repair(directory, cut))}
        for directory in [*damaged, *gone]
    ]
    if as_json:
        output.print_json(rows)
    else:
        _say_repaired(rows, is_sound=not stranded)
    for path in stranded:
        output.remark(
            f"{path}: {lost[path]}: put it back, or start the appliance and repair this again: it begins an empty log"
        )
    if stranded:
        raise typer.Exit(STORAGE)


def _say_repaired(rows: Sequence[dict[str, Any]], *, is_sound: bool) -> None:
    for row in rows:
        for action in row["actions"]:
            output.say(f"{row['partition']}: {action}")
        if row["end"] is not None:
            output.say(f"{row['partition']}: offsets {row['start']} to {row['end']} can be read")
    if not rows and is_sound:
        output.say("nothing to repair")


def _gone(lost: Mapping[Path, str]) -> tuple[dict[Path, dict[str, Any]], list[Path]]:
    """What repairing lost partitions would do, and those of a stopped appliance: only one that runs does it."""
    from ..log.repair import Repaired
    from ..status import holder

    gone: dict[Path, dict[str, Any]] = {}
    stranded: list[Path] = []
    for path, loss in lost.items():
        with acting_as_owner(path.parent):
            if not holder(path.parent):
                stranded.append(path)
                continue
        action = f"{path}: {loss}: all its messages are lost; an empty log begins where it ended"
        gone[path] = Repaired([action], 0, 0, 0, 0)._asdict() | {"start": None, "end": None}
    return gone, stranded


def _damaged(chosen: list[Path], *, plan: bool, cut: bool) -> tuple[list[Path], dict[Path, Repaired]]:
    """The partitions that are damaged; with ``plan`` also what a repair of each would do."""
    from ..log import tools
    from ..log.repair import repair

    damaged, planned = [], {}
    for directory in chosen:
        with acting_as_owner(directory):
            if tools.verify(directory).sound:
                continue
            damaged.append(directory)
            if plan:
                planned[directory] = repair(directory, cut=cut, dry_run=True)
    return damaged, planned


def _repair(directory: Path, cut: bool) -> dict[str, Any]:
    """Repair a partition: in this process, or in the appliance that serves it."""
    from ..log.repair import repair
    from ..status import holder

    try:
        # Files that root made could not be opened by the appliance.
        with exclusive(directory.parent), acting_as_owner(directory):
            return repair(directory, cut=cut)._asdict()
    except AlreadyRunning:
        with acting_as_owner(directory.parent):
            served = bool(holder(directory.parent))
        if not served:
            raise
        from ..client.admin import Admin

        topic, _, number = directory.name.rpartition("-")
        with Admin(address(directory.parent, None), request_timeout_ms=REPAIR_MS_MAX) as admin:
            return admin.repair_partition(topic, int(number), cut=cut)


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Holds the lock of a data directory, so that no appliance starts on it meanwhile.

    Raises:
        AlreadyRunning: an appliance serves it, or a process that hangs has the lock; the message says what to do.
    """
    from ..processes.supervisor.supervisor import lock

    with acting_as_owner(root):  # who can read and lock the file also later, if it is made here
        fd = lock(root)
    try:
        yield
    finally:
        os.close(fd)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="log", rich_help_panel="Looking after it")

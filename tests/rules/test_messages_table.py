"""The tables of ``appliance.processes.messages`` say who sends which message to whom: compared with the code.

Who makes a message is the process in which its class is called; who takes it is the one whose union has it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from appliance.processes import messages
from appliance.processes.messages import ProcessMessage, Unreceivable

PACKAGE = Path(__file__).parents[2] / "appliance"
SIDE = {"console", "metrics", "alerts"}
STOPPABLE = {"input", "opener", "remover", "cleaner", "repairer"}
ALL = {"S", "W", "R", "N", "C", "I", "scrubber", "compactor"} | SIDE | STOPPABLE
MEANING = {"side": SIDE, "all but R": ALL - {"R", "S"}, "any": ALL}
PROCESSES = {  # what stands in a module at the top, else the module, else the package
    "processes/network/": "W",
    "processes/writer/": "R",
    "processes/coordinator/": "C",
    "processes/snapshot.py": "C",
    "processes/supervisor/": "S",
    "processes/supervisor/coordinator_child.py:run_coordinator": "C",
    "processes/supervisor/nursery.py:Nursery": "N",
    "processes/supervisor/inspection.py:Inspector": "I",
    "processes/supervisor/scrubber.py:Scrubber": "scrubber",
    "processes/supervisor/compactions.py:compact_log": "compactor",
    "processes/supervisor/compactions.py:_WriterLink": "compactor",
    "processes/supervisor/opening.py:open_partitions": "opener",
    "processes/supervisor/removal.py:free_names": "remover",
    "processes/supervisor/outages.py:repair_log": "repairer",
    "inputs/": "input",
    "console/": "console",
    "metrics/metrics_server.py": "metrics",
    "metrics/alerting.py": "alerts",
}
TAKEN = {
    "ToWorker": {"W"},
    "ToWriter": {"R"},
    "ToNursery": {"N"},
    "ToCoordinator": {"C"},
    "ToScrubber": {"scrubber"},
    "ToCompactor": {"compactor"},
    "ToInspector": {"I"},
    "ToSideProcess": SIDE,
    "ToStoppable": STOPPABLE,
    "ToSupervisor": {"S"},
    "FromWorker": {"R"},
    "FromWriter": {"W"},
    "ToCoordinatorStream": {"C"},
    "FromCoordinatorStream": {"W"},
}
NOT_SENT = {("ClientsCounted", "S"), ("InputStats", "S")}
"""Made to be added to what others have sent."""

Pairs = set[tuple[str, str]]


def classes() -> set[str]:
    return {cls.__name__ for cls in ProcessMessage.__subclasses__() if cls.__module__ == messages.__name__}


def rows() -> Iterator[tuple[str, list[set[str]]]]:
    """Of all tables: the message, and the processes of each step of its way."""
    for line in (messages.__doc__ or "").splitlines():
        if match := re.match(r"    ([A-Z]\w+)(?: \+fd)? +(\S.*? → .*?)  +\S", line):
            steps = [step.split(", ") for step in match[2].split(" → ")]
            yield match[1], [set().union(*(MEANING.get(name, {name}) for name in step)) for step in steps]


def process_at(module: str, name: str) -> str:
    known = (f"{module}:{name}", module, module[: module.rindex("/") + 1])
    return next(PROCESSES[place] for place in known if place in PROCESSES)


def made(node: ast.AST) -> Iterator[str]:
    """The messages that this code makes; not those that it compares with, matches, or sends back as refused."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Compare | ast.pattern):
            continue
        if isinstance(child, ast.Call):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if name == Unreceivable.__name__:
                continue
            if name in classes():
                yield name
        yield from made(child)


def makers() -> Pairs:
    pairs: Pairs = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if not re.search(r"import messages|messages import", text):
            continue
        for node in ast.parse(text).body:
            at = str(path.relative_to(PACKAGE)), getattr(node, "name", "")
            pairs |= {(name, process_at(*at)) for name in made(node)}
    return pairs - NOT_SENT


def test_each_message_is_in_a_table() -> None:
    assert {name for name, _ in rows()} == classes()


def test_those_who_send_it_are_those_who_make_it() -> None:
    told = {(name, sender) for name, steps in rows() for sender in steps[0] if name != Unreceivable.__name__}
    assert sorted(told ^ makers()) == []


def test_those_who_get_it_are_those_who_take_it() -> None:
    """A channel makes Unreceivable itself, in place of a message to its process: it is in many unions."""
    told = {(name, process) for name, steps in rows() for step in steps[1:] for process in step}
    taken: Pairs = set()
    for union, processes in TAKEN.items():
        members = getattr(messages, union)
        for cls in get_args(members) or [members]:
            taken |= {(cls.__name__, process) for process in processes}
    refused = {(Unreceivable.__name__, process) for process in ALL - {"S"}}
    assert sorted((told ^ taken) - refused) == []


def test_what_travels_with_a_descriptor_may_be_refused_and_sent_again() -> None:
    with_fd = set(re.findall(r"^    (\w+) \+fd", messages.__doc__ or "", re.MULTILINE))
    assert with_fd | {"PartitionTable"} == {cls.__name__ for cls in get_args(messages.Refusable)}


def test_every_union_of_a_decoder_has_its_processes_here() -> None:
    decoders = re.findall(r"^\w+: Final\[Decoder\[(\w+)\]\]", Path(messages.__file__).read_text(), re.MULTILINE)
    assert sorted(decoders) == sorted(TAKEN)

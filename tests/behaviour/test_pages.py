"""Every code block of every page is run: here as it stands, or by the test that is named for it.

Method: ``RUN_BY`` has for each heading of each page who runs its code blocks, in their order.  A block without a row, a
row without a block, and the name of a test that there is not, fail.  Commands that need an appliance alone are run here
one after the other, in a shell, with the test's paths in place of those of the page; files of the configuration are
checked as a start does.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.spark.pipeline.settings import parse

from ..support.certificates import make_certificates
from ..support.command_line import succeeding
from ..support.ready import free_port
from ..support.server import Server

ROOT = Path(__file__).parents[2]
HERE, TOUR, CONFIGURATION, PIPELINE = "run here", "the tour", "a configuration", "a part of a pipeline's configuration"
OURSELVES, DRAWING = "what runs these tests", "a drawing"
SHIPPERS = "systemd/test_recipes.py::test_the_shippers_of_the_page_are_those_that_lose_nothing"
PASSWORDS = "systemd/test_recipes.py::test_clients_with_passwords"
CERTIFICATES = "systemd/test_recipes.py::test_clients_with_certificates"
PACKAGE = "systemd/test_debian_package.py"
FIRST_LINE = f"{PACKAGE}::test_from_nothing_to_the_first_line"
PIP = "systemd/test_pip_service.py::test_the_steps_make_a_service_and_remove_it"
INPUTS = "systemd/test_debian_inputs.py::test_three_commands_take_in_the_host_and_those_around_it"
LINES = "what the client prints is what was sent"
LEAVING = "clients/test_outgrowing.py"
CLUSTERS = "spark/test_clusters_page.py"

RUN_BY: dict[str, dict[str, list[str]]] = {
    "README.md": {
        "Quick start": ["spark/pipeline/test_demo.py"],
        "A tour": [TOUR, "client/aio/test_group.py::test_examples_of_pages_print_what_was_sent", FIRST_LINE, TOUR],
        "Kafka clients and shippers": [
            "clients/test_shippers.py::test_kcat_produces_and_consumes_keys_headers_and_partitions"
        ],
    },
    "CONTRIBUTING.md": {"The tools": [OURSELVES, OURSELVES]},
    "appliance/README.md": {"The processes": [DRAWING], "Killed between write and publish": [DRAWING]},
    "appliance/sql/README.md": {"SQL over topics": [HERE], "Tables of a pipeline": ["sql/test_pipeline_tables.py"]},
    "appliance/spark/README.md": {
        "The pipeline": ["cli/test_pipeline_commands.py"],
        "Fields, times and lines": [PIPELINE, PIPELINE],
        "Rules": [PIPELINE],
        "Look-ups": [PIPELINE],
        "Views": ["spark/pipeline/test_view_keeper.py", PIPELINE],
        "Alerts": [PIPELINE],
        "Older lines are to come in": ["spark/pipeline/test_backfill.py"],
        "A person is to be forgotten": ["spark/pipeline/test_forget.py"],
        "Object stores": [PIPELINE],
        "Iceberg": [PIPELINE, "spark/pipeline/test_iceberg_table.py::test_both_have_the_same_rows_whatever_is_done"],
        "The data source alone": ["spark/test_source.py::test_everything_comes_back"],
        "Jobs of Spark's Kafka connector": ["spark/test_sink.py"],
    },
    "appliance/spark/CLUSTERS.md": {
        "Packages for the executors": [CLUSTERS],
        "YARN": [CLUSTERS],
        "Kubernetes": [CLUSTERS, CLUSTERS],
    },
    "systemd/OUTGROWING.md": {
        "1. Prepare the cluster": [f"{LEAVING}::test_from_an_appliance_to_a_cluster"],
        "2. Start to copy": [f"{LEAVING}::test_from_an_appliance_to_a_cluster"],
        "3. Stop the producers, and wait for the copy": [f"{LEAVING}::test_from_an_appliance_to_a_cluster"],
        "4. Let the consumers read to the end, and stop them": [f"{LEAVING}::test_from_an_appliance_to_a_cluster"],
        "5. Go on at the cluster": [f"{LEAVING}::test_from_an_appliance_to_a_cluster"],
        "The other way": [f"{LEAVING}::test_from_a_cluster_into_an_appliance"],
    },
    "systemd/README.md": {
        "The Debian package": [FIRST_LINE],
        "The rpm": ["systemd/test_rpm_package.py::test_it_is_installed_upgraded_and_removed"],
        "With pip": [PIP, PIP, PIP, PIP],
        "With Ansible": ["systemd/test_ansible_role.py::test_it_makes_what_is_described_and_then_changes_nothing"],
        "In a container": ["systemd/test_container.py::test_the_entry_command_is_process_one_without_root"],
        "Start, stop, reload": [f"{PACKAGE}::test_a_reload_takes_a_right_file_and_leaves_a_wrong_one"],
        "Restarts without a refused connection": [
            f"{PACKAGE}::test_a_restart_through_the_sockets_refuses_no_connection"
        ],
        "Listeners and TLS": [CONFIGURATION],
        "Look at it": [HERE],
        "The console": [CONFIGURATION],
        "The console behind a proxy": ["console/test_proxy.py", "console/test_proxy.py", "console/test_proxy.py"],
        "Inputs": [INPUTS, CONFIGURATION, "inputs/test_commands.py"],
        "Logs by HTTP": [CONFIGURATION, "inputs/test_bodies.py"],
        "Logs of the journal": [CONFIGURATION],
        "Journals of other hosts": ["inputs/test_journal_upload.py"],
        "Logs by syslog": [CONFIGURATION],
        "Metrics": [CONFIGURATION],
        "Disk": [HERE],
        "Damage and repair": [HERE],
        "Upgrade and downgrade": [f"{PACKAGE}::test_an_upgrade_under_load_loses_nothing"],
        "Backup and moving": [HERE, f"{PACKAGE}::test_a_backup_is_restored_as_the_manual_says", HERE],
        "This host only": [CONFIGURATION],
        "Passwords for other hosts (TLS and SCRAM)": [*[PASSWORDS] * 4, SHIPPERS, SHIPPERS, *[PASSWORDS] * 2],
        "Tokens of an identity provider (OAUTHBEARER)": [CONFIGURATION],
        "Certificates of clients (mTLS)": [*[CERTIFICATES] * 4, SHIPPERS, SHIPPERS, *[CERTIFICATES] * 2],
        "Access rules and quotas": [CONFIGURATION, "systemd/test_recipes.py::test_access_rules", HERE, HERE],
        "Alerts without Prometheus": [CONFIGURATION],
        "Uninstall": [f"{PACKAGE}::test_removal_keeps_the_data_and_purge_does_not", PIP],
    },
    "tests/clients/README.md": {
        "Logging in": ["clients/test_logins.py", "systemd/test_recipes.py::test_clients_with_passwords"],
        "In a few lines": [LINES, "clients/test_exchange.py", "clients/test_shippers.py"],
        "Tested clients": [OURSELVES],
        "From an event loop": ["client/aio/test_group.py::test_examples_of_pages_print_what_was_sent"],
        "Exactly once, from Python": ["behaviour/test_native_transactions.py::test_the_page_copies_exactly_once"],
    },
    "perf/README.md": {"What was measured, and how to repeat it": ["bench/test_harness.py"]},
}
"""By page and heading."""


class CodeBlock(NamedTuple):
    """A code block of a page, and the heading that it stands below."""

    page: str
    heading: str
    number: int
    language: str
    code: str


def code_blocks(page: str) -> Iterator[CodeBlock]:
    """All of a page."""
    heading, numbers = "", dict[str, int]()
    text = (ROOT / page).read_text()
    for match in re.finditer(r"^(?: *```(\w*)\n(.*?)^ *```|#+ ([^\n]+))$", text, re.DOTALL | re.MULTILINE):
        if match[3]:
            heading = match[3]
        else:
            number = numbers[heading] = numbers.get(heading, -1) + 1
            yield CodeBlock(page, heading, number, match[1], match[2])


PAGES = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.md") if ".venv" not in path.parts]
BLOCKS = [block for page in PAGES for block in code_blocks(page)]


def run_by(block: CodeBlock) -> str:
    """Who runs it; "" if the table has no row for it, which the first test says."""
    rows = RUN_BY.get(block.page, {}).get(block.heading, [])
    return rows[block.number] if block.number < len(rows) else ""


def blocks_run_by(runner: str) -> list[CodeBlock]:
    return [block for block in BLOCKS if run_by(block) == runner]


def test_every_code_block_of_every_page_is_run_by_somebody() -> None:
    shown: dict[str, dict[str, int]] = {}
    for block in BLOCKS:
        shown.setdefault(block.page, {})[block.heading] = block.number + 1
    assert shown == {
        page: {heading: len(rows) for heading, rows in rows_of.items()} for page, rows_of in RUN_BY.items()
    }
    for runner in {runner for rows_of in RUN_BY.values() for rows in rows_of.values() for runner in rows}:
        file, _, name = runner.partition("::")
        if file.endswith(".py"):
            tree = ast.parse((ROOT / "tests" / file).read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert not name or name in names, f"{file} has no {name}"


# ---- configurations


@pytest.mark.parametrize("block", blocks_run_by(CONFIGURATION), ids=lambda block: block.heading)
def test_a_configuration_is_right(block: CodeBlock, tmp_path: Path) -> None:
    assert block.language == "toml"
    (tmp_path / "webhook").touch(0o600)
    if "/tls/" in block.code:
        for words in (("ca",), ("server", "localhost")):
            make_certificates(tmp_path / "tls", *words)
    file = tmp_path / "appliance.toml"
    file.write_text(block.code.replace("/etc/appliance", str(tmp_path)))
    assert "right" in succeeding("config", "check", "--config", str(file)).out


@pytest.mark.parametrize("block", blocks_run_by(PIPELINE), ids=lambda block: block.heading)
def test_a_part_of_a_configuration_of_a_pipeline_is_right(block: CodeBlock, tmp_path: Path) -> None:
    """Beside what a configuration has to have."""
    file = tmp_path / "web.toml"
    part: dict[str, Any] = tomllib.loads(re.sub("^  ", "", block.code, flags=re.MULTILINE))
    if "time_formats" in part:
        part = {"parser": {"own": {"kind": "json", **part}}}
    whole = {
        "pipeline": {"name": "web", "bootstrap": "127.0.0.1:9091"},
        "source": [{"topics": ["web"], "parsers": ["access"]}],
        "output": {"path": str(tmp_path / "tables")},
    }
    assert parse(whole | part, tmp_path, str(file))


# ---- commands


LINE = '10.0.0.7 - - [27/Nov/2026:10:00:00 +0000] "GET /{} HTTP/1.1" {} 23 "-" "curl"\n'


class Place:
    """A directory in which the commands of pages are run, and an appliance that they are about."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory, self.server = directory, server
        (directory / "hosts.csv").write_text("name,owner\nweb-1,ann\n")

    def run(self, block: CodeBlock) -> None:
        """Run all commands of a block, each once there is what it is for."""
        for line in block.code.splitlines():
            assert line.startswith("$ "), line
            statuses = self.cause(block.heading, line)
            done = shell(self.here(line.removeprefix("$ ")), self.directory, str(self.server.data_dir))
            assert done.returncode in statuses, f"{line}: {done}"

    def here(self, line: str) -> str:
        for shown, used in {
            "/var/lib/appliance": self.server.data_dir,
            "/var/backups": self.directory / "backups",
        }.items():
            line = line.replace(shown, str(used))
        return f"timeout --preserve-status -s INT 20 {line}" if "until Ctrl-C" in line else line

    def cause(self, heading: str, line: str) -> tuple[int, ...]:
        """Cause what a command is for; the statuses with which it may end."""
        data_dir = self.server.data_dir
        if heading == "Disk" and "undelete" in line:
            succeeding("topics", "delete", "web", "--yes", "--data", str(data_dir))
            if "--as" in line:  # since there is another one of the name by now
                make_web(str(data_dir))
        if heading == "Damage and repair" and "verify" in line:
            with (data_dir / "web-0" / f"{0:020}.log").open("r+b") as log:
                log.seek(100)
                log.write(b"damage")
            return (74,)
        return (0, 130) if "until Ctrl-C" in line else (0,)


def shell(text: str, directory: Path, data: str) -> subprocess.CompletedProcess[str]:
    """Run commands as an operator does who has the program in the PATH."""
    program = directory / "bin/appliance"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m appliance "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "APPLIANCE_DATA": data}
    return subprocess.run(["bash", "-c", text], cwd=directory, env=environment, capture_output=True, text=True)


def make_web(data_dir: str) -> None:
    lines = "".join(LINE.format(number, (200, 500)[number % 2]) for number in range(100)).encode()
    succeeding("topics", "create", "web", "--data", data_dir)
    succeeding("produce", "web", "--data", data_dir, stdin=lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = {"zookeeper.nodes": 1, "security.authorizer": "acl"}
    with Server(tmp_path_factory.mktemp("page") / "data", **settings) as server:
        server.wait_for_zookeeper()
        data = ("--data", str(server.data_dir))
        make_web(str(server.data_dir))
        succeeding("topics", "create", "app", *data)
        succeeding("produce", "app", *data, stdin=b'{"level": "info", "message": "m"}\n' * 100)
        yield Place(tmp_path_factory.mktemp("shell"), server)


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("block", blocks_run_by(HERE), ids=lambda block: f"{block.heading} {block.number}")
def test_the_commands_of_a_block_work(block: CodeBlock, place: Place) -> None:
    place.run(block)


@pytest.mark.timeout(900)  # some twenty commands, one after the other
def test_the_tour_works_word_for_word(tmp_path: Path) -> None:
    """Both of its parts, as one person types them, with ports and files of the test."""
    logs = tmp_path / "log"
    logs.mkdir()
    lines = "".join(LINE.format(number, 200) for number in range(100))
    for name in ("log/dpkg.log", "access.log", "app.log"):
        (tmp_path / name).write_text(lines)
    native = f"127.0.0.1:{free_port()}"
    listeners = f'[native]\nlisten = "{native}"\n[kafka]\nlisten = "127.0.0.1:0"\n[zookeeper]\nnodes = 1\n'
    (tmp_path / "appliance.toml").write_text(listeners)
    first, second = (block.code for block in blocks_run_by(TOUR))
    commands = [line.removeprefix("$ ") for line in first.splitlines()]
    assert commands[0].startswith("export PATH=") and commands[1].endswith('after "appliance: serving"')
    serving = "until appliance status >/dev/null || [ $? = 75 ]; do :; done; until appliance topics list; do :; done"
    more = [line.removeprefix("$ ") for line in second.splitlines()]
    # What an input has read is in the ledger within a minute.
    more = [f"until {line}; do :; done" if "inputs find" in line else line for line in more]
    *rest, end = commands[2:]
    assert end.startswith("kill %1")
    script = "\n".join([commands[1], serving, *rest, *more, end, "kill $(jobs -p)", "wait"])
    for shown, used in {
        "/tmp/box": str(tmp_path / "box"),
        "/var/log": str(logs),
        "logs.example.net:9091": native,
    }.items():
        script = script.replace(shown, used)
    done = shell(f"set -m\ntrap 'echo FAILED: $BASH_COMMAND' ERR\n{script}", tmp_path, str(tmp_path / "box"))
    assert "FAILED" not in done.stdout, done


def test_the_lines_of_python_for_kafkas_clients_work(place: Place) -> None:
    (block,) = blocks_run_by(LINES)
    data = ("--data", str(place.server.data_dir))
    succeeding("topics", "create", "app-logs", *data)
    succeeding("acl", "add", "--principal", "User:ANONYMOUS", "--operation", "All", "--topic", "app-logs", *data)
    succeeding("acl", "add", "--principal", "User:ANONYMOUS", "--operation", "IdempotentWrite", "--cluster", *data)
    code = block.code.replace("HOST:9092", place.server.kafka)
    subprocess.run([sys.executable, "-c", code], check=True)
    assert succeeding("consume", "app-logs", "--from", "earliest", "--max", "1", *data).out == "a line\n"

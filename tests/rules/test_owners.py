"""Root works in directories of other users with their rights: each command, beside somebody who exchanges all names.

Method: a data directory of nobody's.  A program of nobody's exchanges its files and directories, again and again, for
links to those of root's that only root may use.  Root runs each command of the tree there.  The kernel (inotify) says
whether anything of root's was opened or changed.  A command that is missing in TRIED fails the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from appliance import owners
from appliance.cli import command_tree, interactive_shell
from appliance.cli.demo import pipeline_step, sandbox, scenario
from appliance.errors import OthersDirectory, Unavailable
from appliance.owners import NOBODY, ROOT, Owner, acting_as_owner, keeper_of

from ..support.certificates import make_certificates
from ..support.command_line import Said, run, succeeding
from ..support.long import LONG
from ..support.server import Server

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to work in directories of other users")

OTHER = 54_321
_LIBC = ctypes.CDLL(None, use_errno=True)
IN_ALL = 0x0FFF & ~(0x8 | 0x10)
"""Everything that inotify(7) reports, but not that a file is closed."""


class Watch:
    """What happens to files and directories of root's, as inotify(7) tells it."""

    def __init__(self, *paths: Path) -> None:
        self.fd = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names = {_LIBC.inotify_add_watch(self.fd, os.fsencode(path), IN_ALL): path for path in paths}
        assert len(self._names) == len(paths) and min(self._names) > 0

    def events(self) -> list[str]:
        """What has happened since the last call: the path, and the mask in hexadecimal digits."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                at = 0
                while at < len(data):
                    watch, mask, _, size = struct.unpack_from("iIII", data, at)
                    name = data[at + 16 : at + 16 + size].rstrip(b"\0").decode()
                    found.append(f"{self._names[watch]}/{name} {mask:x}")
                    at += 16 + size
        return found

    def close(self) -> None:
        os.close(self.fd)


def exchange(first: Path, second: Path) -> None:
    at_cwd, both = -100, 2
    assert not _LIBC.renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), both)


EXCHANGE = """
import ctypes, os, sys
pairs = [os.fsencode(word) for word in sys.argv[1:]]
exchange = ctypes.CDLL(None).renameat2
assert not exchange(-100, pairs[0], -100, pairs[1], 2), "nothing can be exchanged"
print("begun", flush=True)
while True:
    for mine, theirs in zip(pairs[::2], pairs[1::2]):
        exchange(-100, mine, -100, theirs, 2)
"""


@contextlib.contextmanager
def exchanging(pairs: list[tuple[Path, Path]]) -> Iterator[None]:
    """A program of OTHER's exchanges the names of each pair, as fast as it can."""
    words = [str(path) for pair in pairs for path in pair]
    become = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    child = subprocess.Popen([*become, sys.executable, "-c", EXCHANGE, *words], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"begun\n"
        yield
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        for path, other in pairs:
            if path.is_symlink():
                exchange(path, other)


@contextlib.contextmanager
def exchanged(pairs: list[tuple[Path, Path]]) -> Iterator[None]:
    """The names of each pair are exchanged, once."""
    there = [(first, second) for first, second in pairs if os.path.lexists(first)]  # a repair may have removed it
    for first, second in there:
        exchange(first, second)
    yield
    for first, second in reversed(there):
        if os.path.lexists(first):
            exchange(first, second)


class Place:
    """A data directory of OTHER's, and a copy of it that root keeps for itself.

    ``pairs``: for each name in the data directory a second one beside it, which leads to root's; in three groups.
    """

    def __init__(self, place: Path, sound: Path, pid: int) -> None:
        self.secret, self.home = place / "of-root", place / "home"
        self.data = self.home / "data"
        self.home.mkdir()
        for directory in (self.secret, self.data):
            shutil.copytree(sound, directory)
        for directory in (self.secret, self.home):
            (directory / "input.toml").write_text("[log]\nlevel = 'info'\n")
            (directory / "pipeline.toml").write_text(succeeding("pipeline", "example").out)
        tables = {"web-0": f"/../..{self.secret}/catalog.json"}  # what root would map
        state = msgspec.json.decode((sound / "state.json").read_bytes()) | {"pid": pid, "tables": tables}
        (self.data / "state.json").write_bytes(msgspec.json.encode(state))
        (self.data / "lock").write_text(str(pid))
        self._lock = os.open(self.data / "lock", os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.secret / "native.sock"))
        self.server.listen()
        self.server.setblocking(False)
        with socket.socket(socket.AF_UNIX) as closed:
            closed.bind(str(self.data / "native.sock"))
        self._close(place)
        names = [path.relative_to(self.data) for path in sorted(self.data.rglob("*"))]
        names = [name for name in names if len(name.parts) < 3]
        outside = [self.data, self.home / "input.toml", self.home / "pipeline.toml"]
        self.pairs = [
            [(path, self._link(path, self.secret / path.name)) for path in outside[1:]],
            *(
                [
                    (self.data / name, self._link(self.data / name, self.secret / name))
                    for name in names
                    if len(name.parts) == depth
                ]
                for depth in (1, 2)
            ),
        ]
        self.pairs[0].append((self.data, self._link(self.data, self.secret)))
        self.watch = Watch(self.secret, *(path for path in self.secret.rglob("*") if path.is_file() or path.is_dir()))

    def _close(self, place: Path) -> None:
        place.chmod(0o755)
        for path in [self.secret, *self.secret.rglob("*"), self.home, *self.home.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        for path in [self.home, *self.home.rglob("*")]:
            os.chown(path, OTHER, OTHER)

    @staticmethod
    def _link(beside: Path, target: Path) -> Path:
        link = beside.with_name(f".{beside.name}.link")
        link.symlink_to(target)
        os.chown(link, OTHER, OTHER, follow_symlinks=False)
        return link

    def found(self) -> list[str]:
        """What of root's was opened, changed or connected to since the last call."""
        found = self.watch.events()
        with contextlib.suppress(BlockingIOError):
            self.server.accept()[0].close()
            found.append("connected to native.sock")
        return found

    def close(self) -> None:
        self.server.close()
        self.watch.close()
        os.close(self._lock)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a stopped appliance with two topics, one of them damaged, and a local ensemble."""
    data = tmp_path_factory.mktemp("sound") / "data"
    with Server(data, **{"zookeeper.nodes": 1}) as server:
        at = ("--data", str(data))
        server.wait_for_zookeeper()
        succeeding("topics", "create", "web", "--setting", "segment.bytes=64KiB", *at)
        lines = b"".join(os.urandom(150).hex().encode() + b"\n" for _ in range(440))
        succeeding("produce", "web", *at, stdin=lines)
        succeeding("topics", "create", "torn", *at)
        succeeding("produce", "torn", *at, stdin=b"a line\nanother\n")
        state = {**server.state, "processes": [], "listeners": {"local": "unix:/nowhere.sock"}, "state": "serving"}
    (log,) = (data / "torn-0").glob("*.log")
    log.write_bytes(b"\0" * 8 + log.read_bytes()[8:])
    (data / "state.json").write_bytes(msgspec.json.encode(state))
    (data / "reserve").unlink(missing_ok=True)
    return data


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root's, whose number is in OTHER's files."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        yield process
        process.kill()


@pytest.fixture
def place(sound: Path, victim: subprocess.Popen[bytes]) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="appliance-owners-") as directory:  # those of pytest are closed to others
        made = Place(Path(directory), sound, victim.pid)
        yield made
        made.close()


def in_a_child(words: list[str], unguarded: bool = False) -> Said:
    """A command in a process of its own; ``unguarded``: root works there as root."""
    with tempfile.TemporaryFile() as file:
        if not (child := os.fork()):
            try:
                signal.alarm(60)
                if unguarded:
                    owners.keeper_of = lambda _: ROOT
                scenario.Sandbox = refuse_sandbox  # type: ignore[misc, assignment]  # it has its own tests below
                try:
                    said = run(*words)
                except Exception:  # what is behind the links is not what a command expects there
                    said = Said(70, "", traceback.format_exc())
                file.write(msgspec.json.encode(said))
                file.flush()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, f"{words} does not end"
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Said)


def refuse_sandbox() -> None:
    raise Unavailable("no demo now")


Words = Callable[[Place, str], list[str]]


def of(*words: str) -> Words:
    """A command with names of OTHER's: DATA, a file INPUT, a file PIPELINE, a NEW one; a new one of root's: OWN."""

    def filled(place: Place, new: str) -> list[str]:
        names = {"DATA": place.data, "INPUT": place.home / "input.toml", "PIPELINE": place.home / "pipeline.toml"}
        names |= {"NEW": place.home / new, "OWN": place.home.parent / new, "WEB": place.data / "web-0"}
        return [re.sub(r"[A-Z]+$", lambda found: str(names.get(found[0], found[0])), word) for word in words]

    return filled


TRIED: dict[str, list[Words]] = {
    "status": [of("status", "--data", "DATA"), of("status", "--json", "--data", "DATA")],
    "clients": [of("clients", "--data", "DATA"), of("clients", "x", "--json", "--data", "DATA")],
    "health": [of("health", "--data", "DATA")],
    "reload": [of("reload", "--data", "DATA")],
    "doctor": [of("doctor", "--data", "DATA")],
    "top": [of("top", "--count", "1", "--interval", "0.2", "--data", "DATA")],
    "produce": [of("produce", "web", "--data", "DATA"), of("produce", "web", "INPUT", "--data", "DATA")],
    "consume": [of("consume", "web", "--data", "DATA"), of("consume", "web", "--group", "g", "--data", "DATA")],
    "tail": [of("tail", "web", "--data", "DATA")],
    "topics create": [of("topics", "create", "x", "--data", "DATA")],
    "topics list": [of("topics", "list", "--data", "DATA")],
    "topics describe": [of("topics", "describe", "web", "--data", "DATA")],
    "topics alter": [of("topics", "alter", "web", "--partitions", "2", "--data", "DATA")],
    "topics trim": [of("topics", "trim", "web", "--before", "1", "--yes", "--data", "DATA")],
    "topics delete": [of("topics", "delete", "web", "--yes", "--data", "DATA")],
    "inputs list": [of("inputs", "list", "--data", "DATA")],
    "inputs check": [of("inputs", "check", "--data", "DATA")],
    "inputs add": [of("inputs", "add", "files", "/var/log/x.log", "--topic", "x", "--config", "INPUT")],
    "inputs rights": [of("inputs", "rights", "--config", "INPUT", "--data", "DATA")],
    "inputs ledger": [of("inputs", "ledger", "--data", "DATA")],
    "inputs find": [of("inputs", "find", "/var/log/x.log", "--line", "1", "--data", "DATA")],
    "ship": [of("ship", "INPUT", "--topic", "web", "--data", "DATA")],
    "topics trash": [of("topics", "trash", "--data", "DATA")],
    "topics undelete": [of("topics", "undelete", "web", "--data", "DATA")],
    "topics restore": [of("topics", "restore", "INPUT", "web", "--data", "DATA")],
    "sql": [
        of("sql", "select * from web", "--data", "DATA"),
        of("sql", "select 1", "--format", "csv", "--output", "NEW", "--data", "DATA"),
    ],
    "transactions list": [of("transactions", "list", "--data", "DATA")],
    "transactions describe": [of("transactions", "describe", "x", "--data", "DATA")],
    "transactions abort": [of("transactions", "abort", "x", "--yes", "--data", "DATA")],
    "transactions abort-hanging": [of("transactions", "abort-hanging", "web-0", "--yes", "--data", "DATA")],
    "groups list": [of("groups", "list", "--data", "DATA")],
    "groups describe": [of("groups", "describe", "g", "--data", "DATA")],
    "groups alter": [
        of("groups", "alter", "g", "--setting", "consumer.session.timeout.ms=60000", "--data", "DATA"),
    ],
    "groups reset": [of("groups", "reset", "g", "--topic", "web", "--to", "earliest", "--yes", "--data", "DATA")],
    "groups delete": [of("groups", "delete", "g", "--yes", "--data", "DATA")],
    "groups export": [of("groups", "export", "g", "--data", "DATA")],
    "groups import": [of("groups", "import", "INPUT", "--yes", "--data", "DATA")],
    "offsets": [of("offsets", "web", "--at", "-1h", "--data", "DATA")],
    "users add": [of("users", "add", "u", "--password-file", "INPUT", "--data", "DATA")],
    "users password": [of("users", "password", "u", "--password-file", "INPUT", "--data", "DATA")],
    "users list": [of("users", "list", "--data", "DATA")],
    "users lock": [of("users", "lock", "u", "--data", "DATA")],
    "users unlock": [of("users", "unlock", "u", "--data", "DATA")],
    "users kick": [of("users", "kick", "u", "--data", "DATA")],
    "users expire": [of("users", "expire", "u", "--after", "never", "--data", "DATA")],
    "users delete": [of("users", "delete", "u", "--data", "DATA")],
    "roles list": [of("roles", "list", "--data", "DATA")],
    "roles create": [of("roles", "create", "r", "--data", "DATA")],
    "roles grant": [of("roles", "grant", "r", "u", "--data", "DATA")],
    "roles revoke": [of("roles", "revoke", "r", "u", "--data", "DATA")],
    "roles delete": [of("roles", "delete", "r", "--yes", "--data", "DATA")],
    "acl add": [of("acl", "add", "--principal", "User:u", "--operation", "Read", "--topic", "web", "--data", "DATA")],
    "acl list": [of("acl", "list", "--data", "DATA")],
    "acl delete": [of("acl", "delete", "--principal", "User:u", "--yes", "--data", "DATA")],
    "quotas list": [of("quotas", "list", "--data", "DATA")],
    "quotas set": [of("quotas", "set", "--user", "u", "--requests", "5", "--data", "DATA")],
    "quotas delete": [of("quotas", "delete", "--user", "u", "--yes", "--data", "DATA")],
    "accept-clock": [of("accept-clock", "--yes", "--data", "DATA")],
    "report": [of("report", "OWN", "--data", "DATA"), of("report", "OWN", "--data", "DATA", "--config", "INPUT")],
    "check": [of("check", "--data", "DATA"), of("check", "--config", "INPUT")],
    "log dump": [of("log", "dump", "web-0", "--records", "--data", "DATA"), of("log", "dump", "WEB")],
    "log verify": [of("log", "verify", "--data", "DATA"), of("log", "verify", "WEB")],
    "log repair": [of("log", "repair", "--data", "DATA"), of("log", "repair", "--cut", "--dry-run", "--data", "DATA")],
    "config set": [of("config", "set", "log.level", "debug", "--config", "INPUT", "--data", "DATA")],
    "config show": [of("config", "show", "--config", "INPUT")],
    "config check": [
        of("config", "check", "--config", "INPUT"),
        of(
            *("config", "check", "--set", "kafka.listen=SSL://127.0.0.1:0"),
            *("--set", "tls.key=INPUT", "--set", "tls.certificate=INPUT"),
        ),
    ],
    "backup": [of("backup", "OWN", "--data", "DATA"), of("backup", "NEW", "--data", "DATA")],
    "demo": [of("demo", "INPUT", "--no-pipeline", "--lines", "1")],
}
"""Each command that uses directories, as root would run it in one of another user."""
REFUSED: dict[str, list[Words]] = {
    "start": [of("start", "--data", "DATA"), of("start", "--data", "NEW")],
    "pipeline run": [of("pipeline", "run", "PIPELINE", "--once")],
    "pipeline status": [of("pipeline", "status", "PIPELINE")],
    "pipeline check": [of("pipeline", "check", "PIPELINE")],
    "pipeline accept": [of("pipeline", "accept", "PIPELINE")],
    "pipeline report": [of("pipeline", "report", "PIPELINE")],
    "pipeline views": [of("pipeline", "views", "PIPELINE")],
    "pipeline refresh": [of("pipeline", "refresh", "PIPELINE")],
    "pipeline rebuild": [of("pipeline", "rebuild", "PIPELINE", "errors")],
    "pipeline reparse": [of("pipeline", "reparse", "PIPELINE")],
    "pipeline backfill": [of("pipeline", "backfill", "PIPELINE")],
    "pipeline forget": [of("pipeline", "forget", "PIPELINE", "--where", "true", "--yes")],
    "pipeline expire": [of("pipeline", "expire", "PIPELINE", "--before", "-90d", "--yes")],
    "pipeline verify": [of("pipeline", "verify", "PIPELINE")],
    "pipeline example": [of("pipeline", "example", "--views", "NEW")],
    "bench": [of("bench", "--directory", "NEW"), of("bench", "--results", "NEW")],
}
"""Those that start programs which cannot act as another user."""
WITHOUT = {"shell", *(f"contexts {verb}" for verb in ("list", "add", "use", "remove"))}
"""Those that use none; the shell's history is below."""


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands of the tree that do something."""
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from leaves(inner, (*words, name))
        else:
            yield " ".join((*words, name))


def test_every_command_is_tried() -> None:
    assert sorted(leaves(get_command(command_tree.tree()))) == sorted({*TRIED, *REFUSED, *WITHOUT})


@pytest.mark.parametrize("command", [*TRIED, *REFUSED])
def test_root_gets_nothing_of_its_own_mixed_up(command: str, place: Place, victim: subprocess.Popen[bytes]) -> None:
    """Where all names of a kind lead to root's already, and (all with ``LONG=1``, else a third) beside somebody who
    exchanges them."""
    is_raced = LONG or [*TRIED, *REFUSED].index(command) % 3 == 0
    for number, words in enumerate(TRIED.get(command) or REFUSED[command]):
        for group, pairs in enumerate(place.pairs):
            place.found()
            if is_raced:
                with exchanging(pairs):
                    said = in_a_child(words(place, f"new-{number}-{group}"))
                assert place.found() == [], f"{words(place, '')}: {said}"
            with exchanged(pairs):
                said = in_a_child(words(place, f"newer-{number}-{group}"))
            assert place.found() == [], f"{words(place, '')}: {said}"
    assert victim.poll() is None, "root has ended a process of its own, which OTHER named"


@pytest.mark.parametrize("command", REFUSED)
def test_programs_that_root_starts_do_not_work_in_directories_of_others(command: str, place: Place) -> None:
    for words in REFUSED[command]:
        said = in_a_child(words(place, "new"))
        assert said.status == 77 and "run this as its owner" in said.err, said
    assert not (place.home / "new").exists()


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.long] if one == "sql" else []) for one in TRIED]
)
def test_the_method_sees_root_at_work(command: str, place: Place) -> None:
    """With root's own rights each of these commands goes where the links lead: none is tried in vain."""
    for words in TRIED[command]:
        found = []
        for pairs in place.pairs:
            with exchanged(pairs):
                place.found()
                said = in_a_child(words(place, "new"), unguarded=True)
                found += place.found()
        assert found or "NEW" in words(place, "NEW"), f"{words(place, '')}: {said}"


# ---- names that everybody may make in /tmp


@pytest.fixture
def tmp_of_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files, as /tmp."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o1777)
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(directory)
    tempfile.tempdir = None


def made_by_other(directory: Path) -> Path:
    directory.mkdir()
    os.chown(directory, OTHER, OTHER)
    return directory


def test_a_demo_leaves_directories_of_others_alone(tmp_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SETTLING_S", 0)
    name = f"{sandbox.PREFIX}0-"
    theirs, empty = made_by_other(tmp_of_all / f"{name}theirs"), made_by_other(tmp_of_all / f"{name}empty")
    (theirs / "owner").symlink_to(tmp_of_all / "made-by-root")
    os.mkfifo(tmp_of_all / f"{name}fifo")
    (tmp_of_all / f"{name}link").symlink_to(theirs)
    assert sandbox.clear_abandoned() == []
    assert not (tmp_of_all / "made-by-root").exists() and theirs.is_dir() and not list(empty.iterdir())


def test_tables_of_a_demo_are_not_written_into_a_directory_of_others(tmp_of_all: Path) -> None:
    usual = pipeline_step.tables_directory()
    assert usual.stat().st_mode & 0o777 == 0o700
    (usual / "old").touch()
    assert pipeline_step.tables_directory() == usual and not list(usual.iterdir())
    usual.rmdir()
    made_by_other(usual)
    other = pipeline_step.tables_directory()
    assert other != usual and (other.stat().st_uid, other.stat().st_mode & 0o777) == (0, 0o700)
    usual.rmdir()
    usual.symlink_to(tmp_of_all / "elsewhere")
    assert pipeline_step.tables_directory() != usual and not (tmp_of_all / "elsewhere").exists()


def test_a_demo_needs_a_directory_of_roots(tmp_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(made_by_other(tmp_of_all / "home")))
    with pytest.raises(OthersDirectory):
        sandbox.Sandbox()


def test_the_shell_keeps_no_history_in_the_home_of_others(tmp_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = made_by_other(tmp_of_all / "home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    assert type(interactive_shell.history()).__name__ == "InMemoryHistory" and not list(home.iterdir())


def test_certificates_are_not_made_in_directories_of_others(tmp_of_all: Path) -> None:
    home = made_by_other(tmp_of_all / "home")
    (tmp_of_all / "link").symlink_to(home)
    for directory in (home, home / "authority", tmp_of_all / "link" / "authority"):
        made = make_certificates(directory, "ca")
        assert made.returncode == 64 and "belongs to" in made.stderr, made
    assert not list(home.iterdir())


# ---- whose a path is, and acting


def test_who_keeps_a_path(tmp_of_all: Path) -> None:
    other = Owner(OTHER, OTHER)
    home = made_by_other(tmp_of_all / "home")
    (home / "mine").mkdir()
    (tmp_of_all / "link").symlink_to(home / "mine")
    (tmp_of_all / "back").symlink_to("home/../of-root")
    (tmp_of_all / "loop").symlink_to("loop")
    (tmp_of_all / "of-root").mkdir()
    (tmp_of_all / "open").mkdir()
    (tmp_of_all / "open").chmod(0o777)
    expected = {
        "home": other, "home/mine": other, "home/missing/deep": other, "link": other, "link/../x": other,
        "back": other, "home/../of-root": other, "of-root": ROOT, "missing": ROOT, "loop": ROOT, ".": ROOT,
        "open": Owner(NOBODY, NOBODY), "open/x": Owner(NOBODY, NOBODY),
    }  # fmt: skip
    assert {name: keeper_of(tmp_of_all / name) for name in expected} == expected


def test_acting_ends_with_its_block_and_is_for_one_thread(tmp_of_all: Path) -> None:
    home = made_by_other(tmp_of_all / "home")
    secret = tmp_of_all / "secret"
    secret.write_text("x")
    secret.chmod(0o640)  # a group of root's may read it
    os.setgroups([0, 4])
    with pytest.raises(ValueError), acting_as_owner(home):
        with pytest.raises(PermissionError):
            secret.read_text()
        (home / "made").touch()
        with ThreadPoolExecutor() as pool, acting_as_owner(home / "made"):
            assert os.getgroups() == [] and pool.submit(os.getgroups).result() == []
        raise ValueError
    assert secret.read_text() == "x" and os.getgroups() == [0, 4]
    os.setgroups([])
    found = (home / "made").stat()
    assert (found.st_uid, found.st_gid) == (OTHER, OTHER)
    reached = threading.Event()

    def elsewhere() -> str:
        assert reached.wait(60)
        return secret.read_text()

    with ThreadPoolExecutor() as pool:
        there = pool.submit(elsewhere)
        pool.submit(int).result()
        with acting_as_owner(home):
            reached.set()
            assert there.result() == "x", "a thread that was there before is still root"


def test_a_backup_gives_the_copy_to_the_owner_of_the_data(place: Place, tmp_path: Path) -> None:
    """Also in a directory that the owner cannot enter; and none is made where somebody else could exchange it."""
    for _, link in (pair for pairs in place.pairs for pair in pairs):
        link.unlink()
    target = tmp_path / "closed" / "copy"
    said = in_a_child(["backup", str(target), "--data", str(place.data)])
    assert said.status == 0, said
    copied = [target, *target.rglob("*")]
    assert len(copied) > 10 and {(path.stat().st_uid, path.stat().st_gid) for path in copied} == {(OTHER, OTHER)}
    assert target.parent.stat().st_uid == 0 and not list(target.parent.glob("*.partial"))
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    os.chown(stranger, OTHER + 1, OTHER + 1)
    refused = in_a_child(["backup", str(stranger / "copy"), "--data", str(place.data)])
    assert refused.status == 77 and not list(stranger.iterdir()), refused

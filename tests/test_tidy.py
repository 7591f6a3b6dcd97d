"""House rules that a machine can check; the rules that it cannot are in README.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "appliance"
LAYERS = [  # a module may import from its own package and from lower layers
    {"errors", "kafka_settings"},
    {"names"},
    {"config", "catalog"},
    {"records", "retention"},
    {"wire"},
    {"shared", "log"},
    {"broker", "zookeeper", "groups", "status"},
    {"kafka_apis"},
    {"processes", "client"},
    {"spark"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BANNED = {  # pattern -> (where it may stand, what to do instead)
    r"\.pack_into\(": ({"records/", "log/"}, "store through shared.table: pack_into shows readers a zero"),
    r"\bimport socket\b|\bimport select\b": (
        {"processes/", "client/", "zookeeper/", "wire/sockets.py"},
        "codecs, logs and plans are without I/O",
    ),
    r"\btime\.(time|monotonic|sleep)\(": (
        {"processes/", "client/", "zookeeper/", "cli/", "spark/"},
        "take a clock as an argument",
    ),
    r"except( Exception)?:|except BaseException": ({"processes/"}, "catch one branch of errors.py"),
    r"\bmultiprocessing\b": ({"spark/"}, "an attacher's exit unlinks the segment: use shared.memory"),
    r"posix_ipc\.Semaphore": (set(), "a killed holder keeps it: one storing process per cell"),
    r"\bprint\(": ({"cli/", "processes/supervisor/"}, "log it, or return it"),
    r"\b(import|from) kazoo\b": (
        {"zookeeper/", "client/", "processes/"},
        "only zookeeper, the coordinator and clients",
    ),
    r"\b(import|from) kafka\b": ({"wire/kafka/"}, "one module hides the library"),
}
FUNCTION_LINES_MAX = 60
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@cache
def sources() -> tuple[tuple[str, str], ...]:
    """Path inside the package, and text, of every module."""
    return tuple((str(path.relative_to(PACKAGE)), path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def code_only(text: str) -> str:
    """The source without docstrings and comments, so that prose may name what code may not do."""
    return ast.unparse(_DropDocstrings().visit(ast.parse(text)))


class _DropDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else node


def imported(name: str, text: str) -> list[str]:
    """First words of what a module imports from this package: ``errors``, ``wire``..."""
    package = ["appliance", *name.split("/")[:-1]]
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, node.module] if node.module else base)
            found += [f"{stem}.{alias.name}" for alias in node.names]
    words = [full.split(".") for full in found]
    return [parts[1] for parts in words if parts[0] == "appliance" and len(parts) > 1]


def test_imports_point_downward() -> None:
    for name, text in sources():
        own = name.split("/")[0].removesuffix(".py")
        for target in imported(name, text) if own != "__init__" else []:
            if target in RANK and target != own:
                assert RANK[target] < RANK[own], f"{name} imports upward or sideways: {target}"


def test_every_module_has_a_layer() -> None:
    for name, _ in sources():
        assert name == "__init__.py" or name.split("/")[0].removesuffix(".py") in RANK, f"{name}: no layer"


@pytest.mark.parametrize("banned", BANNED)
def test_banned_text(banned: str) -> None:
    allowed, instead = BANNED[banned]
    for name, text in sources():
        if not any(name.startswith(place) for place in allowed):
            found = re.search(banned, code_only(text))
            assert not found, f"{name}: {found and found[0]!r}: {instead}"


def test_functions_fit_on_a_screen() -> None:
    for name, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= FUNCTION_LINES_MAX, f"{name}: {node.name} is {length} lines"


def test_every_module_says_what_it_is() -> None:
    for name, text in sources():
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert re.match(r"\S.*[.:]", docstring, re.DOTALL) or text == "", f"{name}: no docstring"


def test_nothing_is_left_for_later() -> None:
    for path in [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "perf").rglob("*.py"),
        ROOT / "README.md",
        ROOT / "Makefile",
    ]:
        left = LEFTOVERS.search(path.read_text())
        assert not left, f"{path.relative_to(ROOT)}: {left and left[0]}"


def test_tests_do_not_sleep() -> None:
    for path in set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}:
        assert "time.sleep(" not in code_only(path.read_text()), f"{path.name}: wait on a condition"

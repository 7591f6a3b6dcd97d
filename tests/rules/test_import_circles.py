"""No module needs itself, by whatever way: imports inside of functions count, those for types alone do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath

from .test_tidy import sources, tree

Graph = dict[str, set[str]]


def modules() -> dict[str, ast.Module]:
    """By name; a package by its own, for its ``__init__``."""
    found = {}
    for path, text in sources():
        parts = ("appliance", *PurePath(path).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree(text)
    return found


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
        return
    if isinstance(node, ast.expr):  # most nodes, and none has a statement within
        return
    within = node.orelse if isinstance(node, ast.If) and is_for_types(node) else ast.iter_child_nodes(node)
    for child in within:
        yield from imports(child)


def imported(name: str, is_package: bool, node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """The modules that an import runs, but for the packages around them, which are not asked for by name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    around = name.split(".")
    base = around[: len(around) - node.level + is_package] if node.level else []
    stem = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
    for alias in node.names:
        yield f"{stem}.{alias.name}" if f"{stem}.{alias.name}" in known else stem


def graph() -> Graph:
    trees = modules()
    known = set(trees)
    packages = {name.rpartition(".")[0] for name in trees}
    return {
        name: {
            target
            for node in imports(tree)
            for target in imported(name, name in packages, node, known)
            if target in trees and target != name
        }
        for name, tree in trees.items()
    }


def circles(graph: Graph) -> list[list[str]]:
    """The groups of modules that need each other: strongly connected components of more than one (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return groups


def test_no_module_needs_itself() -> None:
    assert circles(graph()) == []


def test_a_circle_is_seen_through_a_function_and_not_through_types() -> None:
    """Of the rule itself: one import of each kind, and three modules one after the other."""
    lazy = ast.parse("def f():\n    if x:\n        from .b import c")
    typed = ast.parse("if TYPE_CHECKING:\n    from .b import c\nelse:\n    from . import d")
    known = {"p.a", "p.b", "p.d"}
    assert [list(imported("p.a", False, node, known)) for node in imports(lazy)] == [["p.b"]]
    assert [list(imported("p.a", False, node, known)) for node in imports(typed)] == [["p.d"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}) == []

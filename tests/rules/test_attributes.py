"""All attributes of an object are set when it is made: there is no order of calls in which one is missing.

An object that is used as a context is made when it is entered; a protocol of asyncio, when it is connected.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from .test_tidy import sources, tree

MAKING = {"__init__", "__post_init__", "__new__", "__enter__", "__aenter__", "connection_made"}
LATER = {
    "ScramServer": "the steps of an exchange, which the protocol orders",
    "ScramClient": "likewise",
    "HttpServer": "attributes of uvicorn.Server",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Methods:
    """The methods of one class, and the attributes that are known of it."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        self.by_name = {each.name: each for each in node.body if isinstance(each, Function)}
        self.making = MAKING & self.by_name.keys()
        while more := {name for made in self.making for name in self._called_by(made)} - self.making:
            self.making |= more
        named = [each.target if isinstance(each, ast.AnnAssign) else each for each in node.body]
        self.known = {name.id for each in named for name in ast.walk(each) if isinstance(name, ast.Name)}
        self.known |= self.by_name.keys() | {name for made in self.making for name in self.set_by(made)}

    def _called_by(self, method: str) -> Iterator[str]:
        for node in ast.walk(self.by_name[method]):
            if isinstance(node, ast.Call) and of_self(node.func) in self.by_name:
                yield of_self(node.func)

    def set_by(self, method: str) -> set[str]:
        nodes = ast.walk(self.by_name[method])
        declared = {id(node.target) for node in ast.walk(self.by_name[method]) if is_bare(node)}
        return {
            of_self(node)
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and id(node) not in declared
        } - {""}


def is_bare(node: ast.AST) -> bool:
    """Whether it only says of which type an attribute will be."""
    return isinstance(node, ast.AnnAssign) and node.value is None


def of_self(node: ast.AST) -> str:
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def set_later() -> dict[str, set[str]]:
    """By class, the attributes that are not there when an object has been made."""
    classes: dict[str, list[Methods]] = defaultdict(list)
    for _, text in sources():
        for node in ast.walk(tree(text)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(Methods(node))

    def known(methods: Methods) -> set[str]:
        return methods.known.union(*(known(base) for name in methods.bases for base in classes.get(name, ())))

    later: dict[str, set[str]] = {}
    for name, same_named in classes.items():
        for methods in same_named:
            late = {attribute for method in methods.by_name for attribute in methods.set_by(method)} - known(methods)
            if late:
                later[name] = late
    return later


def test_every_attribute_is_set_when_its_object_is_made() -> None:
    later = set_later()
    assert {name: sorted(late) for name, late in later.items() if name not in LATER} == {}
    assert later.keys() == LATER.keys(), "of these all are set now"

"""A remedy that no test carries out is none: each condition has a test that runs the commands of its finding."""

from __future__ import annotations

import ast
from pathlib import Path

from appliance.health.conditions import CONDITIONS

from ..behaviour.test_bad_day import CASES, SHOWN_BY
from ..support.remedies import NOT_CARRIED_OUT, WITHOUT_COMMAND

TESTS = Path(__file__).parents[1]
OF_CASES = "behaviour/test_bad_day.py::test_it_is_found_by_all_and_ends_with_its_cause"


def called_in(test: str) -> set[str]:
    """The names that a test calls."""
    module, _, name = test.partition("::")
    functions = {
        node.name: node
        for node in ast.walk(ast.parse((TESTS / module).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    calls = (node for node in ast.walk(functions[name]) if isinstance(node, ast.Call))
    return {node.func.id for node in calls if isinstance(node.func, ast.Name)}


def test_each_remedy_is_carried_out() -> None:
    """``Remedy`` fails where one of the commands is left over, and where there is none though one should be."""
    tests = {**dict.fromkeys(CASES, OF_CASES), **SHOWN_BY}
    assert tests.keys() == {one.name for one in CONDITIONS}
    without = {name for name, test in tests.items() if "Remedy" not in called_in(test)}
    assert without <= WITHOUT_COMMAND.keys(), f"nobody carries these out: {without - WITHOUT_COMMAND.keys()}"


def test_each_exception_is_of_something_that_there_is() -> None:
    assert WITHOUT_COMMAND.keys() <= {one.name for one in CONDITIONS}
    assert all(WITHOUT_COMMAND.values()) and all(NOT_CARRIED_OUT.values())
    texts = " ".join(one.todo for one in CONDITIONS)
    assert [command for command in NOT_CARRIED_OUT if f"`{command}`" not in texts] == []

"""Writes a page in Markdown from stored results: tables, charts, what was skipped.  All its figures come from there."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from . import measures, result_tables
from .measures import BenchResult
from .runner import LIMITS, QUESTIONS, module_of

BEGIN, END = "<!-- results: written by `make bench` -->", "<!-- end of results -->"


def stored(directory: Path) -> list[BenchResult]:
    """The results in ``directory``, in the order of the questions."""
    return list(measures.stored(directory, (LIMITS, *QUESTIONS)).values())


def rewrite(page: Path, results: Sequence[BenchResult], directory: Path) -> str:
    """The text of ``page`` with the results between its two marks; ``directory`` has their charts."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    folder = directory.relative_to(page.parent)
    sections = "\n".join(_section(result, directory, folder) for result in results)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def _section(result: BenchResult, directory: Path, folder: Path) -> str:
    lines = [f"### {result.title}", ""]
    if result.question in QUESTIONS:
        question = inspect.getdoc(module_of(result.question)) or ""
        lines += [question, ""]
    lines += ["<details><summary>Machine, versions, parameters</summary>", ""]
    lines += [f"* {fact}" for fact in result_tables.facts(result)]
    lines += ["", "</details>", ""]
    if (directory / f"{result.question}.svg").exists():
        lines += [f"![{result.title}]({folder}/{result.question}.svg)", ""]
    lines += _table(result_tables.columns(result), result_tables.rows(result))
    lines += ["", *(f"* Not measured: {notice}" for notice in result.notices)]
    lines += [""] if result.notices else []
    return "\n".join(lines)


def _table(columns: Sequence[str], rows: Sequence[result_tables.ResultRow]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(row[column] for column in columns)} |" for row in rows]

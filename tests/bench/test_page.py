"""The page of results is what the stored results say, and charts draw them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from appliance.bench import page, result_charts, runner
from appliance.bench.machine import Machine
from appliance.bench.measures import BenchMeasure, BenchResult, MachineLimit

PERF = Path(__file__).parents[2] / "perf"


def result(question: str = "kafka_rows", **changes: object) -> BenchResult:
    rows = [
        BenchMeasure("consume", "appliance", "rate", [3e6, 4e6], "loopback sendfile", 0.7, "ab"),
        BenchMeasure("consume", "Kafka 4.1", "rate", [2e6, 2e6]),
    ]
    fields: dict[str, object] = {
        "question": question, "title": "Rows", "date": "2026-11-22T12:00:00+00:00", "took_s": 1.0, "rounds": 2,
        "smoke": False, "machine": Machine(2, "Processor", 1 << 34, "6.18", "CPython 3.11", 0.1, "ext4"),
        "versions": {"appliance": "0.1.0"}, "parameters": {"partitions": "1"},
        "limits": [MachineLimit("loopback sendfile", 1e9, "B/s")], "measures": rows, "notices": ["NATS is skipped"],
    }  # fmt: skip
    return BenchResult(**(fields | changes))  # type: ignore[arg-type]


def test_the_page_is_what_the_results_say() -> None:
    """Whoever edits a figure, or forgets to write the page again, sees it here."""
    text = (PERF / "README.md").read_text()
    assert page.rewrite(PERF / "README.md", page.stored(PERF / "results"), PERF / "results") == text


def test_no_result_on_the_page_is_of_a_smoke_run() -> None:
    assert not [each.question for each in page.stored(PERF / "results") if each.smoke]


def test_a_section_has_the_question_the_table_and_what_was_skipped(tmp_path: Path) -> None:
    at = tmp_path / "README.md"
    at.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    (tmp_path / "results").mkdir()
    text = page.rewrite(at, [result()], tmp_path / "results")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "### Rows" in text and "same client?" in text and "NATS is skipped" in text
    assert "| consume | appliance | 3.5 M/s | 3 M-4 M | 70% of loopback sendfile | 1.75 (1.50-2.00) |" in text
    at.write_text(text)
    assert page.rewrite(at, [result()], tmp_path / "results") == text, "written twice it is the same"


def test_charts_are_drawn_as_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = result_charts.draw(result(), tmp_path)
    assert [path.name for path in drawn] == ["kafka_rows.svg", "kafka_rows.png"]
    assert "<svg" in drawn[0].read_text() and drawn[1].read_bytes().startswith(b"\x89PNG")
    assert result_charts.draw(result(measures=[]), tmp_path) == []


@pytest.mark.parametrize("question", runner.QUESTIONS)
def test_every_question_asks_something(question: str) -> None:
    module = importlib.import_module(f"appliance.bench.questions.{question}")
    assert "?" in module.__doc__.splitlines()[0] and module.TITLE and callable(module.run) and module.ROUND_S > 0

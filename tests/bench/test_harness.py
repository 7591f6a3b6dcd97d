"""Sides take turns, and figures are medians; with brokers that only count their turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.bench import limits, machine, result_tables, runner
from appliance.bench.compiling import Missing
from appliance.bench.harness import SMOKE_SCALE, BenchOptions, Harness
from appliance.bench.kafka_clients import Run
from appliance.bench.measures import BenchResult, MachineLimit, load, ratios
from appliance.bench.questions import java_tools, paper_figures, sizes
from appliance.bench.stamps import Wrong
from appliance.cli import bench_command

LIMITS = [MachineLimit("loopback sendfile", 1e9, "B/s"), MachineLimit("fdatasync 4 KiB p50", 0.2, "ms")]


class Counting:
    """A side whose clock and rates are given; it uses 2 s of CPU per run."""

    def __init__(self, name: str, seconds: list[float], turns: list[str]) -> None:
        self.name, self._seconds, self._turns, self._cpu_s = name, iter(seconds), turns, 0.0

    def cpu_s(self) -> float:
        return self._cpu_s

    def once(self, topic: str) -> Run:
        self._turns.append(f"{self.name} {topic}")
        self._cpu_s += 2
        return Run(1_000_000, next(self._seconds), 0.5, "abc")


@pytest.fixture(autouse=True)
def nothing_to_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """These sides use neither disk nor memory, so each turn would prepare the machine for 2 s for nothing."""
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(machine, "use_memory", lambda: None)


@pytest.fixture
def told() -> list[str]:
    return []


def measured(tmp_path: Path, told: list[str], **options: object) -> tuple[BenchResult, list[str]]:
    harness = Harness("kafka_rows", "Rows", BenchOptions(tmp_path, **options), LIMITS, told.append)  # type: ignore[arg-type]
    turns: list[str] = []
    sides = [Counting("appliance", [1, 2, 4], turns), Counting("Kafka 4.4", [2, 2, 2], turns)]
    harness.run("consume", sides, lambda side: f"of {side.name}", lambda side, topic: side.once(topic),
                limit="loopback sendfile", bytes_each=200)  # fmt: skip
    return harness.finish(), turns


def test_sides_take_turns_and_change_their_order(tmp_path: Path, told: list[str]) -> None:
    _, turns = measured(tmp_path, told, rounds=3)
    ours, theirs = "appliance of appliance", "Kafka 4.4 of Kafka 4.4"
    assert turns == [ours, theirs, theirs, ours, ours, theirs]


def test_figures_are_medians_with_all_rounds_kept(tmp_path: Path, told: list[str]) -> None:
    result, _ = measured(tmp_path, told, rounds=3)
    rate = result.find_measure("consume", "appliance", "rate")
    assert rate is not None and rate.values == [1_000_000, 500_000, 250_000] and rate.median == 500_000
    assert (rate.limit, rate.share, rate.check) == ("loopback sendfile", 0.1, "abc")
    cpu = result.find_measure("consume", "appliance", "cpu")
    assert cpu is not None and cpu.values == [2, 2, 2]
    both = result.find_measure("consume", "appliance", "both")
    assert both is not None and both.values == [2.5, 2.5, 2.5], "what the client uses, too"
    theirs = result.find_measure("consume", "Kafka 4.4", "rate")
    assert theirs is not None and ratios(rate, theirs) == [2, 1, 0.5]


def test_a_table_has_medians_spread_share_and_ratio(tmp_path: Path, told: list[str]) -> None:
    result, _ = measured(tmp_path, told, rounds=3)
    ours, theirs = result_tables.rows(result)
    assert ours["rate"] == "500 k/s" and ours["spread"] == "250 k-1 M"
    assert ours["share of limit"] == "10% of loopback sendfile"
    assert ours["ratio"] == "1.00 (0.50-2.00), CPU 1.00, both 1.00" and theirs["ratio"] == ""


@pytest.mark.parametrize(
    ("sides", "ratio"), [(("Kafka 4.1", "Kafka 4.4"), "0.50"), (("Kafka 4.1", "klite"), "0.25"), (("klite",), "")]
)
def test_a_ratio_is_that_of_the_newest_kafka(
    tmp_path: Path, told: list[str], sides: tuple[str, ...], ratio: str
) -> None:
    harness = Harness("kafka_rows", "Rows", BenchOptions(tmp_path, rounds=1), [], told.append)
    seconds = {"appliance": 4.0, "Kafka 4.1": 1.0, "Kafka 4.4": 2.0, "klite": 3.0}
    harness.run("consume", [Counting(name, [seconds[name]], []) for name in ("appliance", *sides)],
                lambda side: "", lambda side, topic: side.once(topic))  # fmt: skip
    ours, *_ = result_tables.rows(harness.finish())
    assert ours["ratio"].split(" (")[0] == ratio


def test_results_are_stored_with_what_they_depend_on(tmp_path: Path, told: list[str]) -> None:
    result, _ = measured(tmp_path, told, rounds=2)
    again = load(result.store(tmp_path / "results"))
    assert again == result
    assert again.machine.processors and again.machine.file_system and again.versions["appliance"]
    assert any("fdatasync of 4 KiB" not in fact for fact in result_tables.facts(again))


def test_smoke_is_one_small_round(tmp_path: Path, told: list[str]) -> None:
    result, turns = measured(tmp_path, told, rounds=3, smoke=True)
    assert len(turns) == 2 and result.rounds == 1
    harness = Harness("sizes", "Sizes", BenchOptions(tmp_path, smoke=True), [], told.append)
    assert harness.scaled(1_000_000) == 1_000_000 // SMOKE_SCALE


def test_workloads_that_are_not_wanted_do_not_run(tmp_path: Path, told: list[str]) -> None:
    result, turns = measured(tmp_path, told, only="produce")
    assert turns == [] and result.measures == []


def test_figures_of_any_quantity_are_compared(tmp_path: Path, told: list[str]) -> None:
    harness = Harness("idle_costs", "Idle", BenchOptions(tmp_path, rounds=2), [], told.append)
    starts = {"appliance": iter([0.2, 0.4]), "Kafka 4.4": iter([2.0, 2.0])}
    sides = [Counting("appliance", [], []), Counting("Kafka 4.4", [], []), Counting("absent", [], [])]

    def once(side: Counting) -> dict[str, float]:
        if side.name == "absent":
            return {}
        return {"start_s": next(starts[side.name]), "memory_bytes": 5e6 if side.name == "appliance" else 4e8}

    harness.figures("little to do", sides, once)
    result = harness.finish()
    assert result_tables.columns(result) == ("workload", "side", "start", "memory", "ratio")
    ours, theirs = result_tables.rows(result)
    assert (ours["start"], ours["memory"], theirs["memory"]) == ("0.3 s", "5 MB", "400 MB")
    assert ours["ratio"] == "start 0.15 (0.10-0.20), memory 0.01" and theirs["ratio"] == ""


class Stoppable:
    def __init__(self, directory: Path, stopped: list[str]) -> None:
        self.directory, self._stopped = directory, stopped

    def stop(self) -> None:
        self._stopped.append(self.directory.name)


def test_what_is_missing_is_skipped_and_said_so(tmp_path: Path, told: list[str]) -> None:
    harness = Harness("sizes", "Sizes", BenchOptions(tmp_path), [], told.append)
    stopped: list[str] = []

    def absent(directory: Path) -> Stoppable:
        raise Missing("some-server: apt-get install some-server")

    with harness.started([lambda directory: Stoppable(directory, stopped), absent]) as running:
        assert len(running) == 1 and stopped == []
    assert stopped == ["0"]
    (notice,) = harness.finish().notices
    assert "apt-get install some-server" in notice and told == [notice]
    assert list(tmp_path.iterdir()) == []


def test_workloads_that_were_measured_are_a_result_whatever_ends_the_question(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(harness: Harness) -> None:
        sides = [Counting("appliance", [1], [])]
        harness.run("consume", sides, lambda side: "t", lambda side, topic: side.once(topic))
        raise Wrong("a message is missing")

    monkeypatch.setattr(limits, "measure", lambda *_: LIMITS)
    monkeypatch.setattr(sizes, "run", half)
    found: list[BenchResult] = []
    with pytest.raises(Wrong):
        runner.run(["sizes"], BenchOptions(tmp_path, rounds=1), told.append, found.append)
    assert [each.question for each in found] == ["limits", "sizes"]
    assert found[1].workloads == ["consume"] and "stopped before its end" in found[1].notices[0]


def test_a_question_without_a_figure_replaces_no_result(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(harness: Harness) -> None:
        raise Missing("Java: apt-get install default-jre-headless")

    monkeypatch.setattr(limits, "measure", lambda *_: LIMITS)
    monkeypatch.setattr(sizes, "run", absent)
    found: list[BenchResult] = []
    runner.run(["sizes"], BenchOptions(tmp_path, rounds=1), told.append, found.append)
    assert [each.question for each in found] == ["limits"]
    assert any("apt-get install default-jre-headless" in line for line in told)


def test_the_estimate_is_what_it_took_before(tmp_path: Path, told: list[str]) -> None:
    result, _ = measured(tmp_path, told, rounds=2)
    result.took_s = 100.0
    options = BenchOptions(tmp_path, rounds=3)
    typical = runner.estimate_s(["sizes"], options, {})
    assert typical == runner.LIMITS_S + 3 * sizes.ROUND_S
    both = runner.estimate_s(["kafka_rows", "sizes"], options, {"kafka_rows": result})
    assert both == typical + 150


def test_the_help_names_every_question() -> None:
    assert all(question in (bench_command.bench.__doc__ or "") for question in runner.QUESTIONS)


def test_what_javas_tools_print_is_read() -> None:
    sent = "100 records sent, 50.0 records/sec (0.01 MB/sec)\n2000 records sent, 1234.5 records/sec (0.2 MB/sec)\n"
    assert java_tools.producer_rate(sent, 2000) == 1234.5
    read = "2026-11-22 15:00:00:000, 2026-11-22 15:00:02:000, 0.4, 0.2, 2000, 1000.0, 1500, 500, 0.8, 4000.0\n"
    assert java_tools.consumer_rate(read, 2000) == 4000
    assert java_tools.delays("Percentiles: 50th = 0, 99th = 4, 99.9th = 12\n") == {
        "p50_ms": 0, "p99_ms": 4, "p999_ms": 12,
    }  # fmt: skip
    for reader in (lambda: java_tools.producer_rate(sent, 1999), lambda: java_tools.consumer_rate(read, 1999)):
        with pytest.raises(Wrong):
            reader()


def test_bytes_on_the_disk_are_those_that_were_written_not_what_was_reserved_or_deleted(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x" * 10_000)
    journal = tmp_path / "journal"
    journal.write_bytes(bytes(1 << 20))
    before = paper_figures.held(tmp_path)
    with journal.open("r+b") as file:
        file.write(b"x" * 5000)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 20)
    (tmp_path / "new").write_bytes(b"y" * 100)
    (tmp_path / "old").unlink()
    assert paper_figures.added(before, paper_figures.held(tmp_path)) == 2 * 4096 + 100

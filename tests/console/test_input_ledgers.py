"""The page of inputs: states and ledgers, to those who may see them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from appliance.client import Producer
from appliance.client.cluster_client import Cluster
from appliance.clock import wall_s
from appliance.console import input_ledgers
from appliance.console.input_ledgers import GAPS_MAX, SOURCES_MAX, LedgerQuery, account
from appliance.console.visitors import Visitor
from appliance.inputs.ledger import ROW_BYTES_MAX, SPANS_MAX, Gap, LedgerReading, LedgerRow, encode_row
from appliance.security.audit_log import Audit
from appliance.security.scram import encode_verifier, make_verifier

from ..support.browser import CHROMIUM, Browser
from ..support.console_page import NARROW, fits, visit
from ..support.server import Server, wait_for
from .test_application import asker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two inputs of files, of which one has read something and published it.

    Everybody may read the ledger and describe the cluster, but nobody not logged in the topic ``disk``; alice reads
    nothing of the ledger.
    """
    place = tmp_path_factory.mktemp("inputs")
    logs = place / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("one\ntwo\nthree\n")
    (logs / "<b>.log").write_text("four\n")
    inputs: dict[str, Any] = {
        "inputs.disk.type": "files", "inputs.disk.topic": "disk", "inputs.disk.include": f"{logs}/*.log",
        "inputs.none.type": "files", "inputs.none.topic": "none", "inputs.none.include": f"{logs}/*.none",
    }  # fmt: skip
    inputs |= {"security.authorizer": "acl", "security.super_users": "User:root"}
    inputs |= {"console.listen": "127.0.0.1:0", "console.anonymous": True}
    with Server(place / "data", **inputs) as server:
        with contextlib.closing(Cluster(server.state["listeners"]["local"])) as cluster:
            verifier = encode_verifier(make_verifier("SCRAM-SHA-256", b"right", 4096))
            cluster.admin("put_user", {"name": "alice", "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
            rules = [
                ("Topic", "ledger", "User:ANONYMOUS", "Read"),
                ("Cluster", "kafka-cluster", "User:ANONYMOUS", "Describe"),
                ("Topic", "disk", "User:alice", "Read"),
            ]
            acls = [{"resource": r, "name": n, "principal": w, "operation": o} for r, n, w, o in rules]
            cluster.admin("add_acls", {"acls": acls})
        wait_for(lambda: server.state["inputs"]["disk"]["lines"] == 4, "the lines")
        assert server.stop() == 0  # the ledger is published
        server.start()
        yield server


def test_whoever_may_describe_the_cluster_sees_the_inputs(server: Server) -> None:
    ask = asker(server)
    status, found = ask("/api/inputs")
    assert status == 200
    (disk, none) = found["inputs"]
    assert (disk["name"], disk["type"], disk["topic"]) == ("disk", "files", "disk")
    assert (none["name"], none["lines"], none["gaps"], none["trouble"]) == ("none", 0, 0, "")
    assert ask("/api/login", {"user": "alice", "password": "right"})[0] == 200
    assert ask("/api/inputs")[0] == 403


def test_whoever_may_read_the_ledger_sees_it_without_places_in_topics_of_others(server: Server) -> None:
    ask = asker(server)
    status, found = ask("/api/ledger?input=disk&hours=24")
    assert status == 200 and not found["is_cut"] and found["gaps"] == [] and found["sources_total"] == 2
    lines = {row["source"].rpartition("/")[2]: row["lines"] for row in found["sources"]}
    assert lines == {"a.log": 3, "<b>.log": 1}
    assert [row["places"] for row in found["sources"]] == [[], []]
    assert ask("/api/ledger?input=none&hours=24")[1]["sources"] == []
    assert ask("/api/ledger?input=disk&hours=100000")[0] == 400
    assert ask("/api/login", {"user": "alice", "password": "right"})[0] == 200
    assert ask("/api/ledger?input=disk&hours=24")[0] == 403


def test_a_large_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources with gaps come first; the last gaps are shown."""
    gaps = [Gap(number, number + 1, "bytes", "vanished") for number in range(GAPS_MAX + 1)]
    span = ("disk", 0, 100, 2, 0, 8, 1, 2, 8)
    rows = [LedgerRow("disk", "h", f"/{number}", number, "s", 60, 2, 8, 2, [span]) for number in range(SOURCES_MAX)]
    rows += [LedgerRow("disk", "h", "/lost", 9_999, "s", 120, gaps=gaps), LedgerRow("other", "h", "/x", 1, "s", 60, 5)]
    monkeypatch.setattr(input_ledgers, "_read", lambda *_: rows)
    everybody = SimpleNamespace(principal="User:root", describable={"disk": True})
    visitor = cast(Visitor, SimpleNamespace(peer="127.0.0.1:1", access=everybody, check_right=lambda *_, **__: None))
    audit = Audit(lambda: 0, lambda: None)
    found = account("ledger", LedgerQuery("disk"), "", visitor, audit)
    assert found["sources"][0]["source"] == "/lost" and len(found["sources"]) == SOURCES_MAX
    assert (found["sources_total"], found["gaps_total"], found["is_cut"]) == (SOURCES_MAX + 1, GAPS_MAX + 1, False)
    assert [gap["start"] for gap in found["gaps"]] == list(range(1, GAPS_MAX + 1))
    assert found["sources"][1]["places"] == [{"topic": "disk", "partition": 0, "first": 100, "last": 101}]


def test_whoever_writes_to_the_ledger_cannot_break_its_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no row is counted, and what is read for one question is bounded."""
    fresh = LedgerRow("odd", "h", "/x", 1, "s", int(wall_s()), 1, 1, 1, [("disk", 0, 1, 1, 0, 1, 1, 1, 1)] * 3)
    good = encode_row(fresh)
    odd = [
        b"", b"\xff", good.replace(b'"/x"', b'"\xff"'), good.replace(b"{", b'{"more":' + b"[" * 10**5, 1),
        encode_row(replace(fresh, spans=fresh.spans * SPANS_MAX)), encode_row(replace(fresh, minute=2**50)),
        encode_row(replace(fresh, lines=-1)), good + b" " * ROW_BYTES_MAX,
    ]  # fmt: skip
    native = server.state["listeners"]["local"]
    with Producer(native) as producer:
        for value in (*odd[:-1], good):
            producer.send("ledger", value, key=b"/x")
    status, found = asker(server)("/api/ledger?input=odd&hours=24")
    assert (status, found["sources_total"], found["unreadable"], found["is_cut"]) == (200, 1, len(odd) - 1, False)
    assert all(LedgerReading().row(value) is None for value in odd)
    for bounds in ({"rows_max": 9}, {"bytes_max": 10 * len(good) - 1}, {"parts_max": 29}, {"until_ms": 0}):
        reading = LedgerReading(**bounds)
        rows = [reading.row(good) for _ in range(10)]
        assert reading.is_cut and None in rows


@pytest.mark.parametrize("bound", ["ROWS_MAX", "BYTES_MAX", "PARTS_MAX", "READ_MS_MAX"])
def test_each_question_has_its_bounds(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(input_ledgers, bound, 0)
    reading = input_ledgers._bounds()
    reading.row(encode_row(LedgerRow("disk", "h", "/x", 1, "s", 60, 1, 1, 1, [("disk", 0, 1, 1, 0, 1, 1, 1, 1)])))
    assert reading.is_cut


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")
def test_the_page_shows_inputs_and_their_ledgers(page: Browser, server: Server) -> None:
    visit(page, server, "#/inputs")
    page.wait("document.querySelectorAll('tbody tr').length === 2")
    page.evaluate("document.querySelector('tbody a').click()")
    page.wait("document.querySelector('main').innerText.includes('/a.log')")
    assert "<b>.log" in page.text()
    assert "Nothing was lost before it was read." in page.text()
    page.resize(*NARROW)
    assert fits(page)

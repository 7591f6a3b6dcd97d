"""axe finds nothing on any page of the console, with a login and without, light and dark, wide and narrow."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.client import Admin, Producer
from appliance.client.cluster_client import Cluster
from appliance.security.scram import encode_verifier, make_verifier
from appliance.zookeeper.ensemble import Ensemble

from ..support.browser import CHROMIUM, Browser
from ..support.console_page import NARROW, WIDE, fits, shoot, visit
from ..support.server import Server
from ..support.zookeeper_fixture import ACCESS, fresh_connect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")

PASSWORD = "correct horse"
PAGES: Final = {
    "overview": ("", "document.querySelector('.facts')?.innerText.includes('serving')"),
    "topics": ("#/topics", "document.querySelector('tbody tr')"),
    "messages": ("#/topics/web", "document.querySelectorAll('.messages summary').length > 2"),
    "nothing found": (
        "#/topics/web?text=none",
        "document.querySelector('.messages')?.innerText.includes('No message')",
    ),
    "charts": ("#/topics/web/charts", "document.querySelector('.charts .line')?.getAttribute('d').includes('L')"),
    "search": ("#/search?topics=web%2C+o*", "document.querySelectorAll('.messages summary').length > 2"),
    "search of nothing": ("#/search", "document.querySelector('input[name=topics]')"),
    "partitions": ("#/topics/web/partitions", "document.querySelector('tbody tr')"),
    "readers": ("#/topics/web/readers", "document.querySelector('tbody')?.innerText.includes('reports')"),
    "settings": ("#/topics/web/settings", "document.querySelector('tbody tr')"),
    "groups": ("#/groups", "document.querySelector('tbody tr')"),
    "group": ("#/groups/reports", "document.querySelector('.charts .times:not([hidden])')"),
    "users": ("#/access", "document.querySelector('tbody tr')"),
    "roles": ("#/access/roles", "document.querySelector('tbody tr')"),
    "rules": ("#/access/rules", "document.querySelector('tbody tr')"),
    "quotas": ("#/access/quotas", "document.querySelector('tbody tr')"),
    "clients": ("#/clients", "document.querySelector('tbody tr')"),
    "sql": ("#/sql", "document.querySelector('textarea')"),
    "no such page": ("#/nowhere", "document.querySelector('h1')"),
}
"""Where each is, and what is there when it is shown."""
READY = "document.querySelector('main h1')"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    """An appliance with something in each list."""
    page = {"console.listen": "127.0.0.1:0", "console.anonymous": True, "console.chart_ms": 1_000}
    settings = {**page, "zookeeper.connect": fresh_connect(standalone), "network.workers": 1} | ACCESS
    settings |= {"security.authorizer": "acl", "security.super_users": "User:alice;User:ANONYMOUS"}
    with Server(tmp_path_factory.mktemp("console") / "data", **settings) as server, Admin(server.native) as admin:
        admin.create_topic("web", 2)
        with Producer(server.native) as producer:
            producer.send_many("web", [b'{"number": %d, "path": "/item"}' % number for number in range(30)])
        admin.commit("reports", {("web", 0): 0, ("web", 1): 0})
        verifier = encode_verifier(make_verifier("SCRAM-SHA-256", PASSWORD.encode()))
        with contextlib.closing(Cluster(server.native)) as cluster:
            cluster.admin("put_user", {"name": "alice", "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
            cluster.admin("put_quota", {"user": "alice", "limits": {"producer_byte_rate": 1e9}})
            rule = {"principal": "User:x", "operation": "Read", "resource": "Topic", "name": "web"}
            cluster.admin("create_role", {"name": "readers"})
            cluster.admin("alter_role", {"name": "readers", "grant": ["alice"]})
            cluster.admin("add_acls", {"acls": [rule, rule | {"principal": "Role:readers"}]})
        yield server


def axe() -> str:
    """The script; AXE=FILE names another release of it."""
    if os.environ.get("AXE"):
        return Path(os.environ["AXE"]).read_text()
    return files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js").read_text()


def check(page: Browser, script: str, name: str) -> None:
    """Nothing on the page as it is breaks a rule of axe, on a wide light screen and on a narrow dark one."""
    for colours, size in (("light", WIDE), ("dark", NARROW)):
        page.prefer(colours)
        page.resize(*size)
        shoot(page, f"axe-{name.replace(' ', '-')}-{colours}")
        found = page.evaluate(f"{script}; axe.run().then((done) => JSON.stringify(done.violations))")
        assert not _brief(json.loads(found)), f"{name}, {colours}, {size}"
        assert fits(page), f"{name} at {size}"
    for width in (400, 800, 2000):
        page.resize(width, 900)
        shoot(page, f"axe-{name.replace(' ', '-')}-{width}")
        cut = "[...document.querySelectorAll('.table')].filter((one) => one.scrollWidth > one.clientWidth).length"
        page.wait(f"{cut} === 0", f"{name}: no table is cut off at {width}")
        assert fits(page), f"{name} at {width}"
    page.resize(*WIDE)
    page.prefer("light")


def _brief(violations: list[dict[str, Any]]) -> list[str]:
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]}: {node['failureSummary']}"
        for one in violations
        for node in one["nodes"]
    ]


def log_in(page: Browser, server: Server) -> None:
    visit(page, server, "")
    page.wait(READY)
    body = json.dumps({"user": "alice", "password": PASSWORD})
    sent = f"{{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: {json.dumps(body)}}}"
    assert page.evaluate(f"fetch('api/login', {sent}).then((answer) => answer.status)") == 200


def test_pages_of_who_is_not_logged_in(page: Browser, server: Server) -> None:
    script = axe()
    for name in ("overview", "topics", "messages"):
        place, shown = PAGES[name]
        visit(page, server, place)
        page.wait(shown, name)
        check(page, script, f"anonymous {name}")


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_who_is_logged_in(page: Browser, server: Server, name: str) -> None:
    log_in(page, server)
    place, shown = PAGES[name]
    visit(page, server, place)
    page.wait(shown, name)
    if name == "messages":
        page.evaluate("document.querySelector('.messages summary').click()")
    check(page, axe(), name)


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("#/topics", "Create a topic"),
        ("#/access", "Add a user"),
        ("#/access/rules", "Add a rule"),
        ("#/access/roles", "Add a role"),
    ],
)
def test_dialogs(page: Browser, server: Server, place: str, label: str) -> None:
    log_in(page, server)
    visit(page, server, place)
    button = f"[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith({label!r}))"
    page.wait(button)
    page.evaluate(f"{button}.click()")
    page.wait("document.querySelector('dialog[open]')")
    check(page, axe(), label)

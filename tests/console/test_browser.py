"""The console's page in a real browser: Debian's chromium, headless.  Skipped where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from appliance.client import Admin, Producer
from appliance.client.cluster_client import Cluster
from appliance.security.scram import encode_verifier, make_verifier
from appliance.zookeeper.ensemble import Ensemble

from ..support.browser import CHROMIUM, Browser
from ..support.console_page import NARROW, fits, shoot, visit
from ..support.server import Server
from ..support.zookeeper_fixture import ACCESS, fresh_connect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")

HOSTILE = b'<img src=x onerror="document.title=\'broken\'"><script>document.title="broken"</script>'
PASSWORD = b"correct horse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    """An appliance with a topic, a group that is behind, and a user."""
    page = {"console.listen": "127.0.0.1:0", "console.anonymous": True}
    settings = {**page, "zookeeper.connect": fresh_connect(standalone)} | ACCESS
    with Server(tmp_path_factory.mktemp("console") / "data", **settings) as server, Admin(server.native) as admin:
        admin.create_topic("web", 2)
        admin.create_topic("quiet")
        with Producer(server.native) as producer:
            for number in range(3_000):
                value = b'{"number": %d, "path": "/item/%d", "status": 200}' % (number, number % 7)
                producer.send("web", value, key=b"key-%d" % (number % 10))
            producer.send("web", HOSTILE, key=b"<b>hostile</b>", headers=(("<i>header</i>", b"<u>x</u>"),)).result()
        admin.commit("reports", {("web", 0): 0, ("web", 1): 0})
        verifier = encode_verifier(make_verifier("SCRAM-SHA-256", PASSWORD))
        with contextlib.closing(Cluster(server.native)) as cluster:
            cluster.admin("put_user", {"name": "alice", "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
        yield server


def test_the_overview_shows_figures_and_what_is_wrong(page: Browser, server: Server) -> None:
    visit(page, server, "")
    alerts = "[...document.querySelectorAll('.alert h3')].map((one) => one.innerText)"
    page.wait(f"document.querySelector('.fine') || {alerts}.every((one) => one.includes('group reports lags'))")
    page.wait("document.querySelector('.facts')?.innerText.includes('serving')")
    assert "3 partitions" in page.text()
    page.wait("document.querySelector('polyline').getAttribute('points').includes(' ')", "two rates")
    shoot(page, "overview")
    page.prefer("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    shoot(page, "overview-dark")
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(247, 247, 245)", "light was chosen"
    page.evaluate("localStorage.clear()")


def test_the_first_page_waits_for_nobody_else(page: Browser, server: Server) -> None:
    """What it loads is the console's own: nothing from another host, and no font."""
    visit(page, server, "#/topics")
    page.wait("document.querySelector('tbody tr')")
    foreign = "performance.getEntriesByType('resource').filter((one) => new URL(one.name).origin != location.origin)"
    assert page.evaluate("performance.getEntriesByType('resource').length") > 5
    assert page.evaluate(f"{foreign}.map((one) => one.name)") == []


def test_lag_moves(page: Browser, server: Server) -> None:
    visit(page, server, "#/groups")
    lag = "document.querySelector('tbody td[data-label=\"Lag, messages\"]')?.textContent"
    page.wait(f"{lag} === '3,001'", "the lag of the group")
    page.wait(
        "document.querySelector('.alert h3')?.innerText.includes('group reports lags')", "the finding of the list"
    )
    shoot(page, "groups")
    with Producer(server.native) as producer:
        producer.send_many("web", [b"more"] * 10)
    page.wait(f"{lag} === '3,011'", "the lag after ten more messages")
    with Admin(server.native) as admin:
        ends = {("web", row["partition"]): row["end"] for row in admin.topics(["web"])[0]["partitions"]}
        admin.commit("reports", ends)
        page.wait(f"{lag} === '0'", "no lag after a commit at the end")
        admin.commit("reports", {("web", 0): 0, ("web", 1): 0})
    page.evaluate("document.querySelector('tbody a').click()")
    page.wait("document.querySelector('.reasons').innerText.includes('no member')", "why it stands still, in words")
    assert "nobody reads" in page.text() or "a program that is no member of the group" in page.text()
    assert "last commit" in page.evaluate("document.querySelector('.reasons').previousSibling.innerText")
    page.wait("document.querySelectorAll('.table')[0].querySelectorAll('tbody tr').length === 2")
    page.wait("document.querySelector('.alert h3')?.innerText.includes('group reports lags by')", "why it stands still")
    assert page.evaluate("document.querySelector('tbody td[data-label=\"Read by\"]').innerText") == "nobody"
    next_one = page.evaluate("document.querySelector('tbody td[data-label=\"Committed\"] a').hash")
    assert next_one.startswith("#/topics/web?start=offset&partition="), "what it may be stuck at is one click away"
    shoot(page, "group")


def test_a_search_finds_one_message_in_three_thousand(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics/web?text=%22number%22%3A+1234%2C")
    page.wait("document.querySelector('.status').innerText.includes('everything is read')")
    assert page.evaluate("document.querySelectorAll('.messages summary').length") == 1
    page.evaluate("document.querySelector('.messages summary').click()")
    page.wait(
        "document.querySelector('pre.value').textContent.includes('\"number\": 1234,\\n')", "JSON with line breaks"
    )
    shoot(page, "search")
    page.evaluate("document.querySelector('input[name=text]').value = 'there is no such text'")
    page.evaluate("document.querySelector('form.search').requestSubmit()")
    page.wait("document.querySelector('.messages').innerText.includes('No message matches')")
    shoot(page, "search-empty")


def test_a_search_ends_at_a_time(page: Browser, server: Server) -> None:
    """The address has the end, too, so that a search can be kept; what arrives has none."""
    visit(page, server, "#/topics/web?until=2001-01-01T00:00")
    page.wait("document.querySelector('.messages').innerText.includes('No message matches')", "nothing is so old")
    assert page.evaluate("document.querySelector('input[name=until]').value") == "2001-01-01T00:00"
    page.evaluate("document.querySelector('input[name=until]').value = '2999-01-01T00:00'")
    page.evaluate("document.querySelector('form.search').requestSubmit()")
    page.wait("document.querySelectorAll('.messages summary').length === 50")
    assert "until=2999-01-01T00%3A00" in page.evaluate("location.hash")
    page.evaluate(
        "(() => { const start = document.querySelector('select[name=start]'); start.value = 'follow';"
        " start.dispatchEvent(new Event('change')); })()"
    )
    assert page.evaluate("document.querySelector('input[name=until]').closest('label').hidden")


@pytest.mark.parametrize(("label", "begins"), [("CSV", "topic,partition,"), ("JSON lines", '{"topic":"web",')])
def test_what_a_search_finds_is_downloaded(page: Browser, server: Server, label: str, begins: str) -> None:
    visit(page, server, "#/topics/web?text=%22number%22%3A+12")
    page.wait("document.querySelectorAll('.messages summary').length === 50")
    page.evaluate(
        "(() => { window.files = []; const made = URL.createObjectURL; URL.createObjectURL = (blob) => {"
        " blob.text().then((text) => window.files.push(text)); return made.call(URL, blob); }; })()"
    )
    click = f"[...document.querySelectorAll('button')].find((one) => one.innerText === 'Download as {label}').click()"
    page.evaluate(click)
    page.wait("document.querySelector('main').innerText.includes('111 messages (')", "the end of the file")
    assert "downloaded, all that was found." in page.text()
    page.wait("window.files.length === 1")
    assert page.evaluate("window.files[0]").startswith(begins)
    assert page.evaluate("window.files[0].trim().split('\\n').length") == 111 + (label == "CSV")
    page.evaluate("document.querySelector('select[name=start]').value = 'follow'")
    page.evaluate(click)
    page.wait("document.querySelector('main').innerText.includes('What arrives is not downloaded')")


def test_more_messages_come_without_gap_or_repeat(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics/web?partition=0")
    page.wait("document.querySelectorAll('.messages summary').length === 50")
    page.evaluate("[...document.querySelectorAll('button')].find((one) => one.innerText === 'Load more').click()")
    page.wait("document.querySelectorAll('.messages summary').length === 100")
    places = page.evaluate("[...document.querySelectorAll('.place')].map((one) => one.textContent)")
    assert len(set(places)) == 100
    shoot(page, "messages")


def test_what_arrives_is_shown_live_and_by_filter(page: Browser, server: Server) -> None:
    """By expression and field, as `appliance tail`; a stop ends it."""
    visit(page, server, "#/topics/web?start=follow&match=item%2F%5B0-3%5D%24&field=status%3D500")
    page.wait("document.querySelector('main > div > div > .status').innerText.startsWith('Live')")
    with Producer(server.native) as producer:
        for number in range(8):
            status = 500 if number % 2 else 200
            producer.send("web", b"path=/item/%d status=%d" % (number, status)).result()
            producer.send("web", b"status=500 path=/item/%d" % number).result()
    values = "[...document.querySelectorAll('.preview')].map((one) => one.textContent)"
    page.wait(f"{values}.length === 4", "those that fit")
    assert page.evaluate(values) == [f"status=500 path=/item/{number}" for number in (3, 2, 1, 0)], "the newest above"
    shoot(page, "live")
    page.evaluate("[...document.querySelectorAll('button')].find((one) => one.innerText === 'Stop').click()")
    page.wait("document.querySelector('main > div > div > .status').innerText.startsWith('Stopped')")
    visit(page, server, "#/topics/web?match=%28")
    page.wait("document.querySelector('.problem')?.innerText.includes('no regular expression')")
    page.console.clear()  # the browser notes each answer with status 400


def test_who_reads_a_topic_is_shown(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics/web/readers")
    page.wait("document.querySelector('tbody')?.innerText.includes('reports')")
    assert page.evaluate("document.querySelectorAll('tbody tr').length") == 1
    shoot(page, "readers")
    visit(page, server, "#/topics/quiet/readers")
    page.wait("document.querySelector('.empty')?.innerText.includes('No group reads this topic')")


def test_markup_in_messages_stays_text(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics/web?key=hostile")
    page.wait("document.querySelector('.messages summary')")
    page.evaluate("document.querySelector('.messages summary').click()")
    page.wait("document.querySelector('pre.value')")
    assert page.evaluate("document.querySelector('pre.value').textContent") == HOSTILE.decode()
    assert "<b>hostile</b>" in page.text() and "<i>header</i>" in page.text()
    assert page.evaluate("document.querySelectorAll('main img, main script, main b, main i, main u').length") == 0
    assert "broken" not in page.evaluate("document.title")
    shoot(page, "hostile")
    refused = page.evaluate(
        "(() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } })()"
    )
    assert refused == "TypeError", "Trusted Types: text cannot become markup"
    page.console.clear()


def test_by_keyboard_alone(page: Browser, server: Server) -> None:
    """From the list of topics to one message, and its value, with Tab, Enter and a shortcut."""
    visit(page, server, "#/topics")
    page.wait("document.querySelector('tbody tr')")
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.type("we")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    tab_to(page, "active.matches('tbody a')")
    page.press("Enter")
    page.wait("location.hash === '#/topics/web' && document.querySelectorAll('.messages summary').length === 50")
    assert page.evaluate("document.activeElement.tagName") == "H1", "the focus begins at the title of the new view"
    tab_to(page, "active.matches('.messages summary')", tabs_max=30)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus can be seen"
    page.press("Enter")
    page.wait("document.querySelector('details[open] pre.value')")
    shoot(page, "keyboard")


def tab_to(page: Browser, condition: str, tabs_max: int = 20) -> None:
    for _ in range(tabs_max):
        page.press("Tab")
        if page.evaluate(f"((active) => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"not reached with {tabs_max} tabs: {condition}")


PLACES = [
    "",
    "#/topics",
    "#/topics/web",
    "#/topics/web/partitions",
    "#/topics/web/readers",
    "#/groups",
    "#/groups/reports",
]


def test_it_fits_a_phone(page: Browser, server: Server) -> None:
    page.resize(*NARROW)
    visit(page, server, "")
    for place in PLACES:
        page.evaluate(f"location.hash = {place!r}")
        page.wait(f"location.hash === {place!r} && document.querySelector('.facts > *, tbody tr, .messages summary')")
        assert fits(page), place
        small = page.evaluate(
            "[...document.querySelectorAll('main button, main input, main select')].filter((one) => one.offsetParent"
            " && !one.matches('.sort') && one.offsetHeight < 36).map((one) => one.outerHTML)"
        )
        assert small == [], "controls that a thumb does not hit"
        shoot(page, f"narrow-{place.strip('#/').replace('/', '-') or 'overview'}")


def test_it_is_read_only_until_somebody_logs_in(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics/quiet")
    page.wait("document.querySelector('.messages').innerText.includes('There are no messages here')")
    shoot(page, "empty")
    assert not page.evaluate("document.querySelector('.produce')")
    page.evaluate("document.getElementById('login').click()")
    for field, text in (("user", "alice"), ("password", "wrong")):
        page.evaluate(f"document.querySelector('dialog input[name={field}]').focus()")
        page.type(text)
    page.press("Enter")
    page.wait("document.querySelector('dialog .problem')?.innerText.includes('wrong password or unknown user')")
    page.console.clear()  # the browser notes each answer with status 401
    shoot(page, "login")
    page.type(PASSWORD.decode())
    page.press("Enter")
    page.wait("document.getElementById('user').innerText === 'alice' && document.querySelector('.produce')")
    assert page.evaluate("document.cookie") == "", "no script can read the session"
    page.evaluate("document.querySelector('.produce summary').click()")
    page.evaluate("document.querySelector('.produce textarea').focus()")
    page.type("from the page")
    page.evaluate("document.querySelector('.produce form').requestSubmit()")
    page.wait("document.querySelector('.messages')?.innerText.includes('from the page')")
    shoot(page, "logged-in")
    page.evaluate("document.getElementById('login').click()")
    page.wait("document.getElementById('user').innerText === '' && !document.querySelector('.produce')")


def test_a_console_that_went_away_comes_back(page: Browser, server: Server) -> None:
    visit(page, server, "#/topics")
    page.wait("document.querySelector('tbody tr')")
    pid = server.pid_of("console")
    server.kill(pid)
    page.wait("!document.getElementById('banner').hidden", "the page says that what it shows is old")
    shoot(page, "lost")
    page.wait("document.getElementById('banner').hidden", "the page is live again")
    page.console.clear()

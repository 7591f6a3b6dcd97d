"""What the page changes, in a real browser: each action by who may, by who may not, and not without the name typed."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator

import pytest

from appliance.client import Admin, Producer
from appliance.client.cluster_client import Cluster
from appliance.security.scram import encode_verifier, make_verifier
from appliance.zookeeper.ensemble import Ensemble

from ..support.browser import CHROMIUM, Browser
from ..support.console_page import NARROW, fits, shoot, visit
from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")

HOSTILE = "<img src=x onerror=document.title='broken'>\u202e\"'`${1}</script>"
USERS = ("root", "bob")
"""The super user, and one who may look at everything and change nothing; ``eve`` may do nothing at all, and
``carl`` read what begins with ``his-``."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    rights = {"security.authorizer": "acl", "security.super_users": "User:root"}
    settings = {"console.listen": "127.0.0.1:0", "zookeeper.connect": fresh_connect(standalone), **rights} | ACCESS
    settings["console.chart_ms"] = 1_000
    with Server(tmp_path_factory.mktemp("actions") / "data", **settings) as server:
        with contextlib.closing(local(server)) as cluster:
            for user in (*USERS, "eve", "carl"):
                verifier = encode_verifier(make_verifier("SCRAM-SHA-256", user.encode(), 4096))
                cluster.admin("put_user", {"name": user, "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
            kinds = (("Topic", "*"), ("Group", "*"), ("Cluster", "kafka-cluster"))
            rules = [
                {"resource": kind, "name": name, "principal": "User:bob", "operation": one}
                for kind, name in kinds
                for one in (("Describe", "DescribeConfigs") if kind == "Cluster" else ("Describe", "Read"))
            ]
            his = [("Topic", "Describe"), ("Topic", "Read"), ("Group", "Describe")]
            rules += [
                {"resource": kind, "name": "his-", "pattern": "Prefixed", "principal": "User:carl", "operation": one}
                for kind, one in his
            ]
            cluster.admin("add_acls", {"acls": rules})
            cluster.admin("put_quota", {"user": HOSTILE, "client_id": "", "limits": {"request_rate": 7}})
        yield server


def local(server: Server) -> Cluster:
    return Cluster(server.state["listeners"]["local"])


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.state["listeners"]["local"]) as admin:
        yield admin


def log_in(page: Browser, server: Server, user: str, place: str) -> None:
    """Open a place as this user."""
    visit(page, server, "")
    page.wait("document.getElementById('nav').childElementCount")
    page.evaluate(
        "(async () => { const post = (path, body, more = {}) =>"
        " fetch(path, {method: 'POST', body: JSON.stringify(body), headers: {'content-type': 'application/json',"
        " ...more}});"
        " const known = await (await fetch('api/session')).json();"
        " if (known.user) await post('api/logout', {}, {'x-csrf-token': known.csrf});"
        f" await post('api/login', {{user: {user!r}, password: {user!r}}}); }})()"
    )
    visit(page, server, place)
    page.wait(f"document.getElementById('user').innerText === {user!r}", f"{user} is logged in")
    page.console.clear()  # the page before has noted that its login was over


def click(page: Browser, text: str, within: str = "main") -> None:
    """Click the first button of this text, as soon as it is there."""
    every = f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
    found = f"{every}.find((one) => one.offsetParent && one.innerText === {text!r})"
    page.wait(f"{found} && !{found}.disabled", f"the button {text!r}")
    page.evaluate(f"{found}.click()")


def fill(page: Browser, **values: str) -> None:
    """Type into the fields of the open dialog."""
    for name, value in values.items():
        found = f"document.querySelector('dialog [name={name}]')"
        page.wait(found, f"the field {name}")
        event = "new Event('{}', {{bubbles: true}})"
        page.evaluate(
            f"(() => {{ const one = {found}; one.value = {json.dumps(value)};"
            f" one.dispatchEvent({event.format('input')}); one.dispatchEvent({event.format('change')}); }})()"
        )


def send(page: Browser) -> None:
    submit = "document.querySelector('dialog button[type=submit]')"
    assert not page.evaluate(f"{submit}.disabled")
    page.evaluate(f"{submit}.click()")


def done(page: Browser) -> None:
    page.wait("!document.querySelector('dialog')", "the dialog closes")


def refused(page: Browser) -> None:
    """The dialog says that the right is missing, and stays open."""
    page.wait("document.querySelector('dialog .problem')?.innerText.includes('not permitted')", "the refusal")
    click(page, "Cancel", "dialog")
    done(page)
    forget_the_answer(page)


def forget_the_answer(page: Browser) -> None:
    """The browser notes each answer with an error's status."""
    wait_for(lambda: page.evaluate("true") and page.console, "the note")
    page.console.clear()


def typing_opens(page: Browser, name: str) -> None:
    """The button of the dialog works with the whole name only."""
    submit = "document.querySelector('dialog button[type=submit]').disabled"
    for text in ("", name[:-1], name + " ", name.upper() if name.upper() != name else name + "x"):
        fill(page, confirm=text)
        assert page.evaluate(submit), f"open with {text!r}"
    fill(page, confirm=name)


@pytest.mark.parametrize("user", USERS)
def test_create_and_configure_a_topic(page: Browser, server: Server, admin: Admin, user: str) -> None:
    log_in(page, server, user, "#/topics")
    click(page, "Create a topic")
    fill(page, name=f"made-by-{user}", partitions="3", settings="retention.ms = 1d\n")
    send(page)
    if user == "bob":
        refused(page)
        admin.create_topic("made-by-bob", 3, {"retention.ms": "1d"})
    else:
        page.wait("location.hash === '#/topics/made-by-root/settings'")
    log_in(page, server, user, f"#/topics/made-by-{user}/settings")
    first = "document.querySelector('tbody tr')?.innerText"
    page.wait(f"{first}.includes('retention.ms') && {first}.includes('86400000') && {first}.includes('this topic')")
    assert "the default" in page.text(), "settings that are not the topic's own are shown, too"
    shoot(page, f"settings-{user}")
    click(page, "Change settings")
    fill(page, settings="retention.ms=\nflush.messages=9", partitions="4")
    send(page)
    if user == "bob":
        refused(page)
    else:
        done(page)
        page.wait(f"{first}.includes('flush.messages')", "the settings are asked for again")
        (found,) = admin.topics(["made-by-root"])
        assert found["own"] == {"flush.messages": "9"} and len(found["partitions"]) == 4
    admin.delete_topic(f"made-by-{user}")


@pytest.mark.parametrize("user", USERS)
def test_empty_delete_and_bring_back_a_topic(page: Browser, server: Server, admin: Admin, user: str) -> None:
    name = f"full-{user}"
    admin.create_topic(name)
    with Producer(server.state["listeners"]["local"]) as producer:
        producer.send(name, b"x" * 1000).result(60)
    log_in(page, server, user, f"#/topics/{name}")
    click(page, "Empty")
    typing_opens(page, name)
    shoot(page, f"empty-{user}")
    send(page)
    if user == "bob":
        refused(page)
        assert admin.topics([name])[0]["partitions"][0]["bytes"]
    else:
        done(page)
        page.wait("document.body.innerText.includes('deleted.')")
        assert admin.topics([name])[0]["partitions"][0]["bytes"] == 0
    click(page, "Delete")
    typing_opens(page, name)
    send(page)
    if user == "bob":
        refused(page)
        admin.delete_topic(name)
        log_in(page, server, user, "#/trash")
    else:
        page.wait("location.hash === '#/trash'")
    row = f"[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes({name!r}))"
    page.wait(row)
    shoot(page, f"trash-{user}")
    page.evaluate(f"{row}.querySelector('button').click()")
    fill(page, name=f"{name}-again")
    send(page)
    if user == "bob":
        refused(page)
    else:
        page.wait(f"location.hash === '#/topics/{name}-again'")
        assert [row["name"] for row in admin.topics([f"{name}-again"])]


@pytest.mark.parametrize("user", USERS)
def test_reset_and_delete_a_group(page: Browser, server: Server, admin: Admin, user: str) -> None:
    group = f"g-{user}"
    admin.ensure_topic("read")
    with Producer(server.state["listeners"]["local"]) as producer:
        producer.send("read", b"x").result(60)
    admin.commit(group, {("read", 0): 0})
    log_in(page, server, user, "#/groups")
    page.wait(f"document.querySelector('tbody')?.innerText.includes({group!r})")
    page.evaluate(f"location.hash = '#/groups/{group}'")
    page.wait("document.querySelector('form.change select[name=topic]')?.value === 'read'")
    page.evaluate("document.querySelector('form.change select[name=to]').value = 'latest'")
    click(page, "Move the offsets")
    typing_opens(page, group)
    send(page)
    if user == "root":
        page.wait("document.body.innerText.includes('Moved in 1 partition')")
        assert admin.offsets(group)["read", 0] > 0
    else:  # who may read with a group and its topic may move it: as `appliance groups reset`
        done(page)
    settings = "[...document.querySelectorAll('section')].at(-2).innerText"
    page.wait(f"{settings}.includes('consumer.session.timeout.ms') && {settings}.includes('the default')")
    click(page, "Change settings")
    fill(page, settings="consumer.session.timeout.ms = 50000")
    send(page)
    if user == "bob":
        refused(page)
    else:
        done(page)
        page.wait(f"{settings}.includes('50000 (50 s)') && {settings}.includes('this group')", "the new setting")
        shoot(page, "group-settings")
    click(page, "Delete the group")
    typing_opens(page, group)
    send(page)
    if user == "bob":
        refused(page)
        assert group in admin.group_names()
    else:
        page.wait("location.hash === '#/groups'")
        assert group not in admin.group_names()


@pytest.mark.parametrize("user", USERS)
def test_add_change_and_delete_a_user(page: Browser, server: Server, admin: Admin, user: str) -> None:
    log_in(page, server, user, "#/access")
    page.wait("document.querySelector('tbody')?.innerText.includes('root')")
    click(page, "Add a user")
    fill(page, name=f"new-{user}{HOSTILE}", password="long enough", again="another")
    send(page)
    page.wait("document.querySelector('dialog .problem').innerText.includes('differ')")
    fill(page, again="long enough")
    send(page)
    if user == "bob":
        refused(page)
        row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('root'))"
        page.wait(row)
        page.evaluate(f"[...{row}.querySelectorAll('button')].at(-1).click()")
        typing_opens(page, "root")
        send(page)
        refused(page)
        return
    page.wait("document.querySelector('dialog .problem').innerText.includes('printable')", "U+202E is not printable")
    forget_the_answer(page)
    name = "new <b>root</b>"
    fill(page, name=name)
    send(page)
    done(page)
    row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('new <b>root'))"
    page.wait(row)
    shoot(page, "users")
    page.evaluate(f"{row}.querySelector('button').click()")
    fill(page, password="and longer", again="and longer")
    send(page)
    done(page)
    page.evaluate(f"[...{row}.querySelectorAll('button')].at(-1).click()")
    typing_opens(page, name)
    send(page)
    done(page)
    page.wait(f"!{row}")


@pytest.mark.parametrize("user", USERS)
def test_add_and_delete_an_access_rule(page: Browser, server: Server, user: str) -> None:
    log_in(page, server, user, "#/access/rules")
    page.wait("document.querySelector('tbody')?.innerText.includes('User:bob')")
    click(page, "Add a rule")
    fill(page, principal=f"User:{user}-new", resource="Group", name=HOSTILE, pattern="Prefixed", operation="Read")
    page.wait("document.querySelector('dialog').innerText.includes('No group begins so yet')", "what is not there")
    send(page)
    row = f"[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('User:{user}-new'))"
    if user == "bob":
        refused(page)
        row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('User:bob'))"
    else:
        done(page)
    page.wait(row)
    shoot(page, f"rules-{user}")
    page.evaluate(f"{row}.querySelector('button').click()")
    typing_opens(page, "User:bob" if user == "bob" else "User:root-new")
    send(page)
    if user == "bob":
        refused(page)
    else:
        done(page)
        page.wait(f"!{row}")


@pytest.mark.parametrize("user", USERS)
def test_a_role_is_added_given_taken_and_deleted(page: Browser, server: Server, admin: Admin, user: str) -> None:
    role, having = f"role-of-{user}", "<img src=x onerror=document.title='broken'>"
    log_in(page, server, user, "#/access/roles")
    click(page, "Add a role")
    fill(page, name=role)
    send(page)
    if user == "bob":
        refused(page)
        admin.create_role(role)
        admin.alter_role(role, grant=[having], without_password=True)
        log_in(page, server, user, "#/access/roles")
    row = f"[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes({role!r}))"
    page.wait(row)
    press = f"[...{row}.querySelectorAll('button')].find((one) => one.innerText === '{{}}').click()"
    page.evaluate(press.format("Give"))
    fill(page, user=having)
    send(page)
    if user == "bob":
        refused(page)
    else:
        page.wait("document.querySelector('dialog .problem')?.innerText.includes('without-password')", "no such user")
        page.evaluate("document.querySelector('dialog [name=without_password]').click()")
        forget_the_answer(page)
        send(page)
        done(page)
    page.wait(f"{row}.querySelector('bdi') && {row}.innerText.includes('onerror')", "its user, as text")
    shoot(page, f"roles-{user}")
    page.evaluate(press.format("Take"))
    page.wait(f"document.querySelector('dialog select').value === {json.dumps(having)}")
    send(page)
    if user == "bob":
        refused(page)
    else:
        done(page)
        page.wait(f"!{row}.innerText.includes('onerror')")
        assert [found["users"] for found in admin.roles() if found["name"] == role] == [[]]
    page.evaluate(press.format("Delete"))
    typing_opens(page, role)
    send(page)
    if user == "bob":
        refused(page)
        admin.delete_role(role)
    else:
        done(page)
        page.wait(f"!{row}")


def test_a_rule_through_a_role_is_shown_and_belongs_to_the_role(page: Browser, server: Server, admin: Admin) -> None:
    admin.create_role("through")
    admin.add_acls([{"principal": "Role:through", "resource": "Topic", "name": "seen", "operation": "Read"}])
    admin.alter_role("through", grant=["bob"])
    log_in(page, server, "root", "#/access/rules")
    row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.startsWith({!r}))"
    of_bob = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('through')"
    of_bob += " && one.innerText.startsWith('User:bob'))"
    page.wait(f"{of_bob} && !{of_bob}.querySelector('button') && {row.format('Role:through')}.querySelector('button')")
    log_in(page, server, "root", "#/access")
    page.wait(f"{row.format('bob')}.innerText.includes('through')")
    admin.delete_role("through")


@pytest.mark.parametrize("user", USERS)
def test_add_and_change_a_quota(page: Browser, server: Server, admin: Admin, user: str) -> None:
    log_in(page, server, user, "#/access/quotas")
    page.wait("document.querySelector('tbody')?.innerText.includes('7/s')")
    click(page, "Add a quota")
    fill(page, user_kind="named", user=f"slow-{user}", producer_byte_rate="1048576", request_rate="2.5")
    send(page)
    if user == "bob":
        refused(page)
        return
    done(page)
    row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.includes('slow-root'))"
    page.wait(f"{row}?.innerText.includes('1.0 MiB/s') && {row}.innerText.includes('2.5/s')")
    shoot(page, "quotas")
    page.evaluate(f"{row}.querySelector('button').click()")
    fill(page, producer_byte_rate="")
    send(page)
    done(page)
    page.wait(f"{row} && !{row}.innerText.includes('MiB')")
    assert {"user": "slow-root", "client_id": None, "limits": {"request_rate": 2.5}} in admin.quotas()
    page.evaluate(f"{row}.querySelector('button').click()")
    page.wait("document.querySelector('dialog [name=request_rate]').value === '2.5'", "what holds now is filled in")
    fill(page, request_rate="")
    send(page)
    done(page)
    page.wait(f"!{row}")


def test_who_is_connected_is_shown(page: Browser, server: Server) -> None:
    log_in(page, server, "bob", "#/clients")
    with contextlib.closing(Cluster(server.native, client_name="<b>somebody</b>")) as cluster:
        cluster.refresh([])
        wait_for(lambda: page.is_true(reloaded("somebody", page, server)), "the client")
    assert page.evaluate("document.querySelectorAll('tbody b').length") == 0
    user = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].innerText)"
    page.wait(f"{user}.includes('not logged in')", "nobody is called ANONYMOUS")
    short = "[...document.querySelectorAll('tbody .whole')].filter((one) => /^[^ /]{1,20}$/.test(one.innerText))"
    broken = "one.getClientRects()[0].height > 1.9 * parseFloat(getComputedStyle(one).fontSize)"
    assert page.evaluate(f"{short}.filter((one) => {broken}).map((one) => one.innerText)") == []
    shoot(page, "clients")


def reloaded(text: str, page: Browser, server: Server) -> str:
    visit(page, server, "#/clients")
    page.wait("document.querySelector('.status').innerText.includes('in all')")
    return f"document.querySelector('tbody').innerText.includes({text!r})"


def test_nothing_can_be_changed_without_a_login(page: Browser, server: Server) -> None:
    log_in(page, server, "bob", "")
    page.evaluate("document.getElementById('login').click()")
    page.wait("document.body.innerText.includes('Nothing is shown before a login')")
    for place in (
        "#/access",
        "#/access/roles",
        "#/access/rules",
        "#/access/quotas",
        "#/clients",
        "#/trash",
        "#/topics",
        "#/sql",
    ):
        visit(page, server, place)
        page.wait("document.body.innerText.includes('Nothing is shown before a login')")
        assert not page.evaluate("document.querySelector('main table, main .danger')")
    # What was on its way when bob logged out is refused, which Chromium notes by itself.
    page.console[:] = [line for line in page.console if "401 (Unauthorized)" not in line]


def test_sql(page: Browser, server: Server, admin: Admin) -> None:
    """Who may read a topic asks it; for who may not there is none; a wrong query is told as such."""
    admin.create_topic("asked")
    with Producer(server.state["listeners"]["local"]) as producer:
        producer.send("asked", HOSTILE.encode()).result(60)
    answer = "document.querySelector('.result tbody')?.innerText"
    problem = "document.querySelector('.problem:not([hidden])')?.innerText"

    def ask(query: str, told: str, what: str) -> None:
        """Until ``told`` holds: a query runs at a niceness, and on a busy machine its 30 s may be over first."""
        page.evaluate(f"document.querySelector('textarea').value = {json.dumps(query)}")
        for _ in range(5):
            click(page, "Run")
            page.wait(f"({told}) || {problem}?.includes('took more than')", what)
            if page.is_true(told):
                return
            forget_the_answer(page)
        raise AssertionError(f"five times: the query took more than 30 s: {query}")

    log_in(page, server, "bob", "#/sql?query=select+partition,+value+from+asked")
    page.evaluate("document.querySelector('textarea').focus()")
    assert not page.evaluate(answer), "an address runs nothing by itself"
    ask("select partition, value from asked", f"{answer}?.includes('<img src=x')", "the message")
    assert page.evaluate("document.title") == "SQL · appliance"
    for width, height in ((400, 800), (800, 1000), (1280, 800), (2000, 1200)):
        page.resize(width, height)
        assert fits(page), width
        shoot(page, f"sql-{width}")
    refusal = f"{problem}?.includes('only a query runs here')"
    ask("copy (select 1) to '/tmp/appliance-sql-page'", refusal, "the refusal")
    forget_the_answer(page)
    log_in(page, server, "eve", "#/sql")
    ask("select * from asked", f"{problem}?.includes(\"no topic 'asked'\")", "no topic")
    forget_the_answer(page)
    admin.delete_topic("asked")


@pytest.mark.long
def test_lists_are_paged_at_two_hundred_rows(page: Browser, server: Server, admin: Admin) -> None:
    """Topics by the page, rules by the server; the filter goes over all of them."""
    rule = {"resource": "Topic", "principal": "User:many", "operation": "Read"}
    with contextlib.closing(local(server)) as cluster:
        cluster.admin("add_acls", {"acls": [{**rule, "name": f"many-{number}"} for number in range(250)]})
    for number in range(205):
        admin.create_topic(f"many-{number:03}")
    try:
        for place in ("#/topics", "#/access/rules"):
            log_in(page, server, "root", place)
            rows = "document.querySelectorAll('tbody tr').length"
            page.wait(f"{rows} === 200", seconds_max=60)
            click(page, "Next")
            page.wait(f"{rows} > 0 && {rows} < 200", "the second page")
            shoot(page, f"paged-{place.strip('#/').replace('/', '-')}")
            page.evaluate(
                "(() => { const one = document.getElementById('filter'); one.value = 'many-20';"
                " one.dispatchEvent(new Event('input')) })()"
            )
            page.wait(f"{rows} > 0 && {rows} <= 12 && document.querySelector('tbody').innerText.includes('many-20')")
    finally:
        with contextlib.closing(local(server)) as cluster:
            cluster.admin("delete_acls", {"principal": "User:many"})


def test_the_new_pages_fit_a_phone(page: Browser, server: Server) -> None:
    page.resize(*NARROW)
    for place in ("#/access", "#/access/roles", "#/access/rules", "#/access/quotas", "#/clients", "#/trash"):
        log_in(page, server, "root", place)
        page.wait("document.querySelector('.status').innerText.includes('in all')")
        assert fits(page), place
        shoot(page, f"narrow-{place.strip('#/').replace('/', '-')}")
    log_in(page, server, "root", "#/access/rules")
    click(page, "Add a rule")
    page.wait("document.querySelector('dialog').offsetWidth <= innerWidth")
    shoot(page, "narrow-dialog")
    page.press("Escape")
    done(page)


PROBLEM = "document.querySelector('main .problem:not([hidden])')?.innerText"
FOUND = "[...document.querySelectorAll('.messages .place')].map((one) => one.textContent.split(' ')[0]).sort().join()"


@pytest.mark.parametrize("user", ["root", "carl"])
def test_several_topics_are_searched_by_who_may_read_them(
    page: Browser, server: Server, admin: Admin, user: str
) -> None:
    """A pattern stands for those that the visitor may read; a name of another one is refused."""
    topics = [f"his-{user}-a", f"his-{user}-b", f"other-{user}"]
    with Producer(server.state["listeners"]["local"]) as producer:
        for topic in topics:
            admin.create_topic(topic)
            producer.send_many(topic, [json.dumps({"status": code, "from": HOSTILE}).encode() for code in (200, 500)])
    mine = topics if user == "root" else topics[:2]
    log_in(page, server, user, f"#/search?topics=*-{user}*&field=status%3D500")
    page.wait(f"{FOUND} === {','.join(sorted(mine))!r}", "one message of each")
    page.evaluate("document.querySelector('.messages summary').click()")
    page.wait("document.querySelector('pre.value').textContent.includes('onerror')", "text, not markup")
    assert page.evaluate("document.title") == "Search · appliance"
    place = "decodeURIComponent(document.querySelector('.message-body dd a').getAttribute('href'))"
    assert page.evaluate(place).startswith(f"#/topics/{mine[-1]}?start=offset&partition=0&offset=")
    shoot(page, f"search-{user}")
    page.evaluate(f"document.querySelector('input[name=topics]').value = {', '.join(topics[1:])!r}")
    click(page, "Search")
    if user == "root":
        page.wait(f"{FOUND} === {','.join(topics[1:])!r}", "those that were named")
    else:
        page.wait(f"{PROBLEM}?.includes('not permitted')", "the refusal")
        assert page.evaluate("document.querySelectorAll('.messages summary').length") == 0
        forget_the_answer(page)
    page.evaluate("document.querySelector('input[name=topics]').value = 'nothing-*'")
    click(page, "Search")
    page.wait(f"{PROBLEM}?.includes('no topic that you may read has such a name')")
    forget_the_answer(page)


def test_what_arrives_in_several_topics_is_shown_live(page: Browser, server: Server, admin: Admin) -> None:
    for topic in ("live-a", "live-b"):
        admin.create_topic(topic)
    log_in(page, server, "root", "#/search?topics=live-*&start=follow")
    page.wait("document.querySelector('main').innerText.includes('Live ·')")
    with Producer(server.state["listeners"]["local"]) as producer:
        for topic in ("live-a", "live-b"):
            producer.send(topic, b"now").result()
    page.wait(f"{FOUND} === 'live-a,live-b'")
    click(page, "Stop")


@pytest.mark.parametrize("user", ["root", "carl"])
def test_charts_of_a_topic_and_a_group(page: Browser, server: Server, admin: Admin, user: str) -> None:
    names = [f"his-chart-{user}", f"other-chart-{user}"]
    for name in names:
        admin.create_topic(name)
        admin.commit(name, {(name, 0): 0})
    with Producer(server.state["listeners"]["local"]) as producer:
        log_in(page, server, user, f"#/topics/{names[0]}/charts")
        card = (
            "[...document.querySelectorAll('.charts section')].find((one) => one.innerText.startsWith('Messages in'))"
        )
        page.wait(f"{card}.querySelector('.line').getAttribute('d').includes('L')", "two points")
        deadline_s = time.monotonic() + 60
        while not page.evaluate(f"/at most [1-9]/.test({card}.innerText)"):
            assert time.monotonic() < deadline_s, page.text()
            producer.send_many(names[0], [b"line"] * 10)
            page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))")
        said = page.evaluate(f"{card}.querySelector('svg').getAttribute('aria-label')")
        assert re.fullmatch(r"Messages in from \d\d:\d\d to \d\d:\d\d: at most [\d.,]+/s, now [\d.,]+/s", said), said
        shoot(page, f"charts-{user}")
        visit(page, server, f"#/groups/{names[0]}")
        page.wait("/at most [1-9]/.test(document.querySelector('.charts section').innerText)", "the group is behind")
        shoot(page, f"group-charts-{user}")
    for place in (f"#/topics/{names[1]}/charts", f"#/groups/{names[1]}"):
        visit(page, server, place)
        if user == "root":
            page.wait("document.querySelector('.charts .line').getAttribute('d')", "a line")
        else:
            page.wait(f"{PROBLEM}?.includes('not permitted')", "the refusal")
            assert page.evaluate("document.querySelector('.charts .line').getAttribute('d')") in (None, "")
            forget_the_answer(page)

"""Alerts on their way: what a webhook and a mail program get, what is refused, when it is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.alert_settings import Alerts
from appliance.config import load
from appliance.errors import BadValue
from appliance.health.alerts import BEGIN_LOOKS, END_LOOKS, Event, Figures
from appliance.health.conditions import CONDITIONS
from appliance.health.findings import Finding
from appliance.metrics.alert_delivery import message_of, send_mail
from appliance.metrics.alerting import KEPT_S, RETRY_S_MAX, AlertDelivery, Book
from appliance.web.webhook import NotDelivered, post

from ..support.webhook import Receiver, receiver

__all__ = ["receiver"]

APPLIANCE = {"host": "logs1", "data": "/srv/logs", "version": "0.1.0"}
ROW = {
    "condition": "DiskFull",
    "level": "critical",
    "what": "the disk is full",
    "why": "no\nroom",
    "todo": "",
    "page": "",
}
EVENT = Event(7, "begins", "DiskFull", "critical", 1_000.0, 990.0, [ROW], ["webhook", "mail"])


def test_a_webhook_gets_an_event(receiver: Receiver, tmp_path: Path) -> None:
    body = message_of(EVENT, APPLIANCE)
    post(receiver.url, False, body)
    secret = tmp_path / "url"
    secret.write_text(f"{receiver.url}/T0/secret?key=1\n")
    secret.chmod(0o600)
    post(str(secret), False, body)
    assert receiver.got == [("/hook", body), ("/hook/T0/secret?key=1", body)]
    assert body["text"] == "logs1: critical: the disk is full: no\nroom" and body["event"] == "begins"
    assert body["id"] == message_of(EVENT, APPLIANCE)["id"] and body["findings"] == [ROW]


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
def test_other_answers_are_faults_and_lead_nowhere(receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(NotDelivered, match=f"answered with {status}"):
        post(receiver.url, False, {})
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://169.254.169.254/latest", "link"),
        ("http://[fe80::1]/", "link"),
        ("http://[::ffff:169.254.169.254]/", "link"),
        ("http://0.0.0.0/", "nobody"),
        ("http://224.0.0.1/", "group"),
        ("http://name.invalid/secret", "resolved"),
        ("file:///etc/passwd", "http"),
        ("http://user:secret@127.0.0.1/", "without a user"),
        ("http://127.0.0.1:1/secret", "refused"),
        ("http://127.0.0.1:99999/secret", "no URL"),
    ],
)
def test_where_nobody_may_be_sent(tmp_path: Path, url: str, says: str) -> None:
    file = tmp_path / "url"
    file.write_text(url)
    file.chmod(0o600)
    with pytest.raises(NotDelivered, match=says) as failed:
        post(str(file), True, {})
    assert "secret" not in str(failed.value)


def test_a_closed_file_is_needed_for_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("http://127.0.0.1/")
    file.chmod(0o644)
    with pytest.raises(NotDelivered, match=r"alerts\.webhook"):
        post(str(file), False, {})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["alerts.webhook=ftp://h/"], "http://"),
        (["alerts.webhook=https://u:p@h/"], "without a user"),
        (["alerts.webhook=https://h/?token=abc"], "into a file"),
        (["alerts.webhook=http://logs.example.net/"], "https://"),
        (["alerts.mail_to=a b"], "no address"),
        (["alerts.mail_to=-oQ/tmp"], "no address"),
        (["alerts.mail_to=root", "alerts.sendmail=sendmail"], "path from the root"),
        (["alerts.digest=07:00"], "nobody would get it"),
        (["alerts.digest=7", "alerts.mail_to=root"], "alerts.digest"),
        (["alerts.digest=24:00", "alerts.mail_to=root"], "time of day"),
    ],
)
def test_wrong_settings_are_refused(settings: list[str], says: str) -> None:
    with pytest.raises(BadValue, match=says) as failed:
        load(None, settings)
    assert "abc" not in str(failed.value) and "u:p" not in str(failed.value)
    right = ["alerts.webhook=http://127.0.0.1:9/x", "alerts.mail_to=root,ops@example.net"]
    assert load(None, right).alerts.recipients == ["root", "ops@example.net"]


def test_a_mail_is_sent_by_the_program_of_the_host(tmp_path: Path) -> None:
    program, to = tmp_path / "sendmail", tmp_path / "mail"
    program.write_text(f'#!/bin/sh\necho "$@" > {to}\ncat >> {to}\n')
    program.chmod(0o755)
    alerts = Alerts(mail_to="ops@example.net, root", sendmail=str(program))
    send_mail(alerts, EVENT, APPLIANCE)
    words, *mail = to.read_text().splitlines()
    assert words == "-i -- ops@example.net root"
    assert "Subject: [logs1] critical: the disk is full: no room" in mail, "on one line"
    assert "logs1, /srv/logs: DiskFull begins" in mail and "  why: no room" in mail
    rows = [{"what": "1 wrong still, 0 over", "why": "", "todo": ""}, {"what": "lasts", "why": "", "todo": "do it"}]
    send_mail(alerts, Event(8, "digest", "", "info", 86_400.0 * 3, 86_400.0, rows, ["mail"]), APPLIANCE)
    mail = to.read_text().splitlines()
    assert "Subject: [logs1] digest: 1 wrong still, 0 over" in mail and "  do: do it" in mail
    assert "logs1, /srv/logs: digest" in mail and "What there was in 2 d." in mail
    program.write_text("#!/bin/sh\necho no queue >&2\nexit 75\n")
    with pytest.raises(NotDelivered, match="ended with 75: no queue"):
        send_mail(alerts, EVENT, APPLIANCE)
    with pytest.raises(NotDelivered, match="No such file"):
        send_mail(Alerts(mail_to="root", sendmail="/nowhere/sendmail"), EVENT, APPLIANCE)


class Desk:
    """A book with a receiver that fails as long as ``down``, and a clock."""

    def __init__(self, path: Path) -> None:
        self.book, self.now_s, self.down, self.tries = Book(path), 0.0, False, 0
        self.got: list[tuple[str, str]] = []
        self.alerts = Alerts(webhook="http://127.0.0.1:9/", mail_to="root")
        self.delivery = AlertDelivery(self.book, self._deliver, lambda: self.now_s)

    def _deliver(self, to: str, event: Event) -> None:
        self.tries += 1
        if self.down:
            raise NotDelivered("away")
        self.got.append((to, event.event))

    def look(self, wrong: bool, times: int) -> None:
        finding = Finding(CONDITIONS[0], "it is wrong", "", "", "")
        for _ in range(times):
            self.book.take_findings([finding] if wrong else [], Figures(), self.now_s, self.alerts)

    def deliver(self) -> float | None:
        return self.delivery.run_once(["webhook", "mail"], self.now_s)


def test_it_is_told_once_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"
    first = Desk(path)
    first.look(True, BEGIN_LOOKS)
    assert first.deliver() is None and first.got == [("webhook", "begins"), ("mail", "begins")]
    first.look(True, BEGIN_LOOKS)
    again = Desk(path)
    again.look(True, 5)
    assert again.deliver() is None and again.got == [], "it was told before the restart"
    again.look(False, END_LOOKS)
    last = Desk(path)
    assert last.deliver() is None, "what was not delivered before a restart is afterwards"
    assert last.got == [("webhook", "ends"), ("mail", "ends")]
    path.write_text("{")
    assert Desk(path).deliver() is None


def test_a_receiver_that_is_away_gets_all_in_order_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "alerts.json")
    desk.down = True
    desk.look(True, BEGIN_LOOKS)
    waits = []
    for _ in range(12):
        wait_s = desk.deliver()
        assert wait_s is not None
        waits.append(wait_s)
        desk.now_s += wait_s
    assert waits == sorted(waits) and waits[0] == 1.0 and waits[-1] == RETRY_S_MAX
    assert desk.tries == 2 * len(waits), "no more often"
    desk.look(False, END_LOOKS)
    desk.down = False
    assert desk.deliver() is None
    assert sorted(desk.got, key=lambda one: one[0]) == [
        *(("mail", "begins"), ("mail", "ends")), *(("webhook", "begins"), ("webhook", "ends")),
    ]  # fmt: skip


def test_what_nobody_takes_is_given_up(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "alerts.json")
    desk.down = True
    desk.look(True, BEGIN_LOOKS)
    desk.deliver()
    desk.now_s += KEPT_S
    assert desk.deliver() is None and desk.book.next_for("webhook") is None

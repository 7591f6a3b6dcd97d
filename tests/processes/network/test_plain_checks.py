"""appliance.processes.network.logins: passwords are compared in a thread that leaves the loop its core."""

from __future__ import annotations

import os
import select
import threading

from appliance.processes.network.logins import NICENESS, WAITING_MAX, PlainChecks
from appliance.security.login_exchange import PlainCheck
from appliance.security.scram import ITERATIONS_MIN, make_verifier

MECHANISM = "SCRAM-SHA-256"
VERIFIER = make_verifier(MECHANISM, b"right", ITERATIONS_MIN)


def check(password: bytes, known: bool = True) -> PlainCheck:
    return PlainCheck("alice", password, MECHANISM, VERIFIER, known)


def compared(checks: PlainChecks, one: PlainCheck) -> bool:
    """The result of the thread."""
    results: list[bool] = []
    assert checks.begin_check(one, "token", "10.0.0.1") is None
    assert select.select([checks.fd], [], [], 20)[0]
    checks.take_results(lambda token, right: results.append(right))
    (right,) = results
    return right


def test_only_a_right_password_of_a_known_user_is_right_and_remembered() -> None:
    checks = PlainChecks()
    for one in (check(b"wrong"), check(b"right", known=False)):
        assert not compared(checks, one) and not checks.is_remembered(one)
    assert compared(checks, check(b"right")) and checks.is_remembered(check(b"right"))
    assert not checks.is_remembered(check(b"wrong"))


def test_the_thread_is_nicer_than_the_loop() -> None:
    """Trying passwords needs no login."""
    checks = PlainChecks()
    compared(checks, check(b"wrong"))
    (thread,) = [each for each in threading.enumerate() if each is checks._thread]
    assert thread.native_id is not None
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == max(own, NICENESS)
    assert own < NICENESS


class Standing(PlainChecks):
    """Whose thread does not take anything."""

    def _run(self) -> None:
        pass


def test_few_wait() -> None:
    checks = Standing()
    crowded = [checks.begin_check(check(b"wrong"), number, "10.0.0.1") for number in range(2 * WAITING_MAX)]
    assert crowded == [None] * WAITING_MAX + list(range(WAITING_MAX, 2 * WAITING_MAX))


def test_who_tries_many_passwords_keeps_no_other_address_waiting() -> None:
    """One address has filled the queue; others find a place, and their turn comes after one of its passwords."""
    checks = Standing()
    for number in range(WAITING_MAX):
        assert checks.begin_check(check(b"wrong"), f"a{number}", "10.0.0.1") is None
    assert checks.begin_check(check(b"right"), "b0", "10.0.0.2") == f"a{WAITING_MAX - 1}"
    assert checks.begin_check(check(b"right"), "c0", "10.0.0.3") == f"a{WAITING_MAX - 2}"
    assert checks.begin_check(check(b"right"), "b1", "10.0.0.2") == f"a{WAITING_MAX - 3}"
    assert checks.begin_check(check(b"wrong"), "a", "10.0.0.1") == "a"
    order = [checks._next()[1] for _ in range(WAITING_MAX)]
    assert order[:6] == ["a0", "b0", "c0", "a1", "b1", "a2"] and not checks._waiting


def test_as_many_addresses_as_may_wait_have_a_place_each() -> None:
    checks = Standing()
    for number in range(WAITING_MAX):
        assert checks.begin_check(check(b"wrong"), number, f"10.0.0.{number}") is None
    assert checks.begin_check(check(b"right"), "more", "10.0.1.1") == "more"
    assert [checks._next()[1] for _ in range(WAITING_MAX)] == list(range(WAITING_MAX))

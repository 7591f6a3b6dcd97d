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
    assert checks.begin(one, "token")
    assert select.select([checks.fd], [], [], 20)[0]
    checks.take(lambda token, right: results.append(right))
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


def test_few_wait() -> None:
    checks = PlainChecks()
    begun = [checks.begin(check(b"wrong"), number) for number in range(2 * WAITING_MAX)]
    assert begun[:WAITING_MAX] == [True] * WAITING_MAX and not begun[-1]

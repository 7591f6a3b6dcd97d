"""appliance.security.audit_log: one line per event that no name can forge, a bounded rate, and counts by reason."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.acls import HOST_CHARACTERS_MAX, NAME_CHARACTERS_MAX, PRINCIPAL_CHARACTERS_MAX
from appliance.security.audit_log import (
    READS_MAX,
    READS_WINDOW_MS,
    REFUSED_MAX,
    REFUSED_OF_ONE_MAX,
    VALUE_CHARACTERS_MAX,
    WINDOW_MS,
    Audit,
    Reason,
    _line,
)
from appliance.security.principals import USER_CHARACTERS_MAX

FIELD = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def test_the_three_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "appliance.audit")
    audit = Audit(lambda: 0)
    audit.logged_in("User:alice", "10.0.0.7:51234", listener="SASL_SSL", mechanism="SCRAM-SHA-512")
    audit.refused(Reason.BAD_CREDENTIALS, "User:bob", "10.0.0.8:1", mechanism="PLAIN")
    audit.refused(Reason.PLAIN_ON_TLS, "", "10.0.0.8:2")
    audit.changed("User:admin", "unix", "create topic", name="web", partitions=4)
    assert caplog.messages == [
        "logged in: who=User:alice from=10.0.0.7:51234 listener=SASL_SSL mechanism=SCRAM-SHA-512",
        'refused: reason="bad credentials" who=User:bob from=10.0.0.8:1 mechanism=PLAIN',
        'refused: reason="plain on tls" who=- from=10.0.0.8:2',
        'changed: who=User:admin from=unix what="create topic" name=web partitions=4',
    ]
    assert audit.take_counts() == {"bad credentials": 1, "plain on tls": 1} and audit.take_counts() == {}


@given(st.text(), st.text())
def test_no_name_can_forge_a_line_or_a_field(who: str, topic: str) -> None:
    line = _line("changed", who=who, what=topic)
    assert line.isascii() and line.isprintable()
    fields = FIELD.findall(line.removeprefix("changed: "))
    assert [name for name, _ in fields] == ["who", "what"]
    for (_, text), value in zip(fields, (who, topic), strict=True):
        shown = json.loads(text) if text.startswith('"') else text
        assert shown == (value if len(value) <= VALUE_CHARACTERS_MAX else value[:VALUE_CHARACTERS_MAX] + "…")


def test_no_name_that_is_accepted_is_cut() -> None:
    """So that nothing can take the room of something else."""
    assert (
        len("User:") + max(PRINCIPAL_CHARACTERS_MAX, USER_CHARACTERS_MAX, NAME_CHARACTERS_MAX, HOST_CHARACTERS_MAX)
        <= VALUE_CHARACTERS_MAX
    )


def test_a_flood_from_one_side_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(lambda: 0)
    for number in range(1_000):
        audit.refused(Reason.DENIED, "User:bob", f"10.0.0.9:{number}", what="Produce decoy")
    audit.refused(Reason.DENIED, "User:bob", "10.0.0.8:1", what="Produce secret")
    audit.refused(Reason.DENIED, "User:eve", "10.0.0.9:1", what="Produce secret")
    assert len(caplog.messages) == REFUSED_OF_ONE_MAX + 2


def test_reads_are_written_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """However often somebody reads one thing, the next thing that he reads has its line."""
    caplog.set_level(logging.INFO, "appliance.audit")
    now = [READS_WINDOW_MS]
    audit = Audit(lambda: now[0])
    for number in range(500):
        audit.read("User:a", f"10.0.0.7:{number}", "console", topic="decoy")
    audit.read("User:a", "10.0.0.7:1", "console", topic="secret")
    audit.read("User:b", "10.0.0.7:1", "console", topic="decoy")
    first, second = "read: who=User:a from=10.0.0.7:0", "read: who=User:a from=10.0.0.7:1"
    expected = [f"{first} what=console topic=decoy", f"{second} what=console topic=secret"]
    expected += ["read: who=User:b from=10.0.0.7:1 what=console topic=decoy"]
    assert caplog.messages == expected
    now[0] += READS_WINDOW_MS
    audit.take_counts()
    assert caplog.messages[3:] == ["read: who=User:a from=10.0.0.7 again=499 what=console topic=decoy"]
    for number in range(READS_MAX + 3):
        audit.read("User:a", "10.0.0.7:1", "console", topic=f"t{number}")
    now[0] += READS_WINDOW_MS
    audit.take_counts()
    assert len(caplog.messages) == 4 + READS_MAX + 1 and caplog.messages[-1].startswith("3 more reads")


def test_a_flood_of_refusals_is_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "appliance.audit")
    now, pending = [10_000], [0]

    def on_pending() -> None:
        pending[0] += 1

    audit = Audit(lambda: now[0], on_pending)
    for number in range(1_000):
        audit.refused(Reason.TIMEOUT, "", f"10.0.0.{number % 9}:{number}")
    assert len(caplog.messages) == REFUSED_MAX and pending == [1] and audit.pending
    audit.refused(Reason.BAD_CREDENTIALS, "User:bob", "10.0.0.9:1")  # not hidden by the others
    audit.changed("User:admin", "unix", "delete topic")  # never left out
    now[0] += WINDOW_MS
    assert audit.take_counts() == {"timeout": 1_000, "bad credentials": 1} and not audit.pending
    assert caplog.messages[REFUSED_MAX].startswith('refused: reason="bad credentials"')
    assert caplog.messages[REFUSED_MAX + 1].startswith("changed:")
    assert (
        caplog.messages[-1] == f"{1_000 - REFUSED_MAX} more refusals (timeout) were not written (at most 40 per second)"
    )
    audit.refused(Reason.TIMEOUT, "", "10.0.0.9:1")
    assert caplog.messages[-1].startswith("refused: reason=timeout") and pending == [2]


def test_threads_lose_no_refusal() -> None:
    """Method: four threads refuse while a fifth takes the counts; Python changes threads as often as it can."""
    told: list[int] = []
    audit = Audit(lambda: 0, lambda: told.append(1))
    each, interval = 3_000, sys.getswitchinterval()
    threads = [
        threading.Thread(target=lambda: [audit.refused(Reason.DENIED, "User:eve", "10.0.0.8:1") for _ in range(each)])
        for _ in range(4)
    ]
    taken: Counter[str] = Counter()
    takes = 0
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            takes += 1
            taken.update(audit.take_counts())
    finally:
        sys.setswitchinterval(interval)
    taken.update(audit.take_counts())
    assert taken == {Reason.DENIED.value: 4 * each}
    assert 0 < len(told) <= takes + 1, "once for each time that they are taken"

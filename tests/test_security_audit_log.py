"""appliance.security.audit_log: one line per event that no name can forge, a bounded rate, and counts by reason."""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.audit_log import REFUSED_MAX, VALUE_CHARACTERS_MAX, WINDOW_MS, Audit, Reason, _line

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


def test_a_flood_of_refusals_is_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "appliance.audit")
    now, pending = [10_000], [0]

    def on_pending() -> None:
        pending[0] += 1

    audit = Audit(lambda: now[0], on_pending)
    for number in range(1_000):
        audit.refused(Reason.TIMEOUT, "", f"10.0.0.9:{number}")
    assert len(caplog.messages) == REFUSED_MAX and pending == [1] and audit.pending
    audit.refused(Reason.BAD_CREDENTIALS, "User:bob", "10.0.0.9:1")  # not hidden by the others
    audit.changed("User:admin", "unix", "delete topic")  # never left out
    now[0] += WINDOW_MS
    assert audit.take_counts() == {"timeout": 1_000, "bad credentials": 1} and not audit.pending
    assert caplog.messages[REFUSED_MAX].startswith('refused: reason="bad credentials"')
    assert caplog.messages[REFUSED_MAX + 1].startswith("changed:")
    assert (
        caplog.messages[-1] == f"{1_000 - REFUSED_MAX} more refusals (timeout) were not written (at most 20 per second)"
    )
    audit.refused(Reason.TIMEOUT, "", "10.0.0.9:1")
    assert caplog.messages[-1].startswith("refused: reason=timeout") and pending == [2]

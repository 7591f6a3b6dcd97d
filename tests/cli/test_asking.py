"""appliance.cli.asking, through a real pseudo-terminal: a question is shown, and only "y" goes on."""

from __future__ import annotations

import pytest

from ..support.command_line import succeeding
from ..support.server import Server
from ..support.terminal import Terminal


@pytest.mark.parametrize("answer, status", [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x03", 130)])
def test_a_topic_goes_only_when_the_answer_is_yes(appliance: Server, topic: str, answer: str, status: int) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"a\nb\n")
    with Terminal("topics", "delete", topic, *at) as terminal:
        said = terminal.until("[y/N]")
        assert f"{topic}: 2 messages" in said and "Delete this topic?" in said
        terminal.type(answer)
        assert terminal.wait() == status
    assert (topic in succeeding("topics", "list", *at).out) == (status != 0)

"""``appliance tail``, against a real appliance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from appliance.client import Producer
from appliance.records.encode import encode_values

from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.ready import readable
from ..support.server import Server
from ..support.terminal import Terminal

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def logs(appliance: Server) -> Iterator[tuple[str, str]]:
    """Topics tail-a (two partitions) and tail-b with 300 messages, one each ms; and the option to connect."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", "tail-a", "--partitions", "2", *at)
    succeeding("topics", "create", "tail-b", *at)
    places = [("tail-a", 0), ("tail-b", 0), ("tail-a", 1)]
    with Producer(appliance.native) as producer:
        for number in range(300):
            topic, partition = places[number % 3]
            level = "error" if number % 100 == 0 else "info"
            value = f'{{"n": {number}, "level": "{level}", "http": {{"status": {200 + number % 3}}}}}'
            producer.send(topic, value.encode(), key=b"k%d" % number, partition=partition, timestamp=T0 + number)
        for number, value in enumerate((b'level=warn msg="two words" n=1', b"\xff\x00", b"plain ERROR")):
            producer.send(
                "tail-b", value, partition=0, timestamp=T0 + HOUR_MS + number, headers=[("h", b"1"), ("e", None)]
            )
    yield at


def numbers(out: str) -> list[int]:
    return [json.loads(json.loads(line)["value"])["n"] for line in out.splitlines()]


OLD = ("--until", "2023-11-14T22:14:00+00:00")


def test_topics_are_merged_by_time(logs: tuple[str, str]) -> None:
    said = succeeding("tail", "tail-*", "--json", "--since", "2023-11-14T22:13:20+00:00", *OLD, *logs)
    assert numbers(said.out) == list(range(300))
    assert numbers(succeeding("tail", "tail-a", "tail-b", "-n", "7", "--json", *OLD, *logs).out) == list(
        range(293, 300)
    )
    one = succeeding("tail", "tail-a", "--partition", "1", "-n", "2", "--json", *OLD, *logs)
    assert numbers(one.out) == [296, 299]
    span = ("--since", "2023-11-14T22:13:20.100+00:00", "--until", "2023-11-14T22:13:20.110+00:00")
    assert numbers(succeeding("tail", "tail-*", "--json", *span, *logs).out) == list(range(100, 110))


def test_the_last_ones_that_fit(logs: tuple[str, str]) -> None:
    said = succeeding("tail", "tail-a", "tail-b", "-n", "2", "--grep", '"level": "ERR', "-i", "--json", *logs)
    assert numbers(said.out) == [100, 200]
    said = succeeding("tail", "tail-*", "--field", "level=error", "--field", "http.status=200", "--json", *logs)
    assert numbers(said.out) == [0]
    assert succeeding("tail", "tail-b", "--field", "msg=two words", *logs).out == 'level=warn msg="two words" n=1\n'
    assert succeeding("tail", "tail-b", "--field", "msg=two", *logs).out == ""
    assert succeeding("tail", "tail-b", "-n", "0", *logs).out == ""


def test_a_format_as_kcats(logs: tuple[str, str]) -> None:
    form = r"%t[%p] %T %K:%k %S:%s (%h)%%\x21\t\\\n"
    said = succeeding("tail", "tail-b", "-n", "1", "--format", form, *logs)
    assert said.out == f"tail-b[0] {T0 + HOUR_MS + 2} -1: 11:plain ERROR (h=1,e=NULL)%!\t\\\n"
    offset = succeeding("tail", "tail-b", "-n", "1", "--format", "%o", *logs).out
    assert int(offset) == json.loads(succeeding("tail", "tail-b", "-n", "1", "--json", *logs).out)["offset"]


def test_a_terminal_shows_times_and_colours(logs: tuple[str, str]) -> None:
    with Terminal("tail", "tail-b", "-n", "3", "--headers", *logs) as terminal:
        assert terminal.wait() == 0
    first, second, third = terminal.shown.splitlines()
    assert "\x1b[33mh=1,e=NULL level=warn" in first and "\x1b[2m" in first
    assert r"\xff\x00" in second
    assert "\x1b[31mh=1,e=NULL plain ERROR\x1b[0m" in third
    with Terminal("tail", "tail-b", "-n", "1", *logs, environment={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0 and "\x1b" not in terminal.shown


def test_what_is_refused(logs: tuple[str, str]) -> None:
    for words, status, says in [
        (("nothing",), 66, "topics list"),
        (("nothing-*",), 66, "fits"),
        (("tail-a", "--partition", "7"), 66, "0 to 1"),
        (("tail-a", "--grep", "("), 2, "regular expression"),
        (("tail-a", "--field", "level"), 2, "NAME=TEXT"),
        (("tail-a", "--since", "whenever"), 2, "age"),
        (("tail-a", "--format", "%z"), 2, "%z"),
        (("tail-a", "-f", "--until", "1m"), 2, "no end"),
    ]:
        said = run("tail", *words, *logs)
        assert (said.status, said.out) == (status, ""), said
        assert says in said.err, said


def test_messages_without_a_time_stand_behind_the_one_before(appliance: Server, topic: str) -> None:
    """Goal: they are shown wherever they are among others, alone, and beside a topic without any times."""
    at = ("--connect", appliance.native)
    timed, untimed = topic, f"{topic}-untimed"
    succeeding("topics", "create", timed, *at)
    succeeding("topics", "create", untimed, "--setting", "message.timestamp.type=CreateTime", *at)
    with Peer(appliance.native) as peer:
        for number, when in enumerate((-1, T0, -1, -1, T0 + HOUR_MS, -1)):
            assert peer.produce(timed, encode_values([b"timed %d" % number], when))[0] == 0
        for number in range(4):
            assert peer.produce(untimed, encode_values([b"untimed %d" % number], -1))[0] == 0

    def lines(*words: str) -> list[str]:
        return succeeding("tail", *words, *at).out.splitlines()

    all_timed = [f"timed {number}" for number in range(6)]
    assert lines(timed) == all_timed
    assert lines(timed, "-n", "2") == all_timed[-2:]
    assert lines(untimed, "-n", "3") == ["untimed 1", "untimed 2", "untimed 3"]
    assert lines(timed, "--until", "2023-11-14T22:30:00+00:00") == all_timed[:4]
    assert lines(timed, "--since", "2023-11-14T22:30:00+00:00") == all_timed[4:]
    assert (
        lines(timed, "--since", "2023-11-14T22:00:00+00:00", "--until", "2023-11-14T22:30:00+00:00") == all_timed[1:4]
    )
    assert lines(timed, untimed, "-n", "4") == ["untimed 2", "untimed 3", *all_timed[-2:]]
    assert lines(timed, untimed, "-n", "1") == ["untimed 3"]
    assert sorted(lines(timed, untimed, "-n", "100")) == sorted([*all_timed, *(f"untimed {n}" for n in range(4))])
    assert sorted(lines(timed, untimed, "--until", "now")) == sorted([*all_timed, *(f"untimed {n}" for n in range(4))])
    with Terminal("tail", timed, "-n", "2", *at, environment={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
    assert [line.split()[0] == "--:--:--" for line in terminal.shown.splitlines()] == [False, True]


def test_a_time_that_no_calendar_has_is_shown_as_none(appliance: Server, topic: str) -> None:
    """Microseconds where milliseconds belong, and the largest number."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    with Peer(appliance.native) as peer:
        for when in (T0 * 1000, 2**62):
            assert peer.produce(topic, encode_values([b"odd"], when))[0] == 0
    with Terminal("tail", topic, *at, environment={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown.splitlines() == ["--:--:-- odd", "--:--:-- odd"]


def test_following_goes_on_until_it_is_ended(appliance: Server, topic: str) -> None:
    """Goal: the last line, then new ones, also of a new topic that the pattern fits; SIGTERM ends it with 143."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"old\nlast\n")
    command = [sys.executable, "-m", "appliance", "tail", f"{topic}*", "-f", "-n", "1", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout is not None and following.stderr is not None
        assert following.stdout.readline() == b"last\n"
        succeeding("produce", topic, *at, stdin=b"new\n")
        assert readable(following.stdout, 20) and following.stdout.readline() == b"new\n"
        succeeding("topics", "create", f"{topic}-b", *at)
        succeeding("produce", f"{topic}-b", *at, stdin=b"of the new topic\n")
        assert readable(following.stdout, 20) and following.stdout.readline() == b"of the new topic\n"
        following.send_signal(signal.SIGTERM)
        assert following.wait(60) == 143
        assert following.stderr.read() == b""


def test_grep_is_fast(appliance: Server, topic: str) -> None:
    """Goal: half a million messages a second.  Method: TAIL_MESSAGES messages (500,000 by default are too many for
    every run), the command in this process; the time is only compared when the number is given.
    """
    count = int(os.environ.get("TAIL_MESSAGES", "20000"))
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    with Producer(appliance.native, acks="1") as producer:
        for start in range(0, count, 1000):
            lines = [b"%09d GET /index.html?q=%d HTTP/1.1 200 some more text of a line" % (n, n) for n in range(1000)]
            producer.send_many(topic, [b"%d " % start + line for line in lines])
    begun = time.monotonic()
    said = succeeding("tail", topic, "-n", "3", "--grep", r"^\d+ 000000\d77 ", *at)
    seconds = time.monotonic() - begun
    assert len(said.out.splitlines()) == 3 and said.out.startswith(f"{count - 1000} 000000777"[:6])
    if "TAIL_MESSAGES" in os.environ:
        begun = time.monotonic()
        said = succeeding("tail", topic, "--since", "1h", "--grep", "no such text", *at)
        seconds = time.monotonic() - begun
        print(f"{count:,} messages in {seconds:.2f} s: {count / seconds:,.0f}/s")
        assert said.out == "" and count / seconds > 500_000

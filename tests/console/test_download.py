"""appliance.console.download: a file has what a search finds, once and in order, up to its bounds."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.client import Message
from appliance.console import download
from appliance.console.download import Download, make_file
from appliance.console.message_search import Query
from appliance.console.value_decoding import MessageView
from appliance.errors import InvalidRequest
from appliance.security.field_masks import FieldMask

from .test_message_search import FakeLog, logs, search, steps


def offsets_of(content: bytes) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in map(json.loads, content.splitlines())]


@given(
    logs, st.sampled_from(["newest", "oldest"]), st.integers(1, 5), st.integers(1, 400), st.sampled_from(["", "yes"])
)
def test_files_have_every_message_once_whatever_fills_them(
    rows: list[list[tuple[int, bytes]]], order: str, messages_max: int, bytes_max: int, text: str
) -> None:
    before = download.MESSAGES_MAX, download.BYTES_MAX
    download.MESSAGES_MAX, download.BYTES_MAX = messages_max, bytes_max
    files, cursor = [], ""
    try:
        while not files or cursor:
            wanted = Download(topics="web", order=order, text=text, cursor=cursor)  # type: ignore[arg-type]
            files.append(make_file(wanted, ["web"], FakeLog(*rows), lambda: 0.0, lambda _: MessageView()))
            cursor = files[-1].cursor
            assert len(files) < 1_000, "it does not end"
    finally:
        download.MESSAGES_MAX, download.BYTES_MAX = before
    for file in files:
        assert len(offsets_of(file.content)) == file.messages <= messages_max
        assert len(file.content[: file.content[:-1].rfind(b"\n") + 1]) < bytes_max, "only the last goes beyond it"
    found = [place for file in files for place in offsets_of(file.content)]
    searched = [message for step in steps(FakeLog(*rows), order=order, text=text) for message in step.messages]
    assert len(found) == len(searched)
    for number in range(len(rows)):
        own = [offset for partition, offset in found if partition == number]
        assert own == [message.offset for message in searched if message.partition == number]


class OneLog(FakeLog):
    """A partition with these messages."""

    def __init__(self, *messages: Message) -> None:
        super().__init__([(0, b"")] * len(messages))
        self._messages = {"web": [[one._replace(offset=40 * at + 39) for at, one in enumerate(messages)]]}


HEADERS = (("trace", b"1"), ("card", b"4111"))
MESSAGES = (
    Message("web", 0, 0, 5, b"=1+1", b'a "quoted", text\nof two lines', HEADERS),
    Message("web", 0, 0, 6, None, None, ()),
    Message("web", 0, 0, 7, b"\xff", b"-2", ()),
)


def test_csv_is_read_back_and_computes_nothing() -> None:
    wanted = Download(topics="web", format="csv", order="oldest")
    file = make_file(wanted, ["web"], OneLog(*MESSAGES), lambda: 0.0, lambda _: MessageView())
    columns, *rows = csv.reader(io.StringIO(file.content.decode(), newline=""))
    assert tuple(columns) == download.COLUMNS
    headers = '[{"name":"trace","value":"1"},{"name":"card","value":"4111"}]'
    assert rows == [
        ["web", "0", "39", "5", "'=1+1", 'a "quoted", text\nof two lines', headers],
        ["web", "0", "79", "6", "", "", ""],
        ["web", "0", "119", "7", "/w==", "'-2", ""],
    ]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff20a"])
def test_no_cell_of_csv_is_a_formula(text: str) -> None:
    message = Message("-2-3", 0, 0, 5, text.encode(), text.encode(), ((text, text.encode()),))
    wanted = Download(topics="web", format="csv")
    file = make_file(wanted, ["web"], OneLog(message), lambda: 0.0, lambda _: MessageView())
    _, row = csv.reader(io.StringIO(file.content.decode(), newline=""))
    assert row[0] == "'-2-3" and row[4:6] == [f"'{text}"] * 2 and row[6].startswith("[{")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_nothing_that_is_masked_is_in_a_file(kind: str) -> None:
    messages = [
        Message("web", 0, 0, 5, b"card=4111", b'{"card": {"number": "4111"}, "id": 7}', HEADERS),
        Message("web", 0, 0, 6, b"k", b"card=4111 id=7", ()),
    ]
    wanted = Download(topics="web", format=kind)  # type: ignore[arg-type]
    file = make_file(wanted, ["web"], OneLog(*messages), lambda: 0.0, lambda _: MessageView(mask=FieldMask(["card"])))
    assert file.messages == 2 and b"4111" not in file.content and file.content.count(b"***") == 4


@pytest.mark.parametrize("query", [{"text": "4111"}, {"match": "4[0-9]+1"}, {"field": "card=4111"}, {"key": "4111"}])
def test_a_search_does_not_tell_what_is_masked(query: dict[str, str]) -> None:
    """Else who guesses digit by digit would read it from what is found."""
    log = OneLog(Message("web", 0, 0, 5, b"card=4111", b'{"card": "4111"}', ()))
    asked = Query(topics="web", **query)  # type: ignore[arg-type]
    masked = MessageView(mask=FieldMask(["card"]))
    assert len(search(asked, log).step().messages) == 1
    assert search(asked, log, view=masked).step().messages == []
    shown = search(Query(topics="web", text="***"), log, view=masked).step().messages
    assert [message.value for message in shown] == [b'{"card":"***"}']


def test_what_is_still_to_come_is_not_downloaded() -> None:
    with pytest.raises(InvalidRequest, match="is not downloaded"):
        wanted = Download(topics="web", order="oldest", follow=True)
        make_file(wanted, ["web"], FakeLog([]), lambda: 0.0, lambda _: MessageView())

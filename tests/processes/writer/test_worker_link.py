"""appliance.processes.writer.worker_link: what a worker is answered comes whole, in messages that fit a packet."""

from __future__ import annotations

import select
from contextlib import closing

from appliance.processes.answers import FOR_ALL, AppendAnswer
from appliance.processes.control import Channel
from appliance.processes.messages import FROM_WRITER, Appended
from appliance.processes.writer.worker_link import WorkerLink
from appliance.processes.writer.writer import TEXT_CHARACTERS_MAX, TEXTS_MAX


def test_refusals_with_long_texts_fit_messages() -> None:
    ours, workers = Channel.pair()
    with closing(ours), closing(workers), select.epoll() as epoll:
        link = WorkerLink(ours, memoryview(b""), epoll)
        text = "\N{GRINNING FACE}" * TEXT_CHARACTERS_MAX
        texts = {FOR_ALL: text, **dict.fromkeys(range(TEXTS_MAX - 1), text)}
        answers = [(token, AppendAnswer([5, -1, -1] * TEXTS_MAX, texts, -1)) for token in range(20)]
        link.answer(answers)
        rows = []
        while len(rows) < len(answers):
            if ours.pending:
                ours.flush()
            for message, _ in workers.receive(FROM_WRITER):
                assert isinstance(message, Appended)
                rows += message.answers
    assert [row[0] for row in rows] == list(range(20))
    assert all(row[2] == texts for row in rows)

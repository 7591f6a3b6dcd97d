"""Answers the transactions of a RELP connection in their order, each once its message is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from .intake import InputMessage
from .relp import SERVER_CLOSE, TAKEN, RelpAnswer, RelpMessage, rsp
from .sender_streams import SenderStream
from .syslog_delivery import Flow, SyslogMessages, SyslogRefusals
from .syslog_format import Frames

ANSWERS_MAX: Final = 16
"""Reads of a RELP connection whose messages are not answered yet."""


class _Sent(NamedTuple):
    """Messages of one topic that are not flushed yet; ``numbers``: their transactions."""

    refusals: asyncio.Task[SyslogRefusals]
    numbers: list[bytes]


class Unanswered(NamedTuple):
    """What one read brought: messages on their way, and the answers to be sent once all are flushed.

    ``answers``: frames for other commands, and the numbers of transactions, in their order.
    """

    sent: list[_Sent]
    answers: list[RelpAnswer | bytes]


async def send_events(
    events: Sequence[RelpMessage | RelpAnswer], flow: Flow, host: str, messages: SyslogMessages
) -> Unanswered:
    unanswered = Unanswered([], [])
    for event in events:
        if isinstance(event, RelpAnswer):
            unanswered.answers.append(event)
        elif event.is_last:
            unanswered.answers.append(event.number)
    by_topic: dict[str, tuple[list[InputMessage], list[bytes]]] = {}
    whole = [event for event in events if not isinstance(event, RelpAnswer) and event.value and not event.part]
    if len(whole) == len(events):  # nearly always
        parsed = messages.split_by_topic(Frames([event.value for event in whole]))
        if len(parsed) == 1:
            ((topic, rows),) = parsed.items()
            by_topic[topic] = rows, [event.number for event in whole]
    if not by_topic:
        _add_one_by_one(events, messages, by_topic)
    for topic, (rows, numbers) in by_topic.items():
        unanswered.sent.append(_Sent(await flow.send_topic(host, topic, rows), numbers))
    return unanswered


def _add_one_by_one(
    events: Sequence[RelpMessage | RelpAnswer],
    messages: SyslogMessages,
    by_topic: dict[str, tuple[list[InputMessage], list[bytes]]],
) -> None:
    for event in events:
        if not isinstance(event, RelpAnswer) and event.value:
            ((topic, (message,)),) = messages.split_by_topic(Frames([event.value], event.part)).items()
            rows, numbers = by_topic.setdefault(topic, ([], []))
            rows.append(message)
            numbers.append(event.number)


async def answer(stream: SenderStream, queue: asyncio.Queue[Unanswered | None]) -> None:
    """Answer transactions in their order, each when it is flushed."""
    refused: dict[bytes, str] = {}
    while (unanswered := await queue.get()) is not None:
        for sent in unanswered.sent:
            refused |= {sent.numbers[index]: reason for index, reason in (await sent.refusals).items()}
        frames: list[bytes] = []
        for item in unanswered.answers:
            if isinstance(item, RelpAnswer):
                frames.append(item.frame)
            elif refused and item in refused:
                frames.append(rsp(item, f"500 {refused.pop(item)}".encode()))
            else:
                frames.append(item + TAKEN)
        await stream.write(b"".join(frames))
    await stream.write(SERVER_CLOSE)

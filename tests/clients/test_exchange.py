"""What one client writes every other reads: keys, values, headers, timestamps, offsets, in every codec.

The offsets are those of the byte-addressed log: a batch leaves a gap before its records, and what a client was told
when it produced is where everybody finds the message again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from .adapters import BATCH, CLIENTS, Client, Message, confluent_read, expected, new_topic
from .conftest import Broker

COUNT = 45
BY_NAME = [pytest.param(client, id=client.name) for client in CLIENTS]
CLIENT_CODECS = [
    # In the suite two codecs of each client, which others have others of; all with LONG=1.
    pytest.param(client, codec, id=f"{client.name}-{codec}", marks=[] if (place - number) % 5 < 2 else pytest.mark.long)
    for number, client in enumerate(CLIENTS)
    for place, codec in enumerate(client.codecs)
]


def check(messages: list[Message], first: int, offsets: list[int]) -> None:
    assert [tuple(message[1:]) for message in messages] == [expected(first + i) for i in range(len(messages))]
    assert [message.offset for message in messages] == offsets[first : first + len(messages)]


@pytest.mark.parametrize(("client", "codec"), CLIENT_CODECS)
def test_every_codec_is_read_by_another_client(broker: Broker, client: Client, codec: str) -> None:
    topic = new_topic()
    offsets = client.produce(broker.kafka, topic, codec, COUNT)
    assert len(offsets) == COUNT and offsets == sorted(set(offsets))
    check(confluent_read(broker.kafka, topic, 0, COUNT), 0, offsets)


@pytest.fixture(scope="module")
def mixed(broker: Broker) -> Callable[[Client], tuple[str, list[int]]]:
    """A topic with batches of every codec that a client knows, and the offsets of its messages."""

    @cache
    def filled(codecs: tuple[str, ...]) -> tuple[str, list[int]]:
        topic = new_topic()
        offsets: list[int] = []
        for codec in codecs:
            offsets += CLIENTS[0].produce(broker.kafka, topic, codec, 2 * BATCH)
        return topic, offsets

    return lambda client: filled(client.codecs)


@pytest.mark.parametrize("client", BY_NAME)
def test_every_client_reads_every_codec_and_resumes_exactly(
    broker: Broker, mixed: Callable[[Client], tuple[str, list[int]]], client: Client
) -> None:
    """From the start, in mid-batch, at the end of a batch, from within the gap before one, and near the end."""
    topic, offsets = mixed(client)
    starts = [(0, 0), (offsets[3], 3), (offsets[BATCH - 1] + 1, BATCH), (offsets[BATCH] - 1, BATCH)]
    for start, first in [*starts, (offsets[-5], len(offsets) - 5)]:
        messages = client.read(broker.kafka, topic, start, len(offsets) - first)
        assert [m.offset for m in messages] == offsets[first:]
        wanted = [expected(index % (2 * BATCH)) for index in range(first, len(offsets))]
        assert [tuple(m[1:]) for m in messages] == wanted


@pytest.mark.parametrize("client", BY_NAME)
def test_a_group_resumes_after_its_commit_whoever_reads_next(broker: Broker, client: Client) -> None:
    """Commit in mid-batch, then at a batch's end; the last reader is another client."""
    topic, group = new_topic(), new_topic()
    offsets = CLIENTS[1].produce(broker.kafka, topic, "none", COUNT)
    check(client.group(broker.kafka, topic, group, 13), 0, offsets)
    check(client.group(broker.kafka, topic, group, 7), 13, offsets)
    check(CLIENTS[0].group(broker.kafka, topic, group, 20), 20, offsets)
    check(client.group(broker.kafka, topic, group, 5), 40, offsets)

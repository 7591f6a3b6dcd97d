"""appliance.processes.network.writer_link: the largest messages to and from a writer fit their channel."""

from __future__ import annotations

import msgpack

from appliance.processes.control import MESSAGE_BYTES_MAX
from appliance.processes.network import writer_link
from appliance.processes.writer import worker_link, writer

OFFSET_MAX = 2**63 - 1
POSITION_MAX = 2**32 - 1


def test_the_largest_description_fits() -> None:
    """A message is closed by the append request that fills it, which may be a full one."""
    append = (2**40, -1, [POSITION_MAX] * writer_link.POSITIONS_MAX)
    almost = (2**40, -1, [POSITION_MAX] * (writer_link.POSITIONS_MAX - 2))
    assert len(msgpack.packb([almost, append])) < MESSAGE_BYTES_MAX


def test_the_largest_answer_fits() -> None:
    texts = {index: "x" * writer.TEXT_CHARACTERS_MAX for index in range(writer.TEXTS_MAX)}
    full = [2**40, [90, OFFSET_MAX, OFFSET_MAX] * writer_link.APPEND_PARTS_MAX, texts, 2**41]
    small = [[2**40, [0, OFFSET_MAX, OFFSET_MAX], {}, 2**41]] * (
        worker_link.NUMBERS_PER_MESSAGE // (worker_link.APPEND_NUMBERS + 3)
    )
    assert len(msgpack.packb([*small, full])) < MESSAGE_BYTES_MAX
    refused = [2**40, [2, -1, -1], {0: "x" * writer.TEXT_CHARACTERS_MAX}, -1]
    count = worker_link.NUMBERS_PER_MESSAGE // (worker_link.APPEND_NUMBERS + 3) + 1
    assert len(msgpack.packb([refused] * count)) < MESSAGE_BYTES_MAX

"""appliance.processes.links and writer: the largest messages that either side can send fit the control channel."""

from __future__ import annotations

import msgpack

from appliance.processes import links, writer
from appliance.processes.control import MESSAGE_BYTES_MAX

OFFSET_MAX = 2**63 - 1
POSITION_MAX = 2**32 - 1


def test_the_largest_description_fits() -> None:
    """A message is closed by the bundle that fills it, which may be a full one."""
    bundle = (2**40, -1, [POSITION_MAX] * links.BUNDLE_POSITIONS_MAX)
    almost = (2**40, -1, [POSITION_MAX] * (links.BUNDLE_POSITIONS_MAX - 2))
    assert len(msgpack.packb([almost, bundle])) < MESSAGE_BYTES_MAX


def test_the_largest_answer_fits() -> None:
    texts = {index: "x" * writer.TEXT_CHARACTERS_MAX for index in range(writer.TEXTS_MAX)}
    full = [2**40, [90, OFFSET_MAX, OFFSET_MAX] * links.BUNDLE_REQUESTS_MAX, texts]
    small = [[2**40, [0, OFFSET_MAX, OFFSET_MAX], {}]] * (writer.NUMBERS_PER_MESSAGE // (writer.BUNDLE_NUMBERS + 3))
    assert len(msgpack.packb([*small, full])) < MESSAGE_BYTES_MAX
    refused = [2**40, [2, -1, -1], {0: "x" * writer.TEXT_CHARACTERS_MAX}]
    assert len(msgpack.packb([refused] * (writer.NUMBERS_PER_MESSAGE // (writer.BUNDLE_NUMBERS + 3) + 1))) < MESSAGE_BYTES_MAX

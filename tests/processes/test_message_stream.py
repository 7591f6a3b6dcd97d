"""appliance.processes.message_stream: a stream is cut into its messages, wherever it is cut itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.processes.message_stream import MessageReader, packed
from appliance.processes.messages import (
    TO_COORDINATOR_STREAM,
    ForwardRequest,
    LimitsTaken,
    RequestAnswered,
    ToCoordinatorStream,
    UnknownMessage,
)
from appliance.security.principals import Origin

ORIGIN = Origin(Listener("kafka", PLAINTEXT, "a:1"), "b:2", "User:c")
MESSAGES = st.one_of(
    st.builds(ForwardRequest, st.integers(1, 1 << 40), st.just(ORIGIN), st.binary(max_size=300)),
    st.builds(LimitsTaken, st.lists(st.tuples(st.text(), st.text(), st.text(), st.floats(0, 9), st.floats(0, 9)))),
)


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_the_messages_come_whole_and_in_order_however_the_stream_is_cut(
    messages: list[ToCoordinatorStream], cuts: list[int]
) -> None:
    stream = b"".join(map(packed, messages))
    reader = MessageReader(TO_COORDINATOR_STREAM, 1 << 20)
    taken: list[ToCoordinatorStream] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
        taken += iter(reader.take_message, None)
    assert taken == messages and reader.take_message() is None


def test_what_the_receiver_does_not_take_is_a_bug_that_is_named() -> None:
    reader = MessageReader(TO_COORDINATOR_STREAM, 1 << 20)
    reader.feed(packed(RequestAnswered(1, b"reply")))
    with pytest.raises(UnknownMessage, match="RequestAnswered"):
        reader.take_message()


def test_a_message_above_the_bound_is_refused_before_it_has_come() -> None:
    message = packed(ForwardRequest(1, ORIGIN, bytes(1_000)))
    reader = MessageReader(TO_COORDINATOR_STREAM, 999)
    reader.feed(message[:10])
    with pytest.raises(UnknownMessage, match="more than 999"):
        reader.take_message()

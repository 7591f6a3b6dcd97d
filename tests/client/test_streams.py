"""appliance.client.streams: what is handed out, what counts as done, and who is first when a partition is
revoked.
"""

from __future__ import annotations

import threading

import pytest

from appliance.client.fetcher import Chunk, Fetched
from appliance.client.streams import MessageStream
from appliance.errors import InvalidRequest
from appliance.records import batch as batches
from appliance.records.encode import encode_values

from ..support.client_peer import Partition
from ..support.owned_partitions import OTHER, PART, Room

QUIET_S = 0.01
TIMEOUT_S = 60


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_message_is_done_when_the_next_one_is_asked_for(room: Room) -> None:
    room.put(PART)
    messages = room.stream.messages()
    first, second = next(messages), next(messages)
    assert room.owned.uncommitted(in_hand=False) == {PART: first.offset + 1}
    assert room.owned.uncommitted(in_hand=True) == {PART: second.offset + 1}


def test_a_reader_that_stops_leaves_its_last_message_undone_until_told(room: Room) -> None:
    room.put(PART)
    for message in room.stream:
        if message.value == b"0-0-3":
            break
    assert room.owned.uncommitted(in_hand=False) == {PART: message.offset}
    room.owned.mark_processed()
    assert room.owned.uncommitted(in_hand=False) == {PART: message.offset + 1}
    assert next(room.stream.messages()).value == b"0-0-4", "nothing that was decoded is lost"


def test_what_is_committed_is_not_committed_again(room: Room) -> None:
    room.put(PART)
    for _ in room.stream.messages(QUIET_S):
        pass
    positions = room.owned.uncommitted(in_hand=False)
    assert positions == {PART: room.ends[PART]}
    room.owned.on_committed(positions)
    assert room.owned.uncommitted(in_hand=False) == {}


def test_batches_are_the_fast_path_and_continue_after_messages(room: Room) -> None:
    room.put(PART)
    assert next(room.stream.messages()).value == b"0-0-0"
    batches = list(room.stream.batches(QUIET_S))
    assert [len(batch.values) for batch in batches] == [4, 5]
    assert room.owned.uncommitted(in_hand=False) == {PART: room.ends[PART]}
    (fetched,) = room.fetched
    assert fetched.released_bytes == fetched.received_bytes


def test_revoking_drops_what_is_queued_and_decoded_of_that_partition_only(room: Room) -> None:
    room.put(PART)
    room.put(OTHER)
    messages = room.stream.messages(QUIET_S)
    assert next(messages).value == b"0-0-0"
    assert room.owned.revoke([PART], 0) == {}, "its reader has not come back"
    assert [message.partition for message in messages] == [1] * 10
    assert room.owned.revoke([OTHER], 0) == {OTHER: room.ends[OTHER]}
    room.put(PART)
    assert list(room.stream.messages(QUIET_S)) == [], "not ours any more"


def test_revoking_waits_for_the_message_in_hand(room: Room) -> None:
    room.put(PART)
    taken, go_on = threading.Event(), threading.Event()
    seen: list[bytes | None] = []

    def read() -> None:
        for message in room.stream.messages(QUIET_S):
            seen.append(message.value)
            taken.set()
            assert go_on.wait(TIMEOUT_S)

    reader = threading.Thread(target=read)
    reader.start()
    assert taken.wait(TIMEOUT_S)
    timer = threading.Timer(0.02, go_on.set)
    timer.start()
    positions = room.owned.revoke([PART], TIMEOUT_S)
    reader.join()
    timer.join()
    assert len(seen) == 1
    assert positions[PART] > 0


def test_nothing_is_handed_out_after_revoke_has_returned(room: Room) -> None:
    """Readers and revocations race for real; the position that is returned is exactly what was seen."""
    for _ in range(30):
        room = Room()
        room.put(PART, [3] * 40)
        seen: list[int] = []

        def read(stream: MessageStream = room.stream, seen: list[int] = seen) -> None:
            seen.extend(message.offset for message in stream.messages(QUIET_S))

        reader = threading.Thread(target=read)
        reader.start()
        positions = room.owned.revoke([PART], TIMEOUT_S)
        reader.join()
        assert positions.get(PART, -1) == (seen[-1] + 1 if seen else -1)


def test_nothing_is_handed_out_without_a_lease(room: Room) -> None:
    room.put(PART)
    room.lease = False
    assert list(room.stream.messages(QUIET_S)) == []
    room.lease = True
    assert len(list(room.stream.messages(QUIET_S))) == 10


def test_closing_ends_iterators_and_trouble_is_raised(room: Room) -> None:
    room.owned.finish()
    assert list(room.stream.messages()) == []
    other = Room()
    other.owned.finish(InvalidRequest("a group of the other listener"))
    with pytest.raises(InvalidRequest):
        next(other.stream.batches())


def test_a_partition_left_out_for_its_backlog_wakes_the_fetcher_when_there_is_room(room: Room) -> None:
    room.put(PART)
    room.fetched[0].left_out = True
    assert len(list(room.stream.messages(QUIET_S))) == 10
    assert room.woken == 1 and not room.fetched[0].left_out


@pytest.mark.parametrize("committed", [True, False])
def test_stepping_over_a_marker_hands_out_nothing_that_could_be_lost(room: Room, committed: bool) -> None:
    """Behind what is committed, and where a partition begins."""
    at = 0
    if committed:
        room.put(PART)
        assert len(list(room.stream.messages(QUIET_S))) == 10
        at = room.ends[PART]
        room.owned.on_committed({PART: at})
    behind = room.put_marker(PART, at)
    assert list(room.stream.messages(QUIET_S)) == []
    assert room.owned.uncommitted(in_hand=True) == {PART: behind}
    room.owned.revoke([PART], 0)
    assert not room.owned.lost


def test_what_is_handed_out_behind_a_marker_is_lost_with_its_partition(room: Room) -> None:
    behind = room.put_marker(PART, 0)
    log = Partition()
    log.append(encode_values([b"x"], 0))
    batches.place(memoryview(log.data), 0, behind, len(log.data), 1)
    room.owned.put_chunks([Chunk(Fetched(PART, behind, room.wake), memoryview(bytes(log.data)), behind, behind)])
    assert next(room.stream.messages()).value == b"x"
    room.owned.revoke([PART], 0)
    assert room.owned.lost == {PART}


def test_a_partition_given_up_while_it_is_committed_is_not_lost(room: Room) -> None:
    room.put(PART)
    room.put(OTHER)
    assert len(list(room.stream.messages(QUIET_S))) == 20
    offsets = room.owned.uncommitted(in_hand=True)
    room.owned.revoke([PART, OTHER], 0)
    room.owned.on_committed({PART: offsets[PART]})
    assert room.owned.lost == {OTHER}

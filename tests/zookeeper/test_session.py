"""appliance.zookeeper.session: every wait ends, no loss goes unnoticed, everything kept comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists

from appliance.errors import InvalidRequest, ZooKeeperAway
from appliance.zookeeper.ensemble import Ensemble
from appliance.zookeeper.operations import (
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    Request,
    ask,
    check_version,
    children,
    create,
    delete,
    exists,
    get,
    multi,
    set_value,
    sync,
)
from appliance.zookeeper.session import Session, SessionState

from ..support.zookeeper_fixture import (
    LOGIN,
    Sessions,
    end_on_server,
    fresh_connect,
    now_ms,
    result_of,
    sessions,
    wait_serving,
)


@pytest.fixture
def opened(standalone: Ensemble) -> Iterator[Sessions]:
    with sessions(fresh_connect(standalone)) as some:
        yield some


def asked(*requests: Request) -> Operation[list[Any]]:
    return (yield from ask(requests))


class Frozen:
    """A ZooKeeper that is stopped in its tracks: it accepts connections and answers nothing."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._process = ensemble.processes[0]

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # the signal alone is only on its way

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)


# --- operations


def test_requests_are_answered(opened: Sessions) -> None:
    session = opened.open()
    assert result_of(session, asked(create("/a/b", b"1"))) == [0]  # with its parents and the chroot
    replies = result_of(session, asked(get("/a/b"), exists("/a"), get("/none")))
    assert replies[0][:3] == (b"1", 0, 0) and isinstance(replies[1], Node) and replies[2] is Refused.NO_NODE
    answers = result_of(session, asked(set_value("/a/b", b"2", 0), set_value("/a/b", b"3", 0), create("/a/b")))
    assert answers == [1, Refused.BAD_VERSION, Refused.NODE_EXISTS]
    assert result_of(session, asked(delete("/a"), delete("/a/b"), delete("/a"))) == [Refused.NOT_EMPTY, 0, 0]


@pytest.mark.parametrize("chroot", ["", "/below"])
def test_reads_that_follow_each_other_are_one_request(
    standalone: Ensemble, monkeypatch: pytest.MonkeyPatch, chroot: str
) -> None:
    """Goal: whatever is read together has the replies that each read has alone; a request that is no read ends what is
    together, so that a read sees what was written before it.
    """
    sent: list[str] = []
    call = KazooClient._call

    def recorded(self: KazooClient, request: Any, result: Any) -> Any:
        if not isinstance(request, Exists):  # the session's heartbeat
            sent.append(type(request).__name__)
        return call(self, request, result)

    monkeypatch.setattr(KazooClient, "_call", recorded)
    with sessions(standalone.connect + chroot) as opened:
        session = opened.open()
        for first in range(0, 1_100, 100):  # a whole operation has to end in time, on a slow disk, too
            numbers = range(first, first + 100)
            result_of(
                session, asked(*(create(f"/reads/{number}", str(number).encode() * number) for number in numbers))
            )
        reads = [get(f"/reads/{number}") for number in range(1_100)] + [children("/reads"), get("/none"), get("/")]
        sent.clear()
        together = result_of(session, asked(*reads))
        assert sent == ["MultiRead"] * 3  # of 500, 500 and 103
        assert together == [reply for read in reads for reply in result_of(session, asked(read))]
        written, alone = set_value("/reads/3", b"new", 0), exists("/reads")
        wanted = [children("/none"), get("/reads/3"), written, get("/reads/3"), alone, get("/reads/3"), get("/reads/4")]
        sent.clear()
        none, before, version, after, there, again, other = result_of(session, asked(*wanted))
        assert sent == ["MultiRead", "SetData", "GetData", "MultiRead"]
        assert (none, before[0], version, after[0], again, other[0]) == (
            *(Refused.NO_NODE, b"333", 1, b"new"),
            *(after, b"4444"),
        )
        assert isinstance(there, Node) and before.modified_ms <= after.modified_ms


def test_a_node_made_and_deleted_in_one_multi_changes_the_zxid_of_the_children_above(opened: Sessions) -> None:
    """Goal: offsets that come back below a topic's node show in the group's stamp (``deletion._mark_changed``)."""
    session = opened.open()
    result_of(session, asked(create("/above/below", b"")))
    (before,) = result_of(session, asked(get("/above")))
    result_of(session, asked(multi([create("/above/=changed"), delete("/above/=changed")])))
    after, names = result_of(session, asked(get("/above"), children("/above")))
    assert after.children_zxid > before.children_zxid and names == ["below"]


HOSTILE = [
    get("/a/.."), get("a"), get(""), get("/a/"), get("/a//b"), get("/a/./b"), get("/\0"), get("/\ud800"),
    get("/\U0001f600"), exists("/brokers/topics/.."), delete("/."), set_value("/a", b"", 2**31), delete("/a", -2),
    create("/a/\x7f"), create("/a", bytes(1 << 20)), set_value("/a", bytes(REQUEST_BYTES_MAX), -1),
    get("/" + "x" * REQUEST_BYTES_MAX), multi([check_version("/a/..", 0)]),
    multi([create(f"/a/{i}", bytes(60_000)) for i in range(20)]),
]  # fmt: skip


def test_what_zookeeper_cannot_take_is_one_operations_error(opened: Sessions) -> None:
    """Goal: no request whatever raises out of ``poll``, ends kazoo's thread or costs the session; all the room that was
    taken is free again.
    """
    session = opened.open(operations_max=2 * len(HOSTILE))
    before, answers, good = session.session_id, [], []
    for request in HOSTILE:
        session.submit(asked(request), answers.append)
        session.submit(asked(exists("/")), good.append)
        with pytest.raises(InvalidRequest):
            result_of(session, asked(request))
    opened.until(lambda: len(answers) == len(good) == len(HOSTILE), "all are answered")
    assert all(isinstance(answer, InvalidRequest) for answer in answers)
    assert all(isinstance(answer, list) for answer in good)
    assert not session._tasks and session.session_id == before and session.state is SessionState.CONNECTED


def test_a_bug_in_one_operation_is_raised_and_ends_that_one_alone(opened: Sessions) -> None:
    session = opened.open()

    def broken() -> Operation[None]:
        yield [exists("/")]
        raise ZeroDivisionError("a bug")

    answers: list[Any] = []
    session.submit(broken(), answers.append)
    session.submit(asked(exists("/")), answers.append)
    with pytest.raises(ZeroDivisionError):
        opened.until(lambda: len(answers) == 2, "both are answered")
    opened.until(lambda: len(answers) == 2, "both are answered")
    assert sorted(isinstance(answer, InvalidRequest) for answer in answers) == [False, True]
    assert not session._tasks


def test_parts_of_a_multi_happen_together_or_not_at_all(opened: Sessions) -> None:
    session = opened.open()
    result_of(session, asked(create("/a", b"1"), create("/b", b"1")))

    def asked_at_once(*parts: Request) -> Any:
        return result_of(session, asked(multi(parts)))[0]

    done = asked_at_once(check_version("/a", 0), set_value("/a", b"2", 0), create("/c", b"3"), delete("/b"))
    assert done == [0, 1, 0, 0]
    refused = {
        Refused.BAD_VERSION: (set_value("/a", b"x", -1), check_version("/a", 0)),
        Refused.NODE_EXISTS: (set_value("/a", b"x", -1), create("/c")),
        Refused.NO_NODE: (set_value("/a", b"x", -1), check_version("/b", -1)),
    }
    for why, parts in refused.items():
        assert asked_at_once(*parts) == Failed(1, why)
    assert result_of(session, asked(sync(), get("/a")))[1].value == b"2"


def test_an_operation_that_fails_tells_its_error(opened: Sessions) -> None:
    session = opened.open()

    def failing() -> Operation[None]:
        yield [exists("/")]
        raise ZooKeeperAway("as an operation does")

    answers: list[Any] = []
    session.submit(failing(), answers.append)
    opened.until(lambda: answers, "an answer")
    assert isinstance(answers[0], ZooKeeperAway)
    with pytest.raises(ZooKeeperAway, match="as an operation does"):
        result_of(session, failing())


def test_without_zookeeper_every_wait_ends() -> None:
    with sessions("127.0.0.1:1") as opened:
        session = opened.open(connected=False, operations_max=3)
        started = now_ms()
        answers: list[Any] = []
        for _ in range(3):
            session.submit(asked(get("/a")), answers.append, timeout_ms=50)
        with pytest.raises(ZooKeeperAway, match="3 operations wait"):
            session.submit(asked(get("/a")), answers.append)
        opened.until(lambda: len(answers) == 3, "all have ended", ms_max=2_000)
        assert all(isinstance(answer, ZooKeeperAway) for answer in answers)
        assert now_ms() - started < 2_000
        assert not session._kazoo._client._queue, "nothing may pile up inside kazoo"
        session.submit(asked(get("/a")), answers.append, timeout_ms=50).cancel()
        session.watch_value("/a", answers.append).cancel()
        session.poll()
        assert not session._tasks and not session._tasks._held_back and session.wait_ms() == 60_000
        assert len(answers) == 3
        assert session.state is SessionState.CONNECTING and session.lease_left_ms == 0


def test_a_session_is_bound_to_its_operation_on_request(opened: Sessions) -> None:
    session = opened.open()
    with pytest.raises(ZooKeeperAway, match="session was lost"):
        result_of(session, asked(get("/a")), session_id=session.session_id + 1)


def test_a_cancelled_operation_is_not_told(opened: Sessions) -> None:
    session = opened.open()
    answers: list[Any] = []
    session.submit(asked(get("/a")), answers.append).cancel()
    session.submit(asked(get("/b")), answers.append)
    opened.until(lambda: answers, "an answer")
    assert len(answers) == 1


# --- states, ephemeral nodes, watches


def test_after_a_lost_session_ephemeral_nodes_and_watches_are_back(opened: Sessions) -> None:
    session, other = opened.open(), opened.open()
    states: list[SessionState] = []
    session.on_state(states.append)
    session.keep("/ids/1", b"me")
    seen: list[Any] = []
    session.watch_value("/value", seen.append)
    opened.until(lambda: session.holds("/ids/1") and seen == [None], "registered and watching")
    before = session.session_id
    end_on_server(session)
    result_of(other, asked(create("/value", b"1")))
    opened.until(lambda: session.session_id != before and session.holds("/ids/1"), "registered again")
    opened.until(lambda: SessionState.CONNECTED in states, "connected")
    assert SessionState.LOST in states and states.index(SessionState.LOST) < states.index(SessionState.CONNECTED)
    (node,) = result_of(other, asked(get("/ids/1")))
    assert node.owner == session.session_id and node.value == b"me"
    opened.until(lambda: seen == [None, b"1"], "told what changed in between")
    result_of(other, asked(set_value("/value", b"2", -1)))
    opened.until(lambda: seen == [None, b"1", b"2"], "watching on")


def test_a_kept_node_changes_and_waits_for_a_stranger(opened: Sessions) -> None:
    first, second, reader = opened.open(), opened.open(), opened.open()
    first.keep("/ids/1", b"a")
    opened.until(lambda: first.holds("/ids/1"), "registered")
    first.keep("/ids/1", b"b")
    opened.until(lambda: result_of(reader, asked(get("/ids/1")))[0].value == b"b", "changed")
    second.keep("/ids/1", b"c")
    opened.until(lambda: second._kept._kept["/ids/1"].complained, "refused")
    first.unkeep("/ids/1")
    result_of(first, asked(delete("/ids/1")))
    opened.until(lambda: second.holds("/ids/1"), "the stranger is gone")
    assert result_of(reader, asked(get("/ids/1")))[0].value == b"c"


def test_closing_takes_ephemeral_nodes_away_at_once(opened: Sessions) -> None:
    session, other = opened.open(), opened.open()
    session.keep("/ids/1", b"")
    seen: list[Any] = []
    other.watch_children("/ids", seen.append)
    opened.until(lambda: seen and seen[-1] == ["1"], "registered")
    opened.opened.remove(session)
    session.close()
    assert opened.until(lambda: seen[-1] == [], "gone") < 2_000


def test_watches_follow_and_end(opened: Sessions) -> None:
    session, other = opened.open(), opened.open()
    children: list[Any] = []
    watch = session.watch_children("/top", children.append)
    opened.until(lambda: children == [None], "no such node yet")
    result_of(other, asked(create("/top/b")))
    opened.until(lambda: children and children[-1] == ["b"], "first child")
    result_of(other, asked(create("/top/a"), create("/top/c")))
    opened.until(lambda: children[-1] == ["a", "b", "c"], "all children")
    watch.cancel()
    told = len(children)
    result_of(other, asked(create("/top/d")))
    marks: list[Any] = []
    session.watch_children("/top", marks.append)
    opened.until(lambda: marks == [["a", "b", "c", "d"]], "a later watch is answered")
    assert len(children) == told


def test_what_changed_and_changed_back_is_told(opened: Sessions) -> None:
    """Goal: who left and came back between two looks has left.  Method: both before the watcher looks again."""
    session, other = opened.open(), opened.open()
    result_of(other, asked(create("/ids/1"), create("/ids/2")))
    seen: list[Any] = []
    session.watch_children("/ids", seen.append)
    opened.until(lambda: seen == [["1", "2"]], "watching")
    result_of(other, asked(delete("/ids/1")))
    result_of(other, asked(create("/ids/1")))
    opened.until(lambda: seen == [["1", "2"], ["1", "2"]], "told")


def test_the_lease_runs_out_before_zookeeper_can_expire_the_session(standalone: Ensemble, opened: Sessions) -> None:
    """Goal: LOST is told in time although kazoo still believes in its connection.  Method: freeze ZooKeeper."""
    session = opened.open(timeout_ms=1_500)
    states: list[SessionState] = []
    session.on_state(states.append)
    with Frozen(standalone):
        opened.until(lambda: SessionState.LOST in states, "the lease is over")  # kazoo would not say so while it hangs
        assert session.lease_left_ms == 0
        with pytest.raises(ZooKeeperAway):
            result_of(session, asked(get("/a")), timeout_ms=100)
    opened.until(lambda: session.state is SessionState.CONNECTED, "back")


def test_a_slow_owner_finds_its_lease_over(opened: Sessions) -> None:
    """A process that was stopped for longer than the timeout must not believe in its session for one instant."""
    clock = [1_000_000]
    session = Session(opened.connect, 6_000, login=LOGIN, clock_ms=lambda: clock[0])
    session.start()
    opened.opened.append(session)
    opened.until(lambda: session.state is SessionState.CONNECTED, "connected")
    assert 0 < session.lease_left_ms <= 6_000
    clock[0] += 6_001
    assert session.lease_left_ms == 0
    states: list[SessionState] = []
    session.on_state(states.append)
    session.poll()
    assert states[:1] == [SessionState.LOST]
    opened.until(lambda: states[-1] is SessionState.CONNECTED, "and back, as ZooKeeper kept the session")


def test_a_restarted_zookeeper_is_found_again_with_the_same_session(standalone: Ensemble, opened: Sessions) -> None:
    session = opened.open(timeout_ms=60_000)
    session.keep("/ids/1", b"")
    opened.until(lambda: session.holds("/ids/1"), "registered")
    before = session.session_id
    standalone.processes[0].kill()
    standalone.processes[0].wait()
    opened.until(lambda: session.state is SessionState.SUSPENDED, "the connection is gone")
    answers: list[Any] = []
    session.submit(asked(get("/ids/1")), answers.append, timeout_ms=60_000)
    standalone.start_node(0)
    wait_serving(standalone)
    opened.until(lambda: answers, "the question that waited is answered")
    assert answers[0][0].owner == before == session.session_id


def test_an_ensemble_that_moved_is_followed(standalone: Ensemble) -> None:
    with sessions("127.0.0.1:1") as opened:
        session = opened.open(connected=False)
        session.set_connect(standalone.connect)
        opened.until(lambda: session.state is SessionState.CONNECTED, "connected at the new address")


def test_a_session_that_never_connected_closes_within_its_time() -> None:
    session = Session("127.0.0.1:1", 6_000)
    session.start()
    started = now_ms()
    session.close(timeout_ms=3_000)
    assert now_ms() - started < 4_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_ends_by_itself_is_replaced(opened: Sessions) -> None:
    """As kazoo's does when replies and requests do not match: what was asked is answered, what is kept comes back."""
    session = opened.open()
    session.keep("/kept", b"ours")
    opened.until(lambda: session.holds("/kept"), "the kept node")
    first = session.session_id
    client = session._kazoo._client
    answers: list[Any] = []
    client._pending.appendleft((None, client.handler.async_result(), 999_999))
    session.submit(asked(get("/kept")), answers.append)
    opened.until(lambda: answers, "an answer")
    opened.until(lambda: session.session_id != first and session.state is SessionState.CONNECTED, "another session")
    opened.until(lambda: session.holds("/kept"), "the kept node again")
    assert result_of(session, asked(get("/kept")))[0][0] == b"ours"

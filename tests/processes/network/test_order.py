"""Requests of one connection take effect in the order in which they came, however many are in flight.

A model says what each request of a pipeline must be answered when all before it have taken effect; the pipeline is
sent in one piece, so that nothing but the worker keeps it in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import UnknownPartition
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.native_peer import Peer
from ...support.server import Server, stopped

BATCH = encode_values([b"one", b"two", b"three"], 1_000)
TOPICS = ("a", "b")
UNKNOWN = UnknownPartition.code


class Step(NamedTuple):
    """One request; what it is about depends on ``what``."""

    what: str
    topic: str
    acks: int = 1


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(("produce", "produce", "produce", "end", "fetch", "create", "delete", "metadata")),
        st.sampled_from(TOPICS),
        st.sampled_from((0, 1, -1)),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """The length of each topic's log, None where there is no topic; makes requests, and knows their answers."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ends: dict[str, int | None] = dict.fromkeys(TOPICS)
        self.stream = b""
        self.answers: list[Callable[[list[Any], bytes], bool]] = []
        self._correlation = 70_000

    def add(self, step: Step) -> None:
        name, end = self._prefix + step.topic, self._ends[step.topic]
        self._correlation += 1
        number = self._correlation
        match step.what:
            case "produce" if step.acks or end is not None:
                payload = BATCH
                header = [native.PRODUCE, number, name, 0, step.acks, 10_000]
                self.stream += native.encode_frame(header, len(payload)) + payload
                if end is not None:
                    end = self._ends[step.topic] = end + len(BATCH)
                wanted = UNKNOWN if end is None else 0
                if step.acks:
                    self._expect(lambda reply, _: reply[1] == wanted and (end is None or reply[3] == end))
            case "end":
                self._ask([native.OFFSETS, number, [[name, 0, -1, -1]]])
                self._expect(lambda reply, _: reply[2][0][:2] == ([UNKNOWN, -1] if end is None else [0, end]))
            case "fetch":
                # One that does not wait gets what can be read, which may not be yet what was written before it.
                wait_ms = 10_000 if end else 0
                self._ask([native.FETCH, number, wait_ms, end or 1, 1 << 20, [[name, 0, 0, 1 << 20]]])
                self._expect(
                    lambda reply, data: (
                        reply[2][0][0] == (0 if end is not None else UNKNOWN) and len(data) == (end or 0)
                    )
                )
            case "create" if end is None:
                self._ask([native.ADMIN, number, "create_topic", {"name": name, "partitions": 1}])
                self._ends[step.topic] = 0
                self._expect(lambda reply, _: reply[1] == 0)
            case "delete" if end is not None:
                self._ask([native.ADMIN, number, "delete_topic", {"name": name}])
                self._ends[step.topic] = None
                self._expect(lambda reply, _: reply[1] == 0)
            case "metadata":
                self._ask([native.ADMIN, number, "topics", {"names": [name]}])
                self._expect(lambda reply, _: (reply[1] == 0) == (end is not None))

    def _ask(self, header: list[Any]) -> None:
        self.stream += native.encode_frame(header)

    def _expect(self, is_right: Callable[[list[Any], bytes], bool]) -> None:
        number = self._correlation
        self.answers.append(lambda reply, data: reply[0] == number and is_right(reply, data))


_runs = iter(range(1_000_000))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps)
def test_a_pipeline_is_answered_as_one_request_after_the_other(appliance: Server, script: list[Step]) -> None:
    model = Model(f"order-{next(_runs)}-")
    for step in script:
        model.add(step)
    with Peer(appliance.native) as peer:
        peer.sock.sendall(model.stream)
        for number, is_right in enumerate(model.answers):
            reply, data = peer.receive()
            assert is_right(reply, data), f"answer {number}: {reply}"


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_question_behind_many_produce_requests_sees_them_all(peer: Peer, topic: str, acks: int) -> None:
    peer.create(topic, partitions=3)
    frames = [
        native.encode_frame([native.PRODUCE, 70_000 + n, topic, n % 3, acks, 10_000], len(BATCH)) + BATCH
        for n in range(300)
    ]
    peer.sock.sendall(
        b"".join(frames) + native.encode_frame([native.OFFSETS, 1, [[topic, n, -1, -1] for n in range(3)]])
    )
    replies = [peer.receive()[0] for _ in range(300 if acks else 0)]
    assert all(reply[1] == 0 for reply in replies)
    assert [part[1] for part in peer.receive()[0][2]] == [100 * len(BATCH)] * 3


@pytest.fixture
def peer(appliance: Server) -> Any:
    with Peer(appliance.native) as made:
        yield made


def test_a_question_is_answered_although_a_neighbours_batch_is_refused(make_appliance: Callable[..., Server]) -> None:
    """Both batches have acks=0.  The worker finds them in one turn, and sends them in one append request."""
    server = make_appliance(**{"network.workers": 1, "liveness.timeout_ms": 300_000})
    with Peer(server.native) as asks, Peer(server.native) as errs:
        asks.create("t")
        assert asks.produce("t", BATCH)[0] == 0
        writer = server.pid_of("writer")
        produce = native.encode_frame([native.PRODUCE, 3, "t", 0, 0, 30_000], len(BATCH)) + BATCH
        with stopped(writer):
            with stopped(server.pid_of("network")):
                errs.send([native.PRODUCE, 2, "t", 0, 0, 30_000], BATCH[:-1] + bytes([BATCH[-1] ^ 1]))
                asks.sock.sendall(produce + native.encode_frame([native.OFFSETS, 4, [["t", 0, -1, -1]]]))
            for _ in range(3):  # turns of the worker, which finds the question while the writer has both batches
                Peer(server.native).close()
        assert asks.receive()[0][2][0][1] == 2 * len(BATCH)
        assert errs.hung_up()

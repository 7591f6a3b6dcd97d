"""appliance.processes.network.fetch_sessions: what a client with a session knows is what a full fetch says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from appliance.broker import plan
from appliance.broker.plan import FetchPlan
from appliance.processes.network.fetch_sessions import EPOCH_MAX, FEW, KEPT_MS, SWEEP_MS
from appliance.security.acls import UNRESTRICTED, Access
from appliance.wire.requests import NEW_SESSION, NO_SESSION, Fetch, FetchPart, FetchResult, SessionReply, SessionStep

from ...support.fetching_worker import Client, Log, Worker

BYTES = 1 << 20
UNKNOWN, WRONG_EPOCH, MIXED = 70, 71, 106
NUMBERS = st.integers(0, 19)


def session(worker: Worker, client: Client, parts: int, wait_ms: int = 0) -> SessionReply | None:
    """Ask for a session with so many parts; what the reply says of it."""
    named = [FetchPart("t", number, 0, BYTES) for number in range(parts)]
    worker.start(client, named, 0, wait_ms, SessionStep(0, NEW_SESSION, []))
    _, begun = client.answers[-1]
    assert begun is None or begun.parts is None
    return begun  # type: ignore[no-any-return]


def go_on(worker: Worker, client: Client, session_id: int, epoch: int, *parts: FetchPart) -> Any:
    """The reply to a request that continues a session."""
    worker.start(client, list(parts), 0, 0, SessionStep(session_id, epoch, []))
    return client.answers[-1]


def test_the_next_request_names_nothing_and_its_reply_what_has_changed() -> None:
    worker = Worker([Log(10) for _ in range(100)])
    begun = session(worker, worker.client, 100)
    assert begun is not None and len(worker.sessions) == 1
    for number in range(100):
        worker.logs[number].looks = 0
    read = [FetchPart("t", number, 10, BYTES) for number in range(100)]
    assert go_on(worker, worker.client, begun.id, 1, *read) == ([], SessionReply(begun.id, []))
    for epoch in (2, 3):
        worker.logs[7].grow(5)
        worker.ring(7)
        results, reply = go_on(worker, worker.client, begun.id, epoch)
        assert [part.partition for part in reply.parts] == [7] and results[0].size == 5 * (epoch - 1)
    assert [number for number, log in worker.logs.items() if log.looks] == [7]


def test_the_end_of_an_error_is_told() -> None:
    worker = Worker([Log(10)])
    begun = session(worker, worker.client, 1)
    assert begun is not None
    beyond, end = FetchPart("t", 0, 99, BYTES), FetchPart("t", 0, 10, BYTES)
    for epoch, part, error in ((1, beyond, 1), (2, end, 0)):
        results, reply = go_on(worker, worker.client, begun.id, epoch, part)
        assert [known(result) for result in results] == [(error, 10, 0)] and reply.parts == [part]
    assert go_on(worker, worker.client, begun.id, 3)[1].parts == []


def test_a_forgotten_partition_is_not_watched() -> None:
    worker = Worker([Log(0) for _ in range(30)])
    begun = session(worker, worker.client, 30)
    assert begun is not None and worker.wait_lists.waiting == 30
    worker.start(worker.client, [], 0, 0, SessionStep(begun.id, 1, [("t", 4), ("t", 5)]))
    assert worker.wait_lists.waiting == worker.sessions.parts == 28
    worker.logs[4].grow(5)
    worker.ring(4)
    assert go_on(worker, worker.client, begun.id, 2)[1].parts == []
    results, reply = go_on(worker, worker.client, begun.id, 3, FetchPart("t", 4, 0, BYTES))
    assert [result.size for result in results] == [5] and [part.partition for part in reply.parts] == [4]


def test_a_session_names_topics_in_one_way() -> None:
    worker = Worker([Log(10)])
    begun = session(worker, worker.client, 1)
    assert begun is not None
    worker.start(worker.client, [], 0, 0, SessionStep(begun.id, 1, [], by_id=True))
    assert worker.client.answers[-1] == MIXED
    assert go_on(worker, worker.client, begun.id, 1)[1].id == begun.id


def test_topics_of_one_name_and_different_ids_are_different_parts() -> None:
    """A consumer forgets the topic that is deleted and reads the one that has its name."""
    worker = Worker([Log(10)])
    old, new = (FetchPart("t", 0, 0, BYTES, bytes([number]) * 16) for number in (1, 2))
    worker.start(worker.client, [old], 0, 0, SessionStep(0, NEW_SESSION, [], by_id=True))
    begun = worker.client.answers[-1][1]
    worker.start(worker.client, [new], 0, 0, SessionStep(begun.id, 1, [(old.topic_id, 0)], by_id=True))
    assert worker.client.answers[-1][1].parts == [new] and worker.sessions.parts == 1
    unknown = FetchPart("", 0, 0, BYTES, bytes(16))
    worker.start(worker.client, [unknown], 0, 0, SessionStep(begun.id, 2, [], by_id=True))
    assert worker.client.answers[-1] == UNKNOWN and worker.sessions.parts == 0


def test_another_epoch_and_the_session_of_another_are_refused() -> None:
    worker = Worker([Log(10)])
    other = Client()
    begun = session(worker, worker.client, 1)
    assert begun is not None
    assert go_on(worker, worker.client, begun.id, 2) == WRONG_EPOCH
    assert go_on(worker, other, begun.id, 1) == UNKNOWN
    worker.start(other, [FetchPart("t", 0, 0, BYTES)], 0, 0, SessionStep(begun.id, NO_SESSION, []))
    assert len(worker.sessions) == 1, "nor is it ended"
    assert go_on(worker, worker.client, begun.id, 1)[1].id == begun.id
    worker.start(worker.client, [], 0, 0, SessionStep(begun.id, NO_SESSION, []))
    assert len(worker.sessions) == 0 and worker.client.answers[-1] == ([], None)
    assert go_on(worker, worker.client, begun.id, 2) == UNKNOWN


def test_epochs_begin_again_after_the_largest() -> None:
    worker = Worker([Log(10)])
    begun = session(worker, worker.client, 1)
    assert begun is not None
    worker.sessions._by_id[begun.id].epoch = EPOCH_MAX
    for epoch in (EPOCH_MAX, 1, 2):
        assert go_on(worker, worker.client, begun.id, epoch)[1].id == begun.id


def test_a_session_ends_when_the_rights_of_its_client_change() -> None:
    worker = Worker([Log(10)])
    begun = session(worker, worker.client, 1)
    assert begun is not None
    worker.client.access = Access(UNRESTRICTED.rights, "User:other", "")
    assert go_on(worker, worker.client, begun.id, 1) == UNKNOWN
    assert len(worker.sessions) == worker.sessions.parts == 0


def test_who_gets_a_session_where_there_is_no_room() -> None:
    """As in Kafka: whoever has more parts than one that is old, or comes when one has not been used for long."""
    worker = Worker([Log(10) for _ in range(9)], sessions_max=2)
    clients = [Client() for _ in range(6)]
    small, large = session(worker, clients[0], 2), session(worker, clients[1], 5)
    assert small is not None and large is not None
    assert session(worker, clients[2], 9) is None, "nobody is old"
    worker.turn.now_ms += KEPT_MS // 2
    assert go_on(worker, clients[0], small.id, 1) and go_on(worker, clients[1], large.id, 1)
    worker.turn.now_ms += KEPT_MS // 2 + 1
    assert session(worker, clients[2], 2) is None, "nobody is smaller"
    assert session(worker, clients[3], 3) is not None
    assert go_on(worker, clients[0], small.id, 2) == UNKNOWN
    worker.turn.now_ms += KEPT_MS // 2
    assert session(worker, clients[4], 1) is not None, "nobody has used the large one"
    assert go_on(worker, clients[1], large.id, 2) == UNKNOWN
    assert len(worker.sessions) == 2


def test_the_parts_of_all_sessions_are_bounded() -> None:
    worker = Worker([Log(10) for _ in range(20)], parts_max=10)
    begun = session(worker, worker.client, 8)
    assert begun is not None and session(worker, Client(), 3) is None and session(worker, Client(), 11) is None
    more = [FetchPart("t", number, 0, BYTES) for number in range(8, 11)]
    assert go_on(worker, worker.client, begun.id, 1, *more) == UNKNOWN
    assert worker.sessions.parts == worker.wait_lists.waiting == 0


def test_a_fetch_that_waits_is_answered_when_its_session_has_to_go() -> None:
    worker = Worker([Log(0) for _ in range(40)], sessions_max=1)
    worker.start(worker.client, [FetchPart("t", 0, 0, BYTES)], 1, 300_000, SessionStep(0, NEW_SESSION, []))
    worker.turn.now_ms += KEPT_MS + 1
    assert session(worker, Client(), 2) is not None
    worker.logs[0].grow(5)
    worker.ring(0)
    assert worker.client.sizes == [[5]] and worker.wait_lists.waiting == 0


@pytest.mark.parametrize(
    "parts",
    [[("t", 0), ("t", 0)], [("", 0)], []],
    ids=["a partition that is named twice", "a name that no topic has", "nothing"],
)
def test_a_fetch_that_gets_no_session(parts: list[tuple[str, int]]) -> None:
    worker = Worker([Log(10)])
    named = [FetchPart(topic, number, 0, BYTES) for topic, number in parts]
    worker.start(worker.client, named, 1, 500, SessionStep(0, NEW_SESSION, []))
    assert worker.client.answers[0][1] is None and len(worker.sessions) == 0


class Consumer(Client):
    """A client as KIP-227 describes it.  ``offsets``: of the partitions that it reads.

    ``told``: error, high watermark and log start offset of each, as it knows them; ``sizes_got``: of the last reply.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.offsets: dict[int, int] = {}
        self.told: dict[int, tuple[int, int, int]] = {}
        self.sizes_got: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._asked: list[FetchPart] = []
        self.id, self.epoch = 0, NEW_SESSION

    def ask(self, wait_ms: int = 0, bytes_min: int = 0) -> None:
        changed = self.offsets
        forgotten: list[tuple[str, int]] = []
        if self.epoch != NEW_SESSION:
            changed = {number: offset for number, offset in changed.items() if self._sent.get(number) != offset}
            forgotten = [("t", number) for number in self._sent if number not in self.offsets]
        self._asked = [FetchPart("t", number, offset, BYTES) for number, offset in changed.items()]
        self._sent = dict(self.offsets)
        self._worker.start(self, self._asked, bytes_min, wait_ms, SessionStep(self.id, self.epoch, forgotten))

    def take(self) -> None:
        """Take the reply in."""
        (answer,) = self.answers
        self.answers.clear()
        if isinstance(answer, int):
            self.begin_anew()
            return
        results, session = answer
        if self.epoch == NEW_SESSION:
            self.told = {}
        named = self._asked if session is None or session.parts is None else session.parts
        self.sizes_got = {}
        for part, result in zip(named, results, strict=True):
            self.told[part.partition] = known(result)
            self.sizes_got[part.partition] = result.size
        self.told = {number: told for number, told in self.told.items() if number in self._sent}
        self.id = session.id if session else 0
        self.epoch = self.epoch + 1 if self.id else NEW_SESSION

    def begin_anew(self) -> None:
        """As after a lost answer or an error: name all, and end the session."""
        self.answers.clear()
        self.epoch = NEW_SESSION


def known(result: FetchResult) -> tuple[int, int, int]:
    return result.error, result.high_watermark, result.log_start


class Sessions(RuleBasedStateMachine):
    """Two consumers, and a worker that has room for one session."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker([Log(0) for _ in range(20)], sessions_max=1)
        self.worker.busy = True
        self._patch = pytest.MonkeyPatch()
        self.consumers = [Consumer(self.worker), Consumer(self.worker)]
        self.moved: set[int] = set()
        self.silent = False  # whether something has changed that rings no doorbell

    @initialize(parts=st.sampled_from([1, 3, FEW, 20]), both=st.booleans(), at_once=st.sampled_from([1, 20]))
    def begin(self, parts: int, both: bool, at_once: int) -> None:
        """``at_once``: the parts that a turn looks at."""
        self._patch.setattr(plan, "PARTS_AT_ONCE", at_once)
        for consumer in self.consumers[: 1 + both]:
            consumer.offsets = dict.fromkeys(range(parts), 0)

    # ---- what happens to the partitions

    @rule(number=NUMBERS, size=st.integers(1, 50))
    def grow(self, number: int, size: int) -> None:
        if number in self.worker.logs:
            self.worker.logs[number].grow(size)
            self.moved.add(number)

    @rule()
    def ring(self) -> None:
        self.worker.ring(*(self.moved & self.worker.logs.keys()))
        self.worker.finish()
        self.moved.clear()

    @rule(number=NUMBERS)
    def retire(self, number: int) -> None:
        if number in self.worker.logs:
            table = self.worker.logs[number].table
            table.retire_before(table.high_watermark)
            self.silent = True

    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        if number in self.worker.logs:
            self.worker.drop(number)
            self.worker.finish()

    @rule(number=NUMBERS, size=st.integers(0, 50))
    def create(self, number: int, size: int) -> None:
        if number not in self.worker.logs:
            self.worker.add(number, Log(size))

    # ---- what the consumers do

    @rule(who=st.integers(0, 1), number=NUMBERS, where=st.sampled_from(["start", "end", "between", "beyond"]))
    def seek(self, who: int, number: int, where: str) -> None:
        """Read from there, what was read before or was not."""
        start = end = 0
        if number in self.worker.logs:
            start, end = self.worker.logs[number].table.start, self.worker.logs[number].table.high_watermark
        places = {"start": start, "end": end, "between": (start + end) // 2, "beyond": end + 5}
        self.consumers[who].offsets[number] = places[where]

    @rule(who=st.integers(0, 1), number=NUMBERS)
    def forget(self, who: int, number: int) -> None:
        self.consumers[who].offsets.pop(number, None)

    @rule(who=st.integers(0, 1), lost=st.booleans(), reads=st.booleans())
    def fetch(self, who: int, lost: bool, reads: bool) -> None:
        self._let_it_know()
        self.consumers[who].ask()
        self.worker.finish()
        self._answered(who, lost, reads)

    def _let_it_know(self) -> None:
        """All that has happened before a fetch can be known to it."""
        self.ring()
        if self.silent:
            self.worker.turn.now_ms += SWEEP_MS
            self.silent = False

    @rule(who=st.integers(0, 1), number=NUMBERS, size=st.integers(0, 50), bytes_min=st.integers(1, 60))
    def fetch_and_wait(self, who: int, number: int, size: int, bytes_min: int) -> None:
        self._let_it_know()
        consumer = self.consumers[who]
        consumer.ask(500, bytes_min)
        self.worker.finish()
        if size and not consumer.answers:
            self.grow(number, size)
            self.ring()
        self.worker.expire(consumer)
        self.worker.finish()
        self._answered(who, False, True)

    def _answered(self, who: int, lost: bool, reads: bool) -> None:
        consumer = self.consumers[who]
        assert consumer.delayed is None
        if lost:
            consumer.begin_anew()
            return
        refused = isinstance(consumer.answers[0], int)
        consumer.take()
        if refused:
            return
        parts = [FetchPart("t", number, offset, BYTES) for number, offset in consumer._sent.items()]
        partitions = [self.worker.by_key.get(("t", part.partition)) for part in parts]
        wanted = FetchPlan(Fetch(None, 0, 0, BYTES, parts), partitions).results
        assert consumer.told == {part.partition: known(one) for part, one in zip(parts, wanted, strict=True)}
        sizes = {part.partition: one.size for part, one in zip(parts, wanted, strict=True) if one.size}
        assert {number: size for number, size in consumer.sizes_got.items() if size} == sizes
        for number, size in sizes.items() if reads else ():
            consumer.offsets[number] += size

    @rule(who=st.integers(0, 1))
    def connect_again(self, who: int) -> None:
        consumer = self.consumers[who]
        consumer.end()
        consumer.closed = False
        if consumer.epoch != NEW_SESSION:
            consumer.begin_anew()

    @rule()
    def long_after(self) -> None:
        self.worker.turn.now_ms += KEPT_MS + 1

    def teardown(self) -> None:
        """Nothing is left of sessions whose clients have gone."""
        for consumer in self.consumers:
            consumer.end()
        self.worker.finish()
        self._patch.undo()
        assert len(self.worker.sessions) == self.worker.sessions.parts == self.worker.wait_lists.waiting == 0


Sessions.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_what_a_client_knows_is_what_a_full_fetch_says = Sessions.TestCase

"""appliance.processes.coordinator.peer_transactions_api: only brokers ask, and what they have given up is not done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.errors import InvalidRequest, NotCoordinator
from appliance.names import TopicPartition
from appliance.processes.coordinator.peer_transactions_api import PassedRequests, PeerTransactionsApi
from appliance.security.acls import Access
from appliance.transactions.store import Committer, Lead, OpenProducer
from appliance.transactions.transaction import ProducerIdentity, TransactionPart
from appliance.wire.kafka.codes import Code
from appliance.wire.native_admin import (
    AnnouncePending,
    ManyGroups,
    MayCommit,
    Nothing,
    OneTransaction,
    OpenAt,
    PassOffsets,
    PassVerb,
    TransactionSteps,
)

from ...support.fake_transactions import TOPIC_ID, FakeTransactions
from ...support.scenarios import scenarios

BROKER = "Broker:2"
A = TransactionPart("a", TOPIC_ID, 0)


class FakeGroups:
    """The groups of this side: nobody is a member of generation 1, which is over."""

    def __init__(self) -> None:
        self.consumers: dict[str, Any] = {}
        self.membership = self

    async def load(self, group: str) -> Code:
        return Code.NONE

    def now_ms(self) -> int:
        return 0

    def may_commit(self, name: str, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        return Code.ILLEGAL_GENERATION if generation == 1 else Code.NONE


class Side(FakeTransactions):
    """One appliance: what others ask of it, over a coordinator in memory.  ``asked``: what it asks of others."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = {0, 1}
        self.asked: list[Any] = []
        self.noted: list[tuple[str, str]] = []
        self.local = {"transactions": self._listed, "transaction": self._described}
        self.groups = FakeGroups()
        self.api = PeerTransactionsApi(
            *(self.coordinator, self, self, self.groups, self),  # type: ignore[arg-type]
            lambda group: group not in self.elsewhere,
            self.local,
        )

    async def _listed(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
        return [{"id": "x"}]

    async def _described(self, wanted: OneTransaction, access: Access) -> dict[str, Any]:
        return {"id": wanted.id, "parts": [["a", 0], ["hidden", 0]], "offsets": []}

    def note_pending(self, group: str, transactional_id: str) -> None:
        self.noted.append((group, transactional_id))

    # -- the peers

    async def transactions(self) -> list[dict[str, Any]]:
        return [{"id": "a"}, {"id": "x"}]

    async def pass_verb(self, owner: str, verb: str, arguments: dict[str, Any]) -> Any:
        self.asked.append((owner, verb, arguments))
        return await self.local[verb](OneTransaction(**arguments), ACCESS)  # type: ignore[operator]

    async def may_commit(self, consumer: Committer) -> Code:
        self.asked.append((consumer, sorted(self.coordinator.pending(consumer.group))))
        return Code.ILLEGAL_GENERATION

    # -- who asks

    async def ask(self, verb: str, wanted: Any, principal: str = BROKER) -> Any:
        return await self.api.verbs[verb](wanted, access(principal))

    async def session(self) -> str:
        return str(await self.ask("begin_passing", Nothing()))


class Someone:
    """May all that is asked here, but see only topic "a"."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.describable = {"a": True, "hidden": False}

    def may(self, *right: Any) -> bool:
        return True


def access(principal: str) -> Any:
    return Someone(principal)


ACCESS = access("User:somebody")
scenario = scenarios(Side)


def test_what_was_given_up_is_refused_from_then_on() -> None:
    passed = PassedRequests()
    session = passed.begin(BROKER)
    passed.check(BROKER, (session, 1, 1))
    passed.check(BROKER, (session, 3, 1))
    passed.check(BROKER, (session, 2, 1))  # it is waited for
    passed.check(BROKER, (session, 5, 4))
    for number in (1, 2, 3):
        with pytest.raises(NotCoordinator):
            passed.check(BROKER, (session, number, number))
    passed.check(BROKER, (session, 4, 4))
    with pytest.raises(NotCoordinator):
        passed.check("Broker:3", (session, 9, 9))
    other = passed.begin(BROKER)
    with pytest.raises(NotCoordinator):
        passed.check(BROKER, (session, 9, 9))
    passed.check(BROKER, (other, 1, 1))
    with pytest.raises(NotCoordinator):
        PassedRequests().check(BROKER, (other, 2, 2))


@scenario
async def test_nobody_but_brokers_may_ask(side: Side) -> None:
    for verb, wanted in (("begin_passing", Nothing()), ("open_at", OpenAt([])), ("pending_offsets", ManyGroups(["g"]))):
        with pytest.raises(InvalidRequest, match="only brokers"):
            await side.ask(verb, wanted, "User:administrator")


@scenario
async def test_steps_are_taken_by_who_coordinates_now(side: Side) -> None:
    session = await side.session()
    numbers = iter(range(1, 100))

    async def step(lead: Lead, *parts: TransactionPart, marker: tuple[bool, int, bool] | None = None) -> Any:
        number = next(numbers)
        wanted = TransactionSteps((session, number, number), (7, 0), lead, list(parts), marker)
        return await side.ask("transaction_steps", wanted)

    gone = TransactionPart("a", "f" * 32, 0)
    assert await step(Lead(5, 1), A, gone) == ["", "NotLeader"]
    assert await step(Lead(5, 2), A, marker=(True, 9, False)) == [""]
    assert side.done == [("open", 0), ("commit", 0)]
    with pytest.raises(NotCoordinator):  # the slot is ours
        await step(Lead(0, 9), A)
    side.offline = {A}
    assert await step(Lead(5, 2), A) == ["ZooKeeperAway"]
    with pytest.raises(NotCoordinator):
        await side.ask("transaction_steps", TransactionSteps((session, 1, 1), (7, 0), Lead(5, 2), [A]))
    assert len(side.done) == 2


@scenario
async def test_it_says_what_it_knows_and_of_which_slots(side: Side) -> None:
    producer = await side.begin(A)
    await side.coordinator.add_group("x", producer, "g")
    found = await side.ask("open_at", OpenAt([("a", 0), ("a", 1)]))
    assert found == {"slots": [0, 1], "producers": [["a", 0, list(producer), True]]}
    assert await side.ask("pending_offsets", ManyGroups(["g"])) == {"slots": [0, 1], "groups": [[]]}
    side.opened_elsewhere = [OpenProducer(TopicPartition("a", 0), ProducerIdentity(9, 9), True)]
    assert await side.ask("open_at", OpenAt([("a", 0)])) == {"slots": [0, 1], "producers": found["producers"]}


@scenario
async def test_who_gets_offsets_of_a_group_says_so_to_its_coordinator(side: Side) -> None:
    side.elsewhere = {"h"}
    await side.ask("announce_pending", AnnouncePending("g", "y"))
    assert side.noted == [("g", "y")]
    with pytest.raises(NotCoordinator):
        await side.ask("announce_pending", AnnouncePending("h", "y"))


@scenario
async def test_whether_the_consumer_is_a_member_is_asked_once_its_offsets_are_pending(side: Side) -> None:
    producer = await side.begin(A)
    session = await side.session()

    async def add(number: int, consumer: Committer) -> int:
        offsets = [(tuple(A), 5, "note", -1)]
        wanted = PassOffsets((session, number, number), "x", producer, consumer, offsets)  # type: ignore[arg-type]
        return int(await side.ask("pass_offsets", wanted))

    side.elsewhere = {"g"}
    for group in ("g", "h"):
        await side.coordinator.add_group("x", producer, group)
    member = Committer("g", "m", None, 1)
    assert await add(1, member) == Code.ILLEGAL_GENERATION
    assert side.asked == [(member, [A.key])] and not side.coordinator.pending("g")
    assert await add(2, Committer("h", "m", None, 1)) == Code.ILLEGAL_GENERATION, "of a group of ours"
    assert await add(3, Committer("h", "m", None, 2)) == Code.NONE
    assert await add(4, Committer("g", "", None, -1)) == Code.NONE, "who says nothing may"
    assert len(side.asked) == 1 and set(side.coordinator.pending("g")) == {A.key}
    assert await side.ask("may_commit", MayCommit(member)) == Code.NOT_COORDINATOR
    assert await side.ask("may_commit", MayCommit(Committer("h", "m", None, 2))) == Code.NONE


@scenario
async def test_verbs_of_an_id_go_to_its_coordinator_and_no_further(side: Side) -> None:
    side.elsewhere = {"y"}
    assert [row["id"] for row in await side.ask("transactions", Nothing(), "User:somebody")] == ["a", "x"]
    row = await side.ask("transaction", OneTransaction("y"), "User:somebody")
    assert row["parts"] == [["a", 0]] and side.asked == [("y", "transaction", {"id": "y"})]
    assert (await side.ask("transaction", OneTransaction("x"), "User:somebody"))["id"] == "x"
    session = await side.session()

    async def passed(number: int, verb: str, **arguments: Any) -> Any:
        raw = msgspec.Raw(msgspec.msgpack.encode(arguments))
        return await side.ask("pass_verb", PassVerb((session, number, number), verb, raw))

    assert await passed(1, "transactions") == [{"id": "x"}]
    assert (await passed(2, "transaction", id="x"))["id"] == "x"
    with pytest.raises(NotCoordinator):
        await passed(3, "transaction", id="y")
    with pytest.raises(InvalidRequest, match="not passed on"):
        await passed(4, "delete_topic", name="a")
    assert len(side.asked) == 1

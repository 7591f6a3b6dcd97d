"""appliance.processes.coordinator.peer_transactions: what is passed on has a number, and what is given up is so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from appliance.errors import BrokerAway, NotCoordinator, StorageFault
from appliance.names import TopicPartition
from appliance.processes.coordinator import peer_transactions
from appliance.processes.coordinator.peer_transactions import GROUPS_MAX, PARTS_MAX, PASSED_MAX, PeerTransactions
from appliance.transactions.store import Lead, OpenProducer
from appliance.transactions.transaction import ProducerIdentity, TransactionPart

from ...support.scenarios import scenarios

P, LEAD = ProducerIdentity(7, 0), Lead(0, 3)
PARTS = [TransactionPart("a", "0" * 32, number) for number in range(PARTS_MAX + 1)]


class Others:
    """Brokers 2 and 3.  ``asked``: what came there; ``answers``: theirs, by verb; ``held``: set if they answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self.answers: dict[str, Any] = {"begin_passing": "s1"}
        self.held = asyncio.Event()
        self.held.set()
        self.away: set[int] = set()
        self.connections = self
        self.tasks: list[asyncio.Task[None]] = []
        self.peers_of = PeerTransactions(self, self.spawn)  # type: ignore[arg-type]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def peers(self) -> dict[int, dict[str, str]]:
        return {2: {}, 3: {}}

    def native_address(self, broker_id: int) -> str:
        return "" if broker_id in self.away else f"broker-{broker_id}"

    def coordinator(self, name: str) -> int:
        return 2

    async def ask_admin(self, address: str, verb: str, arguments: Mapping[str, Any]) -> Any:
        self.asked.append((address, verb, arguments))
        if verb != "begin_passing":
            await self.held.wait()
        answer = self.answers[verb]
        if isinstance(answer, Exception):
            raise answer
        return answer(arguments) if callable(answer) else answer

    def passed(self) -> list[tuple[str, int, int]]:
        return [tuple(arguments["passed"]) for _, _, arguments in self.asked if "passed" in arguments]


scenario = scenarios(Others)


@scenario
async def test_the_lowest_number_is_of_what_is_waited_for_still(others: Others) -> None:
    others.answers["transaction_steps"] = lambda arguments: [""] * len(arguments["parts"])
    others.held.clear()
    first = asyncio.create_task(others.peers_of.step(2, PARTS[:1], P, LEAD, None))
    second = asyncio.create_task(others.peers_of.step(2, PARTS[:1], P, LEAD, (True, 5, False)))
    while len(others.passed()) < 2:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    others.held.set()
    await others.peers_of.step(2, PARTS[:1], P, LEAD, None)
    await second
    assert others.passed() == [("s1", 1, 1), ("s1", 2, 1), ("s1", 3, 2)]
    assert [verb for _, verb, _ in others.asked].count("begin_passing") == 1


@scenario
async def test_a_session_that_the_other_side_has_forgotten_begins_anew(others: Others) -> None:
    others.answers |= {"transaction_steps": NotCoordinator("which session?")}
    with pytest.raises(NotCoordinator):
        await others.peers_of.step(2, PARTS[:1], P, LEAD, None)
    others.answers |= {"transaction_steps": [""], "begin_passing": "s2"}
    assert await others.peers_of.step(2, PARTS[:1], P, LEAD, None) == [None]
    assert others.passed() == [("s1", 1, 1), ("s2", 2, 2)]


@scenario
async def test_each_part_has_its_answer_and_one_that_is_not_understood_is_none(others: Others) -> None:
    others.answers["transaction_steps"] = lambda arguments: ["StorageFault"] * len(arguments["parts"])
    errors = await others.peers_of.step(2, PARTS, P, LEAD, None)
    assert [type(error) for error in errors] == [StorageFault] * len(PARTS) and len(others.passed()) == 2
    for answer in (["ErrorOfTomorrow"], [], [""] * 2, 7):
        others.answers["transaction_steps"] = answer
        with pytest.raises(BrokerAway):
            await others.peers_of.step(2, PARTS[:1], P, LEAD, None)


@scenario
async def test_groups_are_asked_for_together_and_of_those_who_may_know(others: Others) -> None:
    """Goal: 1,000 consumers that start at once cost a peer a few requests, one after the other, of bounded size."""

    def some(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"slots": [1], "groups": [[["a", int(group) % 3]] for group in arguments["groups"]]}

    others.answers["pending_offsets"] = some
    others.held.clear()
    asking = [asyncio.ensure_future(others.peers_of.pending(str(number), [1])) for number in range(1_000)]
    given_up = asyncio.ensure_future(others.peers_of.pending("given up", [1]))
    await asyncio.sleep(0.01)
    given_up.cancel()
    assert len(others.asked) == 1, "the others wait for it"
    others.held.set()
    answers = await asyncio.gather(*asking)
    assert answers == [[({1}, {TopicPartition("a", number % 3)})] for number in range(1_000)]
    sizes = [len(arguments["groups"]) for _, _, arguments in others.asked]
    assert {address for address, *_ in others.asked} == {"broker-2"}
    assert sum(sizes) == 1_000 and len(sizes) <= 11 and max(sizes) == GROUPS_MAX
    assert await others.peers_of.pending("g", []) == []


@scenario
async def test_a_peer_that_stands_still_keeps_no_question_longer_than_two_answers(others: Others) -> None:
    others.answers["pending_offsets"] = {"slots": [1], "groups": [[]]}
    others.held.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_transactions, "PEER_MS_MAX", 20)
        assert await asyncio.gather(*(others.peers_of.pending(str(group), None) for group in range(500))) == [[]] * 500
    assert len(others.asked) <= 2 * 4, "those who have given up are not asked for"


@scenario
async def test_who_does_not_answer_leaves_its_slots_out(others: Others) -> None:
    others.answers["pending_offsets"] = {"slots": [1, 2], "groups": [[["a", 0]]]}
    others.answers["open_at"] = {"slots": [1, 2], "producers": [["a", 0, [7, 0], True]]}
    key = TopicPartition("a", 0)
    others.away = {3}
    assert await others.peers_of.pending("g", None) == [({1, 2}, {key})]
    assert await others.peers_of.open_at([key]) == ({1, 2}, [OpenProducer(key, P, True)])
    others.away = {2, 3}
    assert await others.peers_of.pending("g", None) == []
    others.away = set()
    others.answers["pending_offsets"] = {"slots": [1, 2], "groups": []}
    assert await others.peers_of.pending("g", None) == [], "it is not understood"
    others.answers["open_at"] = {"slots": [1]}
    assert await others.peers_of.open_at([key]) == (set(), [])


@scenario
async def test_who_waits_for_the_session_of_a_peer_waits_no_longer_than_for_an_answer(others: Others) -> None:
    """Method: a peer stands still; the first that asks keeps the others from asking, one after the other."""

    async def stands_still(address: str, verb: str, arguments: Any) -> Any:
        await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.1)
        raise BrokerAway("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(others, "ask_admin", stands_still)
        patch.setattr(peer_transactions, "ADMIN_MS_MAX", 250)
        steps = [others.peers_of.step(2, PARTS[:1], P, LEAD, None) for _ in range(20)]
        errors = await asyncio.gather(*steps, return_exceptions=True)
    said = [str(error) for error in errors]
    assert all(isinstance(error, BrokerAway) for error in errors)
    assert said.count("broker 2 has not answered for 250 ms") >= 10, said


@scenario
async def test_a_peer_is_asked_few_things_at_once(others: Others) -> None:
    others.answers["transaction_steps"] = lambda arguments: [""] * len(arguments["parts"])
    others.held.clear()
    steps = [asyncio.create_task(others.peers_of.step(2, PARTS[:1], P, LEAD, None)) for _ in range(200)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(others.passed()) == PASSED_MAX
    others.held.set()
    assert await asyncio.gather(*steps) == [[None]] * 200 and len(others.passed()) == 200

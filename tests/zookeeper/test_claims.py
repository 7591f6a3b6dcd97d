"""appliance.zookeeper.claims: one coordinator per group at a time, and nobody else's writes are carried out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.errors import ApplianceError, InvalidRequest, NotCoordinator, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.zookeeper import claims, paths
from appliance.zookeeper.claims import Claimant, GroupInfo, Held
from appliance.zookeeper.operations import Operation, Request, ask, create, delete
from appliance.zookeeper.paths import CommittedOffset, Subscription, consumer

from ..support.long import LONG
from ..support.zookeeper_fixture import Tree, register_member, watched

GROUP = "team/a"
PART, OTHER = TopicPartition("logs", 0), TopicPartition("logs", 1)
A, B = Claimant(1, "a"), Claimant(2, "b")
epochs = map(str, count(1))


def taken(tree: Tree, claimant: Claimant = A, session_id: int = 1, group: str = GROUP) -> Held:
    claimed: claims.Taken | None = tree.run(claims.claim_group(group, claimant, next(epochs), make=True), session_id)
    assert claimed is not None and not claimed.snapshot
    return claimed.held


def stored(tree: Tree) -> dict[TopicPartition, int]:
    return {part: at.offset for part, at in tree.run(claims.read(GROUP, None)).items()}


def test_one_claims_a_group_and_the_other_is_told_who() -> None:
    tree = Tree()
    assert tree.run(claims.claim_group(GROUP, A, "0", make=False)) is None and not tree.nodes, "asking makes nothing"
    taken(tree, A, 1)
    with pytest.raises(ZooKeeperAway, match="broker 1 still coordinates"):
        taken(tree, B, 2)
    tree.expire(1)
    taken(tree, B, 2)


def test_a_claim_of_our_own_former_life_is_replaced_at_once() -> None:
    tree = Tree()
    before = taken(tree, A, 1)
    now = taken(tree, A, 2)
    tree.run(claims.write(GROUP, now, {PART: CommittedOffset(2)}), 2)
    with pytest.raises(NotCoordinator):
        tree.run(claims.write(GROUP, before, {PART: CommittedOffset(1)}), 1)
    assert stored(tree) == {PART: 2}


def test_a_claim_whose_reply_was_lost_is_ours() -> None:
    tree = Tree()
    first = tree.run(claims.claim_group(GROUP, A, "same", make=True))
    assert tree.run(claims.claim_group(GROUP, A, "same", make=True)) == first


def test_a_group_is_made_in_two_round_trips_and_its_first_offsets_are_stored_in_one() -> None:
    """Goal: what a new group costs ZooKeeper.  Method: count what is asked at once, and the writes in it."""
    tree, trips = Tree(), []
    taken(tree, group="another")  # makes the node above all groups

    def note(requests: Sequence[Request]) -> None:
        trips.append([request.verb for request in requests if request.verb not in ("get", "children")])

    held = tree.run(watched(claims.claim_group(GROUP, A, next(epochs), make=True), note)).held
    assert trips == [[], ["multi"]]
    trips.clear()
    tree.run(watched(claims.write(GROUP, held, {PART: CommittedOffset(7), OTHER: CommittedOffset(8)}), note))
    assert trips == [["multi"]] and stored(tree) == {PART: 7, OTHER: 8}


def test_positions_are_written_with_their_parents_and_followed() -> None:
    tree = Tree()
    held = taken(tree)
    tree.run(claims.write(GROUP, held, {PART: CommittedOffset(7, "m", leader_epoch=3), OTHER: CommittedOffset(8)}))
    assert tree.run(claims.read(GROUP, [PART]))[PART][:2] == (7, "m") and stored(tree) == {PART: 7, OTHER: 8}
    assert held.values == {PART: b'{"offset":7,"metadata":"m","leader_epoch":3}', OTHER: b"8"}
    tree.run(claims.write(GROUP, held, {PART: None, OTHER: CommittedOffset(9)}, GroupInfo("consumer", 5)))
    assert stored(tree) == {OTHER: 9} and held.values.keys() == {OTHER}
    again = taken(tree)
    assert again.info == GroupInfo("consumer", 5) and again.values == {OTHER: b"9"}


def test_what_somebody_changed_behind_our_back_is_seen_when_it_is_in_the_way() -> None:
    tree = Tree()
    held = taken(tree)
    tree.run(claims.write(GROUP, held, {PART: CommittedOffset(1)}))

    def meddle() -> Operation[None]:
        yield from ask([delete(paths.offset(GROUP, PART)), create(paths.offset(GROUP, OTHER), b"5")])

    tree.run(meddle())
    tree.run(claims.write(GROUP, held, {PART: CommittedOffset(2), OTHER: CommittedOffset(6)}))
    assert stored(tree) == {PART: 2, OTHER: 6}


def test_a_large_commit_is_cut_into_what_zookeeper_takes() -> None:
    tree, group = Tree(), "\U0001f600" * 255
    parts = [TopicPartition("t" * 249, number) for number in range(1_000)]
    held = taken(tree, group=group)
    note = "ü" * 2_048
    tree.run(claims.write(group, held, {part: CommittedOffset(1, note) for part in parts}))
    found = tree.run(claims.read(group, None))
    assert found.keys() == set(parts) and {at.metadata for at in found.values()} == {note}


def test_only_what_has_not_changed_expires() -> None:
    tree = Tree()
    held = taken(tree)
    tree.run(claims.write(GROUP, held, {PART: CommittedOffset(1), OTHER: CommittedOffset(1)}))
    seen = tree.run(claims.read_groups([GROUP]))[GROUP]
    tree.run(claims.write(GROUP, held, {OTHER: CommittedOffset(2)}))
    assert tree.run(claims.expire(GROUP, held, seen.nodes)) == 1
    assert stored(tree) == {OTHER: 2}


def test_a_group_goes_with_all_that_is_in_it_but_not_while_it_has_members() -> None:
    tree = Tree()
    held = taken(tree)
    tree.run(claims.write(GROUP, held, {PART: CommittedOffset(1)}))
    tree.run(register_member(GROUP, "c-1", Subscription({"logs": 1})))
    with pytest.raises(InvalidRequest, match="1 live members"):
        tree.run(claims.remove(GROUP, held))
    assert tree.run(claims.read_groups([GROUP]))[GROUP].members
    tree.run(ask([delete(consumer(GROUP, "c-1"))]))
    tree.run(claims.remove(GROUP, held))
    assert not any(path.startswith("/consumers/") for path in tree.nodes)
    assert tree.run(claims.read_groups([GROUP])) == {}


class ClaimMachine(RuleBasedStateMachine):
    """Two brokers want one group; sessions end, requests of theirs arrive whenever they like, also in later sessions.

    Goal: a write is carried out only while its broker has the claim, and no position is older than one that a broker
    was told to be stored by the one that has the group.
    """

    @initialize()
    def prepare(self) -> None:
        self.tree = Tree()
        self.sessions = {A: 1, B: 2}
        self.next_session = 3
        self.held: dict[Claimant, tuple[Held, int]] = {}
        self.late: list[tuple[Request, int]] = []
        self.next = self.acknowledged = 0

    def holder(self) -> set[int]:
        below = f"{paths.group(GROUP)}/{claims.CLAIM}"
        return {node.owner for path, node in self.tree.nodes.items() if path.startswith(below)}

    @rule(broker=st.sampled_from((A, B)))
    def claim(self, broker: Claimant) -> None:
        session_id = self.sessions[broker]
        try:
            claimed = self.tree.run(claims.claim_group(GROUP, broker, next(epochs), make=True), session_id)
        except ZooKeeperAway:
            assert self.holder() - {session_id}
            return
        assert claimed is not None
        self.held[broker] = claimed.held, session_id

    @precondition(lambda self: self.held)
    @rule(data=st.data(), answered=st.booleans(), drop=st.booleans())
    def write(self, data: st.DataObject, answered: bool, drop: bool) -> None:
        """A commit, or a deletion; unless it is answered its requests land later, in whatever session there is then."""
        broker = data.draw(st.sampled_from(list(self.held)))
        held, session_id = self.held[broker]
        self.next += 1
        operation = claims.write(
            GROUP, held, {PART: CommittedOffset(self.next), OTHER: None if drop else CommittedOffset(1)}
        )
        if not answered:
            self.late += [(request, session_id) for request in next(operation)]
            operation.close()
            return
        was_holder = held.path in self.tree.nodes
        try:
            self.tree.run(operation, session_id)
        except NotCoordinator:
            assert not was_holder
            del self.held[broker]
        else:
            assert was_holder
            self.acknowledged = self.next
            self.late = [(request, sent) for request, sent in self.late if sent != session_id]  # sent before, in order

    @precondition(lambda self: self.late)
    @rule(data=st.data(), broker=st.sampled_from((A, B)))
    def land(self, data: st.DataObject, broker: Claimant) -> None:
        request, _ = late = data.draw(st.sampled_from(self.late))
        self.late.remove(late)
        self.tree.answer(request, self.sessions[broker])

    @rule(broker=st.sampled_from((A, B)))
    def end_session(self, broker: Claimant) -> None:
        self.tree.expire(self.sessions[broker])
        self.sessions[broker] = self.next_session
        self.next_session += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(list(self.held)))
        held, session_id = self.held.pop(broker)
        self.late = [(request, sent) for request, sent in self.late if sent != session_id]
        self.tree.run(claims.vacate(GROUP, held), session_id)

    @invariant()
    def one_holder_and_nothing_goes_back(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert len(self.holder()) <= 1
        if self.acknowledged:
            assert stored(self.tree)[PART] >= self.acknowledged


TestClaims = ClaimMachine.TestCase
TestClaims.settings = settings(max_examples=150 if LONG else 60, stateful_step_count=40, deadline=None)


def test_no_request_of_a_claimed_write_can_do_without_the_claim() -> None:
    """Every request that could change something begins with a check of the claim's node, or makes parents only."""
    tree = Tree()
    held = taken(tree)
    changes: dict[TopicPartition, Any] = {PART: CommittedOffset(1), OTHER: CommittedOffset(2)}
    for operation in (
        claims.write(GROUP, held, changes, GroupInfo("consumer")),
        claims.expire(GROUP, held, tree.run(claims.read_groups([GROUP]))[GROUP].nodes),
        claims.write(GROUP, held, dict.fromkeys(changes)),
    ):
        requests: list[Request] = []
        try:
            requests = next(operation)
            while True:
                for request in requests:
                    assert request.verb in ("get", "exists", "create", "multi"), request
                    if request.verb == "multi":
                        assert request.parts[0] == claims.check_version(held.path, -1)
                    else:
                        assert request.value == b""
                requests = operation.send([tree.answer(request) for request in requests])
        except (StopIteration, ApplianceError):
            continue

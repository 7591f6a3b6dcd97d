"""appliance.zookeeper.transaction_nodes: nothing is written without the claim, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.errors import NotCoordinator, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.zookeeper import claims, paths
from appliance.zookeeper import transaction_nodes as nodes
from appliance.zookeeper.claims import Claimant, Claimed, Held
from appliance.zookeeper.transaction_nodes import ABSENT, NodeChange, StoredGroupOffsets

from ..support.zookeeper_fixture import Tree

A, B = Claimant(1, "a"), Claimant(2, "b")
ID = "shop/payments"
SLOT = nodes.slot_of(ID)
PATH = nodes.id_path(ID)
PART, OTHER = TopicPartition("logs", 0), TopicPartition("logs", 1)


def taken(tree: Tree, claimant: Claimant = A, session_id: int = 1) -> Claimed:
    claimed: Claimed = tree.run(nodes.claim_slot(SLOT, claimant, f"{session_id}"), session_id)
    return claimed


def grouped(tree: Tree, **values: bytes) -> StoredGroupOffsets:
    held: Held = tree.run(claims.claim_group("g", A, f"g{tree.clock_ms}", make=True)).held
    return StoredGroupOffsets(
        "g", held, {TopicPartition("logs", int(name[1:])): value for name, value in values.items()}
    )


def value(tree: Tree, path: str) -> Any:
    node = tree.nodes.get(path)
    return node and node.value


def test_ids_are_spread_over_all_slots_and_keep_theirs() -> None:
    assert {nodes.slot_of(f"id-{number}") for number in range(100)} == set(range(nodes.SLOTS))
    assert nodes.id_path(ID) == f"/transactions/{SLOT}/ids/shop%2Fpayments"


def test_a_slot_has_one_coordinator_and_each_next_one_a_higher_epoch() -> None:
    tree = Tree()
    assert not tree.run(nodes.have_ids(range(nodes.SLOTS)))
    first = taken(tree)
    with pytest.raises(ZooKeeperAway, match=f"broker 1 still coordinates transactions {SLOT}"):
        taken(tree, B, 2)
    tree.expire(1)
    second = taken(tree, B, 2)
    assert second.version > first.version and not tree.run(nodes.have_ids([SLOT]))
    with pytest.raises(NotCoordinator):
        tree.run(nodes.write(first, [NodeChange(PATH, b"1", ABSENT)]))
    assert value(tree, PATH) is None


def test_what_is_written_is_read() -> None:
    tree = Tree()
    claim = taken(tree)
    assert tree.run(nodes.write(claim, [NodeChange(PATH, b"1", ABSENT)])) == [0]
    assert tree.run(nodes.write(claim, [NodeChange(PATH, b"2", 0)])) == [1]
    ((name, node),) = tree.run(nodes.read(SLOT)).items()
    assert (name, node.value, node.version) == (ID, b"2", 1)
    assert tree.run(nodes.write(claim, [NodeChange(PATH, None, 1)])) == [ABSENT]
    assert tree.run(nodes.read(SLOT)) == {}


def test_many_changes_go_in_few_requests() -> None:
    tree = Tree()
    claim = taken(tree)
    changes = [NodeChange(f"{PATH}{number}", b"x" * 2_000, ABSENT) for number in range(900)]
    operation = nodes.write(claim, changes)
    requests = next(operation)
    assert 3 <= len(requests) <= 5 and all(request.size < nodes.REQUEST_BYTES_MAX for request in requests)
    with pytest.raises(StopIteration) as finished:
        operation.send([tree.answer(request) for request in requests])
    assert finished.value.value == [0] * 900


@pytest.mark.parametrize("landed", [b"mine", b"another"])
def test_a_write_that_was_given_up_and_landed_is_not_in_the_way(landed: bytes) -> None:
    tree = Tree()
    claim = taken(tree)
    tree.run(nodes.write(claim, [NodeChange(PATH, landed, ABSENT)]))
    beside = NodeChange(f"{PATH}2", b"x", ABSENT)
    versions = tree.run(nodes.write(claim, [NodeChange(PATH, b"mine", ABSENT), beside]))
    assert value(tree, PATH) == b"mine" and versions == [landed != b"mine", 0]
    assert tree.run(nodes.write(claim, [NodeChange(PATH, None, 7), NodeChange(f"{PATH}3", None, 7)])) == [
        ABSENT,
        ABSENT,
    ]


def test_the_end_and_its_offsets_are_stored_together() -> None:
    tree = Tree()
    claim = taken(tree)
    offsets = grouped(tree, p0=b"5", p1=b"6")
    tree.run(nodes.write(claim, [NodeChange(PATH, b"prepared", ABSENT)]))
    assert tree.run(nodes.commit(claim, NodeChange(PATH, b"done", 0), [offsets])) == 1
    assert [value(tree, paths.offset("g", part)) for part in (PART, OTHER)] == [b"5", b"6"]
    assert value(tree, PATH) == b"done" and {part: len(value) for part, value in offsets.held.values.items()} == {
        PART: 1,
        OTHER: 1,
    }


def test_offsets_are_not_stored_again_over_later_ones() -> None:
    tree = Tree()
    claim = taken(tree)
    offsets = grouped(tree, p0=b"5")
    tree.run(nodes.write(claim, [NodeChange(PATH, b"prepared", ABSENT)]))
    tree.run(nodes.commit(claim, NodeChange(PATH, b"done", 0), [offsets]))  # its answer is lost
    tree.run(claims.write("g", offsets.held, {PART: paths.CommittedOffset(9)}))
    assert tree.run(nodes.commit(claim, NodeChange(PATH, b"done", 0), [offsets])) == 1
    assert value(tree, paths.offset("g", PART)) == b"9"


def test_without_a_claim_nothing_is_committed() -> None:
    tree = Tree()
    claim = taken(tree)
    offsets = grouped(tree, p0=b"5")
    tree.run(nodes.write(claim, [NodeChange(PATH, b"prepared", ABSENT)]))
    tree.run(claims.release(offsets.held))
    assert tree.run(nodes.commit(claim, NodeChange(PATH, b"done", 0), [offsets])) is offsets
    assert value(tree, PATH) == b"prepared"
    offsets = grouped(tree, p0=b"5")
    tree.run(claims.release(Held(claim.path, claims.GroupInfo(), {}, set())))
    with pytest.raises(NotCoordinator):
        tree.run(nodes.commit(claim, NodeChange(PATH, b"done", 0), [offsets]))
    assert value(tree, paths.offset("g", PART)) is None

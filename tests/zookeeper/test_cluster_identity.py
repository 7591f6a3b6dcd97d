"""appliance.zookeeper.cluster_identity: one id per cluster, and marks that outlive the topics they speak of."""

from __future__ import annotations

from appliance.zookeeper.cluster_identity import CLUSTER_ID, cluster_id, drop_marks, is_deleted, mark_deleted
from appliance.zookeeper.operations import Operation

from ..support.zookeeper_fixture import Tree


def test_the_first_broker_names_the_cluster() -> None:
    tree = Tree()
    assert [tree.run(cluster_id(own)) for own in ("one", "two")] == ["one", "one"]


def test_two_first_brokers_agree_however_their_requests_fall() -> None:
    """Method: run the second one to its end between any two requests of the first."""
    for pause in range(3):
        tree = Tree()
        first = cluster_id("one")
        requests, steps, told = next(first), 0, ""
        try:
            while True:
                if steps == pause:
                    told = tree.run(cluster_id("two"))
                steps += 1
                requests = first.send([tree.answer(request) for request in requests])
        except StopIteration as finished:
            assert finished.value == tree.nodes[CLUSTER_ID].value.decode() == (told or "one")


def test_marks_are_found_kept_and_dropped_by_age() -> None:
    tree = Tree()

    def run(operation: Operation[object]) -> object:
        return tree.run(operation)

    assert run(is_deleted("a")) is False
    for topic_id in ("a", "a", "b"):
        run(mark_deleted(topic_id, "logs"))
    assert run(is_deleted("a")) is True
    made_ms = tree.nodes["/brokers/deleted/b"].modified_ms
    assert run(drop_marks(made_ms)) == 1
    assert (run(is_deleted("a")), run(is_deleted("b"))) == (False, True)

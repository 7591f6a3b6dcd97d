"""appliance.processes.coordinator.change_log: administrative changes of both listeners in the audit log."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance.wire import native

from .native_peer import Peer
from .server import Server, wait_for


def changes(server: Server) -> list[str]:
    """What the log says of changes, without the addresses of clients."""
    lines = [line.partition("changed: ")[2] for line in server.log().splitlines() if " audit: changed: " in line]
    return [" ".join(word for word in line.split(" ") if not word.startswith("from=")) for line in lines]


def test_each_change_has_a_line_and_what_is_refused_has_none(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    with Peer(server.native) as peer:
        peer.admin("create_topic", name="web", settings={"retention.ms": "1h"})
        peer.call([native.ADMIN, 1, "create_topic", {"name": "web"}])  # is there already
        peer.admin("topics")
        peer.admin("delete_topic", name="web")
    admin = AdminClient({"bootstrap.servers": server.kafka})
    created = admin.create_topics([NewTopic("logs", 2), NewTopic("bad name", 1)])
    assert created["logs"].result(20) is None and created["bad name"].exception(20) is not None
    admin.create_topics([NewTopic("tried", 1)], validate_only=True)["tried"].result(20)
    assert admin.delete_topics(["none"])["none"].exception(20) is not None
    assert admin.delete_topics(["logs"])["logs"].result(20) is None
    expected = [
        "who=User:ANONYMOUS what=create_topic name=web",
        "who=User:ANONYMOUS what=delete_topic name=web",
        "who=User:ANONYMOUS what=CreateTopics names=logs done=1 refused=1",
        "who=User:ANONYMOUS what=DeleteTopics names=logs done=1 refused=0",
    ]
    wait_for(lambda: len(changes(server)) >= len(expected), "the lines are written")
    assert changes(server) == expected

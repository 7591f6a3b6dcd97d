"""appliance.processes.coordinator.change_log: administrative changes of both listeners in the audit log."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from appliance.wire import native

from .kafka_peer import KafkaPeer
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
    assert created["logs"].result(60) is None and created["bad name"].exception(60) is not None
    admin.create_topics([NewTopic("tried", 1)], validate_only=True)["tried"].result(60)
    assert admin.delete_topics(["none"])["none"].exception(60) is not None
    assert admin.delete_topics(["logs"])["logs"].result(60) is None
    expected = [
        "who=User:ANONYMOUS what=create_topic name=web",
        "who=User:ANONYMOUS what=delete_topic name=web",
        "who=User:ANONYMOUS what=CreateTopics names=logs done=1 refused=1",
        "who=User:ANONYMOUS what=DeleteTopics names=logs done=1 refused=0",
    ]
    wait_for(lambda: len(changes(server)) >= len(expected), "the lines are written")
    assert changes(server) == expected


def test_changes_of_rules_users_and_quotas_over_kafka_have_lines(make_appliance: Callable[..., Server]) -> None:
    """What was read, refused, or the password itself, is not there."""
    server = make_appliance(**{"security.authorizer": "acl", "security.super_users": "User:ANONYMOUS"})
    admin = AdminClient({"bootstrap.servers": server.kafka})
    named = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ)
    binding = AclBinding(*named, AclPermissionType.ALLOW)
    admin.create_acls([binding])[binding].result(60)
    chosen = AclBindingFilter(*named, AclPermissionType.ALLOW)
    assert len(admin.describe_acls(chosen).result(60)) == 1
    assert len(admin.delete_acls([chosen])[chosen].result(60)) == 1
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", info, b"secret")])["u"].result(60)
    gone = UserScramCredentialDeletion("none", ScramMechanism.SCRAM_SHA_256)
    assert admin.alter_user_scram_credentials([gone])["none"].exception(60) is not None
    with KafkaPeer(server.kafka) as peer:
        ops = [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}]
        entry = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": ops}
        assert peer.ask("AlterClientQuotas", entries=[entry], validate_only=False).entries[0].error_code == 0
    expected = [
        'who=User:ANONYMOUS what=CreateAcls names="Allow User:a Read Topic t" done=1 refused=0',
        'who=User:ANONYMOUS what=DeleteAcls names="Allow User:a Read Topic t" done=1 refused=0',
        "who=User:ANONYMOUS what=AlterUserScramCredentials names=u done=1 refused=0",
        "who=User:ANONYMOUS what=AlterClientQuotas names=u done=1 refused=0",
    ]
    rule = {"resource": "topic", "name": "n", "principal": "User:b", "operation": "Write"}
    with Peer(server.native) as peer:
        peer.admin("add_acls", acls=[rule | {"pattern": "Literal", "host": "*", "permission": "Deny"}])
        assert len(peer.admin("delete_acls", name="n", dry_run=True)) == 1
        peer.admin("delete_acls", name="n")
        peer.admin("add_acls", acls=[])
    expected += [
        'who=User:ANONYMOUS what=add_acls names="Deny User:b Write topic n"',
        'who=User:ANONYMOUS what=delete_acls names="Deny User:b Write Topic n"',
        'who=User:ANONYMOUS what=add_acls names=""',
    ]
    wait_for(lambda: len(changes(server)) >= len(expected), "the lines are written")
    assert changes(server) == expected
    assert "secret" not in server.log()

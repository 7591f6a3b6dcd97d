"""Native groups of users who have logged in, over TLS: to read the group and its topics is all that a member needs.

The users are told apart by their passwords; ``tests/behaviour/test_other_users.py`` has another user of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Admin, ClientSecurity, Consumer, GroupConsumer, Producer, aio
from appliance.client.cluster_client import Cluster
from appliance.errors import GroupNotPermitted, NotPermitted, TopicNotPermitted

from ..support.certificates import make_certificates
from ..support.command_line import run
from ..support.server import Server, wait_for

TIMEOUT_S = 60
RULES = [
    ("topic", "logs", "User:alice", "Read"),
    ("group", "of-alice", "User:alice", "Read"),
    ("group", "of-bob", "User:bob", "Read"),
    ("group", "of-both", "User:alice", "Read"),
    ("group", "of-both", "User:bob", "Read"),
    ("topic", "copies", "User:alice", "Write"),
    ("transactional-id", "alice-1", "User:alice", "Write"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = tmp_path_factory.mktemp("certificates")
    for words in (("ca",), ("server", "localhost", "127.0.0.1")):
        make_certificates(files, *words)
    settings: dict[str, Any] = {"native.listen": "SASL_SSL://127.0.0.1:0", "security.authorizer": "acl"}
    settings |= {"tls.certificate": f"{files}/server.pem", "tls.key": f"{files}/server.key"}
    with Server(tmp_path_factory.mktemp("rights") / "data", **settings | {"zookeeper.nodes": 1}) as running:
        running.wait_for_zookeeper()
        yield running


@pytest.fixture(scope="module")
def securities(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClientSecurity]:
    """What alice and bob log in with, who have nothing but RULES."""
    password: Path = tmp_path_factory.mktemp("passwords") / "password"
    password.write_text("correct horse\n")
    password.chmod(0o600)
    with Admin(server.state["listeners"]["local"]) as admin:
        admin.create_topic("logs", 2)
        admin.create_topic("copies", 1)
        for resource, name, principal, operation in RULES:
            rule = {"resource": resource, "name": name, "principal": principal, "operation": operation}
            admin.add_acls([rule])
    for user in ("alice", "bob"):
        added = run("users", "add", user, "--password-file", str(password), "--data", str(server.data_dir))
        assert added.status == 0, added.err
    with Producer(server.state["listeners"]["local"]) as producer:
        for partition in range(2):
            producer.send("logs", b"x", partition=partition).result(TIMEOUT_S)
    ca = str(Path(server.settings["tls.certificate"]).parent / "ca.pem")
    return {user: ClientSecurity(ca=ca, user=user, password_file=str(password)) for user in ("alice", "bob")}


@pytest.fixture
def address(server: Server) -> str:
    return f"SASL_SSL://{server.address('native', 'SASL_SSL')}"


def test_a_user_is_in_a_group_that_it_may_read(
    server: Server, address: str, securities: dict[str, ClientSecurity]
) -> None:
    with GroupConsumer(address, "of-alice", security=securities["alice"]) as consumer:
        (stream,) = consumer.create_message_streams({"logs": 1})["logs"]
        messages = stream.messages(TIMEOUT_S)
        assert {next(messages).partition for _ in range(2)} == {0, 1}
        consumer.commit()
    with Admin(server.state["listeners"]["local"]) as admin:
        assert all(offset > 0 for offset in admin.offsets("of-alice").values())


def test_a_role_holds_at_once_and_ends_at_once(
    server: Server, address: str, securities: dict[str, ClientSecurity]
) -> None:
    """On a connection that was there before, which the worker serves."""
    with Admin(server.state["listeners"]["local"]) as admin, Admin(address, security=securities["bob"]) as bob:
        seen = lambda: "logs" in {row["name"] for row in bob.topics()}  # noqa: E731
        assert not seen()
        admin.create_role("readers")
        admin.add_acls([{"resource": "topic", "name": "logs", "principal": "Role:readers", "operation": "Read"}])
        admin.alter_role("readers", grant=["bob"])
        wait_for(seen, "bob may read the topic")
        with Producer(address, security=securities["bob"]) as producer, pytest.raises(NotPermitted):
            producer.send("logs", b"x").result(TIMEOUT_S)
        admin.delete_role("readers")
        wait_for(lambda: not seen(), "bob may not any more")


def test_a_user_without_a_right_is_refused(server: Server, address: str, securities: dict[str, ClientSecurity]) -> None:
    """To the group: at once.  To the topic: in the stream, and nothing stays registered."""
    refused = pytest.raises(GroupNotPermitted, match="Read on group 'of-alice'")
    with GroupConsumer(address, "of-alice", security=securities["bob"]) as consumer, refused:
        consumer.create_message_streams({"logs": 1})
    with GroupConsumer(address, "of-bob", security=securities["bob"]) as consumer:
        (stream,) = consumer.create_message_streams({"logs": 1})["logs"]
        with pytest.raises(TopicNotPermitted, match="Read on topic 'logs'"):
            next(stream.messages(TIMEOUT_S))
    with Admin(server.state["listeners"]["local"]) as admin:
        assert "of-bob" not in {row["group"] for row in admin.groups()}


def test_a_user_copies_in_transactions_with_the_rights_of_both_ends(
    server: Server, address: str, securities: dict[str, ClientSecurity]
) -> None:
    """In an event loop; what it has read is committed with what it has written."""

    async def main() -> None:
        alice: dict[str, Any] = {"security": securities["alice"]}
        group = aio.GroupConsumer(address, "of-alice", auto_commit=False, isolation="read_committed", **alice)
        async with group as consumer, aio.Producer(address, transactional_id="alice-1", **alice) as producer:
            (stream,) = (await consumer.create_message_streams({"logs": 1}))["logs"]
            async with producer.transaction(consumer):
                await producer.send("copies", (await anext(stream.messages(TIMEOUT_S))).value)

    with Admin(server.state["listeners"]["local"]) as admin:
        admin.delete_offsets("of-alice")
    asyncio.run(main())
    with Admin(server.state["listeners"]["local"]) as admin:
        wait_for(lambda: any(offset > 0 for offset in admin.offsets("of-alice").values()), "the commit", TIMEOUT_S)
    with Consumer(server.state["listeners"]["local"], isolation="read_committed") as check:
        check.assign([("copies", 0)])
        assert [message.value for message in check.poll(TIMEOUT_S)] == [b"x"]


def test_who_may_read_the_group_too_and_knows_a_members_id_can_do_nothing_in_its_name(
    address: str, securities: dict[str, ClientSecurity]
) -> None:
    with GroupConsumer(address, "of-both", security=securities["alice"]) as consumer:
        (stream,) = consumer.create_message_streams({"logs": 1})["logs"]
        messages = stream.messages(TIMEOUT_S)
        assert {next(messages).partition for _ in range(2)} == {0, 1}
        with Admin(address, security=securities["bob"]) as bob:
            (member,) = bob.group("of-both")["members"]
            assert member["id"] == consumer.consumer_id
            with contextlib.closing(Cluster(address, securities["bob"])) as asking:
                stolen = {"group": "of-both", "member": member["id"], "secret": "guessed", "sequence": 2**40}
                stolen["epoch"] = "of some coordinator"
                for verb, more in {
                    "leave_group": {},
                    "release_partitions": {"partitions": [["logs", 0]]},
                    "group_registry": {},
                }.items():
                    with pytest.raises(GroupNotPermitted, match="another member"):
                        asking.admin(verb, stolen | more)
        assert len(consumer.owned) == 2
        consumer.commit()

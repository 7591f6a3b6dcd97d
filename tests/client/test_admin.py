"""appliance.client.admin: every verb can be asked from Python, and users and access rules are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import appliance.client
from appliance.client import Admin
from appliance.errors import InvalidRequest, UnknownUser, UserExists
from appliance.wire.native_admin import PEER_RIGHTS, VERBS

from ..support.server import Server

RULE = {"resource": "Topic", "name": "t", "principal": "User:alice", "operation": "Read"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    settings = {"security.authorizer": "acl", "security.super_users": "User:ANONYMOUS"}
    with Server(tmp_path_factory.mktemp("admin") / "data", **settings) as running, Admin(running.native) as asking:
        yield asking


def test_every_verb_has_a_method() -> None:
    """Or another part of the client asks it: transactions, damage, native groups.  Or only brokers may ask it."""
    sources = Path(appliance.client.__file__).parent.glob("*.py")
    words = set(re.findall(r'"([a-z_]+)"', "".join(source.read_text() for source in sources)))
    assert not {name for name, verb in VERBS.items() if verb.rights != PEER_RIGHTS} - words


def test_users_are_added_changed_listed_and_deleted(admin: Admin) -> None:
    admin.put_user("alice", "long secret")
    with pytest.raises(UserExists):
        admin.put_user("alice", "long secret")
    admin.put_user("alice", "another secret", new=False)
    ((name, mechanisms),) = [(user["name"], set(user["mechanisms"])) for user in admin.users()]
    assert name == "alice" and mechanisms == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    admin.delete_user("alice")
    assert not admin.users()
    with pytest.raises(UnknownUser):
        admin.delete_user("alice")
    with pytest.raises(UnknownUser):
        admin.put_user("alice", "long secret", new=False)


def test_roles_are_made_given_taken_and_deleted(admin: Admin) -> None:
    admin.put_user("alice", "long secret")
    admin.create_role("readers")
    rule = {**RULE, "principal": "Role:readers", "host": "*", "permission": "Allow", "pattern": "Literal"}
    admin.add_acls([rule])
    admin.alter_role("readers", grant=["alice"])
    admin.alter_role("readers", grant=["CN=web"], without_password=True)
    assert admin.roles() == [{"name": "readers", "users": ["CN=web", "alice"], "rules": [rule]}]
    assert {user["name"]: user["roles"] for user in admin.users()} == {"alice": ["readers"], "CN=web": ["readers"]}
    assert admin.acls({"principal": "User:alice"}) == [rule | {"principal": "User:alice", "role": "readers"}]
    with pytest.raises(InvalidRequest, match="roles revoke readers alice"):
        admin.delete_acls({"principal": "User:alice"})
    admin.alter_role("readers", revoke=["CN=web"])
    assert admin.delete_role("readers", dry_run=True) == {"users": ["alice"], "rules": [rule]}
    assert admin.delete_role("readers") == {"users": ["alice"], "rules": [rule]}
    assert admin.roles() == admin.acls() == []
    admin.delete_user("alice")


def test_access_rules_are_added_selected_and_deleted(admin: Admin) -> None:
    other = {**RULE, "name": "u"}
    admin.add_acls([RULE, other])
    assert {rule["name"] for rule in admin.acls()} == {"t", "u"}
    (found,) = admin.acls({"name": "t", "resource": "Topic"})
    assert found == {**RULE, "host": "*", "permission": "Allow", "pattern": "Literal"}
    assert admin.delete_acls({"name": "t"}, dry_run=True) == [found]
    assert len(admin.acls()) == 2, "nothing was deleted"
    assert admin.delete_acls({"name": "t"}) == [found]
    assert [rule["name"] for rule in admin.acls()] == ["u"]

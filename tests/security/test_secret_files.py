"""appliance.security.secret_files: nobody else can read a secret, and one that others could read is refused."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import appliance
from appliance.durable_files import replace_file
from appliance.errors import BadValue
from appliance.security.secret_files import (
    SECRET_BYTES_MAX,
    fault_of,
    keep_secret,
    read_password,
    read_secret_file,
)
from appliance.wire.native_admin import ClaimPartitions
from appliance.wire.requests import Login

PACKAGE = Path(appliance.__file__).parent


@pytest.fixture(autouse=True)
def open_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = keep_secret(path)
    assert len(secret) == 64 and mode_of(path) == 0o600
    assert keep_secret(path) == secret and keep_secret(tmp_path / "other") != secret
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other", "secret"]


def test_replacing_one_keeps_the_old_until_the_new_is_there(tmp_path: Path) -> None:
    path, planted = tmp_path / "secret", tmp_path / "elsewhere"
    (tmp_path / ".secret.new").symlink_to(planted)  # what a crash, or somebody else, left there
    replace_file(path, b"one\n")
    replace_file(path, b"two\n")
    assert path.read_bytes() == b"two\n" and mode_of(path) == 0o600 and not planted.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601, 0o700])
def test_what_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tls.key"
    replace_file(path, b"x")
    path.chmod(mode)
    refused = mode != 0o640 or os.geteuid() != 0  # of root a group may read it
    if refused:
        with pytest.raises(BadValue, match=r"tls\.key = .*its mode is .*make a new secret"):
            read_secret_file(path, "tls.key")
    else:
        assert read_secret_file(path, "tls.key") == b"x"


def test_whose_file_it_may_be() -> None:
    def fault(uid: int, mode: int, kind: int = stat.S_IFREG) -> str:
        return fault_of(cast(os.stat_result, SimpleNamespace(st_uid=uid, st_mode=kind | mode)), 1_000)

    assert fault(1_000, 0o600) == fault(1_000, 0o400) == fault(0, 0o640) == fault(0, 0o600) == ""
    assert "chmod 0600" in fault(1_000, 0o640) and "chmod 0640" in fault(0, 0o644)
    assert "belongs to user id 65534" in fault(65_534, 0o600)
    assert "regular" in fault(1_000, 0o600, stat.S_IFIFO)


def test_what_is_no_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"tls\.key = .*/none: No such file"):
        read_secret_file(tmp_path / "none", "tls.key")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(BadValue, match="not a regular file"):  # and does not wait for a writer
        read_secret_file(tmp_path / "fifo", "tls.key")
    replace_file(tmp_path / "large", bytes(SECRET_BYTES_MAX + 1))
    with pytest.raises(BadValue, match="larger than"):
        read_secret_file(tmp_path / "large", "tls.key")


@pytest.mark.parametrize(("content", "password"), [(b"a b\n", "a b"), (b"a\r\nb", "a"), ("ä".encode(), "ä")])
def test_a_password_is_the_first_line(tmp_path: Path, content: bytes, password: str) -> None:
    replace_file(tmp_path / "p", content)
    assert read_password(tmp_path / "p", "--password-file") == password


@pytest.mark.parametrize("content", [b"", b"\nsecond", b"\xff\n"])
def test_a_file_without_a_password(tmp_path: Path, content: bytes) -> None:
    replace_file(tmp_path / "p", content)
    with pytest.raises(BadValue, match=r"--password-file = .*password|first line"):
        read_password(tmp_path / "p", "--password-file")


SECRET_FIELDS = {"password", "secret"}


def test_no_text_of_a_value_shows_a_secret() -> None:
    """Fields with a secret are left out of the text that a trace or a log would show."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            own_text = any(isinstance(each, ast.FunctionDef) and each.name == "__repr__" for each in node.body)
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) in SECRET_FIELDS:
                    found.add(node.name)
                    hidden = each.value is not None and ast.unparse(each.value) == "field(repr=False)"
                    assert hidden or own_text, f"{path.name}: the text of {node.name} shows {ast.unparse(each.target)}"
    assert {"BrokerIdentity", "LoginForm", "SecurityState", "Tree"} <= found
    assert "the token" not in repr(Login(None, "PLAIN", b"the token"))
    assert "the token" not in repr(ClaimPartitions("g", "m", "the token", 1, "e", []))

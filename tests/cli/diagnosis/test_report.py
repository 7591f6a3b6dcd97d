"""``appliance report``: what is in it, and that no secret is, wherever one was."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from appliance.launch import JOURNAL, Launch
from appliance.security import security_file
from appliance.security.scram import encode_verifier, make_verifier
from appliance.security.security_state import SecurityState
from appliance.status import note_failed_start

from ...support.command_line import run, succeeding
from ...support.server import Server

KEY = "-----BEGIN PRIVATE KEY-----\nMIIprivatelinesofthekey\n-----END PRIVATE KEY-----\n"


def files_of(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {
            Path(member.name).name: extracted.read()
            for member in opened
            if (extracted := opened.extractfile(member)) is not None
        }


def test_it_has_what_the_appliance_says(appliance: Server, tmp_path: Path) -> None:
    succeeding("topics", "create", "reported", "--connect", appliance.native)
    succeeding("produce", "reported", "--connect", appliance.native, stdin=b"this is in a message\n")
    made = succeeding("report", str(tmp_path / "x.tar.gz"), "--json", "--data", str(appliance.data_dir)).json
    assert stat.S_IMODE((tmp_path / "x.tar.gz").stat().st_mode) == 0o600
    files = files_of(tmp_path / "x.tar.gz")
    assert {row["name"]: row["bytes"] for row in made["parts"]} == {name: len(data) for name, data in files.items()}
    assert {name for name, content in files.items() if not content} <= {"journal.txt"}
    assert json.loads(files["status.json"])["state"] == "serving"
    assert b"appliance_topic_" in files["metrics.txt"] and b"zookeeper.nodes" not in files["config.toml"]
    assert b"nodes = 0" in files["config.toml"], "the options that it was started with"
    sizes = {row["file"]: row["bytes"] for row in json.loads(files["sizes.json"])["files"]}
    assert sizes["state.json"] > 0 and any(name.endswith(".log") for name in sizes)
    assert not any(b"this is in a message" in content for content in files.values())
    assert "journal.txt" in json.loads(files["about.json"])["missing"] or files["journal.txt"]
    again = run("report", str(tmp_path / "x.tar.gz"), "--data", str(appliance.data_dir))
    assert again.status == 2 and "exists" in again.err


def test_no_secret_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of all kinds lie where they belong, and are said where they do not: in a message and in the journal."""
    data = tmp_path / "data"
    (data / "zookeeper").mkdir(parents=True)
    verifier = make_verifier("SCRAM-SHA-256", b"the password of alice")
    files = {
        data / "zookeeper" / "secret": "secretofzookeeper",
        tmp_path / "tls.key": KEY,
        tmp_path / "tokens": 'first-token-of-senders\nsecond "token" \\ of senders\n',
        tmp_path / "webhook": "https://chat.example.net/T0/hook-of-the-chat\n",
        tmp_path / "ensemble": "password-of-the-ensemble\nignored\n",
    }
    for path, text in files.items():
        path.write_text(text)
        path.chmod(0o600)
    security_file.store(data / "security.json", SecurityState({"alice": {"SCRAM-SHA-256": verifier}}, secret=b"s" * 32))
    monkeypatch.setenv("BACKUP_TOKEN", "token-of-the-environment")
    config = tmp_path / "appliance.toml"
    config.write_text(
        f"""# password: commented-password
        [tls]
        key = "{tmp_path / "tls.key"}"
        [zookeeper]
        connect = "127.0.0.1:1"
        user = "u"
        password_file = "{tmp_path / "ensemble"}"
        [alerts]
        webhook = "{tmp_path / "webhook"}"
        [inputs.web]
        type = "http"
        topic = "web"
        listen = "127.0.0.1:0"
        token_file = "{tmp_path / "tokens"}"
        """
    )
    stored = json.loads((data / "security.json").read_text())["state"]
    secrets = [
        "https://chat.example.net/T0/hook-of-the-chat",
        *("secretofzookeeper", "MIIprivatelinesofthekey", "first-token-of-senders", 'second "token" \\ of senders'),
        *("password-of-the-ensemble", "token-of-the-environment", "commented-password", "unknown-elsewhere"),
        *(encode_verifier(verifier).split(",")[0], stored["secret"]),
        *(text for text in stored["users"]["alice"]["SCRAM-SHA-256"].values() if isinstance(text, str)),
    ]
    said = " ".join([*secrets[:7], *secrets[9:], KEY, "password=unknown-elsewhere", "http://u:unknown-elsewhere@h/"])
    words = ("start", "--data", str(data), "--set", f"alerts.webhook={secrets[0]}")
    note_failed_start(data, 1.0, 78, said, said, Launch(words, "appliance.service", JOURNAL))
    journalctl = tmp_path / "bin" / "journalctl"
    journalctl.parent.mkdir()
    journalctl.write_text(f"#!/bin/sh\ncat <<'END'\nbegin\n{said}\nend\nEND\n")
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{journalctl.parent}:/usr/bin:/bin")
    succeeding("report", str(tmp_path / "r.tar.gz"), "--data", str(data), "--config", str(config))
    files_made = files_of(tmp_path / "r.tar.gz")
    assert b"begin" in files_made["journal.txt"] and b"end" in files_made["journal.txt"]
    assert str(tmp_path / "tokens").encode() in files_made["config.toml"], "the configuration is that of the file"
    for name, content in files_made.items():
        text = content.decode()
        for secret in secrets:
            assert secret not in text and json.dumps(secret)[1:-1] not in text, f"{secret} is in {name}"


def test_what_cannot_be_known_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    said = succeeding("report", "--data", "data")
    (made,) = tmp_path.glob("appliance-report-*.tar.gz")
    assert made.name in said.out and "journal.txt is empty" in said.err and "--config" in said.err
    files = files_of(made)
    assert not files["journal.txt"] and json.loads(files["about.json"])["missing"].keys() >= {"journal.txt"}
    assert run("report").status == 2
    assert run("report", "--data", str(tmp_path / "gone")).status == 66

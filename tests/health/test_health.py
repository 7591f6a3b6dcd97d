"""The one list of what can be wrong: each finding from the state, its exit status, and the rules for Prometheus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from appliance.health import alert_rules
from appliance.health.conditions import CONDITIONS, CRITICAL, WARNING
from appliance.health.findings import NAMED_MAX, Seen, exit_status, judge, partitions_of, status_line, wrong
from appliance.partition_states import STATE_NAMES

SYSTEMD = Path(__file__).parents[2] / "systemd"
PROCESS: dict[str, Any] = {"pid": 1, "started": 0.0, "restarts": 0}
WELL: dict[str, Any] = {
    **{
        "state": "serving",
        "offline": {},
        "limits": [],
        "refused": [],
        "insecure": [],
        "without_rules": [],
        "deaths": [],
        "reload": {"error": ""},
        "disk": {},
    },
    **{"refusals_recent": {}, "faults": [], "foreign": {}, "cluster": {}},
    "zookeeper": {"state": "connected"},
    "processes": [PROCESS | {"role": role} for role in ("supervisor", "network", "coordinator")],
}
LIMIT = {"limit": "descriptors", "process": "", "advice": "raise it"}
NO_ROOM = {"action": "write state.json", "reason": "no room", "limit": "disk"}
REFUSED = {"action": "start writers", "reason": "out of memory"}
DAMAGE = {"t-1": [[5, 9, "0.log", 5, "CRC32C"]]}
FULL = "/data/t-1/0.log: No space left on device, 0 bytes are free"


NOW_S = 1_000_000.0
DAY_S = 86_400


def seen(state: dict[str, Any] | None, states: dict[str, str]) -> Seen:
    return Seen(state, partitions_of(state, states))


def test_all_is_well() -> None:
    assert judge(seen(WELL, {"t-0": "online"})) == []
    assert exit_status([]) == 0
    assert status_line(WELL, 7, NOW_S) == "serving 7 partitions"


@pytest.mark.parametrize(
    "changes, partitions, status, stops_all, says",
    [
        ({"state": "starting"}, {}, 75, True, "is starting"),
        ({"state": "stopping"}, {}, 75, True, "is stopping"),
        ({"state": "stopped"}, {}, 75, True, "does not run"),
        (
            {"processes": [PROCESS | {"role": "coordinator"}]},
            {},
            75,
            True,
            "no network worker",
        ),
        ({"processes": [PROCESS | {"role": "network"}]}, {}, 75, False, "coordinator"),
        ({"zookeeper": {"state": "lost"}}, {}, 75, False, "ZooKeeper is lost: groups and changes of topics wait"),
        ({"limits": [LIMIT]}, {}, 75, False, "limit reached: descriptors"),
        ({"limits": [LIMIT | {"limit": "disk"}]}, {}, 75, False, "the disk is full"),
        (
            {"limits": [LIMIT | {"limit": "disk"}], "refused": [NO_ROOM]},
            {"t-0": "disk full"},
            75,
            False,
            "is full: t-0",
        ),
        ({"refused": [REFUSED]}, {}, 75, False, "refuses to start writers: out of memory"),
        ({}, {"t-0": "disk full"}, 75, False, "the disk is full: t-0: producers are refused"),
        (
            {"full": {"t-1": FULL}},
            {"t-1": "disk full"},
            75,
            False,
            f"the disk is full: t-1: producers are refused: {FULL}",
        ),
        ({}, {"t-0": "opening"}, 75, False, "t-0: being opened"),
        ({}, {"t-0": "offline"}, 74, False, "t-0 is offline"),
        ({"offline": {"t-1": "CRC32C at 512"}}, {}, 74, False, "t-1 is offline: CRC32C at 512"),
        ({"damaged": DAMAGE}, {"t-1": "online"}, 74, False, "t-1 is damaged: 0.log:5: CRC32C: the offsets 5 to 9"),
    ],
)
def test_each_thing_that_is_wrong(
    changes: dict[str, Any], partitions: dict[str, str], status: int, stops_all: bool, says: str
) -> None:
    (finding,) = judge(seen(WELL | changes, partitions))
    assert (finding.exit_status, finding.condition.stops_all, exit_status([finding])) == (status, stops_all, status)
    assert says in finding.text


def test_nothing_runs() -> None:
    (finding,) = judge(Seen(None))
    assert (finding.exit_status, finding.condition.stops_all) == (75, True)
    (finding,) = judge(Seen(None, at=("--data", "/srv/box")))
    assert finding.todo == "`appliance start --data /srv/box`"


def test_damage_is_worse_than_what_passes() -> None:
    findings = wrong(seen(WELL | {"limits": [LIMIT], "zookeeper": {"state": "lost"}}, {"t-0": "offline"}))
    assert exit_status(findings) == 74 and findings[0].exit_status == 74


def test_the_remedy_that_a_reason_names_is_for_this_appliance() -> None:
    reason = "/srv/t-0: the directory is missing: put it back, or `appliance log repair t-0` begins an empty log"
    about = seen(WELL | {"offline": {"t-0": reason}}, {})._replace(at=("--data", "/srv"))
    (finding,) = wrong(about)
    assert finding.todo == "`appliance log repair t-0 --data /srv` begins an empty log"


def test_a_warning_alone_has_no_exit_status() -> None:
    (finding,) = judge(seen(WELL | {"insecure": ["kafka 0.0.0.0:9092"]}, {}))
    assert finding.condition.level == WARNING and exit_status([finding]) == 0
    assert wrong(seen(WELL | {"insecure": ["kafka 0.0.0.0:9092"]}, {})) == []


@pytest.mark.parametrize(
    "days, name, status", [(-3, "CertificateExpired", 75), (13, "CertificateExpires", 0), (15, "", 0)]
)
def test_certificates_are_watched(days: int, name: str, status: int) -> None:
    row = {"key": "tls.certificate", "file": "/a.pem", "expires": NOW_S + days * DAY_S}
    findings = judge(Seen(WELL | {"tls": {"error": "", "files": [row]}}, now_s=NOW_S))
    assert [finding.condition.name for finding in findings] == ([name] if name else [])
    assert exit_status(findings) == status and all("/a.pem" in finding.text for finding in findings)


def test_a_low_limit_of_the_machine_is_a_warning() -> None:
    low = {"limit": "descriptors", "value": 100, "allows": "9 connections", "advice": "raise LimitNOFILE="}
    (finding,) = judge(seen(WELL | {"low": [low]}, {}))
    assert (finding.condition.name, finding.condition.level, exit_status([finding])) == ("LimitLow", WARNING, 0)
    assert (
        finding.text == "few descriptors are granted: 100: they allow 9 connections" and finding.todo == low["advice"]
    )


def test_new_files_of_certificates_that_cannot_be_used() -> None:
    (finding,) = judge(Seen(WELL | {"tls": {"error": "tls.key has mode 0644", "files": []}}))
    assert finding.condition.name == "CertificateUnusable" and "0644" in finding.text


def test_many_partitions_are_counted() -> None:
    offline = {f"t-{number:02}": "offline" for number in range(NAMED_MAX + 7)}
    texts = [finding.text for finding in judge(seen(WELL, offline))]
    assert texts[:2] == ["t-00 is offline", "t-01 is offline"] and len(texts) == NAMED_MAX + 1
    assert texts[-1] == "7 more partitions are offline: t-10 is offline, t-11 is offline, t-12 is offline and 4 more"
    (full,) = judge(seen(WELL, {f"t-{number}": STATE_NAMES[3] for number in range(5)}))
    assert "t-0, t-1, t-2 and 2 more" in full.text


def test_the_status_line_has_the_worst_first() -> None:
    wrong = {"zookeeper": {"state": "lost"}, "offline": {"t-1": "no segment"}, "insecure": ["kafka 0.0.0.0:1"]}
    assert status_line(WELL | wrong, 7, NOW_S) == (
        "serving 7 partitions; INSECURE: kafka 0.0.0.0:1; t-1 is offline: no segment;"
        " no quorum: ZooKeeper is lost: groups and changes of topics wait"
    )
    assert FULL in status_line(WELL | {"full": {"t-1": FULL}}, 7, NOW_S)
    assert status_line(WELL | {"state": "stopping"}, 7, NOW_S) == "stopping"


# ---- the list


def test_names_are_unique_and_levels_are_two() -> None:
    assert len({condition.name for condition in CONDITIONS}) == len(CONDITIONS)
    assert {condition.level for condition in CONDITIONS} == {CRITICAL, WARNING}


def test_every_condition_says_what_to_do_and_has_a_page() -> None:
    titles = re.findall(r"^#+ (.+)$", (SYSTEMD / "README.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    for condition in CONDITIONS:
        assert condition.todo and condition.page in anchors, condition
    text = Path(judge.__code__.co_filename).read_text()
    assert set(re.findall(r'page = "([\w-]+)"', text)) <= anchors


def test_the_rules_for_prometheus_are_those_of_the_list() -> None:
    """`python -m appliance.health.alert_rules` writes the file again."""
    assert (SYSTEMD / "prometheus" / "alerts.yml").read_text() == alert_rules.rules()

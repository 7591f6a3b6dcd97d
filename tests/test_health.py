"""What is wrong with an appliance, judged from its state, and the exit status of that."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.health import exit_status, findings, status_line
from appliance.partition_states import STATE_NAMES

WELL: dict[str, Any] = {
    **{"state": "serving", "offline": {}, "limits": [], "refused": [], "insecure": []},
    "zookeeper": {"state": "connected"},
    "processes": [{"role": "supervisor"}, {"role": "network"}, {"role": "coordinator"}],
}
LIMIT = {"limit": "disk", "process": "", "advice": "make room"}
REFUSED = {"action": "start writers", "reason": "out of memory"}


def test_all_is_well() -> None:
    assert findings(WELL, {"t-0": "online"}) == []
    assert exit_status([]) == 0
    assert status_line(WELL, 7) == "serving 7 partitions"


@pytest.mark.parametrize(
    "changes, partitions, status, stops_all, says",
    [
        ({"state": "starting"}, {}, 75, True, "it is starting"),
        ({"state": "stopping"}, {}, 75, True, "it is stopping"),
        ({"state": "stopped"}, {}, 75, True, "does not run"),
        ({"processes": [{"role": "coordinator"}]}, {}, 75, True, "no network worker"),
        ({"processes": [{"role": "network"}]}, {}, 75, False, "coordinator"),
        ({"zookeeper": {"state": "lost"}}, {}, 75, False, "ZooKeeper is lost"),
        ({"limits": [LIMIT]}, {}, 75, False, "limit reached: disk: make room"),
        ({"refused": [REFUSED]}, {}, 75, False, "refuses to start writers: out of memory"),
        ({}, {"t-0": "disk full"}, 75, False, "disk full: t-0"),
        ({}, {"t-0": "opening"}, 75, False, "opening: t-0"),
        ({}, {"t-0": "offline"}, 74, False, "t-0 is offline"),
        ({"offline": {"t-1": "CRC32C at 512"}}, {}, 74, False, "t-1 is offline: CRC32C at 512"),
    ],
)
def test_each_thing_that_is_wrong(
    changes: dict[str, Any], partitions: dict[str, str], status: int, stops_all: bool, says: str
) -> None:
    (found,) = findings(WELL | changes, partitions)
    assert (found.exit_status, found.stops_all, exit_status([found])) == (status, stops_all, status)
    assert says in found.text


def test_nothing_runs() -> None:
    (found,) = findings(None, {})
    assert (found.exit_status, found.stops_all) == (75, True)


def test_damage_is_worse_than_what_passes() -> None:
    found = findings(WELL | {"limits": [LIMIT], "zookeeper": {"state": "lost"}}, {"t-0": "offline"})
    assert exit_status(found) == 74 and found[0].exit_status == 74


def test_many_partitions_are_counted() -> None:
    offline = {f"t-{number}": "offline" for number in range(10)}
    texts = [one.text for one in findings(WELL, offline)]
    assert texts == ["t-0 is offline", "t-1 is offline", "t-2 is offline", "7 more partitions are offline"]
    (full,) = findings(WELL, {f"t-{number}": STATE_NAMES[3] for number in range(5)})
    assert "t-0, t-1, t-2 and 2 more" in full.text


def test_the_status_line_has_the_worst_first() -> None:
    wrong = {"zookeeper": {"state": "lost"}, "offline": {"t-1": "damaged"}, "insecure": ["kafka 0.0.0.0:1"]}
    assert status_line(WELL | wrong, 7) == (
        "serving 7 partitions; INSECURE: kafka 0.0.0.0:1; t-1 is offline: damaged;"
        " ZooKeeper is lost: groups and changes of topics wait"
    )
    assert status_line(WELL | {"state": "stopping"}, 7) == "stopping"

"""A group member in a process of its own, to be killed.

``python -m tests.support.zookeeper_member CONNECT PASSWORD_FILE GROUP NAME TOPIC``

Prints a line with the partitions that it reads, in order, whenever they change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.names import TopicPartition
from appliance.zookeeper.lease import boot_clock_ms
from appliance.zookeeper.login import LOCAL_USER, Login
from appliance.zookeeper.paths import Subscription
from appliance.zookeeper.rebalance import Gained, GroupMember
from appliance.zookeeper.session import Session


class Printing:
    def __init__(self) -> None:
        self.parts: set[int] = set()

    def stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.parts -= {part.partition for part in parts}
        print(*sorted(self.parts), flush=True)
        return {}

    def start(self, gained: Sequence[Gained]) -> None:
        self.parts |= {each.partition for each in gained}
        print(*sorted(self.parts), flush=True)


def main(connect: str, password_file: str, group: str, name: str, topic: str) -> None:
    login = Login("sasl", LOCAL_USER, Path(password_file).read_text().strip())
    session = Session(connect, 2_000, name=name, login=login)
    session.start()
    member = GroupMember(session, group, name, Subscription({topic: 1}), Printing(), clock_ms=boot_clock_ms)
    member.join()
    while True:
        member.poll(1_000)


if __name__ == "__main__":
    main(*sys.argv[1:])

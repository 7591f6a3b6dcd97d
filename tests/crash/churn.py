"""A topic that is deleted and made again all the time, while producers and consumers use it.

Each life of it is an incarnation, with clients of its own that are still at work when it is deleted, and that have
ended before it is made again.  A group of each listener reads them all: members of the native client that live on, so
that the values alone tell what they read, and one of librdkafka for each life, since that goes on in a new log where it
was in the old one, whatever the log is, and only a new member asks for the group's position.
"""

from __future__ import annotations

import threading
from typing import Final

from appliance.client import Admin
from appliance.errors import ApplianceError

from .beds import Run, hold
from .client import Guarded, Recorder, Spec
from .clients import KINDS
from .history import Log
from .workload import create_topic, delete_topic

TOPIC: Final = "churn"
PARTITIONS: Final = 2
KAFKA_GROUP, NATIVE_GROUP = "churn-kafka", "churn-native"
LIFE_S: Final = 1.0
GONE_FLUSH_S: Final = 0.5


class Churn:
    """``live`` through as many incarnations as wanted; the one that stays can be checked, until the next one begins."""

    def __init__(self, run: Run) -> None:
        self._run, self._load = run, run.load
        self._incarnation = 0
        self._stays: tuple[Log, ...] = ()

    def live(self, *, delete: bool = True) -> None:
        """One incarnation under load, which is deleted under load; or the last one, which stays to be checked."""
        logs = tuple(Log(TOPIC, self._incarnation, partition) for partition in range(PARTITIONS))
        with Admin(self._load.control) as admin:
            if self._stays:
                delete_topic(admin, TOPIC)
                for log in self._stays:
                    del self._load.readers_of[log]
                self._stays = ()
            create_topic(admin, TOPIC, PARTITIONS)
            if self._load.groups and not self._incarnation:
                self._start_groups()
            path = self._load.directory / f"churn-{self._incarnation}.jsonl"
            recorder, stopping = Recorder(path), threading.Event()
            clients = [Guarded(KINDS[spec.kind](spec, recorder, stopping).run) for spec in self._specs(logs)]
            for client in clients:
                client.start()
            hold(LIFE_S)
            if delete:
                delete_topic(admin, TOPIC)
                self._run.injected += 1
        stopping.set()
        for client in clients:
            client.join()
            if client.error is not None and not (delete and isinstance(client.error, ApplianceError)):
                raise client.error
        self._load.take(path)
        self._incarnation += 1
        if not delete:
            self._stays = logs
            self._load.readers_of |= dict.fromkeys(logs, {NATIVE_GROUP} if self._load.groups else set())

    def _specs(self, logs: tuple[Log, ...]) -> list[Spec]:
        name = f"churn-{self._incarnation}"
        common = {"logs": logs, "flush_s": GONE_FLUSH_S, "per_second": 100}
        clients = [
            self._load.spec("kafka-producer", f"{name}-kafka-all", **common),
            self._load.spec("native-producer", f"{name}-native-1", acks=1, **common),
            self._load.spec("raw-producer", f"{name}-raw-0", acks=0, **common),
            self._load.spec("native-reader", f"{name}-reader", logs=logs),
        ]
        member = self._load.spec("kafka-member", f"{name}-member", group=KAFKA_GROUP, logs=logs)
        return [*clients, member] if self._load.groups else clients

    def _start_groups(self) -> None:
        logs = tuple(Log(TOPIC, -1, partition) for partition in range(PARTITIONS))
        self._load.start(
            "churn",
            self._load.spec("native-member", "churn-native-member", group=NATIVE_GROUP, logs=logs),
        )
        self._load.strike("churn")


def churn(run: Run, lives: int) -> None:
    story: Churn = run.kept.setdefault("churn", Churn(run))
    for _ in range(lives):
        story.live()
    story.live(delete=False)

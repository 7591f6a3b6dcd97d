"""appliance.processes.network.client_counts: what a worker says of its clients, how often, and how many of them."""

from __future__ import annotations

from appliance.addresses import PLAINTEXT, Listener
from appliance.connected_clients import CLIENTS_MAX, COUNTED_MS, ClientRow
from appliance.processes.network.client_counts import ClientCounts
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import ClientSession

LISTENER = Listener("kafka", PLAINTEXT, "127.0.0.1:9092")


class Counted:
    def __init__(self) -> None:
        self.turn = Turn()
        self.told: list[tuple[list[ClientRow], int]] = []
        self.counts = ClientCounts(self.turn, lambda rows, others: self.told.append((rows, others)))
        self.sessions: list[ClientSession] = []

    def client(self, user: str = "User:u", host: str = "10.0.0.7", since_ms: int = 0) -> ClientSession:
        session = ClientSession(user, host=host, since_ms=since_ms)
        self.sessions.append(session)
        return session

    def check(self, after_ms: int = COUNTED_MS) -> list[tuple[list[ClientRow], int]]:
        """What has been told by a check so much later."""
        self.turn.now_ms += after_ms
        before = len(self.told)
        self.counts.count_connections((LISTENER, session) for session in self.sessions)
        return self.told[before:]


def test_connections_of_a_client_are_one_row() -> None:
    counted = Counted()
    first, second = counted.client(since_ms=7), counted.client(since_ms=9)
    counted.client(user="User:other")
    first.bytes_in, second.bytes_in, second.bytes_out = 5_000, 10_000, 1_000
    ((rows, others),) = counted.check()
    assert [(row.name.user, row.connections) for row in rows] == [("User:u", 2), ("User:other", 1)]
    assert (rows[0].since_ms, rows[0].bytes_in, rows[0].bytes_out, others) == (7, 15_000, 1_000, 0)
    assert rows[0].name.listener == "kafka 127.0.0.1:9092"


def test_rates_are_of_the_time_since_the_last_count() -> None:
    counted = Counted()
    session = counted.client()
    session.bytes_in = 10_000
    counted.check()
    session.bytes_in, session.bytes_out = 30_000, 5_000
    (((row,), _),) = counted.check(2 * COUNTED_MS)
    assert (row.in_s, row.out_s, row.bytes_in) == (2_000.0, 500.0, 30_000)


def test_nothing_is_told_too_often_or_without_a_change() -> None:
    counted = Counted()
    session = counted.client()
    assert len(counted.check(0)) == 1, "the first is told at once"
    session.bytes_in = 1
    assert counted.check(COUNTED_MS - 1) == []
    assert len(counted.check(1)) == 1, "the bytes"
    assert len(counted.check()) == 1, "that it is silent now"
    assert counted.check() == []
    counted.sessions.clear()
    assert counted.check() == [([], 0)]


def test_those_that_move_most_are_told_of_when_there_are_too_many() -> None:
    counted = Counted()
    for number in range(CLIENTS_MAX + 20):
        counted.client(host=f"10.0.{number // 256}.{number % 256}").bytes_in = number
    ((rows, others),) = counted.check()
    assert len(rows) == CLIENTS_MAX and others == 20
    assert min(row.bytes_in for row in rows) == 20

"""Quotas on a real appliance: who uses more is told so and waits, all workers together, and nobody else does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from appliance.client import Admin
from appliance.processes.network.admission import Meters
from appliance.records.encode import encode_values
from appliance.security.quotas import THROTTLE_MS_MAX, Limit, Sharers
from appliance.security.scram import ITERATIONS_MIN, ScramClient, salted_password
from appliance.wire import native

from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.server import Server, wait_for

BATCH = encode_values([b"x" * 10_000], 1_000)
RATE = 20_000.0
PASSWORD = b"correct horse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"native.listen": "127.0.0.1:0, SASL_PLAINTEXT://127.0.0.1:0"}
    with Server(tmp_path_factory.mktemp("quotas") / "data", None, **settings) as started:
        with Peer(started.native) as peer:
            peer.create("t")
        yield started


def limit(server: Server, client_id: str, user: str = "", **rates: float | None) -> None:
    """Set or (None) remove limits of a client id, of a user, or of a user's client id."""
    ops = [{"key": key, "value": rate or 0.0, "remove": rate is None} for key, rate in rates.items()]
    names = {"client-id": client_id, "user": user}
    entity = [{"entity_type": part, "entity_name": name} for part, name in names.items() if name]
    with KafkaPeer(server.kafka) as peer:
        reply = peer.ask("AlterClientQuotas", entries=[{"entity": entity, "ops": ops}], validate_only=False)
        assert [row.error_code for row in reply.entries] == [0], reply


def produce(peer: KafkaPeer, client_id: str, version: int | None = None) -> int:
    """Produce a batch; the time that the reply tells."""
    data = [{"name": "t", "partition_data": [{"index": 0, "records": BATCH}]}]
    values = {"transactional_id": None, "acks": 1, "timeout_ms": 9_000, "topic_data": data}
    reply = peer.ask("Produce", version, client_id=client_id, **values)
    assert reply.responses[0].partition_responses[0].error_code == 0
    return int(reply.throttle_time_ms)


def fresh(server: Server) -> KafkaPeer:
    """A connection whose worker has the present quotas: it reads its snapshot before it answers this."""
    peer = KafkaPeer(server.kafka)
    peer.ask("Metadata", topics=[])
    return peer


@pytest.mark.parametrize("version", [8, 9])
def test_a_producer_is_told_and_waits(server: Server, version: int) -> None:
    name = f"in-{version}"
    limit(server, name, producer_byte_rate=RATE)
    with fresh(server) as peer, fresh(server) as other:
        begun, told = time.monotonic(), []
        for _ in range(6):  # three seconds' worth, of which one is free
            told.append(produce(peer, name, version))
            assert produce(other, "other") == 0, "others are not throttled"
        waited = time.monotonic() - begun
        assert max(told) > 300, told
        assert waited > 1.0, "the last batch was read once the time of those before it was over"
    limit(server, name, producer_byte_rate=None)
    with fresh(server) as peer:
        assert [produce(peer, name) for _ in range(5)] == [0] * 5, "taken back"


def test_a_consumer_is_told_and_waits(server: Server) -> None:
    with fresh(server) as peer:
        for _ in range(6):
            produce(peer, "filler")
    limit(server, "out", consumer_byte_rate=RATE)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "t", "partitions": [part]}]
    with fresh(server) as peer:
        begun, told = time.monotonic(), []
        for _ in range(6):
            reply = peer.ask("Fetch", 12, client_id="out", max_bytes=1 << 20, topics=topics)
            assert 0 < len(reply.responses[0].partitions[0].records) <= RATE, "no more than a second's worth"
            told.append(reply.throttle_time_ms)
        assert max(told) > 300, told
        assert time.monotonic() - begun > 1.0
        limit(server, "out", consumer_byte_rate=None)
        peer.ask("Metadata", client_id="out", topics=[])  # read once its time is over; then its worker knows
        told = [
            peer.ask("Fetch", 12, client_id="out", max_bytes=1 << 20, topics=topics).throttle_time_ms for _ in range(4)
        ]
        assert told == [0] * 4, "taken back, on the same connection"


def test_requests_are_limited_by_their_number(server: Server) -> None:
    limit(server, "many", request_rate=5.0)
    with fresh(server) as peer:
        begun = time.monotonic()
        told = [peer.ask("Metadata", client_id="many", topics=[]).throttle_time_ms for _ in range(9)]
        assert told[0] == 0 and time.monotonic() - begun > 0.3


def test_connections_share_a_limit_whichever_worker_has_them(server: Server) -> None:
    """Twelve connections at two workers: alone, each would write a batch every half second.

    The bound has the burst, what is in flight, and twice the rate, since a busy machine reports late.
    """
    limit(server, "shared", producer_byte_rate=RATE)
    begun = time.monotonic()
    end = begun + 3
    counts: list[int] = []

    def run() -> None:
        count = 0
        with fresh(server) as peer:
            while time.monotonic() < end:
                produce(peer, "shared")
                count += 1
        counts.append(count)

    threads = [threading.Thread(target=run) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    assert sum(counts) * len(BATCH) <= RATE * (1 + 2 * took) + 24 * len(BATCH), (counts, took)


def at_once(server: Server, count: int, ask: Callable[[KafkaPeer], Any], seconds: float) -> int:
    """How often ``ask`` was answered on so many connections, of which each is closed after its answer."""
    answered: list[Any] = []
    ended = time.monotonic() + seconds

    def run() -> None:
        while (left_s := ended - time.monotonic()) > 0:
            with fresh(server) as peer, contextlib.suppress(TimeoutError):
                peer.sock.settimeout(left_s)
                answered.append(ask(peer))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answered)


def fetch(peer: KafkaPeer, client_id: str) -> Any:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return peer.ask("Fetch", 12, client_id=client_id, max_bytes=1 << 20, topics=[{"topic": "t", "partitions": [part]}])


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    ("key", "rate", "ask"),
    [
        ("producer_byte_rate", 1_000.0, produce),
        ("consumer_byte_rate", 1_000.0, fetch),
        ("request_rate", 0.1, lambda peer, name: peer.ask("Metadata", client_id=name, topics=[])),
    ],
)
def test_who_connects_again_finds_the_debt(
    server: Server, key: str, rate: float, ask: Callable[[KafkaPeer, str], Any], count: int
) -> None:
    """One connection for each request, after each other or many at once: each worker gives at most one in advance.

    What is owed after the first one is more than the test takes.
    """
    name = f"again-{key}-{count}"
    with fresh(server) as peer:
        produce(peer, "filler")
    limit(server, name, **{key: rate})
    first = at_once(server, count, lambda peer: ask(peer, name), 1.5)
    assert 1 <= first <= 2, "one of each worker"
    assert first + at_once(server, count, lambda peer: ask(peer, name), 0.5) <= 2, "and later ones find it, too"
    with fresh(server) as peer:
        limit(server, "another", producer_byte_rate=RATE)
        peer.ask("Metadata", topics=[])
    assert first + at_once(server, count, lambda peer: ask(peer, name), 0.5) <= 2, "also after a change of others"
    limit(server, name, **{key: None})
    limit(server, "another", producer_byte_rate=None)


def test_what_takes_nothing_goes_on(server: Server) -> None:
    """A producer's debt does not stop its other connections: members of groups would lose their partitions."""
    limit(server, "both", producer_byte_rate=100.0)
    with fresh(server) as peer, fresh(server) as other, fresh(server) as third:
        assert produce(peer, "both") > 0.9 * THROTTLE_MS_MAX
        assert other.ask("Metadata", client_id="both", topics=[]).throttle_time_ms == 0
        assert fetch(third, "both").throttle_time_ms == 0
    limit(server, "both", producer_byte_rate=None)


def test_requests_of_who_is_throttled_take_no_memory_from_others(make_appliance: Callable[..., Server]) -> None:
    """They wait in memory, whole, for a minute; when others need it, their connections are closed."""
    mib = 1 << 20
    small = {"network.arena_bytes": mib, "network.frame_bytes_max": mib // 2, "topics.max.message.bytes": 500_000}
    server = make_appliance(**{"network.workers": 1, **small})
    with Peer(server.native) as peer:
        peer.create("t")
    limit(server, "greedy", producer_byte_rate=100.0)
    batch = encode_values([b"x" * 400_000], 1_000)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    values = {"transactional_id": None, "acks": 1, "timeout_ms": 9_000, "topic_data": data}
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(KafkaPeer(server.kafka)) for _ in range(12)]
        for peer in peers:
            peer.send("Produce", client_id="greedy", **values)
        with KafkaPeer(server.kafka) as other:
            for _ in range(3):
                reply = other.ask("Produce", client_id="other", **values)
                assert reply.responses[0].partition_responses[0].error_code == 0
    assert "it is throttled, and its requests keep memory" in server.log()


def test_librdkafka_is_throttled_and_loses_nothing(server: Server) -> None:
    limit(server, "rdkafka", producer_byte_rate=RATE)
    throttled: list[float] = []
    settings = {"bootstrap.servers": server.kafka, "client.id": "rdkafka", "linger.ms": 0}
    producer = Producer(settings | {"throttle_cb": lambda event: throttled.append(event.throttle_time)})
    delivered: list[object] = []
    for _ in range(6):
        producer.produce("t", b"y" * 10_000, on_delivery=lambda error, message: delivered.append(error))
        producer.flush(60)
    assert delivered == [None] * 6
    assert throttled and max(throttled) > 0


def throttled_natively(server: Server, client_name: str) -> bool:
    """Whether a client that logs in as alice is throttled within six requests; the audit log tells."""
    login = ScramClient("SCRAM-SHA-256", "alice", PASSWORD)
    with Peer(server.address("native", "SASL_PLAINTEXT"), hello=False) as peer:
        assert peer.call([native.HELLO, 0, native.MAGIC, native.VERSION, client_name])[0][1] == 0
        challenge = peer.call([native.LOGIN, 1, "SCRAM-SHA-256", login.first()])[0][3]
        assert peer.call([native.LOGIN, 2, None, login.final(challenge)])[0][1] == 0
        for number in range(6):  # more than the burst, in one turn of the worker
            peer.send([native.METADATA, number, []])
        assert [peer.receive()[0][:2] for _ in range(6)] == [[number, 0] for number in range(6)]
        port = peer.sock.getsockname()[1]
    return f"refused: reason=throttled who=User:alice from=127.0.0.1:{port} " in server.log()


def test_limits_of_client_ids_hold_after_a_native_login(server: Server) -> None:
    """The order of entities is Kafka's: a user's client id, the user, the client id."""
    salt = b"0123456789abcdef"
    salted = salted_password("SCRAM-SHA-256", PASSWORD, salt, ITERATIONS_MIN)
    user = {"name": "alice", "mechanism": 1, "iterations": ITERATIONS_MIN, "salt": salt, "salted_password": salted}
    with KafkaPeer(server.kafka) as peer:
        reply = peer.ask("AlterUserScramCredentials", deletions=[], upsertions=[user])
        assert [row.error_code for row in reply.results] == [0]
    few, many = 4.0, 1_000_000.0
    limit(server, "named", request_rate=few)
    assert throttled_natively(server, "named"), "by its client id"
    assert not throttled_natively(server, "other")
    limit(server, "", "alice", request_rate=many)
    assert not throttled_natively(server, "named"), "the limit of the user comes before that of the client id"
    limit(server, "other", "alice", request_rate=few)
    assert throttled_natively(server, "other"), "that of the user's client id before both"
    assert not throttled_natively(server, "named")


def test_what_cannot_be_told_now_is_told_later() -> None:
    """A stopped coordinator takes nothing; the worker neither forgets what its clients owe nor asks all the time."""
    turn: Any = SimpleNamespace(now_ms=1_000)
    meters = Meters(turn)
    bucket = meters._bucket(Limit(Sharers("request_rate", "u", ""), 10.0))
    assert bucket is not None and meters._take(bucket, 30) > 0
    for _ in range(3):
        assert meters.begin_turn(may_report=False) == ([], []) and meters.next_ms(turn.now_ms) > turn.now_ms
        turn.now_ms = meters.next_ms(turn.now_ms)
    assert meters.begin_turn(may_report=True) == ([], [("request_rate", "u", "", 10.0, 26)])
    turn.now_ms = meters.next_ms(turn.now_ms)
    assert meters.begin_turn(may_report=True) == ([], [])


# ---- rights


def test_what_is_denied_is_told_once_also_where_the_rest_of_a_request_waits(
    make_appliance: Callable[..., Server],
) -> None:
    """It waits a turn for a topic that is not known yet, which may be announced just now; it is decoded again then."""
    server = make_appliance(**{"security.authorizer": "acl"})
    rule = {"principal": "User:ANONYMOUS", "operation": "All", "resource": "topic", "name": "mine"}
    with Admin(server.state["listeners"]["local"]) as admin:
        admin.create_topic("seen")
        admin.add_acls([rule])
    with Peer(server.native) as peer:
        assert peer.produce("seen", BATCH)[0] == peer.produce("none", BATCH)[0] == 29
        assert peer.fetch("seen", 0)[0][0] == 29
        assert peer.call([native.OFFSETS, 4, [["seen", 0, -1, -1]]])[0][2][0][0] == 29
        header, _ = peer.call([native.OFFSETS, 5, [["mine", 0, -1, -1], ["seen", 0, -1, -1]]])
        assert [row[0] for row in header[2]] == [3, 29]
        assert peer.call([native.ADMIN, 6, "delete_topic", {"name": "last"}])[0][1] == 29
    wait_for(lambda: server.log().count(" audit: refused: ") >= 6, "the lines are written")
    refused = [line for line in server.log().splitlines() if " audit: refused: " in line]
    said = [line.partition('what="')[2].rstrip('"') for line in refused]
    assert said == ["Produce seen", "Produce none", "Fetch seen", "Offsets seen", "Offsets seen", "delete_topic last"]
    counted = wait_for(lambda: (number := server.state["refusals"].get("denied", 0)) >= 6 and number, "their number")
    assert counted == 6

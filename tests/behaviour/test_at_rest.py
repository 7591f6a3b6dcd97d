"""What processes do while nobody asks anything, alone and with one idle client of each kind.

appliance/README.md states for each role how often it may wake up.  Waiting is counted by the kernel (voluntary context
switches); a loop that turns without waiting shows in its system calls and in its processor time.
"""

from __future__ import annotations

import functools
import http.client
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import appliance
from appliance.addresses import parse_addresses
from appliance.client import Admin, ClientSecurity, Consumer, GroupConsumer, Producer
from appliance.records.encode import encode_values
from appliance.security import scram

from ..support.certificates import make_certificates
from ..support.kafka_peer import KafkaPeer
from ..support.measures import Activity, activity, system_calls
from ..support.native_peer import Peer
from ..support.ready import free_port
from ..support.server import Server, wait_for

WINDOW_S = 2.0
WINDOWS_MAX = 15
"""A burst that a start, or a client that comes, has left behind is averaged away; what goes on is not."""
SLACK = 1.1
"""Over the rate that the page states, of processes of which each second is one beat."""
CALLS_PER_WAKE_UP = 100
"""Who looks at all processes and partitions wakes up for some hundred; a loop that does not wait makes thousands."""
CPU_MS_MAX = 20
"""Of processor time in a second: on a machine where 40 processes want each core, a loop that does not wait gets 25."""
WORD = {"network worker": "network"}
SHORT_LIVED = {"opener", "remover", "cleaner", "repairer", "compactor"}
"""They work and end: a sender's first message makes a topic."""

HTTP, SYSLOG = f"127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"

Start = Callable[["Bed", ExitStack], None]


def stated() -> dict[str, float]:
    """Wake-ups per second of each role at rest, from the page."""
    text = (Path(appliance.__file__).parent / "README.md").read_text()
    rows = re.findall(
        r"^\| ([\w ]+) +\|.*\| ([\d.]+) \|$", text.split("wake-ups at rest")[1].split("\n\n")[0], re.MULTILINE
    )
    return {WORD.get(role, role): float(number) for role, number in rows}


class Bed:
    """An appliance with every role and listener, and a topic with a writer that has nothing to do."""

    def __init__(self, server: Server, files: Path) -> None:
        self.server, self.files = server, files

    def watched(self) -> dict[int, str]:
        """Processes by pid; ZooKeeper is a Java, and has its own ticks.  An opener, say, may be gone by now."""
        rows = self.server.state["processes"]
        roles = {row["pid"]: row["role"] for row in rows if row["role"] != "zookeeper"}
        return {pid: role for pid, role in roles.items() if Path(f"/proc/{pid}").exists()}

    def at(self, name: str) -> tuple[str, int]:
        return parse_addresses(self.server.state["listeners"][name])[0]

    @property
    def kafka(self) -> tuple[str, int]:
        return parse_addresses(self.server.kafka)[0]

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=f"{self.files}/ca.pem")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = tmp_path_factory.mktemp("certificates")
    for words in (("ca",), ("server", "localhost", "127.0.0.1")):
        make_certificates(files, *words)
    each = "127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    settings = {
        **{
            "kafka.listen": each,
            "native.listen": each,
            "metrics.listen": "127.0.0.1:0",
            "console.listen": "127.0.0.1:0",
            "alerts.webhook": "http://127.0.0.1:9/",
        },
        **{"tls.certificate": files / "server.pem", "tls.key": files / "server.key"},
        **{"zookeeper.nodes": 1, "writer.idle_ms": 3_600_000},
        **{"inputs.rest.type": "files", "inputs.rest.include": f"{files}/*.log", "inputs.rest.topic": "rest"},
        **{"inputs.http.type": "http", "inputs.http.listen": HTTP, "inputs.http.topic": "rest"},
        **{"inputs.net.type": "syslog", "inputs.net.listen": SYSLOG, "inputs.net.topic": "rest"},
    }
    with Server(tmp_path_factory.mktemp("rest") / "data", **settings) as server:
        server.wait_for_zookeeper()
        with Peer(server.native) as peer:
            peer.create("idle")
            assert peer.produce("idle", encode_values([bytes(1000)] * 1000, 1))[0] == 0
        wait_for(
            lambda: (
                all(map(server.pids, ("writer", "metrics", "console", "alerts"))) and len(server.pids("input")) == 3
            ),
            "all",
        )
        yield Bed(server, files)


def beyond(watched: Callable[[], dict[int, str]], bounds: dict[str, float]) -> list[str]:
    """What is not at rest in any span of some windows: not what a burst, or a machine that is busy, has added once."""
    began_s = time.monotonic()
    looks = [(began_s, activities(watched))]
    found = ["nothing measured"]
    for window in range(1, WINDOWS_MAX + 1):
        wait_for(lambda: time.monotonic() >= began_s + window * WINDOW_S, "the window ends")  # noqa: B023
        looks.append((time.monotonic(), activities(watched)))
        found = []
        for pid, (role, now) in looks[-1][1].items():
            spans = [
                not_at_rest(role, then[pid][1], now, looks[-1][0] - then_s, bounds[role])
                for then_s, then in looks[:-1]
                if pid in then
            ]
            if all(spans):
                found += spans[0] if spans else [f"{role} has just been started"]
        if not found:
            break
    return found


def activities(watched: Callable[[], dict[int, str]]) -> dict[int, tuple[str, Activity]]:
    """What each process has done by now; one of them may be gone by now."""
    rows: dict[int, tuple[str, Activity]] = {}
    for pid, role in watched().items():
        with suppress(FileNotFoundError, ProcessLookupError):
            rows[pid] = role, activity(pid)
    return {pid: row for pid, row in rows.items() if row[0] not in SHORT_LIVED}


def not_at_rest(role: str, then: Activity, now: Activity, passed_s: float, bound: float) -> list[str]:
    """What is wrong with how often a process woke up, and how long it ran, in one span."""
    count, cpu_ms = now.wake_ups - then.wake_ups, (now.cpu_ns - then.cpu_ns) / passed_s / 1e6
    found = []
    if count > SLACK * bound * passed_s + 2:  # one at each end of the windows
        found.append(f"{role} wakes up {count / passed_s:.1f} times a second, may {bound:g}")
    if cpu_ms > CPU_MS_MAX:
        found.append(f"{role} uses {cpu_ms:.0f} ms of processor time in a second")
    return found


def calls_beyond(bed: Bed, bounds: dict[str, float]) -> list[str]:
    """Who makes more system calls than so many wake-ups need, in windows that add up: some look at all now and then."""
    if shutil.which("strace") is None:
        return []
    counts: Counter[int] = Counter()
    found = ["nothing measured"]
    for window in range(1, WINDOWS_MAX + 1):
        counts += system_calls(bed.watched(), WINDOW_S)
        rates: Counter[str] = Counter()
        for pid, role in bed.watched().items():
            if role in SHORT_LIVED:
                continue
            rates[role] = max(rates[role], round(counts[pid] / WINDOW_S / window))
        found = [
            f"{role}: {rate} calls a second" for role, rate in rates.items() if rate > CALLS_PER_WAKE_UP * bounds[role]
        ]
        if not found:
            break
    return found


def test_every_role_that_runs_is_stated_and_at_rest(bed: Bed) -> None:
    bounds = stated()
    assert bounds.keys() == set(bed.watched().values()), "README.md states a number for each role that stays"
    assert beyond(bed.watched, bounds) == []
    assert calls_beyond(bed, bounds) == []


def test_a_worker_that_keeps_files_open_for_nobody_is_at_rest(bed: Bed) -> None:
    with Peer(bed.server.native) as peer:
        assert peer.fetch("idle", 0)
    assert beyond(bed.watched, stated()) == []


@pytest.mark.parametrize("role", ["metrics", "console", "network"])
def test_who_cannot_accept_a_connection_does_not_try_for_ever(bed: Bed, role: str) -> None:
    """The listener stays readable while no descriptor is left for the client that waits."""
    pids = bed.server.pids(role)
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    kept = {pid: max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1 for pid in pids}
    with ExitStack() as stack:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (kept[pid], before[pid][1]))
            stack.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, before[pid])
        for _ in range(20):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(bed.at(role) if role != "network" else bed.kafka, 60))
        bounds = stated()
        assert beyond(bed.watched, bounds | {role: bounds[role] + 5}) == []


# ---- one idle client of each kind


def connected(bed: Bed, stack: ExitStack, name: str) -> socket.socket:
    return stack.enter_context(socket.create_connection(bed.at(name), 60))


def plain(bed: Bed, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(bed.kafka, 60))


def librdkafka(bed: Bed, **settings: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bed.server.kafka, "log_level": 0, **settings}


def kafka_consumer(bed: Bed, stack: ExitStack) -> None:
    """Asks again every 0.5 s, by its default (fetch.wait.max.ms)."""
    consumer = confluent_kafka.Consumer(librdkafka(bed, **{"group.id": "nobody"}))
    stack.callback(consumer.close)
    consumer.assign([confluent_kafka.TopicPartition("idle", 0, 0)])
    assert consumer.poll(60).error() is None


def kafka_member(bed: Bed, stack: ExitStack) -> None:
    consumer = confluent_kafka.Consumer(librdkafka(bed, **{"group.id": "k", "auto.offset.reset": "earliest"}))
    stack.callback(consumer.close)
    consumer.subscribe(["idle"])
    assert consumer.poll(60).error() is None


def native_consumer(bed: Bed, stack: ExitStack) -> None:
    consumer = stack.enter_context(Consumer(bed.server.native))
    consumer.assign([("idle", 0)])
    assert consumer.poll(60)


def native_member(bed: Bed, stack: ExitStack) -> None:
    """Its streams ask again every 0.5 s (``wait_ms_max``)."""
    consumer = stack.enter_context(GroupConsumer(bed.server.native, "n", start="earliest"))
    (stream,) = consumer.create_message_streams({"idle": 1})["idle"]
    assert next(iter(stream))


def kafka_producer(bed: Bed, stack: ExitStack) -> None:
    producer = confluent_kafka.Producer(librdkafka(bed))
    producer.produce("idle", b"x")
    assert producer.flush(60) == 0
    stack.callback(producer.flush)


def native_producer(bed: Bed, stack: ExitStack) -> None:
    producer = stack.enter_context(Producer(bed.server.native))
    producer.send("idle", b"x").result(60)


def transactional_producer(bed: Bed, stack: ExitStack) -> None:
    """Between two transactions."""
    producer = confluent_kafka.Producer(librdkafka(bed, **{"transactional.id": "resting"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("idle", b"x")
    producer.commit_transaction(60)
    stack.callback(producer.flush)


def member_of_the_consumer_protocol(bed: Bed, stack: ExitStack) -> None:
    settings = {"group.id": "new", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(librdkafka(bed, **settings))
    stack.callback(consumer.close)
    consumer.subscribe(["idle"])
    assert consumer.poll(60).error() is None


def reader_of_a_pipeline(bed: Bed, stack: ExitStack) -> None:
    """What a stream of Spark asks before each micro-batch, each second."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from appliance.spark.options import source_options
    from appliance.spark.source import StreamReader

    reader = StreamReader(source_options({"bootstrap.servers": bed.server.native, "subscribe": "idle"}, True), 1)
    start, over = reader.initialOffset(), threading.Event()

    def ask() -> None:
        while not over.wait(1):
            reader.latestOffset(start, ReadAllAvailable())

    thread = threading.Thread(target=ask)
    thread.start()
    stack.callback(reader.stop)
    stack.callback(thread.join)
    stack.callback(over.set)


def tls_producer(bed: Bed, stack: ExitStack) -> None:
    address = f"SSL://{bed.server.address('native', 'SSL')}"
    producer = stack.enter_context(Producer(address, security=ClientSecurity(ca=f"{bed.files}/ca.pem")))
    producer.send("idle", b"x").result(60)


def page_of_the_console(bed: Bed, stack: ExitStack) -> None:
    """The page reads its events, of which there are some each two seconds."""
    sock = connected(bed, stack, "console")
    host, port = bed.at("console")
    sock.sendall(f"GET /api/events?topic=idle HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())

    def read() -> None:
        with suppress(OSError):
            while sock.recv(1 << 16):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(sock.shutdown, socket.SHUT_RDWR)


def scrape_that_does_not_come(bed: Bed, stack: ExitStack) -> None:
    connected(bed, stack, "metrics")


def request_to_the_console_that_does_not_come(bed: Bed, stack: ExitStack) -> None:
    connected(bed, stack, "console").sendall(b"GET / HT")


def handshake_half_way(bed: Bed, stack: ExitStack) -> None:
    ((host, port),) = parse_addresses(bed.server.address("kafka", "SSL"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = bed.tls().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    sock = stack.enter_context(socket.create_connection((host, port), 60))
    sock.sendall(outgoing.read())
    assert sock.recv(1), "the server's part has come; ours does not"


def half_a_frame(bed: Bed, stack: ExitStack) -> None:
    plain(bed, stack).sendall((1000).to_bytes(4, "big") + bytes(500))


def reader_that_is_paused(bed: Bed, stack: ExitStack) -> None:
    """Replies of 200 MB wait for it."""
    peer = stack.enter_context(Peer(bed.server.native))
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for correlation in range(200):
        peer.send([1, correlation, 0, 1, 1 << 20, [["idle", 0, 0, 1 << 20]]])


def login_that_does_not_come(bed: Bed, stack: ExitStack) -> None:
    ((host, port),) = parse_addresses(bed.server.address("kafka", "SASL_PLAINTEXT"))
    stack.enter_context(socket.create_connection((host, port), 60))


def client_that_has_logged_in(bed: Bed, stack: ExitStack) -> None:
    password, salt, iterations = b"correct horse", b"0123456789abcdef", scram.ITERATIONS_MIN
    salted = functools.partial(scram.salted_password, "SCRAM-SHA-256", password, salt, iterations)
    user = {"name": "alice", "mechanism": 1, "iterations": iterations, "salt": salt, "salted_password": salted()}
    with KafkaPeer(bed.server.kafka) as admin:
        reply = admin.ask("AlterUserScramCredentials", deletions=[], upsertions=[user])
        assert [row.error_code for row in reply.results] == [0]
    peer = stack.enter_context(KafkaPeer(bed.server.address("kafka", "SASL_PLAINTEXT")))
    assert peer.ask("SaslHandshake", mechanism="SCRAM-SHA-256").error_code == 0
    client = scram.ScramClient("SCRAM-SHA-256", "alice", password)
    challenge = peer.ask("SaslAuthenticate", auth_bytes=client.first())
    final = client.final(bytes(challenge.auth_bytes))
    assert peer.ask("SaslAuthenticate", auth_bytes=final).error_code == 0


def sender_of_syslog(bed: Bed, stack: ExitStack) -> None:
    """It keeps its connection."""
    sock = stack.enter_context(socket.create_connection(parse_addresses(SYSLOG.removeprefix("tcp://"))[0], 60))
    with Peer(bed.server.native) as peer:
        before = max(0, peer.end("rest"))  # there may be no such topic yet
        sock.sendall(b"<13>1 2026-11-27T12:00:00Z web-1 app - - - at rest\n")
        wait_for(lambda: peer.end("rest") > before, "the line is there")


def sender_of_http(bed: Bed, stack: ExitStack) -> None:
    """It keeps its connection."""
    connection = http.client.HTTPConnection(HTTP, timeout=60)
    stack.callback(connection.close)
    connection.request("POST", "/", b"at rest")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    assert not response.will_close


ADDED: dict[Start, dict[str, float]] = {
    kafka_consumer: {"network": 8, "coordinator": 2},
    kafka_member: {"network": 9, "coordinator": 10},
    native_consumer: {},
    native_member: {"network": 7},
    kafka_producer: {},
    native_producer: {},
    transactional_producer: {},
    member_of_the_consumer_protocol: {"network": 15, "coordinator": 10},
    reader_of_a_pipeline: {"network": 8, "coordinator": 4},
    tls_producer: {},
    page_of_the_console: {"console": 10, "network": 15, "coordinator": 300},
    scrape_that_does_not_come: {},
    request_to_the_console_that_does_not_come: {},
    handshake_half_way: {},
    half_a_frame: {},
    reader_that_is_paused: {},
    login_that_does_not_come: {},
    client_that_has_logged_in: {},
    sender_of_syslog: {},
    sender_of_http: {},
}
"""How many more wake-ups an idle client may cost each role.

Consumers ask again twice a second.  The page asks for each group every two seconds, and their offsets are in ZooKeeper.
"""


@pytest.mark.parametrize("start", ADDED, ids=lambda start: start.__name__)
def test_an_idle_client_wakes_nobody_without_need(bed: Bed, start: Start) -> None:
    added = ADDED[start]
    bounds = {role: number + added.get(role, 0) for role, number in stated().items()}
    with ExitStack() as stack:
        start(bed, stack)
        assert beyond(bed.watched, bounds) == []
        assert calls_beyond(bed, bounds) == []


CLIENTS = """
import sys, threading
from appliance.client import Consumer, GroupConsumer, Producer
address = sys.argv[1]
with Producer(address) as producer, Consumer(address) as consumer, GroupConsumer(address, "idle-process") as group:
    producer.send("quiet", b"x").result(60)
    consumer.assign([("quiet", 0)])
    (stream,) = group.create_message_streams({"quiet": 1})["quiet"]
    assert consumer.poll(60) and next(iter(stream))
    threading.Thread(target=lambda: next(iter(stream)), daemon=True).start()
    print("up", flush=True)
    while True:
        consumer.poll(3600)
"""
CLIENTS_WAKE_UPS_MAX = 25
"""Of a producer, a consumer and a member of a group that wait for messages: two long polls, and a session."""


def test_the_clients_of_this_project_are_at_rest_themselves(bed: Bed) -> None:
    with Admin(bed.server.native) as admin:
        admin.create_topic("quiet", 1)
    words = [sys.executable, "-c", CLIENTS, bed.server.native]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        try:
            assert clients.stdout.readline() == "up\n"
            assert beyond(lambda: {clients.pid: "clients"}, {"clients": CLIENTS_WAKE_UPS_MAX}) == []
        finally:
            clients.kill()

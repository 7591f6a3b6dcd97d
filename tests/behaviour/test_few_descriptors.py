"""A machine that grants few descriptors: they are there for what is used, and who lacks them is told so by name."""

from __future__ import annotations

import http.client
import json
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from appliance.addresses import parse_addresses
from appliance.records.encode import encode_values
from appliance.wire import native
from appliance.wire.kafka.codes import Code

from ..support.command_line import run
from ..support.native_peer import Peer
from ..support.server import Server, wait_for

BATCH = encode_values([b"one"], 1_000)
TOPIC = "t"
ATTEMPTS_MAX = 20
LINES_MAX = 200
"""In the journal: of a start, of a topic with hundreds of partitions and of a message to each of these."""


@contextmanager
def granted(directory: Path, descriptors: int, **settings: object) -> Iterator[Server]:
    server = Server(directory / "data", within=["prlimit", f"--nofile={descriptors}:{descriptors}"], **settings)
    with server:
        yield server


@pytest.fixture(autouse=True)
def descriptors_of_the_clients() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def produce_to_all(server: Server, partitions: int, clients: int = 4) -> Counter[int]:
    """One message to each partition, all at once: how often each error was answered in the end."""
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(server.native)) for _ in range(clients)]
        peer_of = {partition: peers[partition % clients] for partition in range(partitions)}
        for partition, peer in peer_of.items():
            send(peer, partition)
        return Counter(answers(peer_of).values())


def send(peer: Peer, partition: int) -> None:
    peer.send([native.PRODUCE, partition, TOPIC, partition, -1, 60_000], BATCH)


def answers(peer_of: dict[int, Peer]) -> dict[int, int]:
    """The code for each partition; where no writer had started in time the batch is sent again, as clients do."""
    codes: dict[int, int] = {}
    waiting = peer_of
    for _ in range(ATTEMPTS_MAX):
        codes |= {partition: peer.receive()[0][1] for partition, peer in waiting.items()}
        waiting = {
            partition: peer for partition, peer in waiting.items() if codes[partition] == Code.LEADER_NOT_AVAILABLE
        }
        for partition, peer in waiting.items():
            send(peer, partition)
        if not waiting:
            break
    return codes


def stays(server: Server, stack: ExitStack) -> bool:
    """Whether one more connection is served; it is held until the end of the stack."""
    peer = stack.enter_context(Peer(server.native, hello=False))
    with suppress(OSError, EOFError):
        return bool(peer.call([native.HELLO, 0, native.MAGIC, native.VERSION, "test"])[0][1] == 0)
    return False


def test_partitions_take_no_connections_away(tmp_path: Path) -> None:
    """With 1,024 descriptors and 230 partitions, of which each has a writer."""
    partitions, connections = 230, 300
    with granted(tmp_path, 1_024) as server:
        with Peer(server.native) as peer:
            peer.create(TOPIC, partitions)
        assert produce_to_all(server, partitions) == {0: partitions}
        with ExitStack() as stack:
            assert sum(stays(server, stack) for _ in range(connections)) == connections
        assert server.state["limits"] == []


def test_a_limit_that_is_reached_has_its_own_name_and_what_is_in_use(tmp_path: Path) -> None:
    with granted(tmp_path, 256, **{"network.workers": 1, "network.connections_max": 4_096}) as server:
        with ExitStack() as stack:
            crowd = sum(iter(lambda: stays(server, stack), False))
            assert 128 < crowd < 256, "more than half is for connections"
            (row,) = wait_for(lambda: server.state["limits"], "the limit to be shown")
            used = len(list(Path(f"/proc/{server.pid_of('network')}/fd").iterdir()))
            assert (row["limit"], row["process"], row["value"]) == ("descriptors", "network 0", 256)
            assert abs(row["in_use"] - used) < 10 and "LimitNOFILE" in row["advice"]
        assert "refused: descriptors reached" in server.log() and "connections_max reached" not in server.log()
        wait_for(lambda: not server.state["limits"], "it to be over")


def test_more_partitions_than_descriptors_are_served_in_turn(tmp_path: Path) -> None:
    """All of them are readable and counted, also by those who map every table: coordinator and metrics."""
    partitions = 300
    with granted(tmp_path, 100, **{"metrics.listen": "127.0.0.1:0"}) as server:
        with Peer(server.native) as peer:
            peer.create(TOPIC, partitions)
        assert produce_to_all(server, partitions) == {0: partitions}
        with Peer(server.native) as peer:
            assert [peer.end(TOPIC, partition) for partition in range(partitions)] == [len(BATCH)] * partitions
            assert all(peer.fetch(TOPIC, 0, partition)[1] for partition in range(partitions))
        ((host, port),) = parse_addresses(server.state["listeners"]["metrics"])
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        assert f'appliance_topic_messages_total{{topic="{TOPIC}"}} {partitions}.0' in page
        assert len(server.log().splitlines()) < LINES_MAX
        assert "ended" not in server.log(), "no process has died of it"


def test_few_descriptors_are_a_warning_before_anybody_lacks_one(tmp_path: Path) -> None:
    with granted(tmp_path, 100) as server:
        said = run("doctor", "--data", str(server.data_dir), "--json")
        found = [row for row in json.loads(said.out) if row["condition"] == "LimitLow"]
        assert said.status == 0 and found and "100" in found[0]["what"] and "LimitNOFILE" in found[0]["todo"]


def test_a_process_without_room_is_named_and_the_journal_is_not_flooded(tmp_path: Path) -> None:
    """Method: a running worker may have no further descriptor, so that no writer can be connected with it."""
    with granted(tmp_path, 1_024, **{"network.workers": 1}) as server, Peer(server.native) as peer:
        peer.create(TOPIC, 50)
        pid = server.pid_of("network")
        used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, 1_024))
        for partition in range(50):
            send(peer, partition)
        (row, *_) = wait_for(lambda: server.state["limits"], "the limit to be shown")
        assert (row["limit"], row["process"]) == ("descriptors", "network 0")
        assert row["value"] == used >= row["in_use"] > used - 10
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1_024, 1_024))
        assert answers(dict.fromkeys(range(50), peer)) == dict.fromkeys(range(50), 0)
        wait_for(lambda: not server.state["limits"], "it to be over")
        assert len([line for line in server.log().splitlines() if "no room" in line]) == 1

"""The clients of benchmarks against a real appliance: they agree about what they sent and received."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.bench import compiling, stamps
from appliance.bench.brokers import BareBroker, Klite, OurBroker
from appliance.bench.compiling import Missing
from appliance.bench.kafka_clients import (
    AT_ONCE,
    FIFTY,
    KafkaClient,
    c_client,
    fetch_headers,
    outcome,
    python_client,
)
from appliance.bench.kafka_side import KafkaSide
from appliance.bench.questions import end_to_end

COUNT, SIZE = 1000, 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurBroker]:
    one = OurBroker(tmp_path_factory.mktemp("bench"))
    yield one
    one.stop()


@pytest.fixture(scope="module", params=[c_client, python_client])
def client(request: pytest.FixtureRequest) -> KafkaClient:
    try:
        made: KafkaClient = request.param()
    except Missing as missing:
        pytest.skip(str(missing))
    return made


def test_a_client_counts_and_checks_what_it_sent(broker: OurBroker, client: KafkaClient) -> None:
    side = KafkaSide(broker, client)
    topic = side.topic(partitions=3)
    sent = side.produce(topic, COUNT, SIZE, FIFTY | {"acks": "1"}, 3)
    assert sent.count == COUNT and sent.check == stamps.check(range(COUNT)) and sent.seconds > 0


def test_the_clients_agree(broker: OurBroker, client: KafkaClient) -> None:
    """What one produces, the one in Python finds."""
    side = KafkaSide(broker, client)
    topic = side.filled(COUNT, SIZE)
    assert python_client().consume(broker.address, topic, COUNT, SIZE, {}).check == stamps.check(range(COUNT))


def test_messages_of_another_size_are_no_result(broker: OurBroker, client: KafkaClient) -> None:
    topic = KafkaSide(broker, client).filled(100, SIZE)
    with pytest.raises(stamps.Wrong, match="another size"):
        client.consume(broker.address, topic, 100, SIZE + 1, {})


def test_messages_out_of_order_are_no_result(broker: OurBroker, client: KafkaClient) -> None:
    """The same numbers a second time come after larger ones."""
    side = KafkaSide(broker, client)
    topic = side.filled(100, SIZE)
    client.produce(broker.address, topic, 100, SIZE, FIFTY | {"acks": "1"})
    with pytest.raises(stamps.Wrong, match="out of order"):
        client.consume(broker.address, topic, 200, SIZE, {})


def test_delays_count_from_the_time_due(broker: OurBroker, client: KafkaClient) -> None:
    side = KafkaSide(broker, client)
    delays = end_to_end.once(side, side.topic(), rate=200, seconds=1)
    assert 0 < delays.p50_ms <= delays.p99_ms <= delays.p999_ms <= delays.max_ms


def test_a_message_that_was_due_long_ago_counts_in_full(broker: OurBroker) -> None:
    """Messages that nobody read for a while are late by as much."""
    try:
        client = c_client()
    except Missing as missing:
        pytest.skip(str(missing))
    topic = KafkaSide(broker, client).topic()
    sent = outcome(client.start("timed", broker.address, topic, 1000, 200, SIZE, {"acks": "1"}), 200)
    late = outcome(client.start("delays", broker.address, topic, 0, 200, SIZE, AT_ONCE), 200)
    assert late.check == sent.check and late.max_ms > 200  # the first was due that long before the last


@given(st.permutations(range(20)), st.integers(0, 19), st.integers(0, 2**64 - 1))
def test_the_sum_shows_what_is_missing_or_changed_in_any_order(order: list[int], which: int, other: int) -> None:
    whole = stamps.check(order)
    assert whole == stamps.check(range(20))
    assert stamps.check(order[:which] + order[which + 1 :]) != whole
    if other != order[which]:
        assert stamps.check([*order[:which], other, *order[which + 1 :]]) != whole


def test_without_a_compiler_the_notice_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    compiling.echo.cache_clear()
    with pytest.raises(Missing, match="apt-get install gcc"):
        compiling.echo()
    compiling.echo.cache_clear()


def test_without_klite_the_notice_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KLITE", str(tmp_path / "none"))
    with pytest.raises(Missing, match="go build"):
        Klite(tmp_path)


def test_klite_is_measured_where_it_is(tmp_path: Path, client: KafkaClient) -> None:
    try:
        klite = Klite(tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        side = KafkaSide(klite, client)
        run = side.produce(side.topic(), 100, SIZE, FIFTY | {"acks": "all"})
        assert run.count == 100 and klite.pss_bytes() > 0
    finally:
        klite.stop()


@pytest.mark.parametrize("flush", ["0", "1"])
def test_a_bare_broker_keeps_and_sends_what_is_produced(client: KafkaClient, tmp_path: Path, flush: str) -> None:
    bare = BareBroker(tmp_path)
    try:
        side = KafkaSide(bare, client)
        for partitions in (1, 3):
            topic = side.topic(partitions, {"flush.messages": flush})
            for acks in ("0", "1", "all"):
                client.produce(bare.address, topic, 1000, SIZE, FIFTY | {"acks": acks}, partitions)
            side.wait_for(3000, topic, partitions)
            side.delete(topic)
        topic = side.topic(settings={"flush.messages": flush})
        side.produce(topic, 1000, SIZE, FIFTY | {"acks": "1"})
        assert fetch_headers(bare.address, topic, 1000).count == 1000
        assert end_to_end.once(side, side.topic(settings={"flush.messages": flush}), 1000, 1).count == 2000
    finally:
        bare.stop()

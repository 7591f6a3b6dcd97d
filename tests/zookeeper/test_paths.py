"""appliance.zookeeper.paths: names and values survive the way there and back, junk is refused by its path."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import BadValue, InvalidRequest, InvalidTopic
from appliance.names import TopicPartition
from appliance.zookeeper import paths
from appliance.zookeeper.operations import check_request, get
from appliance.zookeeper.paths import BrokerInfo, CommittedOffset, Subscription, TopicInfo

names = st.text(max_size=40)
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


def test_the_paths_are_those_of_the_design() -> None:
    part = TopicPartition("logs", 3)
    assert paths.broker(7) == "/brokers/ids/7"
    assert paths.topic("logs") == "/brokers/topics/logs"
    assert paths.consumer("g", "g_host-1-ab") == "/consumers/g/ids/g_host-1-ab"
    assert paths.owner("g", part) == "/consumers/g/owners/logs/3"
    assert paths.offset("g", part) == "/consumers/g/offsets/logs/3"


@given(names)
def test_any_group_name_becomes_one_component(name: str) -> None:
    component = paths.encode_name(name)
    assert "/" not in component and component not in ("", ".", "..") and component.isascii()
    assert paths.decode_name(component) == name


def test_a_group_name_has_bounds() -> None:
    with pytest.raises(InvalidRequest, match="at most 1000"):
        paths.encode_name("x" * 1_001)


@given(st.text(), st.text())
def test_different_names_have_different_components(one: str, other: str) -> None:
    assert (paths.encode_name(one) == paths.encode_name(other)) == (one == other)


ANY_TEXT = st.text(st.characters(), max_size=300)  # surrogates, control characters and all


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, st.integers())
@example("g", "c", "..", 0)
@example("g", "c", "a/b", 0)
@example("", "", "", -1)
@example("\ud800", "\0", "t", 2**70)
def test_whatever_the_names_a_path_is_refused_or_zookeeper_takes_it(g: str, c: str, t: str, number: int) -> None:
    """Goal: no input whatever reaches kazoo's threads that would end them."""
    part = TopicPartition(t, number)
    for make in (
        lambda: paths.topic(t),
        lambda: paths.consumer(g, c),
        lambda: paths.owners(g, t),
        lambda: paths.owner(g, part),
        lambda: paths.offsets(g, t),
        lambda: paths.offset(g, part),
    ):
        try:
            path = make()
        except (InvalidRequest, InvalidTopic):
            continue
        check_request(get(path))
        assert path.isascii() and path.count("/") == path.strip("/").count("/") + 1


@given(
    st.builds(
        CommittedOffset, st.integers(0, 2**63 - 1), st.text(max_size=20), st.sampled_from(["", "a" * 32]),
        st.integers(-1, 2**31 - 1),
    )
)  # fmt: skip
def test_offsets_return(committed: CommittedOffset) -> None:
    value = paths.encode_offset(committed)
    assert paths.decode_offset("/x", value) == committed
    plain = committed == CommittedOffset(committed.offset)
    assert plain == (value == str(committed.offset).encode()), "the paper's decimal text"


streams = st.dictionaries(topics, st.integers(0, 99), max_size=4)
patterns = st.sampled_from(["a.*", ".*?x", "!", "a*1*b", "*a".replace("*", "a*")])
subscriptions = st.one_of(
    streams.map(Subscription),
    st.tuples(st.just({}), patterns, st.integers(0, 99), st.booleans()).map(lambda fields: Subscription(*fields)),
    st.tuples(streams, names, names).map(lambda f: Subscription(f[0], protocol="kafka", client=f[1], host=f[2])),
)


@given(subscriptions)
def test_subscriptions_return(subscription: Subscription) -> None:
    assert paths.decode_subscription("/x", paths.encode_subscription(subscription)) == subscription


def test_subscriptions_are_the_papers_text() -> None:
    assert paths.encode_subscription(Subscription({"t1": 2, "t2": 1})) == b'{"t1": 2, "t2": 1}'
    assert paths.encode_subscription(Subscription(pattern="white.*", streams=2)) == b"*2*white.*"
    assert paths.encode_subscription(Subscription(pattern="black", streams=1, exclude=True)) == b"!1!black"


def test_a_topic_named_protocol_is_a_topic() -> None:
    subscription = Subscription({"protocol": 1})
    assert paths.decode_subscription("/x", paths.encode_subscription(subscription)) == subscription


@pytest.mark.parametrize(
    "subscription, topic, streams",
    [
        (Subscription({"a": 2}), "a", 2),
        (Subscription({"a": 2}), "b", 0),
        (Subscription(pattern="a.*", streams=3), "ab", 3),
        (Subscription(pattern="a", streams=3), "ab", 0),  # the whole name
        (Subscription(pattern="a.*", streams=3, exclude=True), "ab", 0),
        (Subscription(pattern="a.*", streams=3, exclude=True), "b", 3),
    ],
)
def test_streams_of(subscription: Subscription, topic: str, streams: int) -> None:
    assert subscription.streams_of(topic) == streams


@given(names, st.integers(0, 99))
def test_owners_return(consumer: str, stream: int) -> None:
    assert paths.decode_owner("/x", paths.encode_owner(consumer, stream)) == (consumer, stream)


def test_brokers_and_topics_return() -> None:
    broker = BrokerInfo("i", "h", "h:1", "h:2", {"logs": [0, 2]})
    assert paths.decode_broker("/x", paths.encode_broker(broker)) == broker
    topic = TopicInfo({0: [1], 1: [2, 1]}, {"retention.ms": "1"}, "1" * 32)
    assert paths.decode_topic("/x", paths.encode_topic(topic)) == topic


@pytest.mark.parametrize(
    "decode, value",
    [
        (paths.decode_offset, b"12x"),
        (paths.decode_offset, b'{"metadata": "m"}'),
        (paths.decode_owner, b"nobody"),
        (paths.decode_owner, b"c-x"),
        (paths.decode_subscription, b"*1*("),
        (paths.decode_subscription, b"*x*a"),
        (paths.decode_subscription, b'{"a": -1}'),
        (paths.decode_subscription, b'{"a": "b"}'),
        (paths.decode_subscription, b"\xff"),
        (paths.decode_broker, b"{}"),
        (paths.decode_broker, b"\xff"),
        (paths.decode_topic, b'{"partitions": {"1": [0]}}'),
        (paths.decode_topic, b'{"partitions": {"0": []}}'),
        (paths.decode_topic, b"null"),
    ],
)
def test_junk_is_refused_with_its_path(decode: object, value: bytes) -> None:
    with pytest.raises(BadValue, match="/some/node"):
        decode("/some/node", value)  # type: ignore[operator]


@given(st.binary(max_size=40))
def test_no_junk_gets_through_as_another_error(value: bytes) -> None:
    for decode in (paths.decode_offset, paths.decode_owner, paths.decode_subscription, paths.decode_topic):
        try:
            decode("/x", value)
        except BadValue as error:
            assert "/x" in str(error)

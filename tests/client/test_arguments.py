"""appliance.client.arguments, and every public verb of the client with values that it cannot take.

The table PARAMETERS has odd values for each parameter, by name; a verb whose parameter is not in it fails the test.
Whatever is odd has to be refused at the call, by an error that waiting does not mend, and the client works on.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import client as client_package
from appliance.client import (
    Admin,
    Audit,
    ClientSecurity,
    Consumer,
    GroupConsumer,
    MessageStream,
    Producer,
    aio,
    arguments,
)
from appliance.errors import ApplianceError, BadValue, ClientFault, InvalidGroup, InvalidRequest, InvalidTopic

from ..support.client_peer import Peer
from ..support.ready import reap
from ..support.server import Server

TIMEOUT_S = 60
AT_ONCE_S = 20.0
"""Generous for a loaded machine, and far below the 60 s that a producer waits for what may come."""
GROUP = "odd"
HUGE = 10**30
NO_FLOAT = 10**400
"""More than the largest float."""
DIGITS = 10**5000
"""With more digits than Python writes."""
NAMES = (None, b"t", 5, [], "", "x" * 3000, "half \ud800")
NUMBERS = (None, "1", 1.5, True, HUGE, -HUGE, [])
TIMES = ("1", float("nan"), float("inf"), -1, HUGE, [])
PARTS = ("x", 5, [5], ["xy"], [("t",)], [("t", "0")], [("t", -1)], [("t", HUGE)], [(None, 0)])
OFFSETS = ("x", 5, {"t": 0}, {("t", 0): "7"}, {("t", 0): HUGE}, {("t", 0): -5}, {("t", "0"): 0}, {(None, 0): 0})
FUNCTIONS = (5, "print")
SETTINGS = ("x", 5, {5: "x"}, {"retention.ms": HUGE}, {"retention.ms": object()})

PARAMETERS: dict[str, tuple[Any, ...]] = {
    "topic": NAMES,
    "name": NAMES,
    "new_name": (None, b"t", 5, []),
    "group": NAMES,
    "transactional_id": NAMES,
    "partition": (*NUMBERS, -1),
    "partitions_count": (*NUMBERS[1:], 0, -1),
    "offset": (*NUMBERS, -3),
    "at": (*NUMBERS, -3),
    "timestamp": (*NUMBERS, -3),
    "timestamp_ms": (*NUMBERS, -1),
    "before": (*NUMBERS, -3),
    "start": NUMBERS,
    "stop": NUMBERS,
    "timeout": TIMES,
    "messages_max": (*NUMBERS, 0, -1),
    "streams": (*NUMBERS, 0, -1),
    "value": ("text", 5, []),
    "values": (None, 5, "text", ["text"], [5]),
    "tails": (None, 5, ["text"], []),
    "keys": (5, ["text"], []),
    "key": ("text", 5, []),
    "headers": (None, 5, "ab", ["h"], [("h", "text")], [(5, b"")], [("\ud800", b"")]),
    "on_delivery": FUNCTIONS,
    "parts": (5, (5,), ("t",), ("t", "0"), ("t", HUGE), (None, 0)),
    "partitions": PARTS,
    "offsets": OFFSETS,
    "names": ("x", 5, [5], [None], ["half \ud800"]),
    "settings": SETTINGS,
    "limits": (5, "x", {5: 1}, {"producer_byte_rate": "x"}, {"no such": 1.0}),
    "user": (5, [], "half \ud800"),
    "client_id": (5, [], "half \ud800"),
    "topics": (None, 5, "x", {}, {"t": 0}, {"t": "1"}, {"t": HUGE}, {5: 1}, {"": 1}, {"x" * 3000: 1}),
    "topic_filter": (None, 5, "", "("),
    "cut": (5, "x"),
    "topic_id": (None, 5, "", "x", "0" * 31),
    "password": (None, b"x", 5, "", "half \ud800"),
    "new": (None, 5, "x"),
    "locked": (5, "x"),
    "expires_ms": ("1", 1.5, HUGE, -1, []),
    "kick": (None, 5, "x"),
    "without_password": (None, 5, "x"),
    "selected": (5, "x", {5: "x"}, {"no such": "x"}, {"name": 5}, {"resource": "Nothing"}),
    "rules": (None, 5, "x", [5], [{}], [{"no such": "x"}], [{"principal": "x"}]),
    "grant": (None, 5, "x", [5], [None], ["half \ud800"]),
    "revoke": (None, 5, "x", [5], [None], ["half \ud800"]),
    "dry_run": (None, 5, "x"),
    "consumer": (5, "x"),
    "note": (None, 5, b"x", "half \ud800"),
    "processed": (None, 5, "x"),
}
"""What each parameter cannot be.  One that a verb may leave out takes None."""

NOT_VERBS = {"disown", "wait_for", "call_when_done", "go_back", "check_usable", "take_messages", "ask"} | {
    *("begin_transaction", "deliver", "drop", "check_transactional", "proof", "handed_out", "on_committed"),
    *("offer", "offer_values", "make_way", "knows", "hurry", "fill", "fill_values"),
}
"""Public for other modules of the client only."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("odd") / "data", **{"zookeeper.nodes": 1}) as running:
        running.wait_for_zookeeper()
        with Admin(running.native) as admin:
            admin.create_topic("t", 2)
        yield running


def verbs(client: type) -> Iterator[tuple[str, str]]:
    """Every verb of a class with each of its parameters."""
    for name, verb in inspect.getmembers(client, inspect.isfunction):
        if name.startswith("_") or name in NOT_VERBS:
            continue
        for parameter in list(inspect.signature(verb).parameters.values())[1:]:
            if parameter.kind is not parameter.VAR_KEYWORD:  # those of another verb
                yield name, parameter.name


def odd_values(name: str, verb: str, signature: inspect.Signature) -> list[Any]:
    known = "partitions_count" if (name, verb) in COUNTS else name
    odd = PARAMETERS[known]
    optional = signature.parameters[name].default is None
    return [value for value in odd if not (optional and value is None)]


COUNTS = {("partitions", "create_topic"), ("partitions", "alter_topic"), ("partitions", "restore_topic")}
GOOD: dict[str, Any] = {
    "topic": "t",
    "name": "t",
    "group": GROUP,
    "transactional_id": "none",
    "partition": 0,
    "offset": 0,
    "timestamp": 0,
    "timestamp_ms": 0,
    "before": 0,
    "start": 0,
    "stop": 1,
    "value": b"v",
    "values": [b"v"],
    "tails": [b"\0"],
    "partitions": [("t", 0)],
    "offsets": {("t", 0): 0},
    "limits": {"producer_byte_rate": 1e9},
    "settings": {"consumer.session.timeout.ms": 60_000},
    "user": "somebody",
    "topics": {"t": 1},
    "topic_filter": ".*",
    "topic_id": "0" * 32,
    "password": "secret",
    "selected": {"name": "nothing of this name"},
    "rules": [],
}
"""What each parameter that has no default may be."""


def call(client: object, verb: str, parameter: str, odd: Any) -> object:
    """Call a verb with one odd value; what it gives is used up, where it is an iterator."""
    bound = getattr(client, verb)
    given = {}
    positional: tuple[Any, ...] = ()
    for each in inspect.signature(bound).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            continue
        value = odd if each.name == parameter else GOOD.get(each.name, each.empty)
        if each.kind is each.VAR_POSITIONAL:
            positional = (odd,) if each.name == parameter else ()
        elif each.name == parameter or each.default is each.empty:
            assert value is not each.empty, f"{verb}({each.name}): give it a GOOD value"
            given[each.name] = value
    if positional and given:
        return bound(*given.values(), *positional)
    return bound(*positional, **given)


def refusals(
    client: object, works: Callable[[], object], result_of: Callable[[Any], object] = lambda given: given
) -> list[str]:
    """All that is wrong with how a client refuses odd values.  ``result_of``: of what a call gives."""
    found = []
    for verb, parameter in verbs(type(client)):
        for odd in odd_values(parameter, verb, inspect.signature(getattr(type(client), verb))):
            started_s = time.monotonic()
            what = f"{verb}({parameter}={odd!r:.50})"
            try:
                result = result_of(call(client, verb, parameter, odd))
            except (ClientFault, BadValue):
                pass
            except Exception as error:  # whatever it is, it is wrong
                found.append(f"{what} raises {error!r:.200}")
            else:
                found.append(f"{what} is taken: {result!r:.100}")
            if time.monotonic() - started_s > AT_ONCE_S:
                found.append(f"{what} takes {time.monotonic() - started_s:.1f} s")
        works()
    return found


def test_a_producer_refuses_what_it_cannot_take(server: Server) -> None:
    with Producer(server.native) as producer:
        assert not refusals(producer, lambda: producer.send("t", b"x").result(TIMEOUT_S))


def test_an_audit_refuses_what_it_cannot_take(server: Server) -> None:
    with Producer(server.native) as producer, Audit(producer, "t-audit") as audit:
        assert not refusals(audit, lambda: audit.flush(TIMEOUT_S))


def test_every_class_of_the_client_is_tried() -> None:
    tuples = {"Message", "Values", "Sent", "Whitelist", "Blacklist"}  # the first three are results
    given = {each for each in client_package.__all__ if isinstance(getattr(client_package, each), type)}
    assert given - tuples == {each.__name__ for each in CLASSES} | {"Delivery", "MessageStream"}


def test_a_delivery_refuses_what_it_cannot_take(server: Server) -> None:
    with Producer(server.native) as producer:
        delivery = producer.send("t", b"x")
        for timeout in TIMES:
            for wait in (delivery.result, delivery.exception):
                with pytest.raises(InvalidRequest, match="timeout"):
                    wait(timeout)
        with pytest.raises(InvalidRequest, match="give a function"):
            delivery.add_done_callback(5)  # type: ignore[arg-type]
        assert delivery.result(TIMEOUT_S).topic == "t"


def test_a_consumer_refuses_what_it_cannot_take(server: Server) -> None:
    with Consumer(server.native) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        before = consumer.positions()
        assert not refusals(consumer, lambda: consumer.offsets_at(0))
        assert consumer.positions() == before and not consumer.paused(), "what is refused changes nothing"


def test_an_admin_refuses_what_it_cannot_take(server: Server) -> None:
    with Admin(server.native) as admin:
        assert not refusals(admin, lambda: admin.topics(["t"]))
        assert [topic["name"] for topic in admin.topics() if topic["name"] != "t"] == []


def test_a_group_consumer_and_its_streams_refuse_what_they_cannot_take(server: Server) -> None:
    with GroupConsumer(server.native, GROUP) as consumer:
        assert not refusals(consumer, lambda: consumer.owned)
        (stream,) = consumer.create_message_streams({"t": 1})["t"]
        for verb, parameter in verbs(MessageStream):
            for odd in PARAMETERS[parameter]:
                with pytest.raises(InvalidRequest):
                    getattr(stream, verb)(**{parameter: odd})


@pytest.mark.parametrize("kind", [aio.Producer, aio.Consumer, aio.Admin, aio.GroupConsumer])
def test_a_client_of_an_event_loop_refuses_what_it_cannot_take(server: Server, kind: type) -> None:
    """When the call is awaited, by the same names; the loop and the client go on."""
    client: Any = kind(server.native, *([GROUP] if kind is aio.GroupConsumer else []))
    works = {
        aio.Producer: lambda: client.send_and_wait("t", b"x"),
        aio.Consumer: lambda: client.offsets_at(0),
        aio.Admin: lambda: client.topics(["t"]),
    }
    with asyncio.Runner() as runner:

        def result_of(given: Any) -> object:
            return runner.run(given) if inspect.iscoroutine(given) else given

        if kind is aio.Consumer:
            runner.run(client.assign([("t", 0), ("t", 1)]))
        assert not refusals(client, lambda: result_of(works.get(kind, lambda: client.owned)()), result_of)
        runner.run(client.close())


CLASSES = [Producer, Consumer, Admin, GroupConsumer, Audit, ClientSecurity]


@pytest.mark.parametrize("client", [*CLASSES, aio.Producer, aio.Consumer, aio.Admin, aio.GroupConsumer])
def test_options_are_refused_by_name(client: type) -> None:
    """Every keyword of every constructor with values of no kind that it knows."""
    good: Mapping[str, Any] = {"bootstrap": "127.0.0.1:1", "group": GROUP, "topic": "t"}
    if client is Audit:
        good = {**good, "producer": Producer("127.0.0.1:1")}
    first = [name for name in inspect.signature(client).parameters if name in good]
    for name in inspect.signature(client).parameters:
        for odd in (object(), [5], -HUGE, float("nan"), NO_FLOAT, DIGITS, [DIGITS]):
            given = {each: good[each] for each in first} | {name: odd}
            try:
                client(**given)
            except (BadValue, ClientFault) as error:
                assert name in str(error), f"{name}={arguments.shown(odd)}: {error}"
            else:
                raise AssertionError(f"{name}={arguments.shown(odd)} is taken")


CHILDREN: dict[str, Callable[[Peer], tuple[Any, Callable[[Any], object]]]] = {
    "admin": lambda peer: (Admin(peer.address), lambda admin: admin.init_producer()),
    "consumer": lambda peer: (assigned(peer), lambda consumer: consumer.poll(0)),
    "consumer, buffered": lambda peer: (assigned(peer), lambda consumer: next(consumer.messages(0))),
    "consumer, seek": lambda peer: (assigned(peer), lambda consumer: consumer.seek("t", 0, 0)),
    "group": lambda peer: (GroupConsumer(peer.address, GROUP), lambda group: group.commit()),
    "group, streams": lambda peer: (
        GroupConsumer(peer.address, GROUP),
        lambda group: group.create_message_streams({"t": 1}),
    ),
}


def assigned(peer: Peer) -> Consumer:
    consumer = Consumer(peer.address)
    with Producer(peer.address) as producer:
        producer.send_many("t", [b"%d" % i for i in range(10)])
    consumer.assign([("t", 0)])
    assert next(iter(consumer.messages(TIMEOUT_S))).value == b"0"
    return consumer


@pytest.mark.parametrize("case", CHILDREN)
def test_a_forked_child_is_refused_by_name_and_its_parent_goes_on(case: str) -> None:
    with Peer({"t": 1}) as peer:
        client, use = CHILDREN[case](peer)
        with client:
            pid = os.fork()
            if pid == 0:
                try:
                    use(client)
                except InvalidRequest as error:
                    client.close()  # as leaving the with block does: it must not disturb the parent
                    os._exit(7 if f"process {os.getppid()}" in str(error) else 2)
                except BaseException:  # the runner must not go on in the child
                    os._exit(3)
                os._exit(1)
            assert reap(pid) == 7
            if isinstance(client, Consumer):
                assert [message.value for message in client.poll(TIMEOUT_S)] == [b"%d" % i for i in range(1, 10)]
            elif isinstance(client, Admin):
                assert client.init_producer()


def test_a_paused_partition_hands_out_nothing_and_goes_on_where_it_was() -> None:
    with Peer({"t": 2}) as peer, Consumer(peer.address) as consumer:
        with Producer(peer.address) as producer:
            for partition in (0, 1):
                for i in range(10):
                    producer.send("t", b"%d" % i, partition=partition)
        consumer.assign([("t", 0), ("t", 1)])
        seen = [next(iter(consumer.messages(TIMEOUT_S)))]
        consumer.pause(seen[0][:2])
        other = ("t", 1 - seen[0].partition)
        assert consumer.paused() == {seen[0][:2]}
        seen += [next(iter(consumer.messages(TIMEOUT_S))) for _ in range(10)]
        assert {message[:2] for message in seen[1:]} == {other}
        assert consumer.poll(0.05) == [], "all that is left is paused"
        consumer.resume()
        seen += [next(iter(consumer.messages(TIMEOUT_S))) for _ in range(9)]
        for partition in (0, 1):
            assert [message.value for message in seen if message.partition == partition] == [
                b"%d" % i for i in range(10)
            ]
        consumer.pause()
        consumer.assign([("t", 0)])
        assert not consumer.paused()
        assert next(iter(consumer.messages(TIMEOUT_S))).value == b"0"


@given(st.text() | st.binary() | st.none() | st.integers() | st.lists(st.text()))
def test_what_is_a_topic_is_encodable(value: Any) -> None:
    try:
        assert arguments.topic_name(value).encode()
    except InvalidTopic:
        pass


@given(st.integers() | st.booleans() | st.floats() | st.text() | st.none())
def test_a_number_is_one_that_the_wire_takes(value: Any) -> None:
    try:
        assert 0 <= arguments.partition_number(value) < 2**31 and not isinstance(value, bool)
    except ApplianceError as error:
        assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize("odd", [DIGITS, [DIGITS], {"t": DIGITS}], ids=["number", "list", "mapping"])
@pytest.mark.parametrize(
    "check",
    [
        arguments.topic_name,
        arguments.group_name,
        arguments.partition_number,
        arguments.part,
        arguments.offsets,
        arguments.seconds,
        lambda odd: arguments.text("text", odd),
        lambda odd: arguments.function("on_delivery", odd),
    ],
)
def test_a_number_that_cannot_be_written_is_refused(check: Callable[[Any], object], odd: Any) -> None:
    with pytest.raises((InvalidRequest, InvalidTopic, InvalidGroup)):
        check(odd)


def test_a_transactional_id_that_is_no_text_in_utf_8_is_refused_by_the_constructor() -> None:
    with pytest.raises(BadValue, match="transactional_id"):
        Producer("127.0.0.1:1", transactional_id="half \ud800")

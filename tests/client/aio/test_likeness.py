"""appliance.client.aio is as appliance.client: each public name, with the same arguments, but for what is listed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from appliance import client
from appliance.client import aio

FOR_OTHER_MODULES = {
    "disown",
    "go_back",
    "check_usable",
    "prepare",
    "prepare_batches",
    "take_batches",
    "take_messages",
} | {
    *("messages_ready", "batches_ready", "interrupt", "abort", "offer", "offer_values", "make_way", "knows", "hurry"),
    *("wait_for", "call_when_done", "check_may_wait", "begin_transaction", "deliver", "drop", "foreign"),
    *("check_transactional", "proof", "handed_out", "on_committed", "fill", "decoded", "fill_values"),
    *("decoded_values", "end_reading"),
}
"""Public in the blocking client for other modules of it."""
ABSENT = {
    "Producer": {"send_block", "block_bytes_max", "failure"},  # for programs that account for blocks: the inputs
    "Consumer": {"unpacked_bytes"},
    "GroupConsumer": {"rewind"},  # for transactions
    "Delivery": {"result", "exception", "add_done_callback", "index", "count"},  # it is awaited
    "MessageStream": set(),
    "Admin": set(),
}
MORE = {
    "Producer": {"send_and_wait"},
    "Consumer": {"ask"},
    "GroupConsumer": {"ask", "consumer_id", "group"},  # the last two are attributes
    "MessageStream": {"end"},
    "Admin": {"ask"},
    "Delivery": set(),
}
ARGUMENTS_ABSENT = {("Producer", "send"): {"on_delivery"}}  # its delivery is awaited


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - FOR_OTHER_MODULES


@pytest.mark.parametrize("name", ABSENT)
def test_a_class_has_what_the_blocking_one_has(name: str) -> None:
    blocking, looped = getattr(client, name), getattr(aio, name)
    assert names(blocking) - names(looped) == ABSENT[name]
    assert names(looped) - names(blocking) == MORE[name]
    for method in names(blocking) & names(looped) | {"__init__"}:
        ours, theirs = getattr(looped, method), getattr(blocking, method)
        if inspect.isfunction(theirs) and name != "Delivery" and (name, method) != ("MessageStream", "__init__"):
            left_out = ARGUMENTS_ABSENT.get((name, method), set())
            assert arguments(ours) == [each for each in arguments(theirs) if each[0] not in left_out], method


def arguments(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]


def test_all_names_of_the_module_are_those_of_the_blocking_one() -> None:
    assert set(client.__all__) - set(aio.__all__) == {"Audit"}
    assert set(aio.__all__) <= set(client.__all__)

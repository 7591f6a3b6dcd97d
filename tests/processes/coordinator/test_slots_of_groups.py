"""SlotsOfGroups: what is remembered is never less than what there may be."""

from __future__ import annotations

import pytest

from appliance.processes.coordinator import stored_transactions
from appliance.processes.coordinator.stored_transactions import SlotsOfGroups


class Brokers:
    def __init__(self) -> None:
        self.as_of: int | None = 1
        self.slots = SlotsOfGroups(lambda: self.as_of)

    def ask(self, group: str, *slots: int) -> None:
        self.slots.learn(group, self.slots.as_of, slots)


def test_what_was_asked_holds_while_the_brokers_stay() -> None:
    brokers = Brokers()
    assert brokers.slots.get("g") is None
    brokers.ask("g", 3)
    brokers.ask("h")
    assert (brokers.slots.get("g"), brokers.slots.get("h"), brokers.slots.get("i")) == ({3}, set(), None)
    brokers.as_of = None
    assert brokers.slots.get("g") is None
    brokers.ask("g", 4)
    brokers.as_of = 2
    assert brokers.slots.get("g") is None, "asked while it was changing"
    before = brokers.slots.as_of
    brokers.as_of = 3
    brokers.slots.learn("g", before, [4])
    assert brokers.slots.get("g") is None, "asked before it changed"


def test_what_was_noted_holds_longer_and_comes_to_what_is_asked() -> None:
    """Goal: a request that was passed on before, and comes behind the question, is not overlooked."""
    brokers = Brokers()
    brokers.slots.note("g", 5)
    brokers.as_of = 2
    brokers.ask("g", 3)
    brokers.slots.note("g", 6)
    assert brokers.slots.get("g") == {3, 5, 6}
    brokers.slots.ask_all_again("g")
    assert brokers.slots.get("g") is None
    brokers.ask("g")
    assert brokers.slots.get("g") == {5, 6}, "what was passed on to them may still be on its way"


def test_the_groups_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: of one that is forgotten all are asked again, whether it was asked or noted."""
    monkeypatch.setattr(stored_transactions, "GROUPS_MAX", 2)
    brokers = Brokers()
    for group in "abc":
        brokers.ask(group)
    assert [brokers.slots.get(group) for group in "abc"] == [None, set(), set()]
    for group in "bdbe":
        brokers.slots.note(group, 1)
    assert [brokers.slots.get(group) for group in "bcde"] == [{1}, set(), None, None]
    before = brokers.slots.as_of
    for group in "def":
        brokers.slots.note(group, 1)
    brokers.slots.learn("d", before, ())
    assert brokers.slots.get("d") is None, "it was asked before it was noted, and the note is gone"
    brokers.ask("d")
    assert brokers.slots.get("d") == set(), "it was noted before the question, and forgotten"

"""appliance.shared.arena: extents never overlap, and go back exactly when the last holder drops them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.shared.arena import BLOCK_BYTES, Arena, Extent

BLOCKS = 16


class ArenaMachine(RuleBasedStateMachine):
    """A worker and writers over one arena: every interleaving of allocating, describing, answering, moving on."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(BLOCKS * BLOCK_BYTES)
        self.held: list[tuple[Extent, int]] = []

    @rule(size=st.integers(1, 5 * BLOCK_BYTES))
    def allocate(self, size: int) -> None:
        extent = self.arena.allocate(size)
        if extent is None:
            blocks = -(-size // BLOCK_BYTES)
            used = {block for taken, _ in self.held for block in range(taken.start, taken.stop, BLOCK_BYTES)}
            free = [start * BLOCK_BYTES not in used for start in range(BLOCKS)]
            assert not any(all(free[at : at + blocks]) for at in range(BLOCKS - blocks + 1)), "there was room"
        else:
            assert size <= extent.stop - extent.start < size + BLOCK_BYTES
            self.held.append((extent, 1))

    @rule(data=st.data())
    def describe_to_a_writer(self, data: st.DataObject) -> None:
        if self.held:
            index = data.draw(st.integers(0, len(self.held) - 1))
            extent, holders = self.held[index]
            extent.hold()
            self.held[index] = (extent, holders + 1)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.held:
            index = data.draw(st.integers(0, len(self.held) - 1))
            extent, holders = self.held.pop(index)
            extent.drop()
            if holders > 1:
                self.held.append((extent, holders - 1))

    @invariant()
    def extents_do_not_overlap(self) -> None:
        spans = sorted((extent.start, extent.stop) for extent, _ in self.held)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
        assert self.arena.used_bytes == sum(stop - start for start, stop in spans)


TestArena = ArenaMachine.TestCase


def test_a_full_arena_says_no_and_recovers() -> None:
    arena = Arena(2 * BLOCK_BYTES)
    first = arena.allocate(BLOCK_BYTES)
    second = arena.allocate(1)
    assert first is not None and second is not None
    assert arena.allocate(1) is None
    first.drop()
    assert arena.allocate(BLOCK_BYTES) is not None


def test_an_extent_cannot_be_dropped_twice() -> None:
    extent = Arena(BLOCK_BYTES).allocate(1)
    assert extent is not None
    extent.drop()
    with pytest.raises(AssertionError):
        extent.drop()

"""appliance.shared.heartbeats: one cell per process, seen across fork, moved by whoever works."""

from __future__ import annotations

import os
import select

import pytest

from appliance.errors import OutOfResources
from appliance.shared.heartbeats import Heartbeats, alone, beat_ms

from ..support.ready import reap
from ..support.server import wait_for


def test_a_beat_in_a_child_is_seen_by_its_parent_and_by_no_other_cell() -> None:
    beats = Heartbeats(4, 1_000)
    hearts = [beats.take_cell() for _ in range(3)]
    before = [beats.seen(heart) for heart in hearts]
    pid = os.fork()
    if pid == 0:
        hearts[1].beat()
        os._exit(0)
    assert reap(pid) == 0
    assert [beats.seen(heart) != held for heart, held in zip(hearts, before, strict=True)] == [False, True, False]


def test_cells_are_given_once_and_again_after_they_came_back() -> None:
    beats = Heartbeats(3, 1_000)
    hearts = [beats.take_cell() for _ in range(3)]
    assert len({heart.index for heart in hearts}) == 3
    with pytest.raises(OutOfResources, match="3 processes"):
        beats.take_cell()
    beats.give_back(hearts[1])
    assert beats.take_cell().index == hearts[1].index


def test_long_work_beats_from_a_thread_and_only_while_it_lasts() -> None:
    beats = Heartbeats(1, 40)
    heart = beats.take_cell()
    held = beats.seen(heart)
    with heart.working():
        wait_for(lambda: beats.seen(heart) >= held + 3, "three beats")
    held = beats.seen(heart)
    select.select([], [], [], 5 * heart.beat_ms / 1000)
    assert beats.seen(heart) <= held + 1  # the thread may have been on its way to a beat
    with pytest.raises(ValueError), heart.working():
        raise ValueError


def test_a_loop_has_several_tries_within_the_timeout() -> None:
    assert 3 * beat_ms(10_000) < 10_000
    alone().beat()

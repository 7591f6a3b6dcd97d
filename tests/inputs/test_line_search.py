"""appliance.inputs.line_search: any line of a source has its place, or what is known of it is said."""

from __future__ import annotations

import pytest

from appliance.inputs.ledger import Gap, LedgerRow, PlacedBlock
from appliance.inputs.line_search import LIVES_MAX, LineSearch

FIRST = PlacedBlock("disk", 0, 100, 3, 0, 30, 1, 3, 30)
EVENTS = PlacedBlock("disk", 1, 500, 2, 30, 90, 4, 6, 60)
THIRD = PlacedBlock("disk", 0, 200, 2, 120, 140, 12, 2, 20)


def row(*spans: PlacedBlock, number: int = 1, **more: object) -> LedgerRow:
    return LedgerRow("disk", "web-1", "app.log", number, "store", 60, spans=list(spans), **more)  # type: ignore[arg-type]


def search(line: int, *rows: LedgerRow) -> LineSearch:
    asked = LineSearch("app.log", line)
    for published in rows:
        asked.add(published)
    return asked


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (1, (0, 100, 100)),
        (3, (0, 102, 102)),
        (4, (1, 500, 501)),
        (9, (1, 500, 501)),
        (12, (0, 200, 200)),
        (13, (0, 201, 201)),
    ],
)
def test_each_line_is_in_its_block_also_if_that_was_published_twice(line: int, place: tuple[int, int, int]) -> None:
    places = search(line, row(FIRST, EVENTS), row(FIRST, EVENTS, THIRD)).places()
    assert [(there.block.partition, there.offset, there.to_offset) for there in places] == [place]


def test_the_last_life_comes_first_and_what_came_twice_has_each_of_its_places() -> None:
    again = PlacedBlock("disk", 0, 900, 3, 0, 30, 1, 3, 30)
    places = search(2, row(FIRST), row(FIRST, number=2), row(again, number=2)).places()
    assert [(there.life, there.offset) for there in places] == [(2, 101), (2, 901), (1, 101)]


def test_lives_are_bounded_and_the_last_ones_are_kept() -> None:
    places = search(1, *(row(FIRST, number=number) for number in range(1, LIVES_MAX + 11))).places()
    assert (len(places), places[0].life, places[-1].life) == (LIVES_MAX, LIVES_MAX + 10, 11)


@pytest.mark.parametrize(
    ("line", "rows", "told"),
    [
        (1, [], "it has no row of this source"),
        (14, [row(FIRST, EVENTS, THIRD)], "it has lines up to 13, and is published once a minute"),
        (2, [row(EVENTS)], "its rows begin with line 4: what is before was published earlier"),
        (
            4,
            [row(FIRST), row(gaps=[Gap(30, None, "bytes", "removed")])],
            "it has lines up to 3, and is published once a minute; bytes from 30 to ? are lost: removed",
        ),
        (14, [row(THIRD, gaps=[Gap(0, 120, "bytes", "NUL")])], "it has lines up to 13, and is published once a minute"),
        (
            10,
            [row(FIRST, EVENTS, THIRD, gaps=[Gap(90, 120, "bytes", "no disk")], refused={"too large": 2})],
            "bytes from 90 to 120 are lost: no disk; 2 lines were refused",
        ),
        (10, [row(EVENTS, THIRD)], "the lines before and after it are there, and it is neither lost nor refused"),
    ],
)
def test_of_a_line_that_is_nowhere_what_is_known_is_said(line: int, rows: list[LedgerRow], told: str) -> None:
    asked = search(line, *rows)
    assert (asked.places(), asked.why_nowhere()) == ([], told)

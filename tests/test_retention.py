"""appliance.retention: old segments go by age, size and room; the active one and young ones stay."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.retention import LogDeletion, PartitionUse, SegmentUse, TrashUse, plan

NOW = 1_000_000


def use(topic: str, *segments: tuple[int, int], partition: int = 0, age_ms: int = -1, keep: int = -1) -> PartitionUse:
    """``segments``: (bytes, age in ms) from the oldest to the active one."""
    rows, base = [], 0
    for size, age in segments:
        rows.append(SegmentUse(base, size, size, NOW - age))
        base += size
    return PartitionUse(topic, partition, rows, age_ms, keep)


def test_nothing_goes_without_limits() -> None:
    assert plan([use("a", (100, 900_000), (100, 1))], NOW).deletions == []


def test_segments_go_once_they_are_too_old() -> None:
    assert plan([use("a", (100, 301), (100, 300), (100, 1), age_ms=300)], NOW).deletions == [
        LogDeletion("a", 0, 100, "age")
    ]


def test_a_young_segment_keeps_what_comes_after_it() -> None:
    """A clock that was set back: the log is cut from its old end only."""
    assert plan([use("a", (100, 5), (100, 900), (100, 1), age_ms=300)], NOW).deletions == []


def test_the_active_segment_stays_however_large() -> None:
    assert plan([use("a", (100, 999), keep=1)], NOW, bytes_max=1, lacking_bytes=999) == ([], 999, [], [])


def test_the_active_segment_goes_when_all_of_it_is_too_old() -> None:
    assert plan([use("a", (100, 301), (100, 301), age_ms=300)], NOW).deletions == [LogDeletion("a", 0, 200, "age")]
    assert plan([use("a", (100, 301), age_ms=300)], NOW, lacking_bytes=100) == (
        [LogDeletion("a", 0, 100, "age")],
        0,
        [],
        [],
    )
    assert plan([use("a", (100, 301), (0, 999), age_ms=300)], NOW).deletions == [LogDeletion("a", 0, 100, "age")]
    assert plan([use("a", (0, 999), age_ms=300)], NOW).deletions == []  # nothing in it


def test_large_active_segments_are_rolled_when_nothing_else_can_make_room() -> None:
    mib = 1 << 20
    uses = [use("a", (mib, 9), (2 * mib, 1)), use("b", (3 * mib, 1)), use("c", (mib - 1, 1))]
    assert plan(uses, NOW, lacking_bytes=mib).rolls == []  # a sealed one suffices
    assert plan(uses, NOW, lacking_bytes=2 * mib).rolls == [("b", 0)]
    assert plan(uses, NOW, lacking_bytes=99 * mib).rolls == [("b", 0), ("a", 0)]  # and never a small one
    assert plan([use("a", (9 * mib, 99), age_ms=9)], NOW, lacking_bytes=99 * mib).rolls == []  # goes by age


def test_at_least_retention_bytes_stay() -> None:
    segments = [(100, 4), (100, 3), (100, 2), (50, 1)]
    assert plan([use("a", *segments, keep=250)], NOW).deletions == [LogDeletion("a", 0, 100, "size")]
    assert plan([use("a", *segments, keep=251)], NOW).deletions == []
    assert plan([use("a", *segments, keep=0)], NOW).deletions == [LogDeletion("a", 0, 300, "size")]


def test_room_is_made_by_the_oldest_segments_of_the_largest_topic() -> None:
    big = use("big", (100, 9), (100, 8), (100, 1)), use("big", (100, 7), (100, 1), partition=1)
    small = use("small", (100, 99), (100, 98), (100, 1))
    assert plan([*big, small], NOW, bytes_max=700).deletions == [LogDeletion("big", 0, 100, "room")]
    assert plan([*big, small], NOW, bytes_max=600).deletions == [LogDeletion("big", 0, 200, "room")]
    assert plan([*big, small], NOW, bytes_max=400).deletions == [
        LogDeletion("big", 0, 200, "room"),
        LogDeletion("big", 1, 100, "room"),
        LogDeletion("small", 0, 100, "room"),
    ]


def test_the_trash_counts_and_goes_before_anything_that_is_read() -> None:
    uses = [use("a", (100, 9), (100, 1))]
    trash = [TrashUse("old", 100), TrashUse("new", 100)]
    for bytes_max, empties, deletions in [
        (400, [], []),
        (399, ["old"], []),
        (299, ["old", "new"], []),
        (199, ["old", "new"], [LogDeletion("a", 0, 100, "room")]),
    ]:
        planned = plan(uses, NOW, bytes_max=bytes_max, trash=trash)
        assert (planned.empties, planned.deletions) == (empties, deletions)
    assert plan(uses, NOW, lacking_bytes=1, trash=trash).empties == ["old"]


def test_room_counts_what_age_frees_already() -> None:
    uses = [use("a", (100, 900), (100, 5), (100, 1), age_ms=500), use("b", (100, 9), (100, 1))]
    assert plan(uses, NOW, lacking_bytes=100) == ([LogDeletion("a", 0, 100, "age")], 0, [], [])


def test_a_disk_that_others_have_filled_is_said() -> None:
    assert plan([use("a", (100, 5), (100, 1))], NOW, lacking_bytes=150) == (
        [LogDeletion("a", 0, 100, "room")],
        50,
        [],
        [],
    )


segments = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100), st.integers(0, 1_000)), min_size=1, max_size=6)
partitions = st.lists(
    st.tuples(st.sampled_from("abc"), segments, st.integers(-1, 1_000), st.integers(-1, 400)), max_size=6
)


@settings(max_examples=300, deadline=None)
@given(given_partitions=partitions, bytes_max=st.integers(0, 1_500), lacking=st.integers(-10, 500))
def test_what_always_holds(
    given_partitions: list[tuple[str, list[tuple[int, int, int]], int, int]], bytes_max: int, lacking: int
) -> None:
    """Cuts lie on segment starts, spare the active one but for age, and make room as far as possible, no further."""
    uses = []
    for number, (topic, rows, age_ms, keep) in enumerate(given_partitions):
        base, built = 0, []
        for size, disk, age in rows:
            built.append(SegmentUse(base, size, disk, NOW - age))
            base += size
        uses.append(PartitionUse(topic, number, built, age_ms, keep))
    made = plan(uses, NOW, bytes_max=bytes_max, lacking_bytes=lacking)
    offsets = {cut.partition: cut.offset for cut in made.deletions}
    left = freed = removable = 0
    for item in uses:
        last = item.segments[-1]
        offset = offsets.get(item.partition, 0)
        assert offset in [segment.base for segment in item.segments] or (
            offset == last.base + last.bytes and 0 <= item.retention_ms < NOW - last.modified_ms
        )
        for segment in item.segments:
            gone = segment.base < offsets.get(item.partition, 0)
            freed += segment.disk_bytes * gone
            left += segment.disk_bytes * (not gone)
            removable += segment.disk_bytes * (not gone and segment is not item.segments[-1])
    assert made.lacking_bytes == max(0, lacking - freed, left - bytes_max if bytes_max else 0)
    assert made.lacking_bytes == 0 or removable == 0


def test_what_is_only_compacted_makes_no_room() -> None:
    kept = use("kept", (1 << 21, 900), (1 << 21, 1))._replace(may_go=False)
    other = use("other", (100, 5), (100, 1))
    deletions, lacking, rolls, _ = plan([kept, other], NOW, bytes_max=1)
    assert deletions == [LogDeletion("other", 0, 100, "room")] and lacking > 0 and not rolls


def test_the_size_of_a_compacted_log_is_what_it_takes_of_the_disk() -> None:
    sparse = PartitionUse("a", 0, [SegmentUse(0, 1000, 50, NOW), SegmentUse(1000, 100, 100, NOW)], -1, 150)
    assert plan([sparse], NOW).deletions == []
    full = PartitionUse("a", 0, [SegmentUse(0, 1000, 1000, NOW), SegmentUse(1000, 100, 100, NOW)], -1, 150)
    assert len(plan([full], NOW).deletions) == 0 and len(plan([full._replace(retention_bytes=100)], NOW).deletions) == 1


def test_nothing_goes_from_where_a_transaction_is_open() -> None:
    old = use("a", (100, 900), (100, 900), (100, 900), age_ms=300, keep=0)
    for stable, offset in ((0, None), (99, None), (100, 100), (250, 200), (300, 300)):
        made = plan([old._replace(stable=stable)], NOW, lacking_bytes=1 << 40)
        assert [one.offset for one in made.deletions] == ([] if offset is None else [offset])

"""The Journal Export Format, in pieces of any length."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs.journal_export import FIELDS_MAX, ExportFault, ExportReader, JournalEntry

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,15}", fullmatch=True)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=60)), min_size=1, max_size=6)


def as_text(name: str, value: bytes) -> bytes:
    return b"%s=%s\n" % (name.encode(), value)


def as_binary(name: str, value: bytes) -> bytes:
    return b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value)


def exported(entries: list[list[tuple[str, bytes]]]) -> bytes:
    """As journalctl writes it: binary if it has to be."""
    return b"".join(
        b"".join((as_binary if b"\n" in value else as_text)(name, value) for name, value in fields) + b"\n"
        for fields in entries
    )


def read(reader: ExportReader, data: bytes, cuts: list[int]) -> list[JournalEntry]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [entry for start, stop in itertools.pairwise(bounds) for entry in reader.feed(data[start:stop])]


@given(st.lists(FIELDS, max_size=4), st.lists(st.integers(0, 2_000), max_size=8), st.integers(1, 200))
def test_every_entry_comes_however_it_is_cut_and_with_the_values_that_fit(
    entries: list[list[tuple[str, bytes]]], cuts: list[int], entry_bytes_max: int
) -> None:
    found = read(ExportReader(entry_bytes_max), exported(entries), cuts)
    assert [[name for name, _ in entry.fields] for entry in found] == [[name for name, _ in row] for row in entries]
    for entry, fields in zip(found, entries, strict=True):
        room = entry_bytes_max
        for (_, got), (_, value) in zip(entry.fields, fields, strict=True):
            assert got in (value, None)
            assert (got is None) == (len(value) > room)
            room -= len(got or b"")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_anything_else_is_refused_or_waits_in_bounded_memory(data: bytes, cuts: list[int]) -> None:
    reader = ExportReader(100)
    try:
        read(reader, data, cuts)
    except ExportFault:
        return
    assert reader.held_bytes <= len(data)


@pytest.mark.parametrize("form", [as_text, as_binary])
def test_a_value_of_any_length_takes_no_more_memory_than_an_entry_may(form: object) -> None:
    reader = ExportReader(1_000)
    encoded = (as_text if form is as_text else as_binary)("COREDUMP", b"x" * 5_000_000)
    found = []
    for start in range(0, len(encoded), 700):
        found += reader.feed(encoded[start : start + 700])
        assert reader.held_bytes <= 2_000
    found += reader.feed(b"MESSAGE=short\n\n")
    assert found == [JournalEntry([("COREDUMP", None), ("MESSAGE", b"short")], 0)]


def test_fields_beyond_a_bound_are_counted() -> None:
    (entry,) = ExportReader(1_000).feed(b"A=\n" * (FIELDS_MAX + 3) + b"\n")
    assert (len(entry.fields), entry.left_out) == (FIELDS_MAX, 3)


@pytest.mark.parametrize(
    "data", [b"=x\n", b"A B=x\n", b"N\n\1\0\0\0\0\0\0\0xy", b"x" * 200, b"N\n" + b"\xff" * 8 + b"x"]
)
def test_what_is_no_export_is_said(data: bytes) -> None:
    reader = ExportReader(100)
    if data.endswith(b"\xffx"):  # a length that never comes is skipped, not waited for in memory
        assert not reader.feed(data)
        assert reader.held_bytes == 0
    else:
        with pytest.raises(ExportFault):
            reader.feed(data)

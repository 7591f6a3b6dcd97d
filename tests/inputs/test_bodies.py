"""Every line and every value of a body is in one batch, in order and as it came, however large the body is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs import bodies
from appliance.inputs.bodies import BodyFault, BodyTooLarge, RecordBatch, split_line

MESSAGE_BYTES_MAX = 16


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    """Batches that end soon, so that small bodies have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "BATCH_BYTES", 24)
        patch.setattr(bodies, "BATCH_RECORDS", 3)
        yield


def values_of(batches: Iterable[RecordBatch]) -> list[bytes]:
    values: list[bytes] = []
    numbers: list[int] = []
    for batch in batches:
        assert len(batch.values) == len(batch.tails) == len(batch.numbers)
        values += batch.values
        numbers += batch.numbers
    assert numbers == sorted(numbers)
    return values


@given(st.lists(st.sampled_from([b"", b"a", b"\r", b"x\ry", b"\xff", b"0123456789abcdef", b" "])), st.booleans())
def test_lines_are_kept(lines: list[bytes], ends: bool) -> None:
    body = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    wanted = body.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    found = values_of(bodies.line_batches(body, "host", "app", MESSAGE_BYTES_MAX))
    assert found == [line.removesuffix(b"\r") for line in wanted]


@given(st.lists(st.text(st.sampled_from("aö€𝄞"), max_size=30)))
def test_long_lines_become_parts_that_end_between_characters(lines: list[str]) -> None:
    body = "".join(f"{line}\n" for line in lines).encode()
    batches = list(bodies.line_batches(body, "host", "", MESSAGE_BYTES_MAX))
    parts: dict[int, list[bytes]] = {}
    for batch in batches:
        for number, value in zip(batch.numbers, batch.values, strict=True):
            assert len(value) <= MESSAGE_BYTES_MAX
            parts.setdefault(number, []).append(value)
            value.decode()
    assert [b"".join(parts[number]).decode() for number in sorted(parts)] == lines


@given(st.binary(max_size=60), st.integers(4, 20))
def test_any_line_can_be_split(line: bytes, bytes_max: int) -> None:
    parts = split_line(line, bytes_max)
    assert b"".join(parts) == line
    assert all(0 < len(part) <= bytes_max for part in parts) or not line


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)


@given(st.lists(json_values), st.sampled_from([",", ", ", "\n,\t"]))
def test_an_array_gives_its_elements_as_they_came(elements: list[object], comma: str) -> None:
    texts = [msgspec.json.encode(element) for element in elements]
    body = b"[ " + comma.encode().join(texts) + b"]"
    assert values_of(bodies.json_batches(body, "host", "", 1 << 10)) == texts
    assert bodies.is_json_array(body.strip())


@given(st.lists(json_values), st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
def test_ndjson_gives_the_value_of_each_line(elements: list[object], line_break: str) -> None:
    texts = [msgspec.json.encode(element) for element in elements]
    body = line_break.encode().join(texts)
    assert values_of(bodies.ndjson_batches(body, "host", "", 1 << 10)) == texts


@given(st.lists(st.sampled_from(["1", '{"a":2}', "", "{", '"x', "1 2", "[", "\0", "[1]]"])))
def test_ndjson_is_taken_if_each_line_is_a_value_and_else_names_a_line_that_is_none(lines: list[str]) -> None:
    wrong = [number for number, line in enumerate(lines, 1) if line not in ("1", '{"a":2}', "")]
    body = "\n".join(lines).encode()
    if not wrong:
        values_of(bodies.ndjson_batches(body, "host", "", 1 << 10))
        return
    with pytest.raises(BodyFault, match=f"^line {wrong[0]} is no JSON"):
        bodies.ndjson_batches(body, "host", "", 1 << 10).__next__()


@given(st.binary(max_size=80))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    for read in (bodies.json_batches, bodies.ndjson_batches, bodies.line_batches):
        try:
            values_of(read(body, "host", "", MESSAGE_BYTES_MAX))
        except BodyFault:
            pass


@pytest.mark.parametrize("body", [b'["%s"]', b'"%s"', b'1\n"%s"\n'])
def test_a_value_that_is_too_long_is_refused_before_anything_is_taken(body: bytes) -> None:
    with pytest.raises(BodyTooLarge):
        bodies.json_batches(body % (b"x" * 20), "host", "", MESSAGE_BYTES_MAX)


def test_an_array_of_too_many_values_is_refused_without_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "VALUES_MAX", 5)
    with pytest.raises(BodyTooLarge):
        bodies.json_batches(b"[1,2,3,4,5,6,7]", "host", "", MESSAGE_BYTES_MAX)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, ""),
        (-1, ""),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_795_219_200 * 10**9, "2026-11-21T00:00:00Z"),
        (1_795_219_200_250_000_000, "2026-11-21T00:00:00.25Z"),
        (1 << 63, "2262-04-11T23:47:16.854775808Z"),
        (253_402_300_799 * 10**9, "9999-12-31T23:59:59Z"),
        (253_402_300_800 * 10**9, ""),
    ],
)
def test_times_are_rfc_3339(time_ns: int, text: str) -> None:
    assert bodies.rfc3339(time_ns) == text

"""Definitions of views: what their heads say, and what is refused in words."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue, UnknownKey
from appliance.spark.pipeline.view_definitions import load_views, parse_view

HEAD = "-- Errors, and\n-- their share.\n--\n-- window: 1h\n-- keys: topic, service\n-- cadence: 30s\n"
QUERY = "select start, topic, service, count(*) as n -- of all\nfrom events\ngroup by all"


def test_a_head_is_read() -> None:
    view = parse_view("errors", f"{HEAD}{QUERY};\n", "errors.sql")
    assert (view.name, view.about, view.sql) == ("errors", "Errors, and their share.", QUERY)
    assert (view.window_us, view.keys, view.cadence_ms) == (3_600_000_000, ("topic", "service"), 30_000)
    least = parse_view("n", f"-- window: 7d\n{QUERY}", "n.sql")
    assert (least.about, least.keys, least.cadence_ms, least.window_us) == ("", (), 60_000, 7 * 86_400_000_000)


def test_the_meaning_is_what_rows_depend_on() -> None:
    view = parse_view("errors", HEAD + QUERY, "")
    others = {"1h": "2h", "topic, service": "topic", "all": "topic"}
    for old, new in others.items():
        assert parse_view("errors", (HEAD + QUERY).replace(old, new), "").meaning != view.meaning
    for old, new in {"30s": "31s", "their share": "more"}.items():
        assert parse_view("errors", (HEAD + QUERY).replace(old, new), "").meaning == view.meaning


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (QUERY, "says no window: add a line as `-- window: 1h`"),
        ("-- window: soon\nselect 1", "window: 'soon': a duration"),
        ("-- window: 0s\nselect 1", "window: '0s': a duration"),
        ("-- window: 400d\nselect 1", "up to 366 days"),
        ("-- window: 1h\n-- cadence: x\nselect 1", "cadence: 'x': a duration"),
        ("-- window: 1h\n-- window: 2h\nselect 1", "says window twice"),
        ("-- window: 1h\n-- keys: a b\nselect 1", "keys: 'a b': name columns"),
        ("-- window: 1h\n-- keys: start\nselect 1", "other than start"),
        ("-- windows: 1h\nselect 1", "unknown key 'windows' in its head: known: window, keys, cadence"),
        ("-- window: 1h\n", "no query"),
        *(
            (f"-- window: 1h\n-- parts: {names}\n{query}", "name the two queries with which its query begins")
            for names, query in [
                ("p, q", "select 1"),
                ("p, q", "with q as (select 1), p as (select 1) select 1"),
                ("p, q", "with p as (select ')'), q as (select '('"),
                ("p, q", "with p as (select 1) select 1"),
                ("p", "with p as (select 1) select 1"),
                ("events, q", "with events as (select 1), q as (select 1) select 1"),
                ("p, ", "with p as (select 1), q as (select 1) select 1"),
                ("", "with p as (select 1), q as (select 1) select 1"),
            ]
        ),
    ],
)
def test_a_wrong_head_is_refused(text: str, says: str) -> None:
    with pytest.raises((BadValue, UnknownKey), match=f"^v.sql: .*{says}"):
        parse_view("v", text, "v.sql")


@pytest.mark.parametrize("first", ["select ')' as a", "select (1) -- :-)\n", "select `)` /* ) */", r'select "\")"'])
def test_a_query_is_divided_behind_its_parts(first: str) -> None:
    """Wherever else parentheses are."""
    head = "-- window: 1h\n-- parts: p, q\n"
    for text, rest in {
        "\nselect 1": "select 1",
        ", r as (select 2) select 1": "with r as (select 2) select 1",
    }.items():
        view = parse_view("v", f"{head}WITH p\nAS ( {first})\n, q as({first})\n{text}", "v.sql")
        assert view.parts == ("p", first.strip(), "q", first.strip(), rest)
        assert view.meaning != parse_view("v", f"-- window: 1h\n{view.sql}", "v.sql").meaning


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("select start, rand() as r from events", "rand"),
        ("select start, NOW ( ) as x from events", "NOW"),
        ("select start, count(*) from events where time > current_timestamp - interval 1 day group by 1", "current_t"),
        ("select start, unix_timestamp() as x from events", "unix_timestamp"),
        (
            "select start, unix_timestamp(time), 'rand()', `now()`, a.uuid as now -- uuid()\n from events",
            "",
        ),
    ],
)
def test_a_query_whose_answer_no_line_decides_is_refused(query: str, name: str) -> None:
    text = f"-- window: 1h\n{query}"
    if not name:
        assert parse_view("v", text, "v.sql").sql == query
        return
    with pytest.raises(BadValue, match=f"^v.sql: '{name}.*' gives something else each time"):
        parse_view("v", text, "v.sql")


@given(st.text())
def test_any_text_is_a_view_or_refused_in_one_line(text: str) -> None:
    try:
        assert parse_view("v", text, "v.sql").sql
    except (BadValue, UnknownKey) as error:
        assert "\n" not in str(error)


def test_the_examples_are_views() -> None:
    directory = Path(str(files("appliance.spark.pipeline") / "example_views"))
    views = load_views(directory)
    assert len(views) == len(list(directory.iterdir())) > 5
    assert all(view.about.endswith((".", ")")) for view in views), "each says what it is"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "-- größer\n" + HEAD.partition("their share.")[2].lstrip() + QUERY, encoding="utf-8"
    )
    assert [view.about for view in load_views(tmp_path)] == ["größer"]
    (tmp_path / "b.sql").write_bytes("-- größer".encode("latin-1"))
    with pytest.raises(BadValue, match=r"b\.sql: byte 5 is not UTF-8"):
        load_views(tmp_path)
    (tmp_path / "b.sql").unlink()
    (tmp_path / "b.sql").mkdir()
    with pytest.raises(BadValue, match=r"b\.sql: it cannot be read: Is a directory"):
        load_views(tmp_path)


def test_a_directory_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"there is no directory .*`appliance pipeline example --views DIR`"):
        load_views(tmp_path / "none")
    (tmp_path / "b.sql").write_text(HEAD + QUERY)
    (tmp_path / "a.sql").write_text(HEAD + QUERY)
    (tmp_path / "notes.txt").write_text("no view")
    assert [view.name for view in load_views(tmp_path)] == ["a", "b"]
    (tmp_path / "A.sql").write_text(HEAD + QUERY)
    with pytest.raises(BadValue, match="differ by case only"):
        load_views(tmp_path)
    (tmp_path / "A.sql").rename(tmp_path / "1 2.sql")
    with pytest.raises(BadValue, match="is no name of a view"):
        load_views(tmp_path)

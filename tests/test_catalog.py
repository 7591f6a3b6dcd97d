"""appliance.catalog: what was stored comes back, and what cannot be trusted is refused by name."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.catalog import FILE_NAME, Catalog, CatalogChange, Removal, Topic, TrashedTopic, new_id
from appliance.durable_files import System
from appliance.errors import ApplianceError, DiskFull, StorageFault

names = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in (".", ".."))
topics = st.builds(
    Topic,
    name=names,
    partitions=st.dictionaries(
        st.integers(0, 9_999), st.lists(st.integers(0, 2**31), min_size=1, max_size=3), max_size=20
    ),
    settings=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    id=st.uuids().map(lambda one: one.hex),
)


def test_an_empty_directory_has_no_topics(tmp_path: Path) -> None:
    assert Catalog.load(tmp_path).topics == {}


@settings(max_examples=50, deadline=None)
@given(stored=st.lists(topics, max_size=4), cluster=st.text(max_size=10))
def test_what_is_stored_is_loaded(tmp_path_factory: pytest.TempPathFactory, stored: list[Topic], cluster: str) -> None:
    directory = tmp_path_factory.mktemp("catalog")
    catalog = Catalog(directory / FILE_NAME, {topic.name: topic for topic in stored})
    catalog.cluster = cluster
    catalog.removals = [Removal(topic.name, topic.id, [0], whole=bool(topic.settings)) for topic in stored]
    catalog.trash = [TrashedTopic(topic.name, topic.id, topic.partitions, topic.settings, 7) for topic in stored]
    catalog.store()
    loaded = Catalog.load(directory)
    assert loaded.topics == catalog.topics and loaded.cluster == cluster and loaded.trash == catalog.trash
    assert loaded.removals == catalog.removals
    assert [path.name for path in directory.iterdir()] == [FILE_NAME]


def test_hosted_names_each_partition_stored_here(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, {"b": Topic("b", {0: [1], 1: [2, 1], 2: [2]}), "a": Topic("a", {0: [1]})})
    assert catalog.hosted(1) == [("a", 0), ("b", 0), ("b", 1)]
    assert catalog.hosted(3) == []


def test_the_first_broker_leads() -> None:
    topic = Topic("a", {0: [2, 1], 1: []})
    assert [topic.leader(partition) for partition in (0, 1, 2)] == [2, -1, -1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"version":2,"cluster":"","topics":{}}',
        b'{"version":1,"cluster":"","topics":{"../x":{"partitions":{}}}}',
        b'{"version":1,"cluster":"","topics":{"x":{"partitions":{"one":[1]},"id":"%s"}}}' % (b"0" * 32),
        b'{"version":1,"cluster":"","topics":{"x":{"partitions":{"1":"1"}}}}',
        b'{"version":1,"cluster":"","topics":{"x":{"partitions":{}}}}',
        b'{"version":1,"cluster":"","topics":{"x":{"partitions":{},"id":"../../etc"}}}',
        b'{"version":1,"cluster":"","topics":{},"removals":[{"name":"x","id":"..","partitions":[0]}]}',
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StorageFault, match=FILE_NAME):
        Catalog.load(tmp_path)


@pytest.mark.parametrize("number, expected", [(errno.ENOSPC, DiskFull), (errno.EIO, StorageFault)])
def test_a_write_that_fails_leaves_the_old_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[ApplianceError]
) -> None:
    catalog = Catalog.load(tmp_path)
    kept, refused = (Topic(name, {0: [1]}, {}, new_id()) for name in "ab")
    note = Removal("a", kept.id, [0])
    catalog.change(CatalogChange(put=kept))

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr("appliance.durable_files.SYSTEM", System(fsync=fail))
        with pytest.raises(expected, match=FILE_NAME):
            catalog.change(CatalogChange(put=refused))
        with pytest.raises(expected, match=FILE_NAME):
            catalog.change(CatalogChange(drop="a", note=note))
    for seen in (catalog, Catalog.load(tmp_path)):
        assert list(seen.topics) == ["a"] and not seen.removals
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_what_was_refused_is_not_in_the_file_after_the_next_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the sync of the directory fails, when the new file has the name already."""
    catalog = Catalog.load(tmp_path)
    topic = Topic("a", {0: [1]}, {}, new_id())
    catalog.change(CatalogChange(put=topic))
    sync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr("appliance.durable_files.SYSTEM", System(fsync=fail_for_directories))
        with pytest.raises(StorageFault):
            catalog.change(CatalogChange(drop="a", note=Removal("a", topic.id, [0])))
    assert catalog.topics == {"a": topic} and catalog.in_doubt
    catalog.store()
    assert not catalog.in_doubt and Catalog.load(tmp_path).topics == {"a": topic}


def test_a_deletion_is_one_store_and_so_is_its_end(tmp_path: Path) -> None:
    catalog = Catalog.load(tmp_path)
    topic = Topic("a", {0: [1]}, {}, new_id())
    removal = Removal("a", topic.id, [0])
    catalog.change(CatalogChange(note=removal))
    catalog.change(CatalogChange(put=topic, done=removal))
    assert Catalog.load(tmp_path).topics == {"a": topic} and not Catalog.load(tmp_path).removals
    catalog.change(CatalogChange(drop="a", note=removal))
    assert not Catalog.load(tmp_path).topics and Catalog.load(tmp_path).removals == [removal]
    catalog.change(CatalogChange(done=removal))
    assert not Catalog.load(tmp_path).removals


NAMES = ["a", "a.b", "a_b", "a-b"]
alike = st.sampled_from(NAMES)
placed = st.dictionaries(
    st.integers(0, 2), st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True), max_size=3
)
changes = st.lists(
    st.one_of(
        st.builds(lambda name, places: CatalogChange(put=Topic(name, places, {}, new_id())), alike, placed),
        st.builds(lambda name: CatalogChange(drop=name), alike),
        st.builds(lambda name: CatalogChange(trash=TrashedTopic(name, f"{name.encode().hex():0>32}", {0: [1]})), alike),
        st.builds(lambda name: CatalogChange(forget=f"{name.encode().hex():0>32}"), alike),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(changes, st.booleans()), max_size=8))
def test_what_is_kept_from_one_store_to_the_next_is_what_would_be_made_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[CatalogChange], bool]]
) -> None:
    """Whatever comes, goes, is replaced, and fails to be stored."""
    catalog = Catalog.load(tmp_path_factory.mktemp("catalog"))
    for some, fails in steps:
        with pytest.MonkeyPatch.context() as broken:
            if fails:
                broken.setattr("appliance.durable_files.SYSTEM", System(fsync=no_disk))
            with contextlib.suppress(StorageFault):
                catalog.change(*some)
        if catalog.in_doubt:
            catalog.store()
        content, anew = catalog.path.read_bytes(), Catalog.load(catalog.path.parent)
        assert (anew.topics, anew.trash) == (catalog.topics, catalog.trash)
        assert {name: anew.namesake(name) for name in NAMES} == {name: catalog.namesake(name) for name in NAMES}
        assert +catalog.partition_counts == anew.partition_counts
        anew.store()
        assert catalog.path.read_bytes() == content


def no_disk(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_a_change_does_not_touch_is_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {name: Topic(name, {0: [1]}, {}, new_id()) for name in ("a", "b", "c")}
    catalog = Catalog(tmp_path / FILE_NAME, topics)
    catalog.store()
    encode, encoded = msgspec.json.encode, list[object]()
    monkeypatch.setattr(msgspec.json, "encode", lambda value: (encoded.append(value), encode(value))[1])
    catalog.change(CatalogChange(put=Topic("d", {0: [1]}, {}, new_id())), CatalogChange(drop="a"))
    assert {"a", "b", "c"}.isdisjoint(value for value in encoded if isinstance(value, str)) and "d" in encoded
    assert Catalog.load(tmp_path).topics.keys() == {"b", "c", "d"}

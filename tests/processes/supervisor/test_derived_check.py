"""DerivedCheck: what a live log is known by is compared with its batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.broker.sequences import ProducersSnapshot
from appliance.config import TopicSettings
from appliance.log import Log
from appliance.log.files import index_path
from appliance.log.index import ENTRY_BYTES, entry_in
from appliance.log.scrub import scrub
from appliance.processes.supervisor.scrubber import Contradiction, DerivedCheck
from appliance.processes.writer.producers import Producers, load
from appliance.records.encode import encode_batch, encode_values
from appliance.wire import native

from ...support.command_line import succeeding
from ...support.harmed_files import harm
from ...support.log_batches import batch, filled
from ...support.native_peer import Peer
from ...support.server import Server, wait_for

RAWS = [batch([b"%d" % number * 30] * (number % 3 + 1), 1_000 + number) for number in range(24)]


def checked(log: Log, records: int | None = None, stored: ProducersSnapshot | None = None) -> list[Contradiction]:
    """Read a log as the scrubber does."""
    bases, end = tuple(log.bases), log.high_watermark
    check = DerivedCheck(log.path, bases, end, stored)
    list(scrub(log.path, bases, end, bases[0], end, lambda size: None, check.on_batch))
    return list(check.contradictions(records))


@given(data=st.data(), segment=st.sampled_from([1024, 1 << 20]))
def test_whatever_is_wrong_in_the_index_of_the_active_segment_is_seen(
    data: st.DataObject, segment: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = TopicSettings(segment_bytes=segment, index_interval_bytes=256)
    log = filled(tmp_path_factory.mktemp("log"), RAWS, settings)
    assert checked(log, log.records) == []
    path = index_path(log.path, log.bases[-1])
    right = path.read_bytes()
    harm(path, data, ENTRY_BYTES)
    found = path.read_bytes() if path.exists() else b""
    entries = [entry_in(found, at) for at in range(0, len(found) - ENTRY_BYTES + 1, ENTRY_BYTES)]
    # What seems to lie behind the high watermark may be just being written.
    final = max(
        (number for number, entry in enumerate(entries, 1) if entry and entry.offset <= log.end_offset), default=0
    )
    is_right = final and right.startswith(found[: final * ENTRY_BYTES])
    assert bool(checked(log, log.records)) != bool(is_right)
    log.close(clean=False)


def test_a_wrong_number_of_records_is_seen(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS, TopicSettings(segment_bytes=1024))
    (contradiction,) = checked(log, log.records + 1)
    assert f"it has {log.records} records" in contradiction.text and "restart" in contradiction.remedy
    assert checked(log, None) == [], "it grows: the next round compares them"
    log.roll()
    assert checked(log, log.records) == [] and checked(log, 0), "the active segment is empty"


def test_a_stored_state_of_producers_that_the_batches_contradict_is_seen(tmp_path: Path) -> None:
    log = filled(
        tmp_path,
        [
            encode_batch([(None, b"x", (), 1_000)] * 3, producer_id=7, producer_epoch=2, base_sequence=sequence)
            for sequence in (0, 3, 6)
        ],
    )
    producers = Producers(log, 10)
    log.flush()
    producers.store_all()
    stored = load(log.path)
    assert stored is not None and stored.entries and checked(log, log.records, stored) == []
    ((producer_id, entry),) = stored.entries
    for wrong in ((3, *entry[1:]), (entry[0], entry[1] - 1, *entry[2:]), (*entry[:5], entry[5] - 200, *entry[6:])):
        (contradiction,) = checked(log, log.records, ProducersSnapshot(stored.end, ((producer_id, wrong),)))
        assert contradiction.text.startswith("producer 7 is stored with epoch")


def test_the_scrubber_tells_of_it(make_appliance: Callable[..., Server]) -> None:
    """Goal: an index that answers wrong while its segment is written to is told, and mended by the remedy."""
    server = make_appliance(**{"scrub.every_ms": 100, "scrub.bytes_per_second": 1 << 30})
    with Peer(server.native) as peer:
        peer.create("web", index_interval_bytes=256)
        for number in range(8):
            assert peer.produce("web", encode_values([b"x" * 400], 1_000 + number))[0] == 0
        path = index_path(server.data_dir / "web-0", 0)
        right = path.read_bytes()
        at = 2 * ENTRY_BYTES + 8
        path.write_bytes(right[:at] + (5_000).to_bytes(8, "little") + right[at + 8 :])
        wait_for(lambda: "web-0 is known otherwise than its batches say: " in server.log(), "a round")
        assert f"{path}:{2 * ENTRY_BYTES}: the index contradicts its segment" in server.log()
        succeeding("log", "repair", "web-0", "--data", str(server.data_dir))
        assert path.read_bytes() == right
        wait_for(lambda: peer.call([native.OFFSETS, 4, [["web", 0, 1_003, -1]]])[0][2][0][0] == 0, "it is served again")

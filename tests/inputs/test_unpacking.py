"""Compressed files, whole, damaged and hostile, piece by piece."""

from __future__ import annotations

import contextlib
import lzma
import os
import random
import subprocess
import threading
from pathlib import Path

import pytest

from appliance.inputs import unpacking
from appliance.inputs.unpacking import Unpacker, unpacked_head, unpacked_size

from ..support.server import wait_for
from .files_rig import PACKERS

LINES = b"".join(b"%d %s\n" % (at, random.Random(at).randbytes(20).hex().encode()) for at in range(12_000))


def unpacker_of(tmp_path: Path, data: bytes) -> Unpacker:
    path = tmp_path / "packed"
    path.write_bytes(data)
    return Unpacker(os.open(path, os.O_RDONLY))


def read_all(unpacker: Unpacker, count: int = 10_000) -> bytes:
    pieces = []
    while not unpacker.is_over:
        pieces.append(unpacker.read(count))
        assert len(pieces[-1]) <= count
    return b"".join(pieces)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_file_gives_what_was_compressed_in_pieces_and_from_any_position(tmp_path: Path, kind: str) -> None:
    with contextlib.closing(unpacker_of(tmp_path, PACKERS[kind](LINES))) as unpacker:
        for count in (999, 100_000):
            assert read_all(unpacker, count) == LINES
            assert (unpacker.fault, unpacker.position, unpacker.head) == ("", len(LINES), LINES[:1024])
            unpacker.restart()
        for position in (400_000, 20, 300_000):
            while unpacker.position != position:
                unpacker.skip_to(position, 60_000)
            assert (unpacker.recent, unpacker.read(9)) == (
                LINES[max(0, position - 64) : position],
                LINES[position : position + 9],
            )


@pytest.mark.parametrize("kind", PACKERS)
def test_the_programs_of_the_host_are_understood(tmp_path: Path, kind: str) -> None:
    """As logrotate calls them."""
    path = tmp_path / "app.log.1"
    path.write_bytes(LINES)
    program = {"gz": "gzip", "xz": "xz", "bz2": "bzip2", "zst": "zstd"}[kind]
    try:
        subprocess.run([program, str(path)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip(f"no {program}")
    with contextlib.closing(Unpacker(os.open(f"{path}.{kind}", os.O_RDONLY))) as unpacker:
        assert (read_all(unpacker), unpacker.fault) == (LINES, "")


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_several_members_and_padding_behind_them_are_one_file(tmp_path: Path, kind: str) -> None:
    packed = PACKERS[kind](LINES) + PACKERS[kind](b"") + PACKERS[kind](b"more\n") + b"\0" * 512
    with contextlib.closing(unpacker_of(tmp_path, packed)) as unpacker:
        assert (read_all(unpacker), unpacker.fault) == (LINES + b"more\n", "")


@pytest.mark.parametrize("kind", PACKERS)
def test_of_a_damaged_or_half_written_file_comes_what_is_before_and_then_why(tmp_path: Path, kind: str) -> None:
    rng, packed = random.Random(kind), PACKERS[kind](LINES)
    for _ in range(8):
        stop = rng.randrange(len(packed) - 1)
        with contextlib.closing(unpacker_of(tmp_path, packed[:stop])) as unpacker:
            assert LINES.startswith(read_all(unpacker)) and unpacker.fault, stop
    for _ in range(8):
        at = rng.randrange(6, len(packed))
        with contextlib.closing(unpacker_of(tmp_path, packed[:at] + rng.randbytes(9) + packed[at + 9 :])) as unpacker:
            data = read_all(unpacker)
            assert unpacker.fault or data.startswith(LINES), at


@pytest.mark.parametrize("kind", PACKERS)
def test_a_bomb_ends_where_its_bound_is(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ALWAYS_BYTES", 1 << 20)
    monkeypatch.setattr(unpacking, "RATIO_MAX", 100)
    with contextlib.closing(unpacker_of(tmp_path, PACKERS[kind](bytes(60 << 20)))) as unpacker:
        read_all(unpacker, 1 << 18)
        assert "times its size" in unpacker.fault
        assert unpacker.position < (1 << 20) + 100 * unpacker.packed_at + (1 << 18)


def test_a_decoder_that_wants_more_memory_than_its_bound_gets_none(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 30}]
    with contextlib.closing(unpacker_of(tmp_path, lzma.compress(b"line\n", filters=filters))) as unpacker:
        assert read_all(unpacker) == b""
        assert "emory" in unpacker.fault


def test_a_file_of_zstd_beyond_its_bound_is_not_taken_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PACKERS["zst"](LINES)
    monkeypatch.setattr(unpacking, "ZSTD_BYTES_MAX", len(packed) - 1)
    with contextlib.closing(unpacker_of(tmp_path, packed)) as unpacker:
        assert read_all(unpacker) == b""
        assert "zstd" in unpacker.fault


def test_who_reads_no_further_leaves_neither_thread_nor_descriptor(tmp_path: Path) -> None:
    before, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for _ in range(20):
        with contextlib.closing(unpacker_of(tmp_path, PACKERS["zst"](bytes(8 << 20)))) as unpacker:
            unpacker.read(10)
    wait_for(lambda: threading.active_count() == threads, "the threads to end")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_head_and_the_size_of_a_file_are_known_without_reading_all_of_it(tmp_path: Path) -> None:
    for kind, pack in PACKERS.items():
        path = tmp_path / kind
        path.write_bytes(pack(LINES))
        with path.open("rb") as file:
            assert unpacked_head(file.fileno()) == LINES[:1024]
            assert unpacked_size(file.fileno()) == (len(LINES) if kind == "gz" else None)

"""The tables ``[disk]`` and ``[scrub]`` of the configuration: room on the disk, and reading all logs to find damage."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_DAY_MS: Final = 24 * 3_600_000


class Disk(Struct, frozen=True):
    bytes_max: Annotated[int, Meta(ge=0, description="most bytes of all logs together; 0 = no limit")] = 0
    free_bytes_min: Annotated[
        int, Meta(ge=0, description="bytes kept free on the disk by deleting old segments; 0 = not checked")
    ] = _GIB
    free_bytes_warn: Annotated[
        int, Meta(ge=0, description="with less than this free on the disk, `status` and journal warn; 0 = off")
    ] = 2 * _GIB
    check_ms: Annotated[int, Meta(ge=100, description="how often retention is enforced")] = 30_000
    clock_jump_hold_ms: Annotated[
        int,
        Meta(ge=0, description="how long a jump of the clock must last before anything is deleted by it; 0 = at once"),
    ] = _DAY_MS


class Scrub(Struct, frozen=True):
    bytes_per_second: Annotated[
        int, Meta(ge=0, le=_GIB, description="how fast all logs are read in the background, to find damage; 0 = off")
    ] = 4 * _MIB
    every_ms: Annotated[int, Meta(ge=100, description="time between the beginnings of two scrub rounds")] = 7 * _DAY_MS

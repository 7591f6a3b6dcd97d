"""Foresees when there is no room left for the logs, at the rate of the last 24 hours.

There is no room when the disk has ``disk.free_bytes_min`` left, or when the logs have ``disk.bytes_max``: then
retention deletes what is younger than it should be, and without anything to delete producers are refused.  Deleted
topics in the trash make room before that, so their bytes count as free.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SAMPLE_S: Final = 60
WINDOW_S: Final = 86_400
SAMPLES_MAX: Final = WINDOW_S // SAMPLE_S + 1


class Room(NamedTuple):
    """The disk of the logs, in bytes; ``cap`` and ``reserve`` are 0 where there is none."""

    size: int
    free: int
    logs: int
    cap: int
    reserve: int
    trash: int = 0

    @property
    def usable(self) -> int:
        return self.free + self.trash - self.reserve

    @property
    def left(self) -> int:
        """How much can still be written before old segments have to go."""
        on_disk = max(0, self.usable)
        return min(on_disk, max(0, self.cap - self.logs)) if self.cap else on_disk


class DiskForecast:
    """Remembers how full the disk was, once a minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Room]] = deque(maxlen=SAMPLES_MAX)

    def note(self, at_s: float, room: Room) -> None:
        """Remember a sample, unless the last one is younger than SAMPLE_S."""
        if not self._samples or at_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((at_s, room))
        while at_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    def seconds_until_full(self, at_s: float, room: Room) -> float | None:
        """How long the room lasts; infinite when it does not shrink, None before there are samples of a minute."""
        if not room.left:
            return 0.0
        since_s, before = self._samples[0] if self._samples else (at_s, room)
        if at_s - since_s < SAMPLE_S:
            return None
        lasts = [_lasts(room.usable, before.free + before.trash - room.free - room.trash, at_s - since_s)]
        if room.cap:
            lasts.append(_lasts(room.cap - room.logs, room.logs - before.logs, at_s - since_s))
        return min(lasts)


def _lasts(room_bytes: int, taken: int, seconds: float) -> float:
    return room_bytes * seconds / taken if taken > 0 else float("inf")

"""Remembers what ``appliance pipeline expire`` has removed, so that nobody takes it for lost.

It stands beside the table, as ``_expired.json``, and is written before the rows go.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...names import TopicPartition
from .output_files import OutputFiles

EXPIRED: Final = "_expired.json"


class Expired(msgspec.Struct, frozen=True):
    """``before_us``: rows of before this time have gone, in microseconds since 1970.

    ``arrived_us``: when the newest one of these had arrived, by topic.  ``last``: the highest offset of these.
    """

    before_us: int = 0
    arrived_us: dict[str, int] = {}
    last: dict[str, dict[int, int]] = {}

    def has_touched(self, topic: str, start_us: int) -> bool:
        """Whether rows of this topic, or counts of them, may be missing in a window that begins then."""
        return start_us < self.before_us or start_us <= self.arrived_us.get(topic, -1)

    def last_of(self, part: TopicPartition) -> int:
        """The highest offset of which the row has gone; -1 if there is none."""
        return self.last.get(part.topic, {}).get(part.partition, -1)

    def and_of(self, part: TopicPartition, last: int, newest_us: int) -> Expired:
        """With rows of this partition, too."""
        arrived = {part.topic: max(newest_us, self.arrived_us.get(part.topic, 0))}
        of_topic = self.last.get(part.topic, {}) | {part.partition: max(last, self.last_of(part))}
        return Expired(self.before_us, self.arrived_us | arrived, self.last | {part.topic: of_topic})


def expired(files: OutputFiles) -> Expired:
    stored = files.read(EXPIRED)
    return Expired() if stored is None else msgspec.json.decode(stored, type=Expired)


def store_expired(files: OutputFiles, now: Expired) -> None:
    files.write(EXPIRED, msgspec.json.encode(now).decode())

"""Producer ids that are never given out twice: ``<data>/producer-id``.

    id = broker id << 32 | generation << GENERATION_SHIFT | counter

The file holds the generation in decimal text.  It is raised, and synced, before the first id of a generation
is given out, so a killed coordinator's successor starts a new one and nothing has to be remembered.  A data
directory without the file starts at a random generation: partitions on other brokers may remember the
producers of the one that was lost.  Generations wrap after 2**22, that is after 4 thousand million ids of one
broker.

Ids are given to producers one by one, and to network workers in blocks, so that these can give them to producers
while the coordinator hangs or is replaced.  What is left of a block when its worker ends is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...catalog import replace_file
from ...errors import StorageFault

FILE_NAME: Final = "producer-id"
GENERATION_SHIFT: Final = 10
GENERATIONS: Final = 1 << 32 - GENERATION_SHIFT
COUNTERS: Final = 1 << GENERATION_SHIFT
PRODUCER_IDS_PER_BLOCK: Final = 256
"""More than producers start at one worker while a coordinator that hangs is found and replaced."""


class ProducerIds:
    """``random_below`` picks the first generation of a new directory (``random.randrange``)."""

    def __init__(self, data_dir: Path, broker_id: int, random_below: Callable[[int], int]) -> None:
        self._path = data_dir / FILE_NAME
        self._broker_id = broker_id
        self._random_below = random_below
        self._generation = 0
        self._counter = COUNTERS

    def take(self, count: int = 1) -> int:
        """The first of ``count`` ids that follow each other, at most COUNTERS.

        Raises:
            DiskFull: no new generation can be stored: try again.
            StorageFault: the file cannot be read or stored.
        """
        if self._counter + count > COUNTERS:
            self._begin()
        taken = self._broker_id << 32 | self._generation << GENERATION_SHIFT | self._counter
        self._counter += count
        return taken

    def take_block(self) -> tuple[int, int]:
        """The first and the number of ids for a worker.

        Raises:
            DiskFull, StorageFault: as :meth:`take`.
        """
        return self.take(PRODUCER_IDS_PER_BLOCK), PRODUCER_IDS_PER_BLOCK

    def _begin(self) -> None:
        try:
            last = int(self._path.read_text())
        except FileNotFoundError:
            last = self._random_below(GENERATIONS)
        except (OSError, ValueError) as error:
            raise StorageFault(f"{self._path}: {error}; move it away to start from a random generation") from error
        generation = (last + 1) % GENERATIONS
        replace_file(self._path, b"%d\n" % generation)
        self._generation, self._counter = generation, 0

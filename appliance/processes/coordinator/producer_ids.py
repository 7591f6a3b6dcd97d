"""Gives out producer ids, each once.  The file ``<data>/producer-id`` holds the generation::

    an id: broker id << 32 | generation << GENERATION_SHIFT | counter

The generation is stored as decimal text.  It is raised, and synced, before the first id of a generation is given out;
the successor of a killed coordinator starts a new generation.  A data directory without the file starts at a random
generation, because partitions on other brokers may remember producers of the lost directory.  Generations wrap after
2**22, that is after 4 thousand million ids of one broker.

Ids are given to producers one by one, and to network workers in blocks.  So workers can give ids to producers while the
coordinator hangs or is replaced.  The rest of a block is lost when its worker ends.
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
        """Take ``count`` consecutive ids, at most COUNTERS; return the first.

        Raises:
            DiskFull: no new generation can be stored; try again.
            StorageFault: the file cannot be read or stored.
        """
        if self._counter + count > COUNTERS:
            self._begin()
        taken = self._broker_id << 32 | self._generation << GENERATION_SHIFT | self._counter
        self._counter += count
        return taken

    def take_block(self) -> tuple[int, int]:
        """Take a block of ids for a worker: the first, and their number.

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

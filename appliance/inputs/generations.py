"""The lives of files that an input knows, by what has become of each.

=======  ============================================================================================================
present  its file is there, under a name that ``include`` has, or that rotation gave
ending   its file is gone, has other content, or is compressed by now: what there is of it is read to its end
lost     an earlier process has read it, and no file was found that fits
over     it was read to its end, or need not be read: the last ENDED_MAX of them
=======  ============================================================================================================

Which of them an unknown file is :mod:`.recognition` says; :mod:`.files` moves them from one state to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView
from typing import Final

from .generation import FileKey, Generation, Identity
from .positions import ENDED_MAX, PositionStore, Source
from .rotation import LikeNames

NEVER_READ: Final = 0
"""In place of the line: of a file that was there before the first scan, or is a copy."""


class Generations:
    """Those that are present, ending, lost and over; those of the last two are found by file, path and name."""

    def __init__(self, store: PositionStore) -> None:
        """All that the store has are lost or over."""
        self._store = store
        self.present: dict[FileKey, Generation] = {}
        self.ending: list[Generation] = []
        self._like_names: LikeNames[Generation] = LikeNames()  # while new files are taken: of those that are read
        self._lost: dict[Generation, None] = {}
        self._lost_by_key: dict[FileKey, list[Generation]] = {}
        self._lost_by_path: dict[str, list[Generation]] = {}
        self._lost_names: LikeNames[Generation] = LikeNames()
        self._over: OrderedDict[FileKey, Generation] = OrderedDict()
        self._over_names: LikeNames[Generation] = LikeNames()
        self._unnumbered: list[Generation] = []  # over, and not in the store yet
        latest: dict[FileKey, Generation] = {}
        for generation in map(_of_source, store.sources()):
            if generation is not None:
                if generation.key in latest:
                    latest[generation.key].replaced = True
                latest[generation.key] = generation
                self._lost[generation] = None
                self._lost_by_key.setdefault(generation.key, []).append(generation)
                self._lost_by_path.setdefault(generation.path, []).append(generation)
                self._lost_names.add(generation, generation.path)
        for generation in map(_of_source, store.ended()):
            if generation is not None:
                self.note_over(generation)

    # ---- those that are read

    @property
    def read(self) -> tuple[Generation, ...]:
        """The present and the ending ones."""
        return *self.present.values(), *self.ending

    def __len__(self) -> int:
        """How many are read."""
        return len(self.present) + len(self.ending)

    def has_file(self, generation: Generation) -> bool:
        """Whether it is the one that its file has now."""
        return self.present.get(generation.key) is generation

    def index_names(self, generations: Iterable[Generation]) -> None:
        """Have :meth:`read_like` know these, and those that are present later."""
        self._like_names = LikeNames()
        for generation in generations:
            self._like_names.add(generation, generation.path)

    def read_like(self, path: str) -> list[Generation]:
        """Those of :meth:`index_names` that rotation may have given the name ``path``."""
        return self._like_names.like(path)

    def note_present(self, generation: Generation) -> None:
        """Its file is there, under its path."""
        self.present[generation.key] = generation
        self._like_names.add(generation, generation.path)

    def forget_present(self, generation: Generation) -> None:
        """Its file has another key by now."""
        if self.has_file(generation):
            del self.present[generation.key]

    def recall(self, generation: Generation) -> None:
        """It is neither lost nor over any more."""
        self.forget_lost(generation)
        if self.is_over(generation):
            del self._over[generation.key]
            self._over_names.discard(generation)
            generation.committed_line = max(generation.committed_line, 1)
            self._store.note(generation.row(ended=False))

    def of_file(self, key: FileKey) -> Iterator[Generation]:
        """All that have, or had, this file."""
        if key in self.present:
            yield self.present[key]
        yield from (generation for generation in self.ending if generation.key == key)
        yield from filter(self.is_lost, self._lost_by_key.get(key, ()))
        if key in self._over:
            yield self._over[key]

    # ---- those that are lost

    @property
    def lost(self) -> tuple[Generation, ...]:
        return (*self._lost,)

    def is_lost(self, generation: Generation) -> bool:
        return generation in self._lost

    def lost_of_file(self, key: FileKey, path: str, fd: int) -> list[Generation]:
        """The lost ones of a file that is open as ``fd``; also under other numbers, with the same path then."""
        of_file = [generation for generation in self._lost_by_key.get(key, ()) if self.is_lost(generation)]
        of_path = (generation for generation in self._lost_by_path.get(path, ()) if self.is_lost(generation))
        return of_file + [
            generation
            for generation in of_path
            if generation.key.is_on_another_device(key) or generation.key.is_copied_up_as(key, fd)
        ]

    def is_of_another_lost(self, generation: Generation, key: FileKey) -> bool:
        """Whether the file was that of a lost one which is not ``generation``."""
        return any(other is not generation and self.is_lost(other) for other in self._lost_by_key.get(key, ()))

    def lost_like(self, path: str) -> list[Generation]:
        """The lost ones that rotation may have given the name ``path``."""
        return self._lost_names.like(path)

    def forget_lost(self, generation: Generation) -> None:
        if self.is_lost(generation):
            del self._lost[generation]
            self._lost_names.discard(generation)

    # ---- those that are over

    @property
    def over(self) -> tuple[Generation, ...]:
        return (*self._over.values(),)

    def over_keys(self) -> KeysView[FileKey]:
        return self._over.keys()

    def over_of_file(self, key: FileKey) -> Generation | None:
        return self._over.get(key)

    def is_over(self, generation: Generation) -> bool:
        return self._over.get(generation.key) is generation

    def over_like(self, path: str) -> Iterator[Generation]:
        """Those that are over, and that rotation may have given the name ``path``; the last one first."""
        return reversed(self._over_names.like(path))

    def note_over(self, generation: Generation) -> None:
        """The last one of its file."""
        if generation.key in self._over:
            self._over_names.discard(self._over[generation.key])
        self._over[generation.key] = generation
        self._over.move_to_end(generation.key)
        self._over_names.add(generation, generation.path)
        while len(self._over) > ENDED_MAX:
            self._over_names.discard(self._over.popitem(last=False)[1])

    def pass_unread(self, path: str, identity: Identity) -> None:
        """A file need not be read up to the position of ``identity``; see :meth:`number_unread`."""
        self._unnumbered.append(Generation(0, path, identity, identity.tail_stop, NEVER_READ))

    def number_unread(self) -> None:
        """Have the store know what was passed without being read, for the next process."""
        rows = [
            (generation.path, generation.committed, generation.committed_line, generation.identity.encode())
            for generation in self._unnumbered
        ]
        for number, generation in zip(
            self._store.add_sources(rows, ended=True) if rows else (), self._unnumbered, strict=True
        ):
            generation.source = number
            self.note_over(generation)
        self._unnumbered.clear()


def _of_source(source: Source) -> Generation | None:
    """None: the source is no file, but one of an input of another type that had this name."""
    identity = Identity.decode(source.identity)
    if identity is None:
        return None
    return Generation(source.number, source.name, identity, source.position, source.line)

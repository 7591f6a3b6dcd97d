"""Judges compressed files: which life of a file each of them is, and whether it has what nobody has read.

A compressed file is known as a plain one is: it begins as a generation did, and has the same bytes before its position.
Where that position is in it only unpacking tells, piece by piece (:class:`Examination`), so that files which grow have
their turns meanwhile.  :mod:`.files` has the rules.

Bounds: one file is examined at a time, UNPACKED_BYTES of it; none while PACKED_OPEN_MAX others are read.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import StorageFault
from .file_access import FileAccess
from .generation import TAIL_BYTES, FileKey, Generation, Identity
from .generations import NEVER_READ, Generations
from .positions import PositionStore
from .rotation import Directories, Rotated, is_like
from .unpacking import Unpacker, has_compressed_name, unpacked_head, unpacked_size

PACKED_WAIT_MS: Final = 60_000
"""How long a compressed file that is damaged, or not whole yet, is waited for after it has changed."""
JUDGED_MAX: Final = 10_000
PACKED_OPEN_MAX: Final = 4
"""Compressed files that are read at a time."""
UNPACKED_BYTES: Final = 256 * 1024
"""How much of a compressed file is examined before other files have their turn."""


class Claim(NamedTuple):
    """A generation that begins as a compressed file does, as it was when it had been read to ``identity.tail_stop``."""

    generation: Generation
    identity: Identity


class Packed:
    """A compressed file that waits to be judged: its first bytes and its size (modulo 4 GiB), both unpacked.

    ``changed_ms``: when it was seen first as it is; ``is_new``: it may be of a generation that nobody has seen;
    ``fault``: why the last examination did not come to its end.
    """

    def __init__(self, file: Rotated, head: bytes, size: int | None, changed_ms: float, is_new: bool) -> None:
        self.file, self.head, self.size, self.changed_ms, self.is_new = file, head, size, changed_ms, is_new
        self.fault = ""

    @property
    def looked(self) -> tuple[int, int]:
        return self.file.status.st_size, self.file.status.st_mtime_ns

    def is_ripe(self, now: float, since_ns: int) -> bool:
        """Whether it is whole, as far as that is known: no later scan would see it change."""
        waited = now - self.changed_ms >= PACKED_WAIT_MS
        return waited or (not self.fault and self.file.status.st_mtime_ns < since_ns)

    def note_fault(self, fault: str, now: float) -> None:
        """Try again later."""
        self.fault, self.changed_ms = fault, now

    def is_claimed(self, claim: Claim) -> bool:
        identity = claim.identity
        return identity.tail_stop > 0 and self._is_alike(claim.generation) and identity.is_head_of(self.head)

    def may_be(self, generation: Generation) -> bool:
        """Whether it may be a generation of which no more may be known than how it begins, or its name."""
        identity = generation.identity
        return self._is_alike(generation) and (
            not self.head or not identity.head_bytes or identity.is_head_of(self.head)
        )

    def _is_alike(self, generation: Generation) -> bool:
        """By name and age; also in another directory, as logrotate has one for what is old, if enough is the same."""
        directory, name = os.path.split(self.file.path)
        other_directory, other = os.path.split(generation.path)
        return (
            self.file.key.may_be_copy_of(generation.key)
            and (directory == other_directory or generation.identity.head_bytes >= TAIL_BYTES)
            and (name == other or is_like(name, other) or os.path.basename(self.file.base) == other)
        )


class Examination:
    """Unpacks a file once; ``fits``: the claims that hold, in the order of their positions."""

    def __init__(self, packed: Packed, unpacker: Unpacker, claims: Iterable[Claim]) -> None:
        self.packed, self.unpacker = packed, unpacker
        self.fits: list[Claim] = []
        self._claims = sorted(claims, key=lambda claim: claim.identity.tail_stop, reverse=True)

    def step(self, bytes_max: int) -> bool:
        """Go on; whether there is more.  Raises OSError."""
        unpacker = self.unpacker
        count = self._claims[-1].identity.tail_stop - unpacker.position if self._claims else bytes_max
        unpacker.read(min(count, bytes_max))
        while self._claims and self._claims[-1].identity.tail_stop <= unpacker.position:
            claim = self._claims.pop()
            if claim.identity.has_tail(unpacker.recent):
                self.fits.append(claim)
        return not unpacker.is_over


class Heir(NamedTuple):
    """A generation that is to be read in a compressed file, from where it was read to."""

    generation: Generation
    unpacker: Unpacker


class PackedFiles:
    """Those that wait to be judged, and those that were."""

    def __init__(
        self,
        generations: Generations,
        directories: Directories,
        access: FileAccess,
        store: PositionStore,
        files_max: int,
    ) -> None:
        """``files_max``: how many generations may be read."""
        self._generations, self._directories, self._access = generations, directories, access
        self._store, self._files_max = store, files_max
        self._waiting: dict[FileKey, Packed] = {}
        self._judged: OrderedDict[FileKey, tuple[int, int]] = OrderedDict()
        self._examination: Examination | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_examining(self) -> bool:
        return self._examination is not None

    def keys(self) -> Iterable[FileKey]:
        """Of those that wait."""
        return self._waiting.keys()

    def add_file(self, file: Rotated, now_ms: float, fd: int, *, is_new: bool) -> None:
        """Have a file judged, which is open.  Raises OSError."""
        waiting = self._waiting.get(file.key)
        if waiting is not None:
            waiting.is_new |= is_new
        else:
            file = file._replace(status=os.fstat(fd))
            self._waiting[file.key] = Packed(file, unpacked_head(fd), unpacked_size(fd), now_ms, is_new)

    def may_have(self, generation: Generation, now_ms: float) -> bool:
        """Whether a compressed file beside it may have what is not read of one that has no file any more."""
        with contextlib.suppress(OSError):
            for path, status in self._directories.beside(generation.path):
                if has_compressed_name(path):
                    file = Rotated(path, generation.path, status, FileKey.of_path(path))
                    if self._is_unjudged(file):
                        self._add_for(generation, file, now_ms)
        return any(packed.may_be(generation) for packed in self._waiting.values())

    def _is_unjudged(self, file: Rotated) -> bool:
        """Whether a file neither waits nor has been judged as it is."""
        looked = file.status.st_size, file.status.st_mtime_ns
        return file.key not in self._waiting and self._judged.get(file.key) != looked

    def _add_for(self, generation: Generation, file: Rotated, now_ms: float) -> None:
        """Have a file judged that may be this generation; whatever else it is nobody wants."""
        fd = self._access.open_compressed(file.path, file.key)
        if fd >= 0:
            with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
                self.add_file(file, now_ms, fd, is_new=False)
                packed = self._waiting[file.key]
                if not packed.may_be(generation):
                    del self._waiting[file.key]

    def look_again(self, now_ms: float) -> None:
        """Look at those that have changed: they were being written."""
        for key, packed in list(self._waiting.items()):
            try:
                status = os.stat(packed.file.path, follow_symlinks=False)
                is_own = FileKey.of_path(packed.file.path) == key
            except OSError:
                is_own = False
            if not is_own:  # gone: under another name a scan sees it anew
                del self._waiting[key]
            elif (status.st_size, status.st_mtime_ns) != packed.looked:
                fd = self._access.open_compressed(packed.file.path, key)
                if fd >= 0:
                    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
                        del self._waiting[key]
                        self.add_file(packed.file, now_ms, fd, is_new=packed.is_new)

    # ---- one after the other is unpacked, to see what it is

    def examine(self, now_ms: float, since_ns: int) -> tuple[bool, Heir | None]:
        """Unpack a piece of the file that is judged now; whether there is more to do, and what is to be read in it.

        ``since_ns``: when a file must have changed that a later scan may see change.
        """
        examination = self._examination = self._examination or self._next_examination(now_ms, since_ns)
        if examination is None:
            return False, None
        heir = None
        try:
            if examination.step(UNPACKED_BYTES):
                return True, None
            heir = self._judge(examination, now_ms)
        except (OSError, StorageFault) as error:  # a bad place of the disk, or one that is full
            examination.unpacker.close()
            examination.packed.note_fault(str(error), now_ms)
        self._examination = None
        return True, heir

    def _next_examination(self, now_ms: float, since_ns: int) -> Examination | None:
        unpackers = (generation.unpacker for generation in self._generations.ending)
        open_count = sum(unpacker is not None and not unpacker.is_over for unpacker in unpackers)
        if open_count >= PACKED_OPEN_MAX or len(self._generations) >= self._files_max:
            return None
        for packed in list(self._waiting.values()):
            if not packed.is_ripe(now_ms, since_ns):
                continue
            claims = self._claims(packed)
            if any(claim.generation.replaced and claim.generation.in_flight for claim in claims):
                continue  # how far it was read is known once all of it is flushed
            if any(
                packed.size == claim.identity.tail_stop % 2**32 and self._generations.is_over(claim.generation)
                for claim in claims
            ):
                self._end(packed)
                continue
            fd = self._access.open_compressed(packed.file.path, packed.file.key)
            if fd >= 0:
                return Examination(packed, Unpacker(fd, packed.file.path), claims)
        return None

    def _claims(self, packed: Packed) -> list[Claim]:
        claims = [
            Claim(generation, identity)
            for generation in (*self._generations.lost, *self._generations.read)
            for identity in (generation.identity, *generation.marks)
        ]
        claims += [Claim(generation, generation.identity) for generation in self._generations.over]
        return [claim for claim in claims if packed.is_claimed(claim)]

    def _judge(self, examination: Examination, now_ms: float) -> Heir | None:
        """The generation of a compressed file that has more than was read: one that is known, or a new one.

        Raises:
            StorageFault: a new generation cannot be stored.
        """
        packed, unpacker = examination.packed, examination.unpacker
        if unpacker.fault and now_ms - packed.changed_ms < PACKED_WAIT_MS:
            unpacker.close()
            packed.fault = unpacker.fault
            return None
        generation = None
        if not self._was_unpacked_read(examination):
            generation = self._generation_of(examination)
            if generation is None and packed.is_new:
                identity = Identity.of_head(packed.file.key, unpacker.head)
                (number,) = self._store.add_sources([(packed.file.base, 0, 1, identity.encode())])
                generation = Generation(number, packed.file.base, identity, 0, 1)
        self._end(packed)
        if generation is None:
            unpacker.close()
            return None
        return Heir(generation, unpacker)

    def _was_unpacked_read(self, examination: Examination) -> bool:
        """Whether all that a compressed file has was read elsewhere, or is read there."""
        unpacker, generations = examination.unpacker, self._generations
        size, packed_size = unpacker.position, examination.packed.file.status.st_size
        if not size and not (unpacker.fault and packed_size):
            return True
        for generation in generations.read:
            if not generation.replaced and generation.has_end(unpacker.head, size, unpacker.recent):
                return True
        for claim in examination.fits:
            generation = claim.generation
            if generations.is_over(generation):
                if generation.committed_line == NEVER_READ or claim.identity.tail_stop == size:
                    return True
            elif size < generation.committed and (generation.replaced or generations.is_lost(generation)):
                return True  # the copy was made before the last lines were written, and read
        if not unpacker.fault:
            return False
        beyond = (claim for claim in self._claims(examination.packed) if claim.identity.tail_stop > size)
        return any(generations.is_over(claim.generation) for claim in beyond)  # what is damaged was read

    def _generation_of(self, examination: Examination) -> Generation | None:
        """The generation that has no file any more, and goes on in a compressed one."""
        packed, generations = examination.packed, self._generations
        without_file = [*generations.lost, *(generation for generation in generations.ending if generation.replaced)]
        for claim in reversed(examination.fits):
            generation = claim.generation
            if claim.identity is generation.identity and (
                generation in without_file or generations.is_over(generation)
            ):
                return generation
        begun = [generation for generation in without_file if not generation.committed and packed.may_be(generation)]
        begun.sort(key=lambda generation: -generation.identity.head_bytes)  # of an empty one only the name is known
        return begun[0] if begun and packed.head else None

    def _end(self, packed: Packed) -> None:
        """It is judged."""
        self._waiting.pop(packed.file.key, None)
        self._judged[packed.file.key] = packed.looked
        self._judged.move_to_end(packed.file.key)
        if len(self._judged) > JUDGED_MAX:
            self._judged.popitem(last=False)

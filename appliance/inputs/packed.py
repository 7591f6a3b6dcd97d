"""Judges compressed files: which life of a file each of them is, and whether it has what nobody has read.

A compressed file is known as a plain one is: it begins as a generation did, and has the same bytes before its position.
Where that position is in it only unpacking tells, piece by piece (:class:`Examination`), so that files which grow have
their turns meanwhile.  :mod:`.files` says what follows from it.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from .generation import TAIL_BYTES, FileKey, Generation, Identity
from .rotation import Rotated, is_like
from .unpacking import Unpacker, unpacked_head, unpacked_size

PACKED_WAIT_MS: Final = 60_000
"""How long a compressed file that is damaged, or not whole yet, is waited for after it has changed."""
JUDGED_MAX: Final = 10_000


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


class PackedFiles:
    """Those that wait to be judged, and those that were."""

    def __init__(self, open_file: Callable[[str, FileKey], int]) -> None:
        """``open_file``: the descriptor of a compressed file; -1: it is none, or cannot be opened."""
        self._open_file = open_file
        self._waiting: dict[FileKey, Packed] = {}
        self._judged: OrderedDict[FileKey, tuple[int, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keys(self) -> Iterable[FileKey]:
        return self._waiting.keys()

    def waiting(self) -> list[Packed]:
        return list(self._waiting.values())

    def add(self, file: Rotated, now: float, fd: int, *, is_new: bool) -> None:
        """Have a file judged, which is open.  Raises OSError."""
        waiting = self._waiting.get(file.key)
        if waiting is not None:
            waiting.is_new |= is_new
        else:
            file = file._replace(status=os.fstat(fd))
            self._waiting[file.key] = Packed(file, unpacked_head(fd), unpacked_size(fd), now, is_new)

    def add_for(self, generation: Generation, file: Rotated, now: float) -> None:
        """Have a file judged that may be this generation; whatever else it is nobody wants."""
        fd = self._open_file(file.path, file.key)
        if fd >= 0:
            with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
                self.add(file, now, fd, is_new=False)
                packed = self._waiting[file.key]
                if not packed.may_be(generation):
                    del self._waiting[file.key]

    def look_again(self, now: float) -> None:
        """Look at those that have changed: they were being written."""
        for key, packed in list(self._waiting.items()):
            try:
                status = os.stat(packed.file.path, follow_symlinks=False)
                is_own = FileKey.at(packed.file.path) == key
            except OSError:
                is_own = False
            if not is_own:  # gone: under another name a scan sees it anew
                del self._waiting[key]
            elif (status.st_size, status.st_mtime_ns) != packed.looked:
                fd = self._open_file(packed.file.path, key)
                if fd >= 0:
                    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
                        del self._waiting[key]
                        self.add(packed.file, now, fd, is_new=packed.is_new)

    def wants(self, file: Rotated) -> bool:
        """Whether a file has not been judged as it is."""
        looked = file.status.st_size, file.status.st_mtime_ns
        return file.key not in self._waiting and self._judged.get(file.key) != looked

    def may_have(self, generation: Generation) -> bool:
        """Whether one that waits may be this generation."""
        return any(packed.may_be(generation) for packed in self._waiting.values())

    def open(self, packed: Packed) -> Unpacker | None:
        fd = self._open_file(packed.file.path, packed.file.key)
        return Unpacker(fd, packed.file.path) if fd >= 0 else None

    def end(self, packed: Packed) -> None:
        """It is judged."""
        self._waiting.pop(packed.file.key, None)
        self._judged[packed.file.key] = packed.looked
        self._judged.move_to_end(packed.file.key)
        if len(self._judged) > JUDGED_MAX:
            self._judged.popitem(last=False)

"""A disk that remembers what was made durable, and every state that a power loss may leave it in.

:class:`Disk` performs the calls of a :class:`~appliance.durable_files.System` on a real directory and records them.
What POSIX promises, and no more:

* Of a file, each sector of 512 bytes, and its length, is as it was after any of the calls since the last ``fdatasync``
  or ``fsync`` of it; bytes that were never written are zeros.  So writes are dropped, torn and reordered.
* A sync that fails leaves the sectors that it should have written in memory, and says nothing of them any more: the
  next one succeeds, and they are on the disk only if they were written again (:meth:`Disk.fail_sync`).
* Of a directory, any of the calls since its last ``fsync`` have happened, in their order: a name that was made is
  there or not, a rename has happened wholly or not at all, a file that was unlinked is back or not.
* A mapped file (the recovery point) is written back at any time: whatever it held at one of the calls.

Nothing here waits for a real disk.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.durable_files import System
from appliance.log.recovery import POINT_NAME

SECTOR_BYTES = 512

Entries = dict[str, int]
Tree = dict[str, "bytes | Tree"]
"""What a directory holds: files by their contents, directories by what they hold."""


@dataclass
class FileNode:
    """``versions``: what is durable, then what it was after each call since.

    ``forgotten``: sectors that no sync will write, unless they are written again.
    """

    versions: list[bytes]
    forgotten: set[int] = field(default_factory=set)

    def copy(self) -> FileNode:
        return FileNode(list(self.versions), set(self.forgotten))

    def synced(self) -> None:
        """The disk has what a sync has written; of forgotten sectors what it had before."""
        durable, now = self.versions[0], self.versions[-1]
        written = bytearray(now)
        for sector in self.forgotten:
            at = sector * SECTOR_BYTES
            here = slice(at, min(at + SECTOR_BYTES, len(now)))
            written[here] = durable[here].ljust(len(now[here]), b"\0")
        self.versions = [bytes(written)] if written == now else [bytes(written), now]

    def fail_sync(self) -> None:
        durable, now = self.versions[0], self.versions[-1]
        for at in range(0, len(now), SECTOR_BYTES):
            here = slice(at, at + SECTOR_BYTES)
            if now[here] != durable[here]:
                self.forgotten.add(at // SECTOR_BYTES)

    def written(self, position: int, size: int) -> None:
        self.forgotten -= set(range(position // SECTOR_BYTES, -(-(position + size) // SECTOR_BYTES)))

    def axes(self) -> list[list[bytes | int]]:
        """What may be chosen independently: the length, then each sector."""
        versions = self.versions
        if len(versions) == 1:
            return []
        sectors = -(-max(map(len, versions)) // SECTOR_BYTES)
        lengths: list[bytes | int] = list(dict.fromkeys(len(version) for version in versions))
        columns: list[list[bytes | int]] = []
        for sector in range(sectors):
            at = sector * SECTOR_BYTES
            kinds = dict.fromkeys(version[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0") for version in versions)
            columns.append(list(kinds))
        return [lengths, *columns]

    def content(self, chosen: Sequence[Any]) -> bytes:
        if not chosen:
            return self.versions[0]
        length, *sectors = chosen
        return b"".join(sectors)[:length].ljust(length, b"\0")


@dataclass
class DirectoryNode:
    """``pending``: calls since the last sync, each of which sets names all at once (0: removes)."""

    durable: Entries = field(default_factory=dict)
    pending: list[Entries] = field(default_factory=list)

    def copy(self) -> DirectoryNode:
        return DirectoryNode(dict(self.durable), list(self.pending))

    @property
    def now(self) -> Entries:
        return self.after([True] * len(self.pending))

    def after(self, happened: Sequence[bool]) -> Entries:
        entries = dict(self.durable)
        for change, yes in zip(self.pending, happened, strict=True):
            if yes:
                entries |= change
        return {name: number for name, number in entries.items() if number}


Node = FileNode | DirectoryNode
ROOT = 1


@dataclass
class Image:
    """All that is known of a disk at one moment."""

    nodes: dict[int, Node]

    def states(self, random_: random.Random, count_max: int) -> Iterator[Tree]:
        """What a power loss at this moment may leave: every state if there are few, else ``count_max`` of them.

        The first is that nothing since the last syncs has happened, the second that all has.
        """
        axes: list[list[Any]] = []
        places: dict[int, slice] = {}
        for number, node in self.nodes.items():
            own = node.axes() if isinstance(node, FileNode) else [[False, True]] * len(node.pending)
            places[number] = slice(len(axes), len(axes) + len(own))
            axes += own
        total = 1
        for axis in axes:
            total *= len(axis)
        if total <= count_max:
            choices: Iterator[Any] = itertools.product(*axes)
        else:
            some = ([random_.choice(axis) for axis in axes] for _ in range(count_max - 2))
            choices = itertools.chain([[axis[0] for axis in axes], [axis[-1] for axis in axes]], some)
        for chosen in choices:
            yield self._tree(ROOT, {number: chosen[place] for number, place in places.items()})

    def _tree(self, number: int, chosen: dict[int, Sequence[Any]]) -> Tree:
        directory = self.nodes[number]
        assert isinstance(directory, DirectoryNode)
        tree: Tree = {}
        for name, inner in directory.after(chosen[number]).items():
            node = self.nodes[inner]
            tree[name] = node.content(chosen[inner]) if isinstance(node, FileNode) else self._tree(inner, chosen)
        return tree


def plant(tree: Tree, path: Path) -> None:
    """Make the (empty or missing) directory hold ``tree``."""
    path.mkdir(exist_ok=True)
    for name, content in tree.items():
        if isinstance(content, dict):
            plant(content, path / name)
        else:
            (path / name).write_bytes(content)


class Disk:
    """Records what is done to ``root``, a directory whose present content is durable.

    ``observe`` is called after each call.  ``room``: so many bytes are left on the disk; None: enough.
    """

    def __init__(self, root: Path, observe: Callable[[], None] = lambda: None) -> None:
        self.root = root
        self.observe = observe
        self.room: int | None = None
        self._nodes: dict[int, Node] = {ROOT: DirectoryNode()}
        self._numbers = itertools.count(ROOT + 1)
        self._by_inode: dict[int, int] = {}
        self._pins: dict[int, int] = {}  # keeps the numbers of inodes from being used again
        self._take(root, ROOT)

    def _take(self, path: Path, number: int) -> None:
        """Learn what is there when the recording begins."""
        self._by_inode[path.stat().st_ino] = number
        directory = self._nodes[number]
        assert isinstance(directory, DirectoryNode)
        for entry in sorted(path.iterdir()):
            inner = directory.durable[entry.name] = next(self._numbers)
            if entry.is_dir():
                self._nodes[inner] = DirectoryNode()
                self._take(entry, inner)
            else:
                self._nodes[inner] = FileNode([entry.read_bytes()])
                self._pin(os.open(entry, os.O_RDONLY), inner)

    def _pin(self, fd: int, number: int) -> None:
        self._by_inode[os.fstat(fd).st_ino] = number
        self._pins[number] = fd

    def close(self) -> None:
        for fd in self._pins.values():
            os.close(fd)
        self._pins.clear()

    def settle(self) -> None:
        """All that is there now is durable: somebody has changed and synced files without us."""
        self.close()
        self.__init__(self.root, self.observe)  # type: ignore[misc]

    def fail_sync(self, fd: int) -> None:
        """A sync of the file reports an error."""
        node = self._nodes[self._number(fd)]
        if isinstance(node, FileNode):
            self._changed(self._number(fd))
            node.fail_sync()

    def image(self) -> Image:
        self._look_at_mapped()
        return Image({number: node.copy() for number, node in self._nodes.items()})

    def system(self) -> System:
        return System(
            writev=self._writev,
            pwrite=self._pwrite,
            fdatasync=self._sync,
            open=self._open,
            ftruncate=self._ftruncate,
            rename=self._rename,
            unlink=self._unlink,
            mkdir=self._mkdir,
            fsync=self._sync,
            msync=self._msync,
        )

    # ---- what is known

    def _directory(self, path: Path | str) -> DirectoryNode:
        node = self._nodes[self._by_inode[Path(path).stat().st_ino]]
        assert isinstance(node, DirectoryNode)
        return node

    def _changed(self, number: int) -> None:
        """Remember what the file holds now."""
        node = self._nodes[number]
        assert isinstance(node, FileNode)
        fd = self._pins[number]
        content = os.pread(fd, os.fstat(fd).st_size, 0)
        if content != node.versions[-1]:
            node.versions.append(content)

    def _look_at_mapped(self) -> None:
        for node in list(self._nodes.values()):
            if isinstance(node, DirectoryNode) and POINT_NAME in node.now:
                self._changed(node.now[POINT_NAME])

    def _number(self, fd: int) -> int:
        return self._by_inode[os.fstat(fd).st_ino]

    def _done(self) -> None:
        self._look_at_mapped()
        self.observe()

    # ---- the calls

    def _allowance(self, size: int) -> int:
        if self.room is None:
            return size
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(size, self.room)
        self.room -= size
        return size

    def _open(self, path: Path | str, flags: int, mode: int) -> int:
        path = Path(path)
        new = flags & os.O_CREAT and not path.exists()
        if new:
            self._allowance(1)
        fd = os.open(path, flags, mode)
        if new:
            number = next(self._numbers)
            self._nodes[number] = FileNode([b""])
            self._pin(os.open(path, os.O_RDONLY), number)
            self._directory(path.parent).pending.append({path.name: number})
            self._done()
        elif flags & os.O_TRUNC:
            self._changed(self._number(fd))
            self._done()
        return fd

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        position = os.fstat(fd).st_size
        written = os.write(fd, b"".join(views)[: self._allowance(sum(map(len, views)))])
        self._written(fd, position, written)
        self._done()
        return written

    def _pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        written = os.pwrite(fd, memoryview(data)[: self._allowance(len(data))], position)
        self._written(fd, position, written)
        self._done()
        return written

    def _written(self, fd: int, position: int, size: int) -> None:
        node = self._nodes[self._number(fd)]
        assert isinstance(node, FileNode)
        node.written(position, size)
        self._changed(self._number(fd))

    def _ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self._changed(self._number(fd))
        self._done()

    def _sync(self, fd: int) -> None:
        self._synced(self._number(fd))

    def _msync(self, mapped: mmap.mmap) -> None:
        self._look_at_mapped()
        for node in list(self._nodes.values()):
            if isinstance(node, DirectoryNode) and POINT_NAME in node.now:
                self._synced(node.now[POINT_NAME])

    def _synced(self, number: int) -> None:
        node = self._nodes[number]
        if isinstance(node, FileNode):
            self._changed(number)
            node.synced()
        else:
            node.durable, node.pending = node.now, []
        self._done()

    def _rename(self, old: Path, new: Path) -> None:
        directory = self._directory(old.parent)
        number = directory.now[old.name]
        old.rename(new)
        directory.pending.append({new.name: number, old.name: 0})
        self._done()

    def _unlink(self, path: Path) -> None:
        path.unlink()
        self._directory(path.parent).pending.append({path.name: 0})
        self._done()

    def _mkdir(self, path: Path, mode: int) -> None:
        path.mkdir(mode)
        number = next(self._numbers)
        self._nodes[number] = DirectoryNode()
        self._by_inode[path.stat().st_ino] = number
        self._directory(path.parent).pending.append({path.name: number})
        self._done()

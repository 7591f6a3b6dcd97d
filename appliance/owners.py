"""Lets root work in directories of other users, with no more than their rights.

Who owns a directory may at any moment exchange what a path through it leads to.  What root has checked of such a path,
or of the file at its end, says nothing about the next call.  So root checks nothing there: it acts as the owner, and
the kernel refuses what the owner could not do without root.

Acting as another user is for files only, and for the calling thread only (setfsuid(2)): the process keeps its other
rights, and a server at the other end of a Unix socket still sees root.  Programs that are started meanwhile are root's.
"""

from __future__ import annotations

import codecs
import errno
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from .errors import OthersDirectory

LINKS_MAX: Final = 40
"""Symbolic links in one path, as in Linux."""
NOBODY: Final = 65_534


class Owner(NamedTuple):
    uid: int
    gid: int

    def __str__(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"the user {self.uid}"


ROOT: Final = Owner(0, 0)


def keeper_of(path: Path) -> Owner:
    """Who may exchange what a path leads to: the owner of the first part of it that is not root's, else root.

    Where a directory of root is open to all (mode 0777 without the sticky bit) that is nobody in particular: NOBODY.
    """
    here = Path("/")
    parts = list(reversed(path.absolute().parts[1:]))
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.parent  # all of ``here`` was followed, so it has no links
            continue
        try:
            status = os.lstat(here / part)
        except (FileNotFoundError, NotADirectoryError):
            return ROOT
        if status.st_uid != 0:
            return Owner(status.st_uid, _group_of(status))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > LINKS_MAX:
                return ROOT  # whoever opens it is told
            target = (here / part).readlink()
            parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here
            continue
        here /= part
        if stat.S_ISDIR(status.st_mode) and status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            return Owner(NOBODY, NOBODY)
    return ROOT


def _group_of(status: os.stat_result) -> int:
    """The group that the owner of a file logs in with; that of the file may be one that the owner is not in."""
    try:
        return pwd.getpwuid(status.st_uid).pw_gid
    except KeyError:
        return status.st_gid or NOBODY


@contextmanager
def acting_as_owner(path: Path, also_in: Sequence[int] = ()) -> Iterator[None]:
    """Within, this thread reaches files as who owns the way to ``path`` does; whoever is not root changes nothing.

    ``also_in``: groups that the owner's service is in besides.

    Import what is needed before: the owner may be unable to read the program.

    Raises:
        PermissionError: root may not become that user here.
    """
    keeper = keeper_of(path) if os.geteuid() == 0 else ROOT
    if keeper.uid == 0:
        yield
        return
    from . import libc  # few need it, and ctypes takes time

    codecs.lookup("idna")  # addresses need it, and Python reads a codec's file at its first use
    if libc.set_file_user(libc.NOT_AN_ID) == keeper.uid:  # an invalid number: only asks
        yield
        return
    groups = os.getgroups()
    libc.set_groups_of_thread(also_in)  # those of root open its files as well
    gid_before, uid_before = libc.set_file_group(keeper.gid), libc.set_file_user(keeper.uid)
    try:
        if (libc.set_file_group(libc.NOT_AN_ID), libc.set_file_user(libc.NOT_AN_ID)) != (keeper.gid, keeper.uid):
            raise PermissionError(errno.EPERM, f"not permitted to act as {keeper}", str(path))
        yield
    finally:
        libc.set_file_user(uid_before)
        libc.set_file_group(gid_before)
        libc.set_groups_of_thread(groups)


def open_as_owner(path: Path) -> BinaryIO:
    """Open a file to read its bytes, as :func:`acting_as_owner`: what root passes on is what its owner could.

    Raises:
        OSError.
    """
    with acting_as_owner(path):
        return path.open("rb")


def refuse_others_directory(path: Path) -> None:
    """Refuse to let root, and all programs that it starts, work in a directory of another user.

    Raises:
        OthersDirectory: it is one; the message says whose.
    """
    keeper = keeper_of(path) if os.geteuid() == 0 else ROOT
    if keeper.uid:
        who = "everybody" if keeper.uid == NOBODY else str(keeper)
        raise OthersDirectory(f"{path}: {who} may exchange what is there while root works in it: run this as its owner")

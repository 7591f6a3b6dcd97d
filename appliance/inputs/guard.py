"""Decides which of the files that patterns name may be read, for whoever writes logs may put links among them.

A path is walked part by part, and nothing is followed that was not looked at before: what is opened is what was judged,
whatever is exchanged meanwhile.

==================================================  ================================================================
on the way                                          read
==================================================  ================================================================
a symbolic link of root, or of the service's user   yes
a symbolic link of another user                     only a file of the same user: what he could copy there as well
a file of the data directory, or a hard link to it  never, whoever made a link
a file of ``[tls]``, or with a password or tokens   never, as above
==================================================  ================================================================
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..config import Config
from ..errors import FileNotPermitted
from ..input_settings import Http
from ..owners import LINKS_MAX, Owner, acting_as_owner, keeper_of
from .generation import FileKey

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
PARTS_MAX: Final = 256
"""Parts of one path and of the links in it: each is open while the path is walked."""
OF_THE_DATA: Final = "is a file of the data directory"
SECRET: Final = "is a file of [tls], or has a password or tokens"

InodeKey = tuple[int, int]


def _key(status: os.stat_result) -> InodeKey:
    return status.st_dev, status.st_ino


class _Found(NamedTuple):
    """The end of a path that was walked: ``name`` in the open directory ``parent``, open as ``fd`` to be looked at.

    ``owners``: of those links on the way that neither root nor who reads has made.
    """

    parent: int
    name: str
    fd: int
    status: os.stat_result
    owners: frozenset[int]


@contextlib.contextmanager
def _walked(path: str, reader: int) -> Iterator[_Found]:
    """Raises OSError."""
    trusted = {0, reader}
    owners: set[int] = set()
    links = steps = 0
    parts = list(reversed(Path(path).absolute().parts[1:])) or ["."]
    with contextlib.ExitStack() as opened:

        def look(part: str, parent: int | None = None) -> int:
            fd = os.open(part, _LOOK, dir_fd=parent)
            opened.callback(os.close, fd)
            return fd

        here = look("/")
        while True:
            part = parts.pop()
            steps += 1
            fd = look(part, here)
            status = os.fstat(fd)
            links += stat.S_ISLNK(status.st_mode)
            if links > LINKS_MAX or steps > PARTS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if stat.S_ISLNK(status.st_mode):
                if status.st_uid not in trusted:
                    owners.add(status.st_uid)
                target = os.readlink("", dir_fd=fd)  # of this link, not of one that is in its place by now
                here = look("/") if target.startswith("/") else here
                parts += reversed([word for word in target.split("/") if word]) or ["."]
            elif parts:
                here = fd
            else:
                yield _Found(here, part, fd, status, frozenset(owners))
                return


class Guard:
    """Opens the files of an input by the rules of the module's docstring."""

    def __init__(self, data_dir: Path | None = None, secrets: Sequence[str] = (), reader: int | None = None) -> None:
        """``data_dir``: None: there is none on this host; ``secrets``: paths of files that are never read; ``reader``:
        the user who reads, and whom the caller acts as; None: that of this process."""
        self._data_dir, self._secrets = data_dir, [Path(secret) for secret in secrets if secret]
        self._reader = os.geteuid() if reader is None else reader
        self._data_files: set[InodeKey] | None = None

    @classmethod
    def of_config(cls, config: Config, data_dir: Path | None) -> Guard:
        """Of an input of the appliance that has this configuration and directory, also where root asks for it.

        Root then acts as the owner of the directory: :func:`.owners.acting_as_owner`.
        """
        tls = config.tls
        tokens = [http.token_file for http in config.inputs.values() if isinstance(http, Http)]
        secrets = [tls.certificate, tls.key, tls.ca, config.zookeeper.password_file, *tokens]
        return cls(data_dir, secrets, keeper_of(data_dir).uid if data_dir and os.geteuid() == 0 else None)

    def begin_scan(self) -> None:
        """What has several names is compared with the files that the data directory has from now on."""
        self._data_files = None

    def look(self, path: str) -> tuple[os.stat_result, FileKey]:
        """What a path leads to, and which file it is, followed as far as links may be.

        Raises:
            FileNotPermitted: a link must not be followed.
            OSError.
        """
        with _walked(path, self._reader) as walked:
            _check_links(walked)
            return walked.status, FileKey.of_fd(walked.fd)

    def open(self, path: str) -> int:
        """Open a file to read it; what is no regular file is not opened.

        Raises:
            FileNotPermitted: it must not be read.
            OSError.
        """
        with contextlib.ExitStack() as refused:
            # Another user than root has no more rights than it needs.
            acting = contextlib.nullcontext() if self._reader else acting_as_owner(Path(path))
            with acting, _walked(path, self._reader) as walked:
                _check_links(walked)
                if not stat.S_ISREG(walked.status.st_mode):
                    raise FileNotPermitted("is no regular file")
                fd = os.open(walked.name, _READ, dir_fd=walked.parent)
                refused.callback(os.close, fd)
                status = os.fstat(fd)
                if _key(status) != _key(walked.status):
                    raise FileNotPermitted("was replaced in this moment")
                is_of_data = self._is_below_data(walked.parent)
            if is_of_data or self._is_data_file(status):
                raise FileNotPermitted(OF_THE_DATA)
            if _key(status) in _keys(self._secrets):
                raise FileNotPermitted(SECRET)
            refused.pop_all()
            return fd

    def is_readable(self, path: str) -> bool:
        """Whether :meth:`open` opens it."""
        try:
            os.close(self.open(path))
        except (FileNotPermitted, OSError):
            return False
        return True

    def _is_below_data(self, directory: int) -> bool:
        """Whether an open directory is the data directory, or in it.  Raises OSError."""
        if self._data_dir is None:
            return False
        data = _keys([self._data_dir])
        with contextlib.ExitStack() as opened:
            here, last = _key(os.fstat(directory)), (-1, -1)
            while here != last and here not in data:
                directory = os.open("..", _LOOK, dir_fd=directory)
                opened.callback(os.close, directory)
                here, last = _key(os.fstat(directory)), here
            return here in data

    def _is_data_file(self, status: os.stat_result) -> bool:
        """Whether a file is in the data directory under another name: only one that has several may be."""
        if self._data_dir is None or status.st_nlink < 2:
            return False
        if self._data_files is None:
            self._data_files = set(_files_below(self._data_dir))
        return _key(status) in self._data_files


def _check_links(walked: _Found) -> None:
    others = walked.owners - {walked.status.st_uid}
    if others:
        who = " and ".join(str(Owner(uid, 0)) for uid in sorted(others))
        raise FileNotPermitted(f"is a symbolic link of {who} to a file of {Owner(walked.status.st_uid, 0)}")


def _keys(paths: Sequence[Path]) -> set[InodeKey]:
    keys: set[InodeKey] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            keys.add(_key(path.stat()))
    return keys


def _files_below(directory: Path) -> Iterator[InodeKey]:
    for here, _, _ in os.walk(directory):
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            device = os.lstat(here).st_dev
            yield from ((device, entry.inode()) for entry in entries)

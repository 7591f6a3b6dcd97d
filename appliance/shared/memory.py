"""POSIX shared memory objects: made by the supervisor, mapped by its children, gone when it stops.

Names are ``/appliance.<instance>.<what>``; ``instance`` identifies the data directory, so that a restart finds and
removes what a killed instance of the same directory left behind, and never touches another's.  An object is created
exclusively, readable by its owner only, and with its pages reserved: a full /dev/shm is an error here instead of a
SIGBUS at the first store.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from pathlib import Path
from typing import Final

import posix_ipc

from ..errors import BadValue

SHM_DIR: Final = Path("/dev/shm")


def instance_of(data_dir: Path) -> str:
    """A name for this data directory that survives its being renamed or mounted elsewhere in the tree."""
    status = data_dir.stat()
    return hashlib.blake2s(f"{status.st_dev}:{status.st_ino}".encode(), digest_size=6).hexdigest()


def name_of(instance: str, what: str) -> str:
    return f"/appliance.{instance}.{what}"


def create(name: str, size_bytes: int) -> mmap.mmap:
    """Make and map a zeroed object.

    Raises:
        BadValue: no room in /dev/shm.
    """
    memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
    try:
        os.posix_fallocate(memory.fd, 0, size_bytes)
        return mmap.mmap(memory.fd, size_bytes)
    except OSError as error:
        memory.unlink()
        raise BadValue(
            f"/dev/shm has no room for {size_bytes} bytes ({error.strerror}): enlarge it or lower network.arena_bytes"
        ) from error
    finally:
        memory.close_fd()


def attach(name: str, *, writable: bool = True) -> mmap.mmap:
    """Map an existing object.

    Raises:
        FileNotFoundError: it has been unlinked.
    """
    try:
        memory = posix_ipc.SharedMemory(name)
    except posix_ipc.ExistentialError:
        raise FileNotFoundError(name) from None
    try:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(memory.fd, os.fstat(memory.fd).st_size, access=access)
    finally:
        memory.close_fd()


def unlink(name: str) -> None:
    """Remove the name; processes that have it mapped keep their pages."""
    with contextlib.suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_shared_memory(name)


def unlink_all(instance: str) -> list[str]:
    """Remove every name of this instance and say which: what a killed supervisor left behind."""
    prefix = name_of(instance, "")[1:]
    stale = [f"/{path.name}" for path in SHM_DIR.iterdir() if path.name.startswith(prefix)]
    for name in stale:
        unlink(name)
    return stale

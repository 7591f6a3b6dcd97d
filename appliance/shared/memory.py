"""Makes, maps and removes POSIX shared memory objects.  The supervisor makes them, and removes them when it stops.

Names are ``/appliance.<instance>.<what>.<random>``.  ``instance`` identifies the data directory, so that a restart
removes the objects of a killed instance of the same directory.  The random part is new for each object.  Every user may
make names in /dev/shm, so no other user may know a name before the object exists.  An object with such a name that
belongs to another user is not removed.

A directory may be gone for ever, or be replaced by its backup, which is another instance.  So the first object of an
instance is its *owner*, an empty one on which its supervisor holds a file lock: the kernel frees it with the process.
Any start removes the objects of instances of the same user whose owners are free (:func:`sweep`).

An object is created exclusively, readable only by its owner, and with its pages reserved.  So a full /dev/shm is an
error here instead of a SIGBUS at the first store.

A process maps a table for each partition, so an attached object takes no descriptor: ``vm.max_map_count`` is their
bound, which is 65,530 by default.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import re
import secrets
from pathlib import Path
from typing import Final

import posix_ipc

from .. import libc
from ..errors import OutOfResources
from ..machine_limits import ADVICE, SHARED_MEMORY, limit_of

SHM_DIR: Final = Path(SHARED_MEMORY)
RANDOM_BYTES: Final = 8
NAMES_TRIED_MAX: Final = 10
MODE: Final = 0o600

logger = logging.getLogger(__name__)


def instance_of(data_dir: Path) -> str:
    """Identify a data directory, also after it is renamed or mounted elsewhere in the tree."""
    status = data_dir.stat()
    return hashlib.blake2s(f"{status.st_dev}:{status.st_ino}".encode(), digest_size=6).hexdigest()


def name_of(instance: str, what: str) -> str:
    return f"/appliance.{instance}.{what}"


def create(instance: str, what: str, size_bytes: int) -> tuple[str, mmap.mmap]:
    """Make and map an object filled with zeros.  Returns its name and the map.

    Raises:
        OutOfResources: no room in /dev/shm, or no descriptor.  No object is left.
    """
    try:
        memory = _create_exclusively(name_of(instance, what))
    except (OSError, posix_ipc.Error) as error:
        message = f"{SHM_DIR}: cannot create an object: {error}"
        if isinstance(error, OSError):
            error.filename = str(SHM_DIR)  # distinguishes this lack of room from a full disk
        raise OutOfResources(message) from error
    try:
        os.fchmod(memory.fd, MODE)  # whatever the umask
        os.posix_fallocate(memory.fd, 0, size_bytes)
        return memory.name, mmap.mmap(memory.fd, size_bytes)
    except OSError as error:
        memory.unlink()
        error.filename = str(SHM_DIR)
        advice = ADVICE[limit_of(error) or SHARED_MEMORY]
        raise OutOfResources(f"{SHM_DIR} has no room for {size_bytes} bytes ({error.strerror}): {advice}") from error
    finally:
        memory.close_fd()


def _create_exclusively(stem: str) -> posix_ipc.SharedMemory:
    for _ in range(NAMES_TRIED_MAX):
        with contextlib.suppress(posix_ipc.ExistentialError):  # the name is taken: try another
            return posix_ipc.SharedMemory(f"{stem}.{secrets.token_hex(RANDOM_BYTES)}", posix_ipc.O_CREX, mode=MODE)
    raise posix_ipc.ExistentialError(f"{NAMES_TRIED_MAX} random names are all taken")


def attach(name: str, *, writable: bool = True) -> mmap.mmap:
    """Map an existing object.

    Raises:
        FileNotFoundError: it has been unlinked.
        OSError: it belongs to another user, or the machine has no descriptor or memory left, or maps no more.
    """
    try:
        memory = posix_ipc.SharedMemory(name)
    except posix_ipc.ExistentialError:
        raise FileNotFoundError(name) from None
    except posix_ipc.PermissionsError as error:
        raise PermissionError(f"{name}: {error}") from None
    try:
        return libc.map_without_descriptor(memory.fd, writable)
    finally:
        memory.close_fd()


def attach_elsewhere(name: str, pid: int) -> mmap.mmap:
    """Map, to read, an object that the process ``pid`` sees in its /dev/shm, which may be another one than ours.

    Raises:
        FileNotFoundError: there is none, or we may not look.
    """
    try:
        return attach(name, writable=False)
    except FileNotFoundError:
        pass
    try:
        fd = os.open(f"/proc/{pid}/root{SHM_DIR}{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise FileNotFoundError(name) from error
    try:
        return libc.map_without_descriptor(fd, writable=False)
    finally:
        os.close(fd)


def read_elsewhere(name: str, pid: int, size: int) -> bytes:
    """The first bytes of an object that the process ``pid`` sees in its /dev/shm, without mapping it.

    Raises:
        OSError: there is none, or we may not look.
    """
    if "/" in name[1:]:
        raise FileNotFoundError(name)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(f"{SHM_DIR}{name}", flags)
    except FileNotFoundError:
        fd = os.open(f"/proc/{pid}/root{SHM_DIR}{name}", flags)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


OWNER: Final = "owner"
_OWNERS: Final = re.compile(r"appliance\.([0-9a-f]+)\.owner\.[0-9a-f]+")


def own(instance: str) -> int:
    """Make the owner object of an instance.  Returns a descriptor: the instance lives as long as it is open.

    Raises:
        OSError, posix_ipc.Error: no room in /dev/shm, or no descriptor.
    """
    for _ in range(NAMES_TRIED_MAX):
        memory = _create_exclusively(name_of(instance, OWNER))
        os.fchmod(memory.fd, MODE)
        fcntl.flock(memory.fd, fcntl.LOCK_EX)
        if os.fstat(memory.fd).st_nlink:
            fd: int = memory.fd
            return fd
        memory.close_fd()  # another start has taken it for a dead one, before it was locked
    raise posix_ipc.ExistentialError(f"{NAMES_TRIED_MAX} owners of {instance} were removed")


def sweep() -> list[str]:
    """Remove the objects of instances of this user that no supervisor owns any more.  Returns their names."""
    names = [path.name for path in SHM_DIR.iterdir()]  # before any lock: a new instance makes its owner first
    owners: dict[str, list[str]] = {}
    for name in names:
        if owner := _OWNERS.fullmatch(name):
            owners.setdefault(owner[1], []).append(name)
    stale: list[str] = []
    for instance, own_names in owners.items():
        if all(map(_is_free, own_names)):
            prefix = name_of(instance, "")[1:]
            stale += [f"/{name}" for name in names if name.startswith(prefix)]
    return [name for name in stale if unlink(name)]


def _is_free(owner: str) -> bool:
    """Whether an owner object is ours, and its supervisor has ended."""
    try:
        fd = os.open(SHM_DIR / owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def unlink(name: str) -> bool:
    """Remove the name; processes with the object mapped keep its pages.  Returns False when that is not permitted."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        pass
    except (OSError, posix_ipc.Error) as error:
        logger.warning("%s%s is left there: %s", SHM_DIR, name, error)
        return False
    return True


def unlink_all(instance: str) -> list[str]:
    """Remove the objects that a killed supervisor of this instance left.  Returns their names."""
    prefix = name_of(instance, "")[1:]
    stale = [f"/{path.name}" for path in SHM_DIR.iterdir() if path.name.startswith(prefix)]
    return [name for name in stale if unlink(name)]

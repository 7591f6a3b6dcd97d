"""Calls what Linux offers and Python does not: the only module that uses ctypes.

Numbers of system calls for which the C library has no function, or none that does what is wanted, are in tables by
machine.  On a machine that a table lacks, the call is left out, or its function says what it does instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

_library = ctypes.CDLL(None, use_errno=True)
_library_with_interpreter_lock = ctypes.PyDLL(None, use_errno=True)


def _raise_errno(what: str, path: Path | None = None) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}", *([] if path is None else [str(path)]))


# ---- files

SYNC_FILE_RANGE_WRITE: Final = 2
CACHESTAT: Final = 451
"""The same on all machines."""
OPENAT2: Final = 437
RESOLVE_CACHED: Final = 0x20
AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2

_sync_file_range = _library.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_cachestat = _library_with_interpreter_lock.syscall
_cachestat.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_openat2 = _library_with_interpreter_lock["syscall"]  # an object of its own, unlike the attribute
_openat2.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_how = (ctypes.c_uint64 * 3)(0, 0, RESOLVE_CACHED)
"""Flags, mode and what to do about names, of openat2(2)."""
_range, _pages = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
"""Position and size of a range; its pages in memory, and four other numbers."""
_range_address, _pages_address = ctypes.addressof(_range), ctypes.addressof(_pages)


def begin_write_back(fd: int, position: int, size: int) -> None:
    """Let the disk begin to write a range of a file, and do not wait (sync_file_range(2)): nothing is durable by it.

    It reports no error: what cannot be written the next ``fdatasync`` reports.
    """
    _sync_file_range(fd, position, size, SYNC_FILE_RANGE_WRITE)


def pages_counted(fd: int, position: int, count: int) -> int:
    """How many pages of a range of a file are in memory, or are being read (cachestat(2), from Linux 6.5 on).

    It waits for nothing.  It is not for several threads: all calls share their arguments.

    Returns:
        -1 if the kernel does not say.
    """
    _range[0], _range[1] = position, count
    return -1 if _cachestat(CACHESTAT, fd, _range_address, _pages_address, 0) else int(_pages[0])


def open_without_waiting(path: Path | str, flags: int) -> int:
    """Open a file if all names of its path are in memory (openat2(2), RESOLVE_CACHED from Linux 5.12 on).

    It is not for several threads: all calls share their arguments.

    Raises:
        BlockingIOError: a disk would have to be read for a name.
        OSError: it cannot be opened; with ENOSYS, EPERM or EINVAL perhaps because the kernel, or a filter of system
            calls, does not know how to.
    """
    _how[0] = flags
    fd = int(_openat2(OPENAT2, AT_FDCWD, os.fsencode(path), _how, ctypes.sizeof(_how)))
    if fd < 0:
        _raise_errno("openat2", Path(path))
    return fd


def exchange_paths(first: Path, other: Path) -> None:
    """Give each file or directory the other's name, at one moment (renameat2(2)).

    Raises:
        OSError: with EINVAL or ENOSYS the file system cannot do it.
    """
    if _library.renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        _raise_errno("renameat2", first)


AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = 0x100, 0x1000
STATX_INO, STATX_BTIME = 0x100, 0x800
_STATX_BYTES: Final = 256
_statx = _library_with_interpreter_lock.statx
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)


def file_numbers(fd: int = AT_FDCWD, path: str = "") -> tuple[int, int, int]:
    """Device and inode of an open file, or of a path whose last link is not followed, and when it was made (statx(2)).

    Returns:
        The last one in ns since 1970; 0: the file system does not keep it.

    Raises:
        OSError.
    """
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    how = AT_SYMLINK_NOFOLLOW if path else AT_EMPTY_PATH
    if _statx(fd, os.fsencode(path), how, STATX_INO | STATX_BTIME, ctypes.addressof(answer)):
        _raise_errno("statx", Path(path) if path else None)
    (mask,) = struct.unpack_from("I", answer, 0)
    (inode,) = struct.unpack_from("Q", answer, 32)
    seconds, nanoseconds = struct.unpack_from("qI", answer, 80)
    major, minor = struct.unpack_from("II", answer, 136)
    return os.makedev(major, minor), inode, seconds * 1_000_000_000 + nanoseconds if mask & STATX_BTIME else 0


OVERLAY: Final = 0x794C7630
_STATFS_BYTES: Final = 256


def is_in_overlay(fd: int) -> bool:
    """Whether an open file is in an overlay, as those of containers are (fstatfs(2))."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    return not _library.fstatfs(fd, answer) and struct.unpack_from("I", answer)[0] == OVERLAY


# ---- memory

MAP_FIXED: Final = 0x10

_mmap = _library.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p


class _Buffer(ctypes.Structure):
    """``Py_buffer``, a part of the stable ABI."""

    _fields_: ClassVar = [
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        *((name, ctypes.c_ssize_t) for name in ("size", "item_size")),
        *((name, ctypes.c_int) for name in ("readonly", "dimensions")),
        *((name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")),
    ]


_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release


def map_without_descriptor(fd: int, writable: bool) -> mmap.mmap:
    """Map an object that stays mapped when its descriptor is closed, as mmap(2) does.

    Python's mmap keeps a copy of the descriptor (until 3.13, which has ``trackfd=False``).  So it maps anonymous
    memory, in the place of which the object is mapped.

    Raises:
        OSError: no memory is left, or too much is mapped.
    """
    size, protection = os.fstat(fd).st_size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
    address = _address_of(mapped)
    if _mmap(address, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd, 0) != address:
        _raise_errno("mmap")
    return mapped


def _address_of(mapped: mmap.mmap) -> int:
    buffer = _Buffer()
    _get_buffer(ctypes.py_object(mapped), ctypes.byref(buffer), 0)
    address = int(buffer.address)
    _release_buffer(ctypes.byref(buffer))
    return address


def read_memory(address: int, size: int) -> bytes:
    """The bytes at an address of this process, which the caller knows to be mapped."""
    return ctypes.string_at(address, size)


def write_memory(address: int, content: bytes) -> None:
    """Write over the bytes at an address of this process, which the caller knows to be writable."""
    ctypes.memmove(address, content, len(content))


def give_back_memory() -> None:
    """Return the unused pages of the heap to the system; only glibc can do it.

    Without it one burst of large requests enlarges the heap for good: free memory between two used blocks is kept.
    """
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(0)


# ---- processes and threads

PR_SET_PDEATHSIG: Final = 1
SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
IOPRIO_IDLE: Final = 3 << 13
SETGROUPS: Final = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}
"""The function of the C library changes all threads."""
NOT_AN_ID: Final = -1

_library.setfsuid.restype = _library.setfsgid.restype = ctypes.c_uint


class _SchedAttr(ctypes.Structure):
    """``struct sched_attr``; for SCHED_OTHER (0) the run time is the slice, from Linux 6.12 on."""

    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends.  One that has ended already is not noticed."""
    _library.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def fork_only() -> int:
    """Fork, and leave out what ``os.fork`` does in a child: renewing the locks that other threads might have held.

    Only for a process without other threads.  That work alone writes to 240 pages, a quarter of a writer's start.

    Returns:
        As fork(2): 0 in the child.

    Raises:
        OSError: no process, or no memory, for another one.
    """
    pid: int = _library_with_interpreter_lock.fork()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def set_time_slice(slice_ns: int) -> None:
    """Set the time slice of this thread, and of threads started later.  Kernels before Linux 6.12 ignore it."""
    number = SCHED_SETATTR.get(os.uname().machine)
    if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=nice, runtime_ns=slice_ns)
        _library.syscall(number, 0, ctypes.byref(attributes), 0)


def take_idle_disk_priority() -> None:
    """Let the disk serve this process when nobody else asks (ioprio_set(2)), where its scheduler knows priorities."""
    number = IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        _library.syscall(number, 1, 0, IOPRIO_IDLE)


def set_file_user(uid: int) -> int:
    """Let this thread reach files as another user (setfsuid(2)); returns as whom until now.

    What is refused changes nothing, and is no error: NOT_AN_ID asks only.
    """
    return int(_library.setfsuid(uid))


def set_file_group(gid: int) -> int:
    """As :func:`set_file_user`, of the group."""
    return int(_library.setfsgid(gid))


def set_groups_of_thread(groups: Sequence[int]) -> None:
    """Set the supplementary groups of this thread; on a machine that SETGROUPS lacks, of all threads.

    Raises:
        PermissionError: this process may not.
    """
    number = SETGROUPS.get(os.uname().machine)
    if number is None:
        os.setgroups(groups)
        return
    array = (ctypes.c_uint * len(groups))(*groups)
    if _library.syscall(ctypes.c_long(number), ctypes.c_long(len(groups)), array):
        _raise_errno("setgroups")


# ---- the clock

CLOCK_UNSYNCHRONISED: Final = 5
TIMEX_BYTES: Final = 512


def clock_is_synchronised() -> bool | None:
    """Whether something keeps the clock of this machine right (adjtimex(2)); None if the kernel does not say."""
    state = _library.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))  # modes 0: only read
    return None if state < 0 else state != CLOCK_UNSYNCHRONISED

"""Cases of mounts for :mod:`.test_file_systems`; run in a mount namespace of its own: it prints what each
case has lost, doubled and told.

    unshare -m python -m tests.inputs.file_system_cases DIRECTORY
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .files_rig import Rig


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def umount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)


def take_number(rig: Rig, number: int = 0) -> None:
    """Mount something else, so that what is mounted next has another number of its device than before."""
    taken = rig.directory.parent / f"taken-{number}"
    taken.mkdir()
    mount("-t", "tmpfs", "tmpfs", taken)


class CannotOverlayError(Exception):
    """The kernel, or the file system below, has no overlays."""


class Overlay:
    """A directory of a rig that is an overlay, as in a container; ``lower`` has what its image has."""

    def __init__(self, rig: Rig) -> None:
        base = rig.directory.parent
        self.path = rig.path("box")
        self._parts = lower, upper, work = [base / name for name in ("lower", "upper", "work")]
        self.lower = lower
        for path in (lower, upper, work, self.path):
            path.mkdir()

    def mount(self) -> None:
        lower, upper, work = self._parts
        try:
            mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", self.path)
        except subprocess.CalledProcessError as error:
            raise CannotOverlayError from error


def bind_twice(rig: Rig) -> None:
    """The same directory under two names that the pattern has."""
    for name in ("one", "two"):
        rig.path(name).mkdir()
    rig.write("one/app.log", 3)
    rig.look()
    mount("--bind", rig.path("one"), rig.path("two"))
    rig.look(20_000)
    rig.write("two/app.log", 3)
    rig.look(20_000)
    umount(rig.path("two"))
    rig.write("one/app.log", 3)


def bind_over(rig: Rig) -> None:
    """Another directory is mounted over that of the logs, while a program goes on writing, and goes away again."""
    for name in ("one", "away"):
        rig.path(name).mkdir()
    rig.write("one/app.log", 3)
    rig.look()
    with rig.path("one/app.log").open("ab") as program:
        mount("--bind", rig.path("away"), rig.path("one"))
        rig.look(20_000)
        rig.written.append(b"written below a mount")
        program.write(rig.written[-1] + b"\n")
    rig.look(20_000)
    umount(rig.path("one"))
    rig.look(20_000)
    rig.write("one/app.log", 3)


def copy_up(rig: Rig) -> None:
    """A file of the image is copied to the upper layer with the first write: who has it open reads the lower one."""
    overlay = Overlay(rig)
    rig.write("app.log", 3)
    rig.path("app.log").rename(overlay.lower / "app.log")
    overlay.mount()
    rig.look()
    for _ in range(3):
        rig.write("box/app.log", 2)
        rig.look(20_000)


def copy_up_and_stop(rig: Rig) -> None:
    """Nothing is written to it after the copy, so nothing is flushed that would store its numbers."""
    overlay = Overlay(rig)
    rig.write("app.log", 3)
    rig.path("app.log").rename(overlay.lower / "app.log")
    overlay.mount()
    rig.look()
    rig.path("box/app.log").chmod(0o640)
    rig.look(20_000)
    rig.stop()
    rig.write("box/app.log", 2)


def copy_up_while_nothing_runs(rig: Rig) -> None:
    """The first write comes while the input is stopped."""
    overlay = Overlay(rig)
    rig.write("app.log", 3)
    rig.path("app.log").rename(overlay.lower / "app.log")
    overlay.mount()
    rig.look()
    for _ in range(2):
        rig.stop()
        rig.write("box/app.log", 2)
        rig.look(20_000)


def remount_overlay(rig: Rig) -> None:
    """Its files have another device then, while the input runs."""
    overlay = Overlay(rig)
    overlay.mount()
    rig.write("box/app.log", 3)
    rig.look()
    for number in range(2):
        umount(overlay.path)
        take_number(rig, number)
        rig.look(20_000)
        overlay.mount()
        rig.write("box/app.log", 2)
        rig.look(20_000)


def remount_overlay_while_nothing_runs(rig: Rig) -> None:
    overlay = Overlay(rig)
    overlay.mount()
    rig.write("box/app.log", 3)
    rig.look()
    rig.stop()
    umount(overlay.path)
    take_number(rig)
    overlay.mount()
    rig.write("box/app.log", 2)
    rig.kill()


def rotate_on_tmpfs(rig: Rig) -> None:
    """It gives each file a new inode, and begins anew when it is mounted again."""
    box = rig.path("box")
    box.mkdir()
    mount("-t", "tmpfs", "tmpfs", box)
    rig.write("box/app.log", 3)
    rig.look()
    rig.path("box/app.log").rename(rig.path("box/app.log.1"))
    rig.write("box/app.log", 3)
    rig.look(20_000)
    umount(box)
    mount("-t", "tmpfs", "tmpfs", box)
    rig.write("box/app.log", 3)


CASES: dict[str, Callable[[Rig], None]] = {
    case.__name__: case
    for case in (
        *(bind_twice, bind_over, copy_up, copy_up_and_stop, copy_up_while_nothing_runs),
        *(remount_overlay, remount_overlay_while_nothing_runs, rotate_on_tmpfs),
    )
}


def main(base: Path) -> None:
    results: dict[str, list[list[str]] | None] = {}
    for name, case in CASES.items():
        (base / name).mkdir()
        rig = Rig(base / name, "*/app.log")
        try:
            case(rig)
        except CannotOverlayError:
            results[name] = None
            continue
        rig.settle()
        told = [f"{Path(path).name} {start} {stop} {reason}" for path, start, stop, reason in rig.gaps]
        results[name] = [*([line.decode() for line in lines] for lines in (rig.lost(), rig.doubled())), told]
        rig.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

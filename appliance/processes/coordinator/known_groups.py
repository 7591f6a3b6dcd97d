"""Remembers which groups have committed offsets, so that an ensemble that has lost them does not lose them silently.

Committed offsets are in ZooKeeper alone.  When its data are gone, topics, users and rules come back from the files of
the brokers, and every group begins at its ``auto.offset.reset``: it reads all again, or skips what it has not read.
Nobody would know.  So the file ``groups.json`` in the data directory has the groups, their topics, and the id of the
cluster that they were in::

    {"version": 1, "cluster": "5f0c…", "groups": {"reports": ["web"]},
     "lost": {"at": 1763800000.0, "groups": {"reports": ["web"]}, "cluster": "5f0c…", "found": ""} | null}

ZooKeeper without the id of the cluster (``zookeeper/cluster_identity.py``), or with another one, has lost them:
``lost`` has the ``cluster`` that the groups were in, and the one that was ``found``, "" for none.  A lost group is
forgotten once it has offsets again, because its ensemble was restored, because it has committed, or because a person
has set or deleted them.

Bounds: GROUPS_MAX groups, the first by name; members of native groups commit by themselves, so a new one is known after
the next check of all groups (:mod:`.expiry`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...durable_files import replace_data_file
from ...errors import ApplianceError

FILE_NAME: Final = "groups.json"
VERSION: Final = 1
GROUPS_MAX: Final = 10_000
SHOWN_MAX: Final = 100
"""Lost groups that ``status`` shows."""

log = logging.getLogger(__name__)


class _Lost(msgspec.Struct):
    at: float
    groups: dict[str, list[str]]
    cluster: str = ""
    found: str = ""


class _File(msgspec.Struct):
    version: int = VERSION
    cluster: str = ""
    groups: dict[str, list[str]] = {}
    lost: _Lost | None = None


class KnownGroups:
    """The file, and what is lost.  ``clock_s``: seconds since 1970.

    A file that cannot be read is begun anew: it is not needed for anything that works.
    """

    def __init__(self, data_dir: Path, clock_s: Callable[[], float]) -> None:
        self._path, self._clock_s = data_dir / FILE_NAME, clock_s
        self._compared = False
        """Whether what ZooKeeper has now was compared with the file: before, nothing may be taken over into it."""
        self._file = _load(self._path)

    def begin(self) -> None:
        """Another session begins: ZooKeeper may have lost its data since the last one."""
        self._compared = False

    def compare(self, stored: str) -> None:
        """Compare the id of the cluster that ZooKeeper has, "" for none, with that of the groups in the file."""
        file = self._file
        self._compared = True
        if file.cluster == stored or not file.groups:
            return
        log.error(
            "ZooKeeper has lost the committed offsets of %d groups: it was cluster %s, and is %s",
            *(len(file.groups), file.cluster, stored or "empty"),
        )
        earlier = file.lost.groups if file.lost is not None else {}
        self._store(_File(lost=_Lost(self._clock_s(), earlier | file.groups, file.cluster, stored)))

    def note(self, cluster: str, topics: Mapping[str, Collection[str]]) -> None:
        """Note the groups that have committed offsets now, with their topics."""
        if not self._compared or not cluster:
            return
        groups = {group: sorted(topics[group]) for group in sorted(topics)[:GROUPS_MAX]}
        lost = self._file.lost
        if lost is not None:
            still_lost = {group: names for group, names in lost.groups.items() if group not in groups}
            lost = msgspec.structs.replace(lost, groups=still_lost) if still_lost else None
        self._store(_File(VERSION, cluster, groups, lost))

    def forget(self, group: str) -> bool:
        """Forget a lost group, which nobody needs any more; False if it is none."""
        lost = self._file.lost
        if lost is None or group not in lost.groups:
            return False
        still_lost = {name: topics for name, topics in lost.groups.items() if name != group}
        left = msgspec.structs.replace(lost, groups=still_lost) if still_lost else None
        self._store(msgspec.structs.replace(self._file, lost=left))
        return True

    @property
    def lost(self) -> dict[str, Any] | None:
        """For status: when groups were lost, how many, the first of them with their topics, and their cluster."""
        lost = self._file.lost
        if lost is None:
            return None
        shown = {group: lost.groups[group] for group in sorted(lost.groups)[:SHOWN_MAX]}
        return {
            **{"at": lost.at, "count": len(lost.groups), "groups": shown},
            **{"cluster": lost.cluster, "found": lost.found},
        }

    def _store(self, file: _File) -> None:
        if file == self._file:
            return
        self._file = file
        try:
            replace_data_file(self._path, msgspec.json.encode(file) + b"\n")
        except ApplianceError as error:  # the next change stores it
            log.warning("%s", error)


def _load(path: Path) -> _File:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s: which groups there were is not known any more: %s", path, error)
        return _File()
    return file if file.version == VERSION else _File()

"""Checks the files at the top of a data directory before anything is served: whose they are, and what is in them.

Files that can be made anew (state.json, scrub.json, producer-id, the reserve) need only be ours; who uses them begins
anew when they are damaged.  Without the others an appliance would serve something else than before::

    file            without it, or damaged                    comes back from
    format.json     :mod:`.data_format`                       -
    catalog.json    no topic is known                         ZooKeeper
    security.json   nobody can log in, and no rule holds      ZooKeeper
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import Final

from ..catalog import FILE_NAME as CATALOG_NAME
from ..catalog import Catalog
from ..config import Config
from ..errors import ConfigFault, StorageFault, damaged_file, not_permitted
from ..log.partition_directory import METADATA_NAME, partitions_in
from ..security import security_file

NAMED_MAX: Final = 3


def check_small_files(data_dir: Path, config: Config) -> None:
    """Check the files, and that the directory is this broker's.  The caller holds the directory's lock.

    Raises:
        FileNotPermitted: a file belongs to somebody else.
        StorageFault: a file is damaged, or is gone; the remedy says how it comes back.
        ConfigFault: the partitions here are another broker's.
    """
    for entry in sorted(os.scandir(data_dir), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            if entry.name in (CATALOG_NAME, security_file.FILE_NAME):
                raise damaged_file(Path(entry.path), "it is a directory")
        elif stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode) and not os.access(entry, os.R_OK | os.W_OK):
            raise not_permitted(entry.path)
    catalog, security = Catalog.load(data_dir), security_file.load(data_dir / security_file.FILE_NAME)
    has_zookeeper = bool(config.zookeeper.connect or config.zookeeper.nodes)
    if not has_zookeeper and not catalog.path.exists() and (here := partitions_in(data_dir)):
        names = [f"{topic}-{number}" for topic, number in here]
        raise _gone(catalog.path, f"and these partitions are here: {_listed(names)}", "move their directories away")
    wants_users = config.security.authorizer or any(listener.sasl for listener in config.listeners)
    if not has_zookeeper and wants_users and catalog.path.exists() and not security.secret:
        path = data_dir / security_file.FILE_NAME
        empty = f"""`echo '{{"state": {{}}}}' > {shlex.quote(str(path))}`, and add them again"""
        raise _gone(path, "and with it all users, access rules and quotas", empty)
    _check_broker(data_dir, config.broker.id, catalog)


def foreign_partitions(data_dir: Path, catalog: Catalog, broker_id: int) -> dict[str, int]:
    """The partitions with a log here that only another broker stores, by name: its id."""
    return {
        f"{topic.name}-{number}": brokers[0]
        for topic in catalog.topics.values()
        for number, brokers in topic.partitions.items()
        if brokers and broker_id not in brokers and (data_dir / f"{topic.name}-{number}" / METADATA_NAME).exists()
    }


def _check_broker(data_dir: Path, broker_id: int, catalog: Catalog) -> None:
    """Refuse a directory in which only another broker has partitions: nobody would serve them, or say so."""
    if catalog.hosted(broker_id) or not (foreign := foreign_partitions(data_dir, catalog, broker_id)):
        return
    owner = min(foreign.values())
    raise ConfigFault(
        f"broker.id = {broker_id}: {data_dir} has the partitions of broker {owner} ({_listed(list(foreign))})",
        remedy=f"set id = {owner} in [broker], as it was; or name an empty directory for broker {broker_id}",
    )


def _gone(path: Path, lost: str, otherwise: str) -> StorageFault:
    quoted = shlex.quote(str(path))
    todo = f"restore it: `cp -p BACKUP/{path.name} {quoted}`; or, to go on without: {otherwise}"
    return StorageFault(f"{path}: it is gone, {lost}", remedy=todo)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(sorted(names)[:NAMED_MAX]) + more

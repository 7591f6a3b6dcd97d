"""The client of all admin verbs, for an event loop.

Example::

    async with Admin("127.0.0.1:9091") as admin:
        await admin.create_topic("logs", partitions=4)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from .. import admin
from .worker import Worker, asked, made_as

P = ParamSpec("P")
T = TypeVar("T")


class Admin:
    """As :class:`appliance.client.Admin`, whose methods it has, each to be awaited.  One request at a time."""

    @made_as(admin.Admin)
    def __init__(self, core: admin.Admin) -> None:
        self._core = core
        self._worker = Worker("admin client")

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(self, method: Callable[Concatenate[admin.Admin, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._worker.call(method, self._core, *args, **kwargs)

    async def close(self) -> None:
        """Abort a request under way, and close.  Closing twice does nothing."""
        self._core.abort()
        await self._worker.finish(self._core.close)

    create_topic = asked(admin.Admin.create_topic)
    ensure_topic = asked(admin.Admin.ensure_topic)
    alter_topic = asked(admin.Admin.alter_topic)
    delete_topic = asked(admin.Admin.delete_topic)
    trash = asked(admin.Admin.trash)
    undelete_topic = asked(admin.Admin.undelete_topic)
    restore_topic = asked(admin.Admin.restore_topic)
    delete_records = asked(admin.Admin.delete_records)
    topics = asked(admin.Admin.topics)
    repair_partition = asked(admin.Admin.repair_partition)
    report_damage = asked(admin.Admin.report_damage)
    status = asked(admin.Admin.status)
    clients = asked(admin.Admin.clients)
    accept_clock = asked(admin.Admin.accept_clock)
    init_producer = asked(admin.Admin.init_producer)
    roles = asked(admin.Admin.roles)
    create_role = asked(admin.Admin.create_role)
    alter_role = asked(admin.Admin.alter_role)
    delete_role = asked(admin.Admin.delete_role)
    users = asked(admin.Admin.users)
    put_user = asked(admin.Admin.put_user)
    alter_user = asked(admin.Admin.alter_user)
    delete_user = asked(admin.Admin.delete_user)
    acls = asked(admin.Admin.acls)
    add_acls = asked(admin.Admin.add_acls)
    delete_acls = asked(admin.Admin.delete_acls)
    quotas = asked(admin.Admin.quotas)
    put_quota = asked(admin.Admin.put_quota)
    groups = asked(admin.Admin.groups)
    group_names = asked(admin.Admin.group_names)
    group = asked(admin.Admin.group)
    alter_group = asked(admin.Admin.alter_group)
    transactions = asked(admin.Admin.transactions)
    transaction = asked(admin.Admin.transaction)
    abort_transaction = asked(admin.Admin.abort_transaction)
    hanging_transactions = asked(admin.Admin.hanging_transactions)
    abort_hanging = asked(admin.Admin.abort_hanging)
    offsets_at = asked(admin.Admin.offsets_at)
    offsets = asked(admin.Admin.offsets)
    commit = asked(admin.Admin.commit)
    delete_offsets = asked(admin.Admin.delete_offsets)

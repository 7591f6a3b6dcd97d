"""Gets the login of the ensemble, with which members of native groups register in ZooKeeper.

Whoever has its password can do everything in the ensemble, so the appliance gives it to few: through its Unix socket to
the user that it runs as and to root, elsewhere to super users that have logged in, and to who has the right
ClusterAction.  Others are told where the Unix socket is.  A client on the same host tries that, so that programs of the
service's own user need no settings; the kernel says there which user a client is.
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import ApplianceError, ClusterNotPermitted
from ..wire.native import ADMIN
from ..zookeeper.login import Login, from_wire
from .broker_connection import Connection
from .cluster_client import Cluster

VERB: Final = "zookeeper_login"
REMEDY: Final = (
    "members of native groups register in ZooKeeper, and its password is only for who may do everything: run this"
    " program as the user of the appliance, on its host; or log in (SASL_SSL://) as one of security.super_users, or of"
    " access rules for ClusterAction; or use a Kafka client, whose groups need no password"
)
LOCAL_S_MAX: Final = 5.0


def ensemble_login(cluster: Cluster) -> Login | None:
    """How to log in to the ensemble; None: it is open.

    Raises:
        ClusterNotPermitted: this client may not know; the message says what to do.
    """
    try:
        given: dict[str, Any] = cluster.admin(VERB, {})
        if "local" in given:
            given = _ask_locally(given["local"], cluster.client_name)
    except ClusterNotPermitted as error:
        raise ClusterNotPermitted(f"{error}: {REMEDY}") from None
    return from_wire(given)


def _ask_locally(path: str, client_name: str) -> dict[str, Any]:
    """Ask through the Unix socket of an appliance on this host.

    Raises:
        ClusterNotPermitted: it cannot be reached, or this user may not know either.
    """
    try:
        connection = Connection((path, 0), client_name=client_name)
        try:
            _, error, message, result = connection.call(ADMIN, VERB, {}, timeout_s=LOCAL_S_MAX).header
        finally:
            connection.close()
    except ApplianceError as error:
        raise ClusterNotPermitted(str(error)) from None
    if error or "local" in result:
        raise ClusterNotPermitted(message or "this user is neither that of the appliance nor root")
    return dict(result)

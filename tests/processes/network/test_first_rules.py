"""appliance.processes.network.admission: no request starts before the worker knows who is locked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.processes.network.admission import Admission, Meters
from appliance.processes.network.turn import Turn
from appliance.security.accounts import Account
from appliance.security.authorizer import ACL, Authorizer
from appliance.security.security_state import SecurityState
from appliance.wire.requests import Fetch, Forwarded, Offsets, Produce, Request


class Connection:
    """What admission asks of one."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(access=None, held=False)

    def own(self, *_: Any) -> None: ...

    def disown(self, *_: Any) -> None: ...


@pytest.mark.parametrize("kind", [Produce, Fetch, Offsets, Forwarded])
@pytest.mark.parametrize("authorizer", ["", ACL])
def test_requests_wait_for_the_first_state(kind: type[Request], authorizer: str) -> None:
    """With rules and without: a worker that is started again has no accounts, and would let in who is locked."""
    started: list[Any] = []
    resumed: list[Any] = []
    turn = Turn()
    connections = SimpleNamespace(touched={}, by_fd={}, resume_next_turn=resumed.append)
    handlers: dict[type[Request], Any] = {}
    admission = Admission(
        *(turn, cast(Any, connections), Authorizer(authorizer, "", without_acl=True), handlers, Meters(turn)),
        recall=lambda: None,
    )

    def handler(*what: Any) -> bool:
        started.append(what)
        return True

    admission.fill_handlers({}, {kind: handler})
    connection = Connection()
    request = SimpleNamespace(parts=[], transactional_id=None, count=0)
    assert not handlers[kind](cast(Any, connection), cast(Any, request), 0, memoryview(b""))
    assert connection.session.held and not started
    admission.on_security(SecurityState(accounts={"alice": Account(locked=True)}))
    assert resumed == [connection] and not connection.session.held
    if not authorizer:
        assert handlers[kind] is handler, "it costs nothing from then on"

"""appliance.wire.kafka.apis: the one table of what is served, and what says the same elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.kafka_apis import client_page
from appliance.wire.kafka.apis import API_KEYS, APIS, NEVER, Server

from ...support.kafka_messages import message

NEWER = {"DeleteGroups": 3, "TxnOffsetCommit": 6}
"""What Kafka 4.4.0 has and kafka-python has not yet."""
PACKAGE = Path(__file__).parents[3] / "appliance"
BESIDES = {
    "Metadata": {"processes/network/forwarder.py"},  # a worker that answers it notes the refusal
    "DescribeConfigs": {"security/acls.py"},  # an operation has the same name
}
PAGE = (Path(__file__).parents[2] / "clients" / "README.md").read_text()


def test_the_page_for_clients_lists_what_is_served() -> None:
    """`python -m appliance.kafka_apis.client_page tests/clients/README.md` writes it again."""
    assert client_page.with_table(PAGE) == PAGE
    assert PAGE.count(client_page.BEGIN) == PAGE.count(client_page.END) == 1


def test_rows_are_in_the_order_of_their_keys() -> None:
    assert list(APIS) == sorted(APIS) and len(APIS) == len(API_KEYS)


def test_what_is_behind_kafka_says_why() -> None:
    """An API has the newest version of Kafka, or its row and so the page say why it has not."""
    for key, api in APIS.items():
        newest = NEWER.get(api.name, message(key, "Request").max_version)
        is_behind = api.version_max < newest
        assert bool(api.behind) == is_behind, f"{api.name} {api.version_max}"


def test_the_table_agrees_with_the_definitions() -> None:
    for key, api in APIS.items():
        for kind in ("Request", "Response"):
            definition = message(key, kind)
            assert key == definition.API_KEY
            assert api.version_max <= definition.max_version
            flexible = [
                version for version in range(definition.max_version + 1) if definition.flexible_version_q(version)
            ]
            assert (flexible or [NEVER])[0] == api.flexible_from, api.name


def test_an_api_of_the_coordinator_is_added_in_its_row_and_its_handler() -> None:
    """As "How to add" of appliance/README.md says: no other module mentions it.

    A change has its lines of the audit log besides, and an error that is not at the top of a reply its layout.
    """
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    for name, key in API_KEYS.items():
        if APIS[key].server is not Server.COORDINATOR:
            continue
        besides = {"kafka_apis/refusals.py"} | BESIDES.get(name, set())
        if APIS[key].changes:
            besides.add("processes/coordinator/change_log.py")
        places = sorted({path for path, text in texts.items() if f'"{name}"' in text} - besides)
        assert len(places) == 2 and places[1] == "wire/kafka/apis.py", f"{name}: {places}"
        assert re.fullmatch(r"(kafka_apis|groups|transactions)/\w+_api\.py", places[0]), places

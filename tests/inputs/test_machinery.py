"""InputTopics that senders and names of files choose."""

from __future__ import annotations

import pytest

from appliance.config import load
from appliance.errors import BadValue
from appliance.input_settings import TOPIC_FIELDS, TYPE_KEYS, open_addresses
from appliance.inputs.machinery import InputTopics


def test_a_template_makes_only_so_many_topics_and_none_of_the_system() -> None:
    topics = InputTopics("{app}", 2)
    assert topics.topic_for({"app": "shop"}) == "shop"
    for reserved in ("__consumer_offsets", ".", "", "x" * 300):
        with pytest.raises(BadValue, match="no such name"):
            topics.topic_for({"app": reserved})
    assert topics.topic_for({"app": "a b/c"}) == "a_b_c"
    with pytest.raises(BadValue, match="topics_max"):
        topics.topic_for({"app": "third"})
    assert topics.topic_for({"app": "shop"}) == "shop"


@pytest.mark.parametrize("kind", TOPIC_FIELDS)
def test_the_key_of_the_topic_names_all_that_its_template_may(kind: str) -> None:
    for field in TOPIC_FIELDS[kind]:
        assert f"{{{field}}}" in TYPE_KEYS[kind]["topic"].about


OPEN = [
    (["inputs.a.type=syslog", "inputs.a.listen=udp://0.0.0.0:5514"], True),
    (["inputs.a.type=syslog", "inputs.a.listen=udp://127.0.0.1:5514,tcp://[::1]:5514,unix:///run/log"], False),
    (["inputs.a.type=syslog", "inputs.a.listen=tcp://10.0.0.1:5514", "inputs.a.allow=10.0.0.0/8"], False),
    (["inputs.a.type=syslog", "inputs.a.listen=tls://10.0.0.1:5514"], True),
    (["inputs.a.type=syslog", "inputs.a.listen=relps://10.0.0.1:5514"], True),
    (
        ["inputs.a.type=syslog", "inputs.a.listen=tls://10.0.0.1:5514", "tls.client_auth=required", "tls.ca=/run/ca"],
        False,
    ),
    (["inputs.a.type=http", "inputs.a.listen=10.0.0.1:8686", "inputs.a.token_file=/run/tokens"], True),
    (["inputs.a.type=http", "inputs.a.listen=https://10.0.0.1:8686", "inputs.a.token_file=/run/tokens"], False),
]


CERTIFICATE = ["tls.certificate=/run/c.pem", "tls.key=/run/c.key"]


@pytest.mark.parametrize(
    "address", ["syslog=tls://127.0.0.1:6514", "syslog=relps://127.0.0.1:6514", "http=https://127.0.0.1:8686"]
)
def test_an_address_of_tls_needs_a_certificate(address: str) -> None:
    kind, _, listen = address.partition("=")
    given = [f"inputs.a.type={kind}", "inputs.a.topic=net", f"inputs.a.listen={listen}"]
    for lacking in ([], CERTIFICATE[:1], CERTIFICATE[1:]):
        with pytest.raises(BadValue, match=r"inputs\.a\.listen = .* must have tls\.certificate and tls\.key"):
            load(None, [*given, *lacking])
    load(None, [*given, *CERTIFICATE])


@pytest.mark.parametrize(("given", "is_open"), OPEN)
def test_an_input_that_anybody_may_write_to_needs_the_word_of_who_configures_it(
    given: list[str], is_open: bool
) -> None:
    overrides = [*given, "inputs.a.topic=net"]
    if is_open:
        with pytest.raises(BadValue, match=r"inputs\.a\.allow"):
            load(None, [*overrides, *CERTIFICATE])
    chosen = load(None, [*overrides, *CERTIFICATE, "security.allow_insecure=true"])
    assert bool(open_addresses(chosen.inputs["a"], chosen.tls)) == is_open


def test_several_processes_need_an_address_of_udp() -> None:
    given = ["inputs.a.type=syslog", "inputs.a.topic=net", "inputs.a.processes=2"]
    with pytest.raises(BadValue, match=r"inputs\.a\.processes = 2: only UDP has several"):
        load(None, [*given, "inputs.a.listen=tcp://127.0.0.1:5514"])
    load(None, [*given, "inputs.a.listen=udp://127.0.0.1:5514"])

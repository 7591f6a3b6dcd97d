"""appliance.processes.network.provider_keys: keys come in a thread, bounded in time, size and rate; old ones stay."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from joserfc.jwk import RSAKey

from appliance.processes.network import provider_keys
from appliance.processes.network.provider_keys import JWKS_BYTES_MAX, ProviderKeys, read_keys
from appliance.web.pinned_connection import AddressRefused, addresses_of

from ...support.identity_provider import IdentityProvider
from ...support.server import wait_for


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_keys, "RETRY_S", 0.01)


def keys_of(place: str) -> ProviderKeys:
    return ProviderKeys(place, lambda: None)


def test_a_key_that_is_new_is_asked_for(provider: IdentityProvider, soon: None) -> None:
    keys = keys_of(provider.jwks_url)
    wait_for(lambda: "first" in keys(), "the keys")
    provider.keys["second"] = RSAKey.generate_key(2048)
    number = keys.want()
    wait_for(lambda: keys.attempts >= number, "another attempt")
    assert keys().keys() == {"first", "second"}
    del provider.keys["first"]
    number = keys.want()
    wait_for(lambda: keys.attempts >= number, "another attempt")
    assert keys().keys() == {"second"}, "what the provider has withdrawn is good no more"


@pytest.mark.parametrize("answer", [b"no JSON", b"{}", b'{"keys": []}', b"x" * (JWKS_BYTES_MAX + 10)])
def test_what_is_no_key_set_leaves_the_keys(provider: IdentityProvider, soon: None, answer: bytes) -> None:
    keys = keys_of(provider.jwks_url)
    wait_for(lambda: "first" in keys(), "the keys")
    provider.broken = answer
    number = keys.want()
    wait_for(lambda: keys.attempts >= number, "another attempt")
    assert keys().keys() == {"first"}


def test_whoever_asks_often_costs_one_request(provider: IdentityProvider) -> None:
    """Within RETRY_S: also with many that ask."""
    keys = keys_of(provider.jwks_url)
    wait_for(lambda: keys.attempts == 1, "the first attempt")
    numbers = {keys.want() for _ in range(1_000)}
    assert numbers == {2} and provider.answers == 1


def test_a_provider_that_is_silent_is_given_up(
    provider: IdentityProvider, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_keys, "FETCH_S_MAX", 0.2)
    provider.going_on.clear()
    keys = keys_of(provider.jwks_url)
    wait_for(lambda: keys.attempts >= 2, "two attempts, each ended by its time")
    assert keys() == {}
    provider.going_on.set()
    wait_for(lambda: "first" in keys(), "the keys, once it answers")


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, all together do not."""
    import socket

    monkeypatch.setattr(provider_keys, "FETCH_S_MAX", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def drip() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 200 OK\r\n")
                try:
                    while not over.wait(0.05):
                        sock.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises((OSError, http.client.HTTPException)):
            read_keys(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        over.set()
        thread.join()


def test_keys_of_a_file(provider: IdentityProvider, tmp_path: Path, soon: None) -> None:
    path = tmp_path / "keys.json"
    keys = keys_of(str(path))
    wait_for(lambda: keys.attempts >= 2, "attempts without the file")
    path.write_bytes(provider.jwks())
    wait_for(lambda: "first" in keys(), "the keys of the file")
    path.write_bytes(json.dumps({"keys": ["x" * JWKS_BYTES_MAX]}).encode())
    with pytest.raises(ValueError, match="more than"):
        read_keys(str(path))


def test_no_address_of_the_link_is_asked() -> None:
    with pytest.raises(AddressRefused):
        addresses_of("169.254.169.254", 80)
    assert addresses_of("127.0.0.1", 80) == ["127.0.0.1"]

"""appliance.processes.supervisor.listeners: what is wrong with an address, and what with the machine."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from appliance.config import Config, Kafka, Native
from appliance.errors import AddressInUse, BadValue
from appliance.processes.supervisor.listeners import listen


def listening_on(address: str) -> Config:
    return Config(native=Native(listen=address), kafka=Kafka(listen="127.0.0.1:0"))


def test_an_address_that_is_taken_or_not_ours_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AddressInUse, match=r"native\.listen = 127\.0\.0\.1:\d+"),
    ):
        listen(listening_on(f"127.0.0.1:{taken.getsockname()[1]}"))
    with pytest.raises(BadValue, match="choose another address"):
        listen(listening_on("192.0.2.1:9091"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_that_gives_no_socket_is_no_wrong_address(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: not the exit status of a wrong configuration, after which the service manager does not start it again."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError) as caught:
        listen(listening_on("127.0.0.1:0"))
    assert caught.value.errno == number

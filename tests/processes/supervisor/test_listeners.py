"""appliance.processes.supervisor.listeners: what is wrong with an address, what with the machine; Unix sockets."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from appliance.config import Config, KafkaSection, NativeSection
from appliance.errors import AddressInUse, BadValue
from appliance.processes.supervisor.listeners import listen, remove_sockets, texts
from appliance.security.configuration import Security


def listening_on(address: str) -> Config:
    return Config(
        native=NativeSection(listen=address),
        kafka=KafkaSection(listen="127.0.0.1:0"),
        security=Security(allow_insecure=True),
    )


def test_an_address_that_is_taken_or_not_ours_is_named(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AddressInUse, match=r"native\.listen = 127\.0\.0\.1:\d+"),
    ):
        listen(listening_on(f"127.0.0.1:{taken.getsockname()[1]}"), tmp_path, {})
    with pytest.raises(BadValue, match="choose another address"):
        listen(listening_on("192.0.2.1:9091"), tmp_path, {})


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_that_gives_no_socket_is_no_wrong_address(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: not the exit status of a wrong configuration, after which the service manager does not start it again."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError) as caught:
        listen(listening_on("127.0.0.1:0"), tmp_path, {})
    assert caught.value.errno == number


def test_unix_sockets_with_their_modes_and_paths_of_any_length(tmp_path: Path) -> None:
    """Method: a data directory with a path longer than Linux takes, and the socket of a process that was killed."""
    data = tmp_path / ("d" * 100) / "data"
    data.mkdir(parents=True)
    shared = tmp_path / "shared.sock"
    for _ in range(2):  # the second time both files are there, and nobody listens
        bound = listen(listening_on(f"127.0.0.1:0,unix:{shared}?mode=0660"), data, {})
        found = texts(bound, data)
        assert found["local"] == f"unix:{data}/native.sock" and found["native"].endswith(f",unix:{shared}?mode=0660")
        assert stat.S_IMODE(shared.stat().st_mode) == 0o660
        assert stat.S_IMODE((data / "native.sock").stat().st_mode) == 0o600
        with pytest.raises(AddressInUse, match=r"unix:/.*choose another path"):
            listen(listening_on(f"unix:{shared}"), tmp_path, {})
        for _, sock in bound:
            sock.close()
    remove_sockets(bound)
    assert not shared.exists() and not (data / "native.sock").exists()
    shared.write_text("a file of somebody")
    with pytest.raises(BadValue, match="no socket"):
        listen(listening_on(f"unix:{shared}"), data, {})
    assert shared.exists()

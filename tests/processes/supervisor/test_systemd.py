"""appliance.processes.supervisor.systemd: sockets that systemd passes, as it passes them: blocking, and with names."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.certificates import make_certificates
from ...support.command_line import succeeding
from ...support.native_peer import Peer
from ...support.server import NotServing, Server, wait_for


def activated(tmp_path: Path, sockets: list[socket.socket], names: str) -> Server:
    """A server that finds these sockets at descriptors 3, 4 ... as systemd leaves them."""
    server = Server(tmp_path / "data")
    moves = " ".join(f"{fd}<&{sock.fileno()}" for fd, sock in enumerate(sockets, 3))
    script = f'exec {moves}; export LISTEN_PID=$$ LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={names}; exec "$@"'
    server.within = ["bash", "-c", script, "bash"]
    return server


def start(server: Server, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> Server:
    popen = subprocess.Popen
    fds = [sock.fileno() for sock in sockets]
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **named: popen(*args, pass_fds=fds, **named))
    try:
        return server.start()
    finally:
        monkeypatch.undo()


def high(sock: socket.socket) -> socket.socket:
    """The same socket at a descriptor that the script does not overwrite."""
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD, 50))


def listening() -> socket.socket:
    return high(socket.create_server(("127.0.0.1", 0)))


def test_passed_listeners_serve_and_no_worker_hangs_in_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: connections come and go at once, so that one worker finds what another has taken; then both stop."""
    sockets = [listening(), listening()]
    server = start(activated(tmp_path, sockets, "native:kafka"), sockets, monkeypatch)
    address = sockets[0].getsockname()
    assert server.native == f"127.0.0.1:{address[1]}"
    assert server.kafka == f"127.0.0.1:{sockets[1].getsockname()[1]}"
    for _ in range(300):
        socket.create_connection(address).close()
    with Peer(server.native) as peer:
        peer.create("t")
    assert server.stop() == 0
    assert "did not stop in time" not in server.log()
    assert (
        f"kafka.listen = 127.0.0.1:0 is not used: systemd passes 127.0.0.1:{sockets[1].getsockname()[1]}"
        in server.log()
    )
    for sock in sockets:
        assert not os.get_blocking(sock.fileno()), "the description is shared: it was made non-blocking"
        sock.close()


def test_the_name_of_a_passed_socket_has_what_secures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a socket that is to have TLS is never served without."""
    sockets = [listening(), listening()]
    server = activated(tmp_path, sockets, "native:kafka.SSL")
    with pytest.raises(NotServing, match=r"exit status 78(?s:.)*SSL://127.0.0.1:.*tls.certificate"):
        start(server, sockets, monkeypatch)
    for arguments in (("ca",), ("server", "localhost")):
        make_certificates(tmp_path, *arguments)
    server.settings |= {"tls.certificate": f"{tmp_path}/server.pem", "tls.key": f"{tmp_path}/server.key"}
    start(server, sockets, monkeypatch)
    address = sockets[1].getsockname()
    assert server.address("kafka", "SSL") == f"127.0.0.1:{address[1]}" and server.native
    context = ssl.create_default_context(cafile=f"{tmp_path}/ca.pem")
    with (
        socket.create_connection(address, 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        assert sock.version() == "TLSv1.3"
    assert server.stop() == 0
    for sock in sockets:
        sock.close()


def datagrams() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return high(sock)


def local() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind("")
    sock.listen()
    return high(sock)


def unbound() -> socket.socket:
    return high(socket.socket(socket.AF_INET, socket.SOCK_STREAM))


@pytest.mark.parametrize(
    "make, names, says",
    [
        (listening, "http", "FileDescriptorName=http: must be one of native, kafka"),
        (listening, "", "FileDescriptorName="),
        (datagrams, "native", "must be a TCP socket that listens"),
        (local, "native", "must be a TCP socket that listens"),
        (unbound, "kafka", "must be a TCP socket that listens"),
    ],
)
def test_what_is_no_listener_of_ours_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, names: str, says: str
) -> None:
    assert callable(make)
    sockets = [make()]
    with pytest.raises(NotServing, match=f"exit status 78(?s:.)*{says}"):
        start(activated(tmp_path, sockets, names), sockets, monkeypatch)
    sockets[0].close()


def test_sockets_for_another_process_are_not_ours(tmp_path: Path) -> None:
    environment = os.environ | {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    module = "appliance.processes.supervisor.systemd"
    script = f"import os; from {module} import inherited_listeners; print(inherited_listeners(os.environ, ()))"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{}"


def test_passed_sockets_beyond_one_for_each_process_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd keeps them open, so the kernel goes on dividing the senders among all of them."""
    sockets: list[socket.socket] = []
    for _ in range(4):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(sockets[0].getsockname() if sockets else ("127.0.0.1", 0))
        sockets.append(sock)
    at = sockets[0].getsockname()
    server = activated(tmp_path, sockets, "inputs:inputs:inputs:inputs")
    server.settings |= {"inputs.net.type": "syslog", "inputs.net.topic": "net", "inputs.net.processes": "2"}
    server.settings |= {"inputs.net.listen": f"udp://127.0.0.1:{at[1]}"}
    start(server, sockets, monkeypatch)
    for _ in range(100):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"<13>of a port of its own", at)
    wait_for(lambda: server.state["inputs"]["net"]["messages"] == 100, "each message")
    row = server.state["inputs"]["net"]
    assert (len(row["addresses"]), row["further"]) == (1, 2)
    config = tmp_path / "appliance.toml"
    config.write_text(
        f'[inputs.net]\ntype = "syslog"\ntopic = "net"\nprocesses = 2\nlisten = ["udp://127.0.0.1:{at[1]}"]\n'
    )
    said = succeeding("inputs", "check", "--json", "--config", str(config), "--data", str(server.data_dir)).json
    assert [row["what"] for row in said if "systemd passes 2 sockets more" in row["what"]]
    assert server.stop() == 0
    for sock in sockets:
        sock.close()


def test_passed_sockets_are_those_of_inputs_at_their_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before the start is read; what no input listens at is told."""
    sockets = [datagrams(), listening(), datagrams()]
    udp, tcp, other = (sock.getsockname() for sock in sockets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"<13>before the start", udp)
    server = activated(tmp_path, sockets, "inputs:inputs:inputs")
    listen = f"udp://127.0.0.1:{udp[1]},tcp://127.0.0.1:{tcp[1]}"
    server.settings |= {"inputs.net.type": "syslog", "inputs.net.topic": "net", "inputs.net.listen": listen}
    start(server, sockets, monkeypatch)
    with socket.create_connection(tcp) as sender:
        sender.sendall(b"<13>by TCP\n")
    wait_for(lambda: server.state["inputs"]["net"]["messages"] == 2, "both messages")
    assert f"systemd passes 127.0.0.1:{other[1]}, which is in listen of no input" in server.log()
    assert server.stop() == 0
    for sock in sockets:
        sock.close()

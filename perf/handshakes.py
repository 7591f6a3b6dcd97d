"""What a TLS handshake costs each side, whole and resumed, with a key of elliptic curves and with RSA.

    python perf/handshakes.py [--smoke] [--handshakes 800]

Both sides are in this process, with the transport's OpenSSL and the listener's context, and no socket: it is the share
of a login that belongs to TLS alone.  In a whole handshake the client checks the server's certificate.  Listeners
resume none: the contexts that do are made here.  The kinds take turns; figures are medians of CPU time.
"""

from __future__ import annotations

import argparse
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from _bench import headline, row
from _certificates import Certificates

from appliance.processes.tls_files import TlsFiles
from appliance.security.configuration import Tls

HOST = "127.0.0.1"
RSA = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={host} -addext subjectAltName=IP:{host}"


class Kind(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext
    resumed: bool


def _shake(kind: Kind, session: ssl.SSLSession | None) -> tuple[float, float, ssl.SSLSession | None]:
    """CPU time of the server and of the client in ms, and the session that the client has then."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = kind.server.wrap_bio(to_server, to_client, server_side=True)
    client = kind.client.wrap_bio(to_client, to_server, server_hostname=HOST, session=session)
    spent_ns, open_ends = {server: 0, client: 0}, [client, server]
    while open_ends:
        for end in list(open_ends):
            begun = time.thread_time_ns()
            try:
                end.do_handshake()
                open_ends.remove(end)
            except ssl.SSLWantReadError:
                pass
            spent_ns[end] += time.thread_time_ns() - begun
    server.write(b"x")
    client.read(1)  # the ticket comes with the first bytes
    assert client.session_reused == (session is not None)
    return spent_ns[server] / 1e6, spent_ns[client] / 1e6, client.session


def _kinds(directory: Path) -> dict[str, Kind]:
    made = Certificates(directory / "certificates")
    rsa = directory / "rsa.pem", directory / "rsa.key"
    words = [*RSA.format(host=HOST).split(), "-out", str(rsa[0]), "-keyout", str(rsa[1])]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    rsa[1].chmod(0o600)
    files = {
        "P-256": (made.appliance["tls.certificate"], made.appliance["tls.key"], made.client["ssl.ca.location"]),
        "RSA-2048": (str(rsa[0]), str(rsa[1]), str(rsa[0])),
    }
    kinds = {}
    for name, (certificate, key, ca) in files.items():
        for resumed in (False, True):
            server = TlsFiles(Tls(certificate=certificate, key=key)).context
            if resumed:
                server.options &= ~ssl.OP_NO_TICKET
                server.num_tickets = 1
            client = ssl.create_default_context(cafile=ca)
            kinds[f"{name} {'resumed' if resumed else 'whole'}"] = Kind(server, client, resumed)
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="ten of each")
    parser.add_argument("--handshakes", type=int, default=800)
    options = parser.parse_args()
    count = 10 if options.smoke else options.handshakes
    headline("handshakes", handshakes=count, openssl=ssl.OPENSSL_VERSION)
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        kinds = _kinds(Path(directory))
        sessions = {name: _shake(kind, None)[2] if kind.resumed else None for name, kind in kinds.items()}
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(count):
            for name, kind in kinds.items():
                server_ms, client_ms, session = _shake(kind, sessions[name])
                spent[name].append((server_ms, client_ms))
                if kind.resumed:
                    sessions[name] = session
    for name, pairs in spent.items():
        servers, clients = zip(*pairs, strict=True)
        row(name, server_cpu_ms=median(servers), client_cpu_ms=median(clients))


if __name__ == "__main__":
    main()

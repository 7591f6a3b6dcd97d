"""Certificates for tests, by the script that users have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "systemd/make-certificates"


def make_certificates(directory: Path, *arguments: str, days: int = 365) -> subprocess.CompletedProcess[str]:
    """``make-certificates WHAT DIR ...``: for example ``make_certificates(directory, "client", "web-1")``.

    Args:
        days: how long the certificate is valid.
    """
    what, *rest = arguments
    command = [str(SCRIPT), what, str(directory), *rest]
    environment = os.environ | {"DAYS": str(days)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def sign_again(directory: Path, name: str, days: int) -> None:
    """Sign DIR/NAME.pem again, for its key and names: with -1 it has expired already, which the script refuses."""
    stem, authority, keep = f"{directory}/{name}", f"{directory}/ca", ["-copy_extensions", "copyall"]
    request = ["openssl", "x509", "-x509toreq", *keep, "-in", f"{stem}.pem", "-signkey", f"{stem}.key"]
    subprocess.run([*request, "-out", f"{stem}.csr"], check=True, capture_output=True)
    sign = ["openssl", "x509", "-req", *keep, "-in", f"{stem}.csr", "-set_serial", "7", "-days", str(days)]
    sign += ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-out", f"{stem}.signed"]
    subprocess.run(sign, check=True, capture_output=True)
    Path(f"{stem}.signed").rename(f"{stem}.pem")


def sign_client(authority: Path, directory: Path, name: str, names: str) -> None:
    """Make a client's certificate without a subject, with these alternative names as OpenSSL writes them.

    ``DER:`` and bytes are names that no honest authority signs.
    """
    stem = f"{directory}/{name}"
    request = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/"]
    request += ["-keyout", f"{stem}.key", "-out", f"{stem}.csr"]
    subprocess.run(request, check=True, capture_output=True)
    Path(f"{stem}.ext").write_text(f"subjectAltName=critical,{names}\nextendedKeyUsage=clientAuth\n")
    sign = ["openssl", "x509", "-req", "-in", f"{stem}.csr", "-CA", f"{authority}/ca.pem"]
    sign += ["-CAkey", f"{authority}/ca.key", "-days", "1", "-extfile", f"{stem}.ext", "-out", f"{stem}.pem"]
    subprocess.run(sign, check=True, capture_output=True)


NO_TEXT = "DER:30:04:82:02:FF:FE"
"""Alternative names with one that is not UTF-8: OpenSSL takes them, Python cannot read them."""

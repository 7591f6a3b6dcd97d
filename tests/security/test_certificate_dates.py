"""Dates of certificates, against what openssl says about the same files."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.certificate_dates import expires_s


def openssl(*arguments: str | Path) -> str:
    return subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def request_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dates")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=logs")
    openssl("req", "-new", *new, "-keyout", directory / "key.pem", "-out", directory / "request.pem")
    return directory / "request.pem"


def made(request_file: Path, days: int) -> tuple[str, float]:
    """A certificate, and the date on which it expires, as openssl says it."""
    path = request_file.with_name(f"{days}.pem")
    key = request_file.with_name("key.pem")
    openssl("x509", "-req", "-in", request_file, "-signkey", key, "-days", str(days), "-out", path)
    said = openssl("x509", "-in", path, "-noout", "-enddate").strip()
    return path.read_text(), ssl.cert_time_to_seconds(said.removeprefix("notAfter="))


@pytest.mark.parametrize("days", [-1, 30, 365 * 40])
def test_the_date_is_that_of_openssl(request_file: Path, days: int) -> None:
    """Expired, valid, and behind 2049, where certificates write the year with four digits."""
    text, expires = made(request_file, days)
    assert expires_s(text) == expires


def test_the_first_of_a_file_counts(request_file: Path) -> None:
    (late, _), (early, expires) = made(request_file, 90), made(request_file, 20)
    assert expires_s(f"a comment\n{late}\n{early}") == expires


def test_a_file_without_certificates_has_no_date() -> None:
    assert expires_s("") is None
    assert expires_s("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----") is None


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        expires_s(ssl.DER_cert_to_PEM_cert(content))

"""Makes and reads files that hold secrets: private keys, passwords, the secret of the local ensemble.

The rule is that of PostgreSQL for its keys.  A secret file belongs to the user of this process, and nobody else may
read it (0600); or it belongs to root, and a group may read it (0640).  A file that others can read is refused: whoever
could read it may know the secret already, so a person has to replace it and not only to change its mode.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from ..durable_files import replace_file
from ..errors import BadValue
from ..owners import acting_as_owner

MODE: Final = 0o600
SECRET_BYTES: Final = 32
SECRET_BYTES_MAX: Final = 1 << 20
"""Of a secret file; a key with its chain has some kilobytes."""


class NoSecretFile(BadValue):
    """A secret file that a person has named is missing."""

    exit_status = 66  # EX_NOINPUT


class SecretFileClosed(BadValue):
    """This user may not read a secret file that a person has named."""

    exit_status = 77  # EX_NOPERM


def read_secret_file(path: Path, what: str) -> bytes:
    """Read a secret file.  Its owner and mode are those of the open file, so nobody can exchange it in between.

    Args:
        what: names the file in the message, such as ``tls.key``.

    Raises:
        BadValue: it is missing, too large, not a regular file, or others may read it; the message has the remedy.
    """
    try:
        with acting_as_owner(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise BadValue(f"{what} = {path}: {error.strerror}") from None
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        fault = fault_of(os.fstat(fd), os.geteuid())
        if fault:
            raise BadValue(f"{what} = {path}: {fault}")
        content = file.read(SECRET_BYTES_MAX + 1)
    if len(content) > SECRET_BYTES_MAX:
        raise BadValue(f"{what} = {path}: larger than {SECRET_BYTES_MAX} bytes")
    return content


def check_secret_file(path: Path, what: str) -> None:
    """Check a secret file that a library reads by its path.  Arguments and errors as :func:`read_secret_file`."""
    read_secret_file(path, what)


def read_password(path: Path, what: str) -> str:
    """Read a password: the first line of a secret file.

    Raises:
        BadValue: as :func:`read_secret_file`; or the line is empty or no UTF-8.
    """
    try:
        text = read_secret_file(path, what).split(b"\n", 1)[0].removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise BadValue(f"{what} = {path}: the password is not UTF-8") from None
    if not text:
        raise BadValue(f"{what} = {path}: the first line is the password, and it is empty")
    return text


def read_given_password(path: Path, what: str) -> str:
    """As :func:`read_password`, of a file that a person has named, not the configuration of the service.

    Raises:
        NoSecretFile: it is missing.
        SecretFileClosed: this user may not read it.
        BadValue: as :func:`read_password`.
    """
    try:
        with acting_as_owner(path):
            path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoSecretFile(f"{what} = {path}: {error.strerror}") from None
    except PermissionError as error:
        raise SecretFileClosed(f"{what} = {path}: {error.strerror}") from None
    except OSError:
        pass  # the next attempt says why
    return read_password(path, what)


def fault_of(status: os.stat_result, user_id: int) -> str:
    """What is wrong with the owner or mode of a secret file that this user reads, with the remedy; "" when nothing."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (0, user_id) and user_id != 0:  # root checks the files of the service, and may read all
        return f"it belongs to user id {status.st_uid}: it must belong to the user of this process, or to root"
    allowed = 0o640 if status.st_uid == 0 else MODE
    if mode & 0o177 & ~allowed:
        return (
            f"its mode is {mode:04o}, so others may have read it: make a new secret, and `chmod {allowed:04o}` its file"
        )
    return ""


def make_secret() -> str:
    """Make a random secret: SECRET_BYTES bytes as hexadecimal digits, which need no quoting anywhere."""
    return secrets.token_hex(SECRET_BYTES)


def keep_secret(path: Path) -> str:
    """Read the secret in ``path``, or make one and store it there durably at the first call.

    Raises:
        BadValue: the file cannot be used.
        OSError: it cannot be written.
    """
    if path.exists():
        return read_password(path, "the secret file")
    secret = make_secret()
    replace_file(path, secret.encode() + b"\n")
    return secret

"""Writes files atomically, also into directories that other users may write to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from allocator.errors import ConfigError

__all__ = ["read_json", "refuse_existing", "write_file", "write_json"]

# O_EXCL: nobody else's file, and no link to one, is ever written to, even if its name was guessed
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: str | Path, data: str | bytes, *, mode: int | None = None, fresh: bool = False) -> None:
    """Puts `data` (text as UTF-8) in the place of `path`. When this returns, it stands on the disk.

    If anything fails before, the file is as it was. A link at `path` is replaced, not followed. `mode`: the permission
    bits; by default those of the file that is replaced, and of a new file those that the umask leaves. `fresh`: raises
    FileExistsError if there is something at `path`, without a gap between the look and the writing.
    Raises OSError, also where something stands at `path` that is not a file, such as a device.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    with contextlib.suppress(FileNotFoundError):
        before = path.lstat()
        if stat.S_ISREG(before.st_mode):
            mode = stat.S_IMODE(before.st_mode) if mode is None else mode
        elif not stat.S_ISLNK(before.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    # in the same directory, as a rename does not leave its file system
    beside = path.with_name(f".{secrets.token_hex(16)}")
    descriptor = os.open(beside, _NEW, 0o666)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if fresh:
            os.link(beside, path)  # unlike a rename, fails where there is one
        else:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> None:
    """Replaces `path`. When this returns it stands on the disk; whatever happens before, the file is as it was.

    Raises ConfigError naming the path.
    """
    try:
        write_file(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; name another place") from error


def refuse_existing(path: Path) -> None:
    """Raises ConfigError if there is such a file."""
    if path.exists():
        raise ConfigError(f"{path} exists: it may be the only record of what stood before; name another file")


def read_json(path: Path) -> Any:
    """Raises ConfigError naming the path."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} does not read: {error}") from error

"""Writes files atomically, even in directories where other users may write."""

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

# O_EXCL: never writes into a file or link of another user who guessed the name
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: str | Path, data: str | bytes, *, mode: int | None = None, fresh: bool = False) -> None:
    """Replaces the file `path` by `data`, and syncs it to the disk. Text is written as UTF-8.

    After a failure the file is unchanged. A link at `path` is replaced, not followed. `mode` has the permission bits,
    by default those of the replaced file, or of the umask. `fresh`: raises FileExistsError if `path` exists. Raises
    OSError, also if `path` is not a regular file.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    with contextlib.suppress(FileNotFoundError):
        before = path.lstat()
        if stat.S_ISREG(before.st_mode):
            mode = stat.S_IMODE(before.st_mode) if mode is None else mode
        elif not stat.S_ISLNK(before.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    # in the same directory: a rename works only within one file system
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
            os.link(beside, path)  # unlike a rename, fails if the name exists
        else:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any, *, fresh: bool = False) -> None:
    """Replaces `path` like `write_file`. Raises ConfigError with the path."""
    try:
        write_file(path, json.dumps(value, indent=1) + "\n", fresh=fresh)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; name another path") from error


def refuse_existing(path: Path) -> None:
    """Raises ConfigError if the file exists."""
    if path.exists():
        raise ConfigError(f"{path} exists, and may be the only copy of former data; name another file")


def read_json(path: Path) -> Any:
    """Returns the parsed file. Raises ConfigError with the path."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; repair it, or name another file") from error

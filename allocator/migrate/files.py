"""Files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from allocator.errors import ConfigError

__all__ = ["read_json", "refuse_existing", "write_json"]


def write_json(path: Path, value: Any) -> None:
    """Replaces `path`. When this returns it stands on the disk; whatever happens before, the file is as it was.

    Raises ConfigError naming the path.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; name another place") from error
    finally:
        beside.unlink(missing_ok=True)


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

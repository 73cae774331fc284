"""JSON in files that are there as a whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allocator.errors import ConfigError
from allocator.files import write_file

__all__ = ["read_json", "refuse_existing", "write_json"]


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

"""The user's own functions, found by text: "package.module:function"."""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from typing import Any

from allocator.errors import AllocatorError, ConfigError

__all__ = ["find", "to_call"]


def find(target: str, what: str, error: type[AllocatorError] = ConfigError, *, here: bool = False) -> Any:
    """What stands at `target`. `here`: modules in the current directory are found, as a command's user expects.

    Raises `error`, with `what` at its beginning, where the text has another form or nothing stands there.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise error(f"{what}: write 'package.module:function'")
    if here and "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")  # a console script starts without it, `python -m` with it
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as cause:  # importing runs the module's own code
        raise error(f"{what}: module {module_name!r} does not import: {cause!r}") from cause
    for part in path.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name, None))]
            near = difflib.get_close_matches(part, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise error(f"{what}: {module_name!r} has no {path!r}{hint}")
        found = getattr(found, part)
    return found


def to_call(found: Any, what: str, error: type[AllocatorError] = ConfigError) -> Any:
    """The same, of a class one made without arguments. Raises `error` where it cannot be called."""
    if isinstance(found, type):
        try:
            found = found()
        except Exception as cause:  # a constructor of the user's
            raise error(f"{what}: its class cannot be called without arguments: {cause!r}") from cause
    if not callable(found):
        raise error(f"{what} is {type(found).__name__}, not something to call")
    return found

"""Finds a user's function by its name, "package.module:function"."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from allocator.core.errors import AllocatorError, ConfigError


def find(
    target: str, what: str, error: type[AllocatorError] = ConfigError, *, here: bool = False, call: bool = False
) -> Any:
    """Returns the object with the name `target`.

    `here`: also searches the current directory for modules. `call`: calls `to_call` with the object. Raises `error`,
    whose text begins with `what`.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise error(f"{what}: write 'package.module:function'")
    if here and "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")  # `python -m` adds this entry, a console script does not
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as cause:  # an import runs the module's code
        raise error(f"{what}: module {module_name!r} cannot be imported: {cause!r}") from cause
    for part in path.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name, None))]
            import difflib

            near = difflib.get_close_matches(part, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise error(f"{what}: {module_name!r} has no {path!r}{hint}")
        found = getattr(found, part)
    return to_call(found, what, error) if call else found


def to_call(found: Any, what: str, error: type[AllocatorError] = ConfigError) -> Any:
    """Returns `found`, or an instance of it if it is a class. Raises `error` if that is not callable."""
    if isinstance(found, type):
        try:
            found = found()
        except (Exception, SystemExit) as cause:  # the user's constructor
            raise error(f"{what}: its class cannot be called without arguments: {cause!r}") from cause
    if not callable(found):
        raise error(f"{what} is {type(found).__name__}, not callable")
    return found

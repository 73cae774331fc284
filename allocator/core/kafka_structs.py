"""kafka-python's `TopicPartition` and `OffsetAndMetadata`, without importing the rest of kafka-python.

`import kafka.structs` first imports `kafka`, with its consumer, producer and admin client. This module executes
`kafka.structs` alone, under the same name. A later `import kafka` works as always and uses the same classes. So a
process has one class `TopicPartition`, whichever package is imported first.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

NAME: Final = "kafka.structs"


class BindsStructs:
    """An entry of `sys.meta_path` that finds no module. It sets the attribute `structs` of `kafka`, once.

    Python sets the attribute only if it loads the submodule itself. The import of `kafka` searches `sys.meta_path` for
    other submodules first, and so calls this class before any program can read the attribute.
    """

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        package, structs = sys.modules.get("kafka"), sys.modules.get(NAME)
        if package is None or structs is None or not name.startswith("kafka."):
            return
        setattr(package, "structs", structs)  # noqa: B010 - mypy knows no such attribute
        with contextlib.suppress(ValueError):  # another thread removed it
            sys.meta_path.remove(cls)


def load() -> ModuleType:
    """Returns the module `kafka.structs`."""
    if "kafka" not in sys.modules and NAME not in sys.modules:
        package = find_spec("kafka")
        spec = None if package is None else PathFinder.find_spec(NAME, package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            alone = module_from_spec(spec)
            spec.loader.exec_module(alone)
            sys.meta_path.insert(0, BindsStructs)
            sys.modules.setdefault(NAME, alone)
    if "kafka" in sys.modules or NAME not in sys.modules:
        from kafka import structs  # noqa: F401 - waits if another thread imports it
    return sys.modules[NAME]


_structs: Final[Any] = load()
TopicPartition = _structs.TopicPartition
OffsetAndMetadata = _structs.OffsetAndMetadata

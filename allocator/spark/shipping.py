"""Pickles objects for executors so that the error of an executor without this package says what to install."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle


def rebuild(module: str, name: str, state: bytes) -> Any:
    """Returns the pickled object, or raises ModuleNotFoundError. Spark sends the code of this function to executors."""
    import importlib
    import pickle
    import socket
    import sys

    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: executors run {sys.executable} (on {socket.gethostname()}), which lacks this package. Install "
            "zk-partition-allocator[spark] in that Python, or ship an environment that has it and name its Python in "
            "spark.pyspark.python (docs/spark.md, On a cluster)"
        ) from None
    rebuilt = kind.__new__(kind)
    getattr(rebuilt, "__setstate__", rebuilt.__dict__.update)(pickle.loads(state))
    return rebuilt


# otherwise the pickle has only the function's name, and an executor must import this module to find it
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def shipped(kind: type, state: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the result of `__reduce__` for an instance of `kind`."""
    # pickles the state separately, because it also refers to classes of this package
    return rebuild, (kind.__module__, kind.__qualname__, cloudpickle.dumps(state))


class Shipped:
    """A reader or writer that Spark pickles for its tasks."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(type(self), self.__getstate__())

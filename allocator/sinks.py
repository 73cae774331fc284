"""The short path of `allocator.handlers.sinks`."""

from allocator.handlers.sinks import *  # noqa: F403
from allocator.handlers.sinks import __all__ as __all__

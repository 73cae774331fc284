"""The short path of `allocator.core.assignors`."""

from allocator.core.assignors import *  # noqa: F403
from allocator.core.assignors import __all__ as __all__

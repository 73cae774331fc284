"""The short path of `allocator.core.types`."""

from allocator.core.types import *  # noqa: F403
from allocator.core.types import __all__ as __all__

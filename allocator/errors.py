"""The short path of `allocator.core.errors`."""

from allocator.core.errors import *  # noqa: F403
from allocator.core.errors import __all__ as __all__

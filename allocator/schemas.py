"""The short path of `allocator.handlers.schemas`."""

from allocator.handlers.schemas import *  # noqa: F403
from allocator.handlers.schemas import __all__ as __all__

"""`python -m allocator.cli`, the same as `python -m allocator`."""

from __future__ import annotations

from allocator.__main__ import main

if __name__ == "__main__":
    main()

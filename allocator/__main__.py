"""`python -m allocator`: the command `allocator`."""

from __future__ import annotations

from allocator.cli import main

if __name__ == "__main__":
    main()

"""`python -m allocator.cli`, where the script `allocator` is not on the path."""

from __future__ import annotations

from allocator.cli import main

if __name__ == "__main__":
    main(prog_name="allocator")

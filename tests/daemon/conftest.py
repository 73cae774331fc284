"""Fixtures of the daemon's tests."""

from __future__ import annotations

from daemon_processes import make

__all__ = ["make"]

"""Fixtures of the daemon's tests."""

from __future__ import annotations

from tests.daemon.daemon_processes import make

__all__ = ["make"]

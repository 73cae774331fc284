"""This project's own protocol: exclusive ownership through ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.protocols.zookeeper.options import EnsembleOptions

__all__ = ["EnsembleOptions"]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(__name__, {"options": "EnsembleOptions"})

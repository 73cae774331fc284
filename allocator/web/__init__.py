"""The status page of groups and of a daemon, the JSON API, metrics, health.

In: the znodes of groups, their offsets from the brokers, and the public surface of `consumer`. Out: HTTP. May
touch: nothing, except the actions in `actions.py` for a caller with the token.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from allocator.errors import MissingExtra

if TYPE_CHECKING:
    from allocator.web.actions import ClusterWork, GivenOrder
    from allocator.web.daemon import beside
    from allocator.web.mirror_metrics import serve_mirror
    from allocator.web.page import PageOptions, run_page

__all__ = ["ClusterWork", "GivenOrder", "PageOptions", "beside", "run_page", "serve_mirror"]

_HOME = {"ClusterWork": "actions", "GivenOrder": "actions", "beside": "daemon", "serve_mirror": "mirror_metrics"}
_WITHOUT_THE_EXTRA = {"ClusterWork", "GivenOrder"}

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name not in _WITHOUT_THE_EXTRA:
            try:
                import prometheus_client  # noqa: F401
            except ImportError as error:
                raise MissingExtra(
                    "the page and the metrics need prometheus-client: pip install 'zk-partition-allocator[web]'"
                ) from error
        return getattr(import_module(f"{__name__}.{_HOME.get(name, 'page')}"), name)

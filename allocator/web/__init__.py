"""The status page of groups and of a daemon, the JSON API, metrics, health.

In: the znodes of groups, their offsets from the brokers, and the public surface of `consumer`. Out: HTTP. May
touch: nothing, except the actions in `actions.py` for a caller with the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allocator import lazy_names
from allocator.errors import MissingExtra

if TYPE_CHECKING:
    from allocator.web.actions import ClusterWork
    from allocator.web.daemon import beside
    from allocator.web.mirror_metrics import serve_mirror
    from allocator.web.page import PageOptions, run_page
    from allocator.web.requests import OrderRequest

__all__ = ["ClusterWork", "OrderRequest", "PageOptions", "beside", "run_page", "serve_mirror"]

if not TYPE_CHECKING:  # a type checker would accept every name
    _names = lazy_names(
        __name__,
        {
            "actions": "ClusterWork",
            "daemon": "beside",
            "mirror_metrics": "serve_mirror",
            "page": "PageOptions run_page",
            "requests": "OrderRequest",
        },
    )

    def __getattr__(name: str) -> Any:
        try:
            import msgspec  # noqa: F401
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise MissingExtra(
                "the page and the metrics need msgspec and prometheus-client: pip install 'zk-partition-allocator[web]'"
            ) from error
        return _names(name)

"""The web server: the status page of groups and of a daemon, the JSON API, metrics and health checks.

It only reads ZooKeeper and Kafka, except for the changes in `actions.py` and `dead_letters.py`, which need an operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allocator import lazy_names
from allocator.errors import MissingExtra

if TYPE_CHECKING:
    from allocator.web.daemon import beside
    from allocator.web.mirror_metrics import serve_mirror
    from allocator.web.page import PageOptions, run_page
    from allocator.web.snapshot import terminal
    from allocator.web.watch import WatchedGroup, Watcher

__all__ = ["PageOptions", "WatchedGroup", "Watcher", "beside", "run_page", "serve_mirror", "terminal"]

_WITHOUT_THE_EXTRA = {"WatchedGroup", "Watcher", "terminal"}  # for `allocator top`

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    _names = lazy_names(
        __name__,
        {
            "daemon": "beside",
            "mirror_metrics": "serve_mirror",
            "page": "PageOptions run_page",
            "snapshot": "terminal",
            "watch": "WatchedGroup Watcher",
        },
    )

    def __getattr__(name: str) -> Any:
        if name in __all__ and name not in _WITHOUT_THE_EXTRA:
            try:
                import msgspec
                import prometheus_client
            except ImportError as error:
                raise MissingExtra(
                    "the page and the metrics need msgspec and prometheus-client: "
                    "pip install 'zk-partition-allocator[web]'"
                ) from error
        return _names(name)

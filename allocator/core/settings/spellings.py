"""Suggests the right argument for a name from another client, such as `bootstrap_servers`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# name in kafka-python, aiokafka or confluent-kafka (with dots as underscores) -> candidate names here. The hint names
# the first candidate that the class accepts.
SPELLINGS = {
    "assignors": ("assignor",),
    "batch_size": ("batch_bytes",),
    "bootstrap_server": ("brokers",),
    "bootstrap_servers": ("brokers",),
    "buffer_memory": ("buffer_bytes",),
    "client_rack": ("rack",),
    "compression_type": ("compression",),
    "enable_auto_commit": ("auto_commit_interval_s", "autocommit"),
    "fetch_max_bytes": ("prefetch_bytes",),
    "fetch_max_wait_ms": ("max_wait_s", "max_wait_time"),
    "fetch_message_max_bytes": ("max_bytes", "prefetch_bytes"),
    "fetch_min_bytes": ("min_bytes",),
    "fetch_wait_max_ms": ("max_wait_s", "max_wait_time"),
    "group_id": ("group",),
    "group_instance_id": ("instance_id",),
    "group_name": ("group",),
    "hosts": ("zookeeper", "zk_hosts", "brokers"),
    "max_batch_size": ("batch_bytes",),
    "max_bytes": ("prefetch_bytes",),
    "max_partition_bytes": ("prefetch_bytes",),
    "max_partition_fetch_bytes": ("max_bytes", "prefetch_bytes"),
    "metadata_broker_list": ("brokers",),
    "partition_assignment_strategy": ("assignor", "partition_allocator"),
    "queued_max_messages_kbytes": ("prefetch_bytes",),
    "rebalance_listener": ("listener",),
    "request_timeout_ms": ("timeout_s", "connect_timeout_s"),
    "servers": ("brokers",),
    "zk_hosts": ("zookeeper",),
    "zookeeper_connect": ("zookeeper", "zk_hosts"),
    "zookeeper_hosts": ("zookeeper", "zk_hosts"),
}
_IN_SECURITY = ("security_protocol", "sasl_", "ssl_")  # prefixes of the keys of `security`

HOLDERS: dict[str, Callable[[str], str]] = {}
"""Argument that takes an object -> a function that names the objects with an argument of a given name, or ""."""


def names_arguments(kind: type[T]) -> type[T]:
    """Decorates a class so that an unknown keyword argument raises a TypeError with the right name."""
    init: Any = kind.__init__
    parameters = inspect.signature(init).parameters.values()
    known = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)][1:]
    unnamed = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "")
    others_too = any(each.kind is each.VAR_KEYWORD for each in parameters)

    @functools.wraps(init)
    def checked(self: T, *arguments: Any, **given: Any) -> None:
        hints = {name: _hint(name, known) for name in given if name not in known}
        if unnamed:
            without_names = f'give {unnamed} without a name: {kind.__name__}("a", "b", ...)'
            hints.update((name, without_names) for name in hints if name in (unnamed, unnamed.rstrip("s")))
        if others_too:
            hints = {name: hint for name, hint in hints.items() if hint}
        if hints:
            raise TypeError(_message(kind.__name__, hints, known))
        init(self, *arguments, **given)

    kind.__init__ = checked  # type: ignore[assignment, method-assign]
    return kind


def _message(kind: str, hints: Mapping[str, str], known: Collection[str]) -> str:
    import difflib

    parts = []
    for name, hint in hints.items():
        near = difflib.get_close_matches(name, known, 1)
        hint = hint or (f"did you mean {near[0]}?" if near else "")
        parts.append(f"{name!r}" + (f" ({hint})" if hint else ""))
    return f"{kind} has no argument {', '.join(parts)}"


def _hint(name: str, known: Collection[str]) -> str:
    plain = name.replace(".", "_")
    if plain.startswith(_IN_SECURITY) and "security" in known:
        return f"it is called security={{{plain!r}: ...}}"
    words = SPELLINGS.get(plain, (plain, re.sub("_ms$", "_s", plain)))
    right = next((each for each in words if each in known), "")
    if not right:
        found = (HOLDERS[each](word) for each in known if each in HOLDERS for word in words)
        return next(filter(None, found), "")
    if plain.endswith("_ms") and right.endswith("_s"):
        right += ", in seconds"
    elif plain == "enable_auto_commit" and right == "auto_commit_interval_s":
        right += ", None to commit nothing by itself"
    return f"it is called {right}"

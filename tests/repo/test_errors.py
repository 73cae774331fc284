"""Every error of the library can be sent to another process, as `workers="processes"` and Spark do."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import allocator
from allocator.errors import AllocatorError, BrokerError
from allocator.types import TopicPartition

PARTITION = TopicPartition("t", 0)
AT = ("t", 0, 5)
CAUSE = ValueError("cause")
# the arguments of the constructors that do not take one text
EXAMPLES: dict[str, Callable[[Any], AllocatorError]] = {
    "AlreadyStored": lambda kind: kind(PARTITION, 5, 2),
    "BrokerError": lambda kind: kind("refused", code=7, retriable=True),
    "CorruptRecordError": lambda kind: kind(*AT, "why", next_offset=9),
    "DecompressedTooLarge": lambda kind: kind(*AT, "why", next_offset=9),
    "DeliveryFailed": lambda kind: kind(PARTITION, 3, BrokerError("no", retriable=True), True),
    "DeserializationError": lambda kind: kind(*AT, "value", CAUSE),
    "HandlerCutOff": lambda kind: kind("handle", ["t:0"], 3.0, frozenset({PARTITION})),
    "HandlerFailed": lambda kind: kind("handle", *AT, 3, CAUSE),
    "InvalidZnode": lambda kind: kind("/a/b", "why"),
    "LogTruncated": lambda kind: kind(*AT, 3),
    "NoPosition": lambda kind: kind([PARTITION]),
    "NotAssigned": lambda kind: kind(PARTITION),
    "OffsetOutOfRange": lambda kind: kind(*AT, "why"),
    "PositionOfOldTopic": lambda kind: kind(*AT),
    "PositionOutOfRange": lambda kind: kind(*AT, "why"),
    "PositionTruncated": lambda kind: kind(*AT, None),
    "RecordTooLarge": lambda kind: kind(*AT, "why"),
    "SinkBehind": lambda kind: kind(PARTITION, 5, 7),
    "TopicNotFound": lambda kind: kind(["t", "u"]),
    "TopicRecreated": lambda kind: kind(*AT),
}


def every_error() -> Iterator[type[AllocatorError]]:
    for module in pkgutil.walk_packages(allocator.__path__, "allocator."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    left = [AllocatorError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        # nobody raises a base class with a private name; BatchTooLarge ends a mirror, with a batch as its argument
        if kind.__module__.startswith("allocator") and kind.__name__[0] != "_" and kind.__name__ != "BatchTooLarge":
            yield kind


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=lambda kind: (kind.__module__, kind.__qualname__)))
def test_an_error_is_the_same_after_its_way_to_another_process(kind: type[AllocatorError]) -> None:
    error = EXAMPLES.get(kind.__name__, lambda kind: kind("a text"))(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args, again.retriable) == (str(error), error.args, error.retriable)
        assert repr(vars(again)) == repr(vars(error))

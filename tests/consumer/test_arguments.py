"""Invalid partitions and offsets. The valid shapes are in test_porting.py."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.core.settings.arguments import as_offset, as_partition


@pytest.mark.parametrize("given", ["t", 1, None, ("t", "1"), ("t", True), (1, "t"), ("t", 1, 2), ["t", 1]])
def test_an_invalid_partition_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match="a partition is a TopicPartition"):
        as_partition(given)


@pytest.mark.parametrize("given", [True, "5", None, (), (5, b"note"), (5, "note", "3"), (1, "", 2, 3)])
def test_an_invalid_offset_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match="an offset is an int"):
        as_offset(given)

"""Groups on brokers that report topics as missing for a while."""

from __future__ import annotations

from allocator.protocols.kafka_classic.plan import DOUBT_S, PartitionCounts


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.topics: dict[str, tuple[int, ...]] = {"t": (0, 1)}
        self.sizes = PartitionCounts(self.topics.get, lambda: self.now)


def test_more_partitions_and_topics_are_believed_at_once() -> None:
    world = World()
    assert world.sizes("t") == (0, 1)
    assert world.sizes("u") == ()
    world.topics.update(t=(0, 1, 2), u=(0,))
    assert world.sizes("t") == (0, 1, 2)
    assert world.sizes("u") == (0,)
    assert not world.sizes.doubtful


def test_a_topic_that_is_denied_is_what_it_was_until_that_has_lasted() -> None:
    world = World()
    world.sizes("t")
    del world.topics["t"]
    assert world.sizes("t") == (0, 1)
    assert world.sizes.doubtful
    world.now += DOUBT_S - 0.1
    assert world.sizes("t") == (0, 1)
    world.now += 0.1
    assert world.sizes("t") == ()
    assert not world.sizes.doubtful

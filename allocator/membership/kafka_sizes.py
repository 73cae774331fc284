"""How many partitions topics have, as far as brokers can be believed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["DOUBT_S", "Sizes"]

# a broker that has just started denies topics until the controller has told it of them.
# more: a topic that was deleted is noticed later; less: the group rebalances because a broker came back
DOUBT_S = 1.5


class Sizes:
    """The partitions of each topic that was asked about.

    More partitions than before are believed at once. Fewer, or none, are believed once they were seen for `DOUBT_S`;
    until then the topic is what it was. `known` is what the newest answers of the brokers say.
    """

    def __init__(self, known: Callable[[str], Sequence[int] | None], clock: Callable[[], float]) -> None:
        self._known = known
        self._clock = clock
        self._believed: dict[str, Sequence[int]] = {}
        self._since: dict[str, float] = {}

    def __call__(self, topic: str) -> Sequence[int]:
        """Partition numbers; none of a topic that does not exist."""
        now, before = self._known(topic) or (), self._believed.get(topic, ())
        if len(now) < len(before) and self._clock() - self._since.setdefault(topic, self._clock()) < DOUBT_S:
            return before
        self._since.pop(topic, None)
        self._believed[topic] = now
        return now

    @property
    def doubtful(self) -> bool:
        """Whether some topic seems to have shrunk: read the metadata again after `DOUBT_S`, and ask."""
        return bool(self._since)

    def keep(self, topics: Iterable[str]) -> None:
        """Only these matter from now on."""
        kept = frozenset(topics)
        for gone in self._believed.keys() - kept:
            del self._believed[gone]
            self._since.pop(gone, None)

"""Which offset of the old cluster stands where in the new one. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Optional

from allocator.errors import AllocatorError
from allocator.foreign import shown
from allocator.types import TopicPartition

__all__ = ["BadOffsetMap", "Entry", "Incarnation", "Positions", "Run", "pack", "unpack"]

# Of each SPAN records that are mirrored, at most MOST runs are noted as they are: the map stays small on compacted
# topics, and who is moved between them reads up to SPAN records again
MOST: Final = 8
SPAN: Final = 1000


class BadOffsetMap(AllocatorError):
    """An entry of an offset map is none that a mirror wrote."""


class Run(NamedTuple):
    """From `source` of the old partition on, records stand one by one from `target` of the new one on.

    `exact` False: somewhere behind `target`, in the same order.
    """

    source: int
    target: int
    exact: bool = True


class Incarnation(NamedTuple):
    """Which of the old topics that had one name, one after the other.

    `number` counts how often the mirror began such a topic from its earliest record again; `topic_id` is what
    `topic_ids.TopicIds` tells, None where it tells nothing or no mirror has noted it yet.
    """

    number: int = 0
    topic_id: Optional[str] = None


class Entry(NamedTuple):
    """One record of an offset map. `runs` may be empty: then it tells the incarnation alone."""

    partition: TopicPartition
    incarnation: Incarnation
    runs: list[Run]


class Positions:
    """The runs of one partition.

    Guarantee: whoever reads the new partition from `target(s)` on gets every record that the old one had at `s` or
    above, as far as it was mirrored. Before them it gets none, or a few that it had already: at runs that are not
    exact, and where records were mirrored twice.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: list[Run] = []
        self._sources: list[int] = []
        for run in runs:
            self.note(run)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> list[Run]:
        """In the order of the old offsets."""
        return list(self._runs)

    def note(self, run: Run) -> Run | None:
        """Adds what is known now, and returns it as it was added; None if it says nothing new.

        The later word about an offset counts.
        """
        at = bisect_left(self._sources, run.source)
        if at < len(self._runs) and self._sources[at] == run.source:
            if self._runs[at] == run:
                return None
            self._runs[at] = run
            return run
        if at == len(self._runs) and at:
            before = self._runs[-1]
            if before.exact and run.exact and before.target - before.source == run.target - run.source:
                return None
            if not before.exact and 0 <= run.target - before.target < SPAN:
                return None  # it is somewhere behind that one
            if at >= MOST and 0 <= run.target - self._runs[-MOST].target < SPAN:
                run = run._replace(exact=False)
        self._runs.insert(at, run)
        self._sources.insert(at, run.source)
        return run

    def target(self, source: int) -> int | None:
        """Where to read on for who is to read `source` next; None below the first run, of which nothing is known."""
        at = bisect_right(self._sources, source)
        if at == 0:
            return None
        run = self._runs[at - 1]
        found = run.target + (source - run.source if run.exact else 0)
        # where old offsets are missing, the next run begins before so many records have been
        return found if at == len(self._runs) else min(found, self._runs[at].target)

    def exact(self, source: int) -> int | None:
        """The new offset of the record at `source`, if the map says precisely where it stands."""
        at = bisect_right(self._sources, source)
        if at == 0 or not self._runs[at - 1].exact:
            return None
        found = self._runs[at - 1].target + (source - self._runs[at - 1].source)
        return found if at == len(self._runs) or found < self._runs[at].target else None

    def source(self, target: int) -> int | None:
        """The way back: where to read on in the old partition for who is to read `target` next in the new one.

        As `target`: nothing is passed over that the new partition has at `target` or above from the old one.
        """
        # records that were mirrored twice make later runs begin before earlier ones end
        found = None
        for run, following in zip(self._runs, [*self._sources[1:], None]):
            if run.target > target:
                break
            found = run.source + (target - run.target if run.exact else 0)
            if following is not None:
                found = min(found, following)
        return found


def pack(entry: Entry) -> tuple[bytes, bytes]:
    """Key and value of a record that says this. Keys differ from entry to entry: a compacted topic keeps them all.

    A topic without an id that was never begun again has the keys that mirrors wrote before they noted incarnations;
    a mirror of such a version passes over what the newer keys say besides.
    """
    told = [[*run[:2]] if run.exact else [*run[:2], 0] for run in entry.runs]
    key: dict[str, Any] = {"topic": entry.partition.topic, "partition": entry.partition.partition}
    if told:
        key["from"] = told[0][0]
    if entry.incarnation.topic_id is not None:
        key["id"] = entry.incarnation.topic_id
    if entry.incarnation.number:
        key["incarnation"] = entry.incarnation.number
    return _json(key), _json(told)


def unpack(key: bytes | None, value: bytes | None) -> Entry:
    """Raises BadOffsetMap for what `pack` does not write."""
    try:
        where, told = json.loads(key or b""), json.loads(value or b"")
        runs = [Run(int(each[0]), int(each[1]), len(each) == 2) for each in told]
        topic_id = where.get("id")
        incarnation = Incarnation(int(where.get("incarnation", 0)), None if topic_id is None else str(topic_id))
        return Entry(TopicPartition(str(where["topic"]), int(where["partition"])), incarnation, runs)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadOffsetMap(f"an entry of an offset map does not read ({shown(error)}): key {shown(key)}") from error


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

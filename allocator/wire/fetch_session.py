"""Incremental fetch sessions (KIP-227): a broker remembers what it was asked for, and hears of changes. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Union

from allocator.types import TopicPartition
from allocator.wire.fetch_answer import FetchAnswer, Part
from allocator.wire.fetch_request import BY_NAME, SESSIONS, Wanted, newest_for

__all__ = ["NO_SESSION", "SESSION_ERRORS", "FetchSession", "Turn"]

NO_SESSION: Final = (0, -1)
_NEW, _FIRST = 0, 1
_LAST: Final = (1 << 31) - 1

FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR = 70, 71, 106
SESSION_ERRORS: Final = frozenset(
    {FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR}
)


class Turn(NamedTuple):
    """One request: what to say of which partitions, and as which (session, epoch)."""

    session: tuple[int, int]
    asked: dict[TopicPartition, Wanted]
    forgotten: dict[TopicPartition, Wanted]
    max_version: int


class FetchSession:
    """What one broker remembers for us. One request at a time: `turn`, then `answered` or `lost`.

    Guarantee: whatever the broker forgot, evicted or refused, the request after that says everything anew, in a new
    session; a broker that grants none is told everything each time. A partition that is not wanted is not answered.
    """

    def __init__(self) -> None:
        self._id, self._epoch = 0, _NEW
        self._known: dict[TopicPartition, Wanted] = {}
        self._by_id = False
        self._names: dict[uuid.UUID, str] = {}

    def turn(self, wanted: Mapping[TopicPartition, Wanted], version: int) -> Turn:
        """How to ask for exactly `wanted`, of a broker that speaks `version`."""
        newest = newest_for(wanted.values())
        by_id = min(version, newest) > BY_NAME
        self._names = {each.topic_id: tp.topic for tp, each in wanted.items() if each.topic_id is not None}
        if version < SESSIONS:
            return Turn(NO_SESSION, dict(wanted), {}, newest)
        if by_id != self._by_id:
            self.lost()  # a session speaks of topics either by name or by id
            self._by_id = by_id
        known, self._known = self._known, dict(wanted)
        if self._epoch == _NEW:
            return Turn((self._id, _NEW), dict(wanted), {}, newest)
        changed = {tp: each for tp, each in wanted.items() if known.get(tp) != each}
        forgotten = {
            tp: each
            for tp, each in known.items()
            # a topic that was made anew under its name is another one
            if tp not in wanted or (by_id and wanted[tp].topic_id != each.topic_id)
        }
        return Turn((self._id, self._epoch), changed, forgotten, newest)

    def answered(self, answer: FetchAnswer) -> bool:
        """Whether the answer is one, and not the refusal of the session: then ask again."""
        if answer.error_code:
            self.lost()
            if answer.error_code == FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0  # nothing to close
            return answer.error_code not in SESSION_ERRORS
        self._id = answer.session_id
        # 0: the broker grants no session, or ended this one
        self._epoch = _NEW if self._id == 0 else _FIRST if self._epoch in (_NEW, _LAST) else self._epoch + 1
        return True

    def lost(self) -> None:
        """Nobody knows whether the broker got the last request: the next one closes the session and begins another."""
        self._epoch = _NEW
        self._known = {}

    def parts(self, parts: Iterable[Part]) -> Iterator[tuple[TopicPartition, Part]]:
        """The parts of an answer by partition; those of topics that the last turn did not want are left out."""
        for part in parts:
            name: Union[str, uuid.UUID, None] = part.topic
            if isinstance(name, uuid.UUID):
                name = self._names.get(name)
            if name is not None:
                yield TopicPartition(name, part.partition), part

"""One broker that is fetched from: whose turn it is there, and what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from allocator.errors import BrokerError
from allocator.fetch.feed import Feed
from allocator.types import TopicPartition
from allocator.wire.fetch_answer import FetchAnswer
from allocator.wire.fetch_request import FetchRequest, Wanted, compose
from allocator.wire.fetch_session import FetchSession

if TYPE_CHECKING:
    from allocator.wire.kafka import KafkaClient

__all__ = ["Ask", "Leader"]

SESSIONLESS: Final = 0


class Ask(NamedTuple):
    """What every request to every broker says alike."""

    min_bytes: int
    committed_only: bool
    rack: str


class Leader:
    """The fetchable partitions of one broker, the one to ask for first at the front, and its fetch session.

    It leads them, or is the replica that their leader named. The main request is part of the session; the urgent one
    stands alone, on a connection of its own, for it comes and goes while the broker holds the main one back.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.feeds: dict[TopicPartition, Feed] = {}
        self.main: asyncio.Task[None] | None = None
        self.urgent: asyncio.Task[None] | None = None
        # since when it is under way, and until when the broker may hold it back
        self.main_since = self.main_until = 0.0
        # its last answer was full, so some partitions of it may have records that found no room
        self.full = False
        self.session = FetchSession()

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        """They had their turn."""
        for tp in tps:
            feed = self.feeds.pop(tp, None)
            if feed is not None:
                self.feeds[tp] = feed

    async def ask(
        self,
        client: KafkaClient,
        wanted: Mapping[TopicPartition, Wanted],
        what: Ask,
        *,
        urgent: bool,
        max_bytes: int,
        wait_s: float,
    ) -> tuple[FetchSession, FetchAnswer]:
        """The broker's answer, and the session that reads it. Raises `BrokerError`, `Closed`.

        When the broker refuses the session, it is asked once more, in a new one.
        """
        version = client.api_version(FetchRequest)
        session = FetchSession() if urgent else self.session
        # ("urgent", node) is a connection of its own to that node
        where = cast(int, ("urgent", self.node_id)) if urgent else self.node_id
        for attempt in (1, 2):
            turn = session.turn(wanted, SESSIONLESS if urgent or version is None else version)
            request = compose(
                turn.asked,
                turn.forgotten,
                session=turn.session,
                max_version=turn.max_version,
                max_wait_s=wait_s,
                min_bytes=what.min_bytes,
                max_bytes=max_bytes,
                committed_only=what.committed_only,
                rack=what.rack,
            )
            try:
                with client.measures.span("fetch", broker=self.node_id, partitions=len(wanted)):
                    answer: FetchAnswer = await client.send(where, request, client.request_timeout_s + wait_s)
            except BrokerError:
                session.lost()
                raise
            if session.answered(answer) or attempt == 2:
                return session, answer
        raise AssertionError("two attempts, and each ends above")

"""Dead letters for the page and the API: operators list them, write them back and discard them, as with `allocator
deadletters`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from allocator.core.aio import within
from allocator.core.settings import check_topic
from allocator.core.text import plain
from allocator.errors import AllocatorError, ConfigError
from allocator.operate import Clusters
from allocator.operate.dead_letters import DeadLetterQueue, LetterFilter, Outcome, parse_place, parse_time
from allocator.viewer import Viewer
from allocator.web import responses
from allocator.web.records import TEXT
from allocator.web.requests import (
    LETTERS,
    DiscardRequest,
    LetterRequest,
    LettersFilter,
    LettersRequest,
    Post,
    SettleRequest,
    confirmed,
)

LISTED = 500  # maximum number of letters in one response. Higher: a slower page
# longest read of a topic, in seconds. Higher: larger topics can be listed; lower: a browser gets the error sooner
PATIENCE_S = 60.0
LETTER_TOPIC_NAME = re.compile(r"dead|dlq|dlt", re.IGNORECASE)


class TookTooLong(AllocatorError):
    """The topic has too many letters for one request."""


def candidates(topics: set[str]) -> list[str]:
    """Returns the topics that may contain dead letters: by their name, or because a topic NAME.settled exists."""
    named = {topic for topic in topics if LETTER_TOPIC_NAME.search(topic) or f"{topic}.settled" in topics}
    return sorted(
        topic for topic in named if topic.rpartition(".settled")[0] not in topics or not topic.endswith(".settled")
    )


@dataclass(frozen=True)
class LetterDesk:
    """Lists, shows and settles the dead letters of a cluster.

    `open(topic, user)` returns the queue of a topic, with the masks of `viewer`; `topics()` returns the topics of the
    cluster. `viewer` decodes and masks the record of a letter; without `contents` the record is not shown.
    """

    open: Callable[[str, str], AbstractAsyncContextManager[DeadLetterQueue]]
    topics: Callable[[], Awaitable[set[str]]]
    viewer: Viewer
    contents: bool = True

    @classmethod
    def of(cls, access: Clusters, viewer: Viewer, contents: bool = True) -> LetterDesk | None:
        """Returns the dead letters of the cluster; None without brokers."""
        brokers = access.brokers
        if brokers is None:
            return None

        def opened(topic: str, who: str) -> DeadLetterQueue:
            return DeadLetterQueue(
                topic, brokers, security=access.security, by=who, masks=viewer.masks, timeout_s=access.timeout_s
            )

        async def topics() -> set[str]:
            async with access.cluster() as client:
                return set(client.metadata.topics)

        return cls(opened, topics, viewer, contents)

    async def candidates(self) -> list[str]:
        """Returns the topics that may contain dead letters."""
        return candidates(await self.topics())

    async def act(self, what: str, topic: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
        """Runs one of `POSTS`. Raises ConfigError for a wrong body, TookTooLong, and errors of the queue."""
        check_topic(topic)
        try:
            return await within(POSTS[what](self, topic, given, user or "page"), PATIENCE_S)
        except asyncio.TimeoutError:
            raise TookTooLong(
                f'{topic} was not read within {PATIENCE_S:g} s; give a later time in "since", or use `allocator '
                "deadletters`. Letters that were settled stay settled"
            ) from None

    async def list(self, topic: str, body: LettersRequest, user: str) -> dict[str, Any]:
        """Returns the letters that match the filter, newest last."""
        chosen = self._filter(body)
        async with self.open(topic, user) as queue:
            found, count = await queue.first(LISTED, chosen, settled=body.settled)
        return {"topic": topic, "executed": False, "count": count, "letters": [letter.to_json() for letter in found]}

    async def show(self, topic: str, body: LetterRequest, user: str) -> dict[str, Any]:
        """Returns one letter with its stack, and with its record decoded and masked."""
        async with self.open(topic, user) as queue:
            letter = await queue.get(*parse_place(body.letter))
        if letter is None:
            raise ConfigError(f"{topic} has no letter {body.letter}; its retention may have removed it")
        record = None
        if self.contents:
            of_topic = topic if letter.original is None else letter.original.topic
            record = (await self.viewer.decode(of_topic, letter.record)).shown(TEXT)
        return {**letter.to_json(), "executed": False, "stack": letter.stack, "record": record}

    async def redrive(self, topic: str, body: SettleRequest, user: str) -> dict[str, Any]:
        """Writes letters back to their topics, each once. Without `confirm`, only returns which ones."""
        chosen, execute = self._chosen(topic, body)
        async with self.open(topic, user) as queue:
            return self._settled(topic, await queue.redrive(chosen, execute=execute), execute)

    async def discard(self, topic: str, body: DiscardRequest, user: str) -> dict[str, Any]:
        """Marks letters as settled. Without `confirm`, only returns which ones."""
        chosen, execute = self._chosen(topic, body)
        async with self.open(topic, user) as queue:
            return self._settled(topic, await queue.discard(chosen, execute=execute, reason=body.reason), execute)

    def _chosen(self, topic: str, body: SettleRequest) -> tuple[LetterFilter, bool]:
        """Returns the filter, and whether to execute the request. Only named letters are settled, because others may
        have arrived since the list."""
        execute = confirmed(body.confirm, "topic", topic)
        if execute and not body.letters:
            raise ConfigError('"letters" must name the letters to settle; a request without "confirm" lists them')
        return self._filter(body, body.letters), execute

    def _filter(self, body: LettersFilter, letters: Collection[str] = ()) -> LetterFilter:
        return LetterFilter(
            body.error,
            body.from_topic,
            parse_time('"since"', body.since),
            parse_time('"until"', body.until),
            frozenset(map(parse_place, letters)),
        )

    def _settled(self, topic: str, outcome: Outcome, executed: bool) -> dict[str, Any]:
        return {
            "topic": topic,
            "executed": executed,
            "count": len(outcome.done),
            "letters": [letter.to_json() for letter in outcome.done[:LETTERS]],
            "refused": [{"letter": letter.name, "why": plain(why)} for letter, why in outcome.refused[:LISTED]],
        }


# last part of the URL's path -> change
POSTS = {
    "list": Post("The dead letters that match", LettersRequest, responses.LettersJson, LetterDesk.list),
    "show": Post(
        "One letter with headers, stack, key and value", LetterRequest, responses.LetterShownJson, LetterDesk.show
    ),
    "redrive": Post("Write letters back to their topics", SettleRequest, responses.SettledJson, LetterDesk.redrive),
    "discard": Post("Mark letters as settled", DiscardRequest, responses.SettledJson, LetterDesk.discard),
}

"""Requests about dead letters. The queue is in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from allocator.errors import ConfigError
from allocator.handlers.schemas.masks import Masks
from allocator.operate.dead_letters import DeadLetterQueue, Letter, LetterFilter, Outcome
from allocator.types import Record
from allocator.viewer import Reader, Viewer
from allocator.web.dead_letters import LetterDesk, candidates

SINCE_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
EVERY = LetterFilter()
NO_MASKS = Masks()


def desk_of(*headers: tuple[str, bytes], masks: Masks = NO_MASKS, contents: bool = True) -> LetterDesk:
    viewer = Viewer(Reader("nowhere:1"), masks=masks)
    return LetterDesk(lambda topic, user: Queue(*headers, masks=masks), _topics, viewer, contents)


class Queue(DeadLetterQueue):
    """One letter in memory; `calls` has the arguments of each `redrive`."""

    def __init__(self, *headers: tuple[str, bytes], masks: Masks = NO_MASKS) -> None:
        super().__init__("dead", "nowhere:1", masks=masks)
        self.headers = list(headers or (("h", b"4111"), ("allocator.error", b"TimeoutError: no")))
        self.calls: list[tuple[LetterFilter, bool]] = []

    async def __aenter__(self) -> Queue:
        return self

    async def get(self, partition: int, offset: int) -> Letter:
        value = b'{"card": "4111", "price": -1}'
        return Letter.of(
            Record("dead", partition, offset, SINCE_MS + 1, 0, b"\xff\x1b", value, self.headers), masks=self.masks
        )

    async def read(self, chosen: LetterFilter = EVERY, **_: Any) -> AsyncIterator[Letter]:
        letter = await self.get(0, 7)
        if chosen.matches(letter):
            yield letter

    async def redrive(self, chosen: LetterFilter = EVERY, *, execute: bool = False, **_: Any) -> Outcome:
        self.calls.append((chosen, execute))
        found = [letter async for letter in self.read(chosen)]
        return Outcome(found, [(letter, "it was redriven 3 times before") for letter in found])


async def _topics() -> set[str]:
    return {"orders.dead"}


async def test_letters_are_settled_only_by_name_and_when_the_topic_is_confirmed() -> None:
    queue = Queue()
    desk = LetterDesk(lambda topic, user: queue, _topics, Viewer(Reader("nowhere:1")))
    seen = await desk.act("redrive", "dead", {"error": "Timeout", "since": "2026-01-31T12:00:00Z"}, "alice")
    assert (seen["executed"], seen["count"], seen["refused"][0]["letter"]) == (False, 1, "0:7")
    assert queue.calls == [(LetterFilter(error="Timeout", since_ms=SINCE_MS), False)]
    for wrong, why in (
        ({"confirm": "dead"}, "must name the letters"),
        ({"confirm": "other", "letters": ["0:7"]}, "must be the name of the topic, 'dead'"),
        ({"letters": ["0"]}, r'"letters\[0\]" must be .*, not .0.: PARTITION:OFFSET of the letter'),
        ({"letters": ["0:7"] * 1001}, r'"letters" must be a list of length at most 1000, not'),
        ({"since": "yesterday"}, "is not a time"),
        ({"since": 5}, '"since" must be a text or null, not 5: ISO 8601'),
        ({"error": None}, '"error" must be a text, not None'),
        ({"rate": 5}, "'rate' is not a known field"),
    ):
        with pytest.raises(ConfigError, match=why):
            await desk.act("redrive", "dead", wrong, "alice")
    assert len(queue.calls) == 1, "a wrong request reaches no broker"
    done = await desk.act("redrive", "dead", {"confirm": "dead", "letters": ["0:7"]}, "alice")
    assert done["executed"]
    assert queue.calls[1] == (LetterFilter(places=frozenset({(0, 7)})), True)


async def test_the_contents_of_a_letter_are_masked_as_those_of_records() -> None:
    assert (await desk_of(contents=False).act("show", "dead", {"letter": "0:7"}, "alice"))["record"] is None
    desk = desk_of(masks=Masks(["value.card", "headers.h"]))
    record = (await desk.act("show", "dead", {"letter": "0:7"}, "alice"))["record"]
    assert "4111" not in json.dumps(record)
    assert json.loads(record["value"]["text"]) == {"card": "***", "price": -1}
    assert record["key"]["text"] == "ff1b"
    assert record["headers"][0]["text"] == "***"


async def test_masks_hide_the_text_of_errors_which_may_quote_the_record() -> None:
    secret = b"card 4111-SECRET declined"
    headers = [
        ("allocator.error", b"shop.Declined: " + secret),
        ("kafka_dlt-exception-fqcn", b"shop.Declined"),
        ("kafka_dlt-exception-message", secret),
        ("kafka_dlt-exception-stacktrace", b"shop.Declined: " + secret),
        ("__connect.errors.exception.message", secret),
    ]
    for masks in (["value.card", "headers.token"], ["value.card"], ["value"]):
        desk = desk_of(*headers, masks=Masks(masks))
        for what, given in (("show", {"letter": "0:7"}), ("list", {}), ("redrive", {})):
            found = json.dumps(await desk.act(what, "dead", given, "alice"))
            assert "SECRET" not in found
            assert "shop.Declined" in found
        assert (await desk.act("list", "dead", {"error": "declined"}, "alice"))["count"] == 1, "the class"
        assert (await desk.act("list", "dead", {"error": "4111"}, "alice"))["count"] == 0
    assert "SECRET" in json.dumps(await desk_of(*headers).act("show", "dead", {"letter": "0:7"}, "alice"))


def test_topics_of_dead_letters_are_found_by_name_or_settled_letters() -> None:
    topics = {"orders", "orders.dead", "orders.dead.settled", "orders-dlt", "bad", "bad.settled", "DLQ.x", "x.settled"}
    assert candidates(topics) == ["DLQ.x", "bad", "orders-dlt", "orders.dead"]

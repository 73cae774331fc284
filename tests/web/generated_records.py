"""A viewer over generated records, for tests without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from allocator.errors import TopicNotFound
from allocator.types import Record
from allocator.viewer import Masks, Query, Reader, ReadResult, ReadWindow, Viewer
from allocator.web.records import RecordsPage

AT_MS = 1_769_860_800_000


class GeneratedReader(Reader):
    """One partition with offsets 0 to 99; `queries` has every query. Reads end after the event `until`."""

    def __init__(self, until: asyncio.Event | None = None) -> None:
        super().__init__("nowhere:1")
        self.until = until
        self.queries: list[Query] = []

    async def read(self, query: Query) -> ReadResult:
        self.queries.append(query)
        if self.until is not None:
            await self.until.wait()
        if query.topic != "orders":
            raise TopicNotFound([query.topic])
        kind, at = query.position.kind, query.position.at
        start = {"earliest": 0, "latest": 100 - query.limit, "time": 50, "offset": at}[kind] - query.before
        offsets = range(max(0, start), min(100, start + query.before + query.limit))
        records = [generated_record(offset) for offset in offsets]
        window = ReadWindow(0, offsets.start, offsets.stop, 0, 100)
        return ReadResult("orders", records, [window], len(records), "", query.key is not None)


def generated_record(offset: int) -> Record:
    value = None if offset == 97 else b'{"id": %d, "card": "4111"}' % offset if offset % 2 else b"\xff\x00 4111"
    headers = [("trace", b"<b>t1</b>")]
    return Record("orders", 0, offset, AT_MS + 1000 * offset, 0, b"c%d" % (offset % 7), value, headers)


def records_page(
    access: str = "viewers", masks: Collection[str] = (), reader: GeneratedReader | None = None
) -> RecordsPage:
    return RecordsPage(Viewer(reader or GeneratedReader(), masks=Masks(masks)), access)  # type: ignore[arg-type]

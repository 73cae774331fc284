"""Records over HTTP: users, masks, downloads, the audit log. With generated records."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from allocator.testing import wait_until_async
from allocator.web.records import AT_ONCE
from tests.web.generated_records import GeneratedReader, records_page
from tests.web.served import TOKEN, Served, as_described
from tests.web.test_access import ALICE, BOB, LOGIN, site

PATH = "/api/topics/orders/records"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_records_are_returned_as_described_and_saved_as_lines() -> None:
    page = records_page()
    async with site(records=page) as it:
        found = await it.json(f"{PATH}?limit=4")
        as_described("/api/topics/{topic}/records", found)
        assert [record["value"]["format"] for record in found["records"]] == ["hex", "null", "hex", "json"]
        assert found["records"][3]["value"]["text"] == '{"id": 99, "card": "4111"}'
        assert found["windows"] == [{"partition": 0, "first": 96, "next": 100, "begin": 0, "end": 100}]
        response = await it.request(f"{PATH}.jsonl?from=earliest&limit=2")
        assert "attachment" in response.headers["Content-Disposition"]
        lines = [json.loads(line) for line in response.body.splitlines()]
        assert [line["offset"] for line in lines] == [0, 1]
        assert lines[1]["value"] == {"id": 1, "card": "4111"}
        arguments = "partition=0&from=2026-01-31T12:00:00Z&before=2&key=%20c7&every_partition=true&value_format=text"
        assert (await it.request(f"{PATH}?{arguments}&isolation_level=read_committed")).code == 200
        reader = page.viewer.reader
        assert isinstance(reader, GeneratedReader)
        query = reader.queries[-1]
        assert (query.partition, query.before, query.key, query.every_partition) == (0, 2, b" c7", True)
        assert (query.position.at, query.isolation_level) == (1_769_860_800_000, "read_committed")
        for wrong in (
            *("limit=1001", "limit=-1", "limit=0", "partition=x", "from=soon", "key_hex=x", "isolation_level=all"),
            *("every_partition=yes", "value_format=avro:/etc/passwd", "key_format=xml", "offset=1"),
        ):
            assert (await it.request(f"{PATH}?{wrong}")).code == 400, wrong
        assert (await it.request("/api/topics/none/records")).code == 400
        assert (await it.json("/api/audit", **BEARER))["error"], "without masks a read leaves no line"


async def hello(it: Served, **headers: str) -> Any:
    """The first event of a page's stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    try:
        await reader.readuntil(b"event: clock")
        await reader.readuntil(b"data: ")
        return json.loads((await reader.readuntil(b"\n\n")).strip())
    finally:
        writer.close()


async def test_users_see_records_by_their_role() -> None:
    for page, bob, alice in ((None, 404, 404), (records_page("operators"), 403, 200), (records_page(), 200, 200)):
        async with site(LOGIN, records=page) as it:
            assert (await it.request(PATH, **BOB)).code == bob
            assert (await it.request(f"{PATH}.jsonl", **BOB)).code == bob
            assert (await it.request(PATH, **ALICE)).code == alice
            assert (await it.request(PATH)).code == 401
            offers = [(await hello(it, **user))["records"] for user in (BOB, ALICE)]
            assert offers == ["yes" if code == 200 else "no" for code in (bob, alice)]
    async with site(token=TOKEN, records=records_page("operators")) as it:
        assert (await it.request(PATH)).code == 401
        assert (await it.request(PATH, **BEARER)).code == 200
        assert (await hello(it))["records"] == "token"
    async with site(records=records_page("operators")) as it:
        response = await it.request(PATH)
        assert (response.code, "--records viewers" in response.body.decode()) == (403, True)


async def test_masks_hold_everywhere_and_each_read_is_in_the_audit_log() -> None:
    async with site(LOGIN, records=records_page(masks=["value.card", "headers.trace"])) as it:
        assert (await hello(it, **BOB))["masked"] == ["value", "headers"]
        for path in (PATH, f"{PATH}.jsonl"):
            for query in ("", "?value_format=json", "?from=earliest&limit=100"):
                response = await it.request(path + query, **BOB)
                assert response.code == 200
                assert b"4111" not in response.body
                assert b"34313131" not in response.body
                assert b"t1" not in response.body
            for wrong in ("?value_format=text", "?value_format=hex"):
                assert (await it.request(path + wrong, **BOB)).code == 400
        assert (await it.request("/api/audit", **BOB)).code == 403
        audit = await it.json("/api/audit", **ALICE)
        as_described("/api/audit", audit)
        assert len(audit["changes"]) == 6, "a refused request is not logged"
        assert {(each["who"], each["kind"], each["group"]) for each in audit["changes"]} == {("bob", "read", None)}
        request = {"topic": "orders", "from": "earliest", "limit": "100"}
        assert {"request": request, "outcome": "100 records"} in [each["detail"] for each in audit["changes"]]
        past = await it.json("/api/groups/billing/history?from=1000", **BOB)
        assert past["events"] == [], "reads are no events of a group"


async def test_only_some_reads_run_at_the_same_time() -> None:
    let_go = asyncio.Event()
    reader = GeneratedReader(let_go)
    async with site(records=records_page(reader=reader)) as it:
        requests = [asyncio.ensure_future(it.request(PATH)) for _ in range(AT_ONCE)]
        await wait_until_async(lambda: len(reader.queries) == AT_ONCE, 30, "all reads to begin")
        refused = await it.request(PATH)
        let_go.set()
        assert refused.code == 503
        assert [response.code for response in await asyncio.gather(*requests)] == [200] * AT_ONCE
        assert (await it.request(PATH)).code == 200

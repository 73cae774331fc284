"""The API over real ZooKeeper and Kafka: responses, refusals, changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from openapi_spec_validator import validate
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from served import API, BEARER, PATIENCE_S, as_described, served
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from written_group import WrittenGroup, dealt, member_id, parts

from allocator import Consumer
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.operate.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.operate.switching import SwitchingConsumer
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async
from allocator.types import TopicPartition
from allocator.web.guard import Guard
from allocator.web.server import PortTaken, Site, serve

pytestmark = pytest.mark.deadline(150)


@contextlib.asynccontextmanager
async def written(zookeeper: str, group: str = "g") -> AsyncIterator[WrittenGroup]:
    zk = ZooKeeperClient(zookeeper)
    await zk.connect(10)
    try:
        yield WrittenGroup(zk, "/allocator", group, ["t"])
    finally:
        await zk.close()


def test_the_description_is_openapi() -> None:
    validate(API)


async def test_a_group_is_shown_as_it_stands_and_as_it_moves(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        a, b = await group.join(0, 1)
        held = {a: frozenset(parts(t=6)[:4]), b: frozenset(parts(t=6)[4:])}
        await group.assign(held)
        await group.claim(held)
        await it.settled("g", 1)
        found = await it.json("/api/groups/g")
        as_described("/api/groups/{group}", found)
        assert (found["phase"], found["partitions"], found["unowned"]) == ("stable", 6, 0)
        (topic,) = found["topics"]
        assert (topic["partitions"], topic["owners"], topic["moved"]) == ("0-5", [0, 0, 0, 0, 1, 1], {})

        given = frozenset({TopicPartition("t", 3)})
        await group.assign({a: held[a] - given, b: held[b]}, {b: given}, {a: given})

        async def moving() -> Any:
            now = await it.json("/api/groups/g")
            return now if now["phase"] == "rebalancing" else None

        found = await wait_until_async(moving, PATIENCE_S)
        as_described("/api/groups/{group}", found)
        assert found["topics"][0]["owners"] == [0, 0, 0, 0, 1, 1], "who claims it has it still"
        assert found["topics"][0]["to"] == {"3": 1}
        assert found["members"][0]["releasing"] == 1
        assert found["rebalances"][0]["ended"] is None

        held = {a: held[a] - given, b: held[b] | given}
        await group.claim({a: held[a]})
        await group.assign(held, generation=2)
        await group.claim(held)
        await it.settled("g", 2)
        found = await it.json("/api/groups/g")
        assert found["topics"][0]["owners"] == [0, 0, 0, 1, 1, 1]
        assert found["topics"][0]["moved"] == {"3": "worker-00@node-0#0"}
        assert (found["rebalances"][0]["moved"], found["rebalances"][0]["superseded"]) == (1, False)

        overview = await it.json("/api/groups")
        as_described("/api/groups", overview)
        assert [each["group"] for each in overview["groups"]] == ["g"]


async def test_a_group_that_ends_is_not_shown_any_more(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        await group.join(0)
        await wait_until_async(lambda: "g" in it.watcher.groups, PATIENCE_S)
        await group.leave(0)
        for path in ("members", "claims", "shards", "left"):
            await group.store.zk.delete(f"/allocator/g/{path}")
        await group.store.zk.delete("/allocator/g")
        await wait_until_async(lambda: "g" not in it.watcher.groups, PATIENCE_S)
        answer = await it.ask("/api/groups/g")
        assert answer.code == 404
        as_described("/api/groups/{group}", json.loads(answer.body), status="404")


async def test_rubbish_in_a_znode_is_a_finding_and_stops_nothing(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.store.zk.create(f"/allocator/g/members/{member_id(1)}", b"<script>alert(1)</script>")
        await group.store.zk.create("/allocator/g/members/somebody")
        await group.assign({a: frozenset(parts(t=2))})
        await group.claim({a: frozenset(parts(t=2))})
        await it.settled("g", 1)
        said = json.dumps((await it.json("/api/groups/g"))["findings"])
        assert member_id(1) in said
        assert "somebody is not a member" in said


async def test_other_names_and_origins_are_refused_and_nothing_is_said(zk_chroot: str) -> None:
    async with served(zk_chroot) as it:
        for path in ("/", "/api/groups", "/metrics", "/api/events", "/page.js", "/nowhere"):
            answer = await it.ask(path, Host="evil.example.org")
            assert answer.code == 421, path
            assert (await it.ask(path, Origin="http://evil.example.org")).code == 403, path
        assert (await it.ask("/health/live", Host="evil.example.org")).code == 200, "balancers call us by any name"
        # one name leads to two places while a browser looks it up twice, and a page of TLS is none of this server
        assert (await it.ask("/page.js", Origin=f"https://127.0.0.1:{it.port}")).code == 403
        assert (await it.ask("/page.js", Origin=it.url)).code == 200
        proxied = {"Origin": "https://localhost", "Host": "localhost", "X_Forwarded_Proto": "https"}
        assert (await it.ask("/page.js", **proxied)).code == 200


async def test_every_answer_forbids_what_a_browser_could_be_misused_for(zk_chroot: str) -> None:
    async with served(zk_chroot) as it:
        for path in ("/", "/page.js", "/style.css", "/api/groups", "/nowhere", "/metrics"):
            headers = (await it.ask(path)).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy, path
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert "Access-Control-Allow-Origin" not in headers
        assert (await it.ask("/../server.py")).code == 404
        assert (await it.ask("/static/..%2fserver.py")).code == 404


async def test_without_a_token_nothing_can_be_changed(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot, token=None) as it:
        await group.join(0)
        answer = await it.ask("/api/groups/g/rebalance", {}, Authorization=BEARER)
        assert answer.code == 403
        assert "read-only" in json.loads(answer.body)["error"]["message"]


async def test_changes_need_the_token_a_page_of_ours_and_json(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        await group.join(0)
        path = "/api/groups/g/rebalance"
        await wait_until_async(lambda: "g" in it.watcher.groups and it.watcher.groups["g"].seen, PATIENCE_S)
        assert (await it.ask(path, {})).code == 401
        assert (await it.ask(path, {}, Authorization="Bearer wrong")).code == 401
        assert (await it.ask(path, {}, Authorization=BEARER, Origin="http://evil.org")).code == 403
        assert (await it.ask(path, "{}", Authorization=BEARER, Content_Type="text/plain")).code == 415
        assert (await it.ask(path, "{", Authorization=BEARER)).code == 400
        assert (await it.ask(path, [], Authorization=BEARER)).code == 400
        assert (await it.ask(path, {"now": True}, Authorization=BEARER)).code == 400
        assert (await it.ask("/api/groups/g/fly", {}, Authorization=BEARER)).code == 404
        assert (await it.ask("/api/groups/none/rebalance", {}, Authorization=BEARER)).code == 404
        assert (await it.ask(path, "x" * 100_000, Authorization=BEARER)).code in (400, 413, 599)
        done = await it.ask(path, {}, Authorization=BEARER)
        assert done.code == 200
        as_described("/api/groups/{group}/rebalance", json.loads(done.body), "post")


async def test_orders_are_given_and_taken_back_with_the_name_of_the_user(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=2))})
        await group.claim({a: frozenset(parts(t=2))})
        await it.settled("g", 1)
        put, remove = "/api/groups/g/orders/put", "/api/groups/g/orders/remove"
        pin = {
            "kind": "pin",
            "arguments": {"partitions": {"t": "0"}, "place": {"rack": "r0"}},
            "why": "disk",
            "hours": 2,
        }
        for wrong in (
            {**pin, "kind": "fly"},
            {**pin, "arguments": {"partitions": {"t": "0"}}},
            {**pin, "hours": -1},
            {**pin, "why": 7},
            {**pin, "more": 1},
            {"kind": "freeze", "arguments": []},
        ):
            assert (await it.ask(put, wrong, Authorization=BEARER)).code == 400, wrong
        assert (await it.ask(put, pin)).code == 401
        done = await it.json(put, pin, Authorization=BEARER)
        as_described("/api/groups/{group}/orders/put", done, "post")

        async def shown() -> Any:
            return (await it.json("/api/groups/g"))["orders"]

        await wait_until_async(shown, PATIENCE_S, "the order on the page")
        as_described("/api/groups/{group}", await it.json("/api/groups/g"))
        (order,) = await shown()
        assert (order["id"], order["who"], order["why"], order["state"]) == (done["order"], "token", "disk", "pending")
        assert order["expires"] - order["at"] == 7200
        assert (await it.ask(remove, {"ids": ["o-00000000"]}, Authorization=BEARER)).code == 409
        removed = await it.json(remove, {"ids": [order["id"]]}, Authorization=BEARER)
        as_described("/api/groups/{group}/orders/remove", removed, "post")

        async def gone() -> bool:
            return await shown() == []

        await wait_until_async(gone, PATIENCE_S, "no order on the page")


async def test_orders_about_records_are_previewed_given_and_taken_back_from_one_partition(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=4))})
        await group.claim({a: frozenset(parts(t=4))})
        await it.settled("g", 1)

        async def post(what: str, body: Any) -> Any:
            path = "/api/groups/{group}/" + what
            done = await it.json(path.format(group="g"), body, Authorization=BEARER)
            as_described(path, done, "post")
            return done

        async def stand() -> list[str]:
            return sorted(each["text"] for each in (await it.json("/api/groups/g"))["orders"])

        pause = {"kind": "pause", "arguments": {"partitions": {"t": "0-2"}}, "why": "a broken schema"}
        seen = await post("orders/preview", pause)
        assert (seen["order"]["text"], seen["order"]["state"]) == ("pause t:0-2", "pending"), "the member is too old"
        assert [each["owner_name"] for each in seen["partitions"]] == ["worker-00@node-0#0"] * 3
        assert await stand() == [], "a preview changes nothing"
        cordon = {"kind": "cordon", "arguments": {"member": "worker-00"}}
        assert (await post("orders/preview", cordon))["plan"]["moves"] == []
        wrong = {"kind": "evacuate", "arguments": {"member": "nobody"}}
        for what in ("orders/preview", "orders/put"):
            assert (await it.ask(f"/api/groups/g/{what}", wrong, Authorization=BEARER)).code == 409

        await post("orders/put", pause)
        await post("orders/put", {"kind": "skip", "arguments": {"partitions": {"t": "3"}, "offset": 42}})

        async def stands(*wanted: str) -> bool:
            return await stand() == sorted(wanted)

        await wait_until_async(partial(stands, "pause t:0-2", "skip t:3 at 42"), PATIENCE_S)
        await post("orders/withdraw", {"kind": "pause", "arguments": {"partitions": {"t": "1"}}})
        await wait_until_async(partial(stands, "pause t:0,2", "skip t:3 at 42"), PATIENCE_S)
        await post("orders/withdraw", {"kind": "skip", "arguments": {"partitions": {"t": "3"}, "offset": 42}})
        await wait_until_async(partial(stands, "pause t:0,2"), PATIENCE_S)
        for body in (pause, {"kind": "freeze", "arguments": {}}, {"kind": "pause", "arguments": {}}):
            assert (await it.ask("/api/groups/g/orders/withdraw", body, Authorization=BEARER)).code == 400, body
        logged = [(event.text, event.who) for event in it.watcher.log.events if event.detail["outcome"] == "done"]
        assert logged == [("orders/put", "token")] * 2 + [("orders/withdraw", "token")] * 2, "previews are not changes"


async def test_a_plan_is_shown_applied_and_refused(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        a, b = await group.join(0, 1)
        held = {a: frozenset(parts(t=8)[:4]), b: frozenset(parts(t=8)[4:])}
        await group.assign(held)
        await group.claim(held)
        await it.settled("g", 1)
        path = "/api/groups/g/plan"
        plan = await it.json(path, {"add": ["new=2"]}, Authorization=BEARER)
        as_described("/api/groups/{group}/plan", plan, "post")
        assert {each["name"].partition("@")[0]: each["change"] for each in plan["members"]}["new"] == "joins"
        assert {each["to_name"].partition("@")[0] for each in plan["moves"]} == {"new"}
        plan = await it.json(path, {"fail_rack": ["r1"]}, Authorization=BEARER)
        assert [each["from"] for each in plan["moves"]] == [b] * 4
        for wrong in (
            {"add": "new"},
            {"fly": []},
            {"function": "os:system"},  # a request must not be able to import a module
            {"add": ["new"], "apply": True},
            {"orders": ["freeze"]},
        ):
            assert (await it.ask(path, wrong, Authorization=BEARER)).code == 400, wrong
        assert it.watcher.log.count == 0, "a plan changes nothing"
        applied = {"orders": [{"kind": "freeze", "arguments": {}}], "apply": True, "why": "a quiet night"}
        plan = await it.json(path, applied, Authorization=BEARER)
        as_described("/api/groups/{group}/plan", plan, "post")
        assert len(plan["applied"]) == 1

        async def stands() -> Any:
            return (await it.json("/api/groups/g"))["orders"]

        (order,) = await wait_until_async(stands, PATIENCE_S)
        assert (order["kind"], order["who"], order["why"]) == ("freeze", "token", "a quiet night")
        assert it.watcher.log.count == 1


async def test_a_group_is_deleted_once_it_has_no_members(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=2))})
        await wait_until_async(lambda: "g" in it.watcher.groups and it.watcher.groups["g"].seen, PATIENCE_S)
        path = "/api/groups/g/delete"
        found = await it.json(path, {}, Authorization=BEARER)
        as_described("/api/groups/{group}/delete", found, "post")
        assert (found["executed"], found["members_alive"]) == (False, ["worker-00@node-0#0"])
        refused = await it.ask(path, {"confirm": "g"}, Authorization=BEARER)
        assert (refused.code, json.loads(refused.body)["error"]["retriable"]) == (409, True)
        assert (await it.ask(path, {"confirm": "another"}, Authorization=BEARER)).code == 400
        await group.leave(0)
        found = await it.json(path, {"confirm": "g"}, Authorization=BEARER)
        as_described("/api/groups/{group}/delete", found, "post")
        assert (found["executed"], found["members_alive"], found["committed"]) == (True, [], None)
        assert await group.store.zk.exists(group.store.paths.base) is None
        await wait_until_async(lambda: "g" not in it.watcher.groups, PATIENCE_S)


async def test_events_tell_everything_and_then_what_changes(zk_chroot: str) -> None:
    async with written(zk_chroot) as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=3))})
        await group.claim({a: frozenset(parts(t=3))})
        await it.settled("g", 1)
        seen: list[tuple[str, Any]] = []
        text = ""

        def came(chunk: bytes) -> None:
            nonlocal text
            *whole, text = (text + chunk.decode()).split("\n\n")
            for event in whole:
                fields = dict(line.split(": ", 1) for line in event.splitlines())
                if "event" in fields:
                    seen.append((fields["event"], json.loads(fields["data"])))

        def last(kind: str) -> Any:
            return next((value for what, value in reversed(seen) if what == kind), None)

        request = HTTPRequest(f"{it.url}/api/events?group=g", streaming_callback=came, request_timeout=0)
        client = AsyncHTTPClient(force_instance=True)
        stream = asyncio.ensure_future(client.fetch(request, raise_error=False))
        try:
            await wait_until_async(lambda: last("findings") is not None, PATIENCE_S)
            assert last("group")["topics"][0]["owners"] == [0, 0, 0]
            assert last("overview")["groups"][0]["members"] == 1
            await group.join(1)
            # that the group began may have been seen, too
            await wait_until_async(
                lambda: [each["why"] for each in last("rebalances") or ()][:1] == [["joined: worker-01@node-1#1"]],
                PATIENCE_S,
            )
            assert len(last("group")["members"]) == 2
        finally:
            client.close()
            stream.cancel()
            await asyncio.wait({stream})


async def test_a_large_group_is_answered_at_once_and_its_events_are_small(zk_chroot: str) -> None:
    async with written(zk_chroot, "large") as group, served(zk_chroot) as it:
        members = await group.join(*range(100))
        held = dealt(parts(t=6000, u=4000), members)
        await group.assign(held)
        await group.claim(held)
        await it.settled("large", 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await it.ask("/api/groups/large")
        assert loop.time() - began < 30  # 0.02 s on a quiet machine
        found = json.loads(answer.body)
        as_described("/api/groups/{group}", found)
        assert (len(found["members"]), found["partitions"], found["unowned"]) == (100, 10_000, 0)
        assert sum(len(topic["owners"]) for topic in found["topics"]) == 10_000
        assert len(answer.body) < 250_000


async def test_offsets_lag_and_a_forced_rebalance_of_a_real_group(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, unique_name: Callable[[], str]
) -> None:
    run = partial(asyncio.get_running_loop().run_in_executor, None)
    topic = await run(topic_factory, 4)
    await run(kafka_cluster.produce, topic, [(None, b"%d" % n, n % 4) for n in range(400)])
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    async with served(chroot, kafka_cluster.bootstrap) as it:
        async with Consumer(
            topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=chroot, client_id="only"
        ) as consumer:
            read = 0
            while read < 400:
                batch = await consumer.getbatch()
                read += len(list(batch or ()))
            await consumer.commit()
            await it.settled(group, 1)

            async def caught_up() -> Any:
                found = await it.json(f"/api/groups/{group}")
                return found if found["lag"] == 0 else None

            as_described("/api/groups/{group}", await wait_until_async(caught_up, PATIENCE_S))
            offsets = await it.json(f"/api/groups/{group}/partitions")
            as_described("/api/groups/{group}/partitions", offsets)
            assert [each["committed"] for each in offsets["partitions"]] == [100] * 4
            assert {each["client_id"] for each in offsets["partitions"]} == {"only"}

            families = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families((await it.ask("/metrics")).body.decode())
                for sample in family.samples
            }
            assert families["allocator_group_lag", group, topic] == 0
            assert families["allocator_group_committed_offsets", group, topic] == 400
            assert families["allocator_cluster_up", "kafka"] == 1

            before = consumer.assignment()
            done = await it.json(f"/api/groups/{group}/rebalance", {}, Authorization=BEARER)
            assert done["asked"]
            await it.settled(group, 2)
            last = (await it.json(f"/api/groups/{group}"))["rebalances"][0]
            assert (last["moved"], last["why"]) == (0, ["computed again with the same members and topics"])
            assert consumer.assignment() == before

            seek = {"kind": "seek", "arguments": {"partitions": {topic: "0-1"}, "to": "timestamp:1"}}
            seen = await it.json(f"/api/groups/{group}/orders/preview", seek, Authorization=BEARER)
            as_described("/api/groups/{group}/orders/preview", seen, "post")
            places = [(each["committed"], each["log_end"], each["to"]) for each in seen["partitions"]]
            assert places == [(100, 100, 0)] * 2
            assert {each["owner_name"].partition("@")[0] for each in seen["partitions"]} == {"only"}

            async def sought(id_: str) -> Any:
                (order,) = (await it.json(f"/api/groups/{group}"))["orders"] or [{"id": ""}]
                return order if order["id"] == id_ and order["state"] == "done" else None

            for to, what in (("timestamp:1", "sought to 0 from 100"), ("100", "sought to 100 from 0")):
                seek["arguments"] = {"partitions": {topic: "0-1"}, "to": to}
                given = await it.json(f"/api/groups/{group}/orders/put", seek, Authorization=BEARER)
                order = await wait_until_async(partial(sought, given["order"]), PATIENCE_S)
                assert {result["what"] for result in order["results"]} == {what}
            as_described("/api/groups/{group}", await it.json(f"/api/groups/{group}"))
            plan = await it.json(f"/api/groups/{group}/plan", {"add": ["another"]}, Authorization=BEARER)
            as_described("/api/groups/{group}/plan", plan, "post")
            assert (len(plan["moves"]), plan["members"][0]["lag_before"]) == (2, 0), "with brokers it knows the lag"

            reset = f"/api/groups/{group}/offsets/reset"
            refused = await it.ask(reset, {"to": "earliest", "confirm": group}, Authorization=BEARER)
            assert refused.code == 409
            assert "has members" in json.loads(refused.body)["error"]["message"]

        plan = await it.json(reset, {"to": "earliest"}, Authorization=BEARER)
        as_described("/api/groups/{group}/offsets/reset", plan, "post")
        assert (plan["executed"], {each["to"] for each in plan["partitions"]}) == (False, {0})
        back = await it.json(reset, {"to": "shift:-30"}, Authorization=BEARER)
        assert {(each["from"], each["to"]) for each in back["partitions"]} == {(100, 70)}
        copy, other = f"/api/groups/{group}/offsets/copy", unique_name()
        for wrong in ({"to": group}, {"to": "a/b"}, {"to": other, "confirm": group}, {}):
            assert (await it.ask(copy, wrong, Authorization=BEARER)).code == 400, wrong
        plan = await it.json(copy, {"to": other}, Authorization=BEARER)
        as_described("/api/groups/{group}/offsets/copy", plan, "post")
        assert [(each["from"], each["to"]) for each in plan["partitions"]] == [(None, 100)] * 4
        done = await it.json(copy, {"to": other, "confirm": other}, Authorization=BEARER)
        assert done["executed"]
        again = await it.json(copy, {"to": other}, Authorization=BEARER)
        assert [(each["from"], each["to"]) for each in again["partitions"]] == [(100, 100)] * 4
        assert (await it.ask(reset, {"to": "earliest", "confirm": "another"}, Authorization=BEARER)).code == 400
        assert (await it.ask(reset, {"to": "soon"}, Authorization=BEARER)).code == 400
        done = await it.json(reset, {"to": "earliest", "confirm": group}, Authorization=BEARER)
        assert done["executed"]

        async def lag_is_back() -> bool:
            return bool((await it.json(f"/api/groups/{group}"))["lag"] == 400)

        await wait_until_async(lag_is_back, PATIENCE_S)
        gone = await it.json(f"/api/groups/{group}/delete", {"confirm": group}, Authorization=BEARER)
        assert (gone["executed"], gone["committed"], gone["offsets_stay"]) == (True, 4, "")
        await wait_until_async(lambda: group not in it.watcher.groups, PATIENCE_S)


async def test_a_paused_group_has_no_members_that_follow_it_and_goes_on_when_it_is_resumed(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, unique_name: Callable[[], str]
) -> None:
    topic = await asyncio.get_running_loop().run_in_executor(None, topic_factory, 2)
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    async with (
        served(chroot, kafka_cluster.bootstrap) as it,
        SwitchingConsumer(topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=chroot) as consumer,
    ):

        async def shown(**expected: Any) -> None:
            async def so() -> bool:
                await consumer.getbatch(0.05)  # this is where it follows
                found = await it.json(f"/api/groups/{group}")
                return (
                    "error" not in found
                    and {
                        "paused": found["paused"],
                        "members": len(found["members"]),
                    }
                    == expected
                )

            await wait_until_async(so, PATIENCE_S, f"{expected}")

        await shown(paused=False, members=1)
        done = await it.json(f"/api/groups/{group}/pause", {}, Authorization=BEARER)
        as_described("/api/groups/{group}/pause", done, "post")
        await shown(paused=True, members=0)
        reset = await it.json(f"/api/groups/{group}/offsets/reset", {"to": "earliest"}, Authorization=BEARER)
        assert reset["members_alive"] == [], "now offsets can be moved"
        done = await it.json(f"/api/groups/{group}/resume", {}, Authorization=BEARER)
        as_described("/api/groups/{group}/resume", done, "post")
        await shown(paused=False, members=1)
        assert (await it.ask(f"/api/groups/{group}/pause", {"for": 3}, Authorization=BEARER)).code == 400


async def test_a_page_that_asks_another_cluster_than_the_group_reads_says_so(
    kafka_cluster: LocalCluster, group: str, unique_name: Callable[[], str]
) -> None:
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    zk = ZooKeeperClient(chroot)
    await zk.connect()
    try:
        written = WrittenGroup(zk, "/allocator", group, ["t"])
        await written.join(0)
        async with served(chroot, kafka_cluster.bootstrap) as it:

            async def says_so() -> bool:
                found = await it.ask(f"/api/groups/{group}")
                return b"the members read new1:9092" in found.body

            await wait_until_async(lambda: group in it.watcher.groups and it.watcher.groups[group].seen, PATIENCE_S)
            assert not await says_so()
            await choose_cluster(zk, choice_path("/allocator", group), ClusterChoice("new1:9092"))
            await wait_until_async(says_so, PATIENCE_S)
    finally:
        await zk.close()


async def test_it_is_not_ready_while_zookeeper_does_not_answer() -> None:
    async with served("127.0.0.1:1") as it:
        assert (await it.ask("/health/live")).code == 200
        answer = await it.ask("/health/ready")
        assert answer.code == 503
        as_described("/health/ready", json.loads(answer.body), status="503")
        assert (await it.ask("/health/ready", method="HEAD")).code == 503
        await wait_until_async(lambda: "zookeeper" in it.watcher.problems, PATIENCE_S)
        assert "zookeeper does not respond" in (await it.json("/api/groups"))["problems"][0]


async def test_an_address_that_is_taken_is_named() -> None:
    async with served("127.0.0.1:1") as it:
        site = Site(Guard(), CollectorRegistry())
        with pytest.raises(PortTaken, match=str(it.port)):
            await contextlib.AsyncExitStack().enter_async_context(serve(site, "127.0.0.1", it.port))

"""The API over real ZooKeeper and Kafka: responses, refusals, changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from allocator import Consumer
from allocator.operate.switching import SwitchingConsumer
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async
from allocator.types import TopicPartition
from tests.web.served import API, BEARER, PATIENCE_S, Served, as_described, one_group, served

pytestmark = pytest.mark.deadline(150)


def test_the_description_is_openapi() -> None:
    validate(API)


async def test_a_group_is_shown_at_rest_and_during_a_rebalance(zk_chroot: str) -> None:
    async with one_group(zk_chroot, 6, 2) as (it, group, (a, b)):
        found = await it.json("/api/groups/g")
        as_described("/api/groups/{group}", found)
        assert (found["phase"], found["partitions"], found["unowned"]) == ("stable", 6, 0)
        (topic,) = found["topics"]
        assert (topic["partitions"], topic["owners"], topic["moved"]) == ("0-5", [0, 0, 0, 1, 1, 1], {})

        held = group.document.owners
        moving = frozenset({TopicPartition("t", 2)})
        await group.assign({a: held[a] - moving, b: held[b]}, {b: moving}, {a: moving})

        async def rebalancing() -> Any:
            now = await it.json("/api/groups/g")
            return now if now["phase"] == "rebalancing" else None

        found = await wait_until_async(rebalancing, PATIENCE_S)
        as_described("/api/groups/{group}", found)
        assert found["topics"][0]["owners"] == [0, 0, 0, 1, 1, 1], "the claim of the old owner counts"
        assert found["topics"][0]["to"] == {"2": 1}
        assert found["members"][0]["releasing"] == 1
        assert found["rebalances"][0]["ended"] is None

        held = {a: held[a] - moving, b: held[b] | moving}
        await group.claim({a: held[a]})
        await group.assign(held, generation=2)
        await group.claim(held)
        await it.settled("g", 2)
        found = await it.json("/api/groups/g")
        assert found["topics"][0]["owners"] == [0, 0, 1, 1, 1, 1]
        assert found["topics"][0]["moved"] == {"2": "worker-00@node-0#0"}
        assert (found["rebalances"][0]["moved"], found["rebalances"][0]["superseded"]) == (1, False)

        overview = await it.json("/api/groups")
        as_described("/api/groups", overview)
        assert [each["group"] for each in overview["groups"]] == ["g"]


async def test_other_hosts_and_origins_are_refused(zk_chroot: str) -> None:
    async with served(zk_chroot) as it:
        for path in ("/", "/api/groups", "/metrics", "/api/events", "/page.js", "/nowhere"):
            response = await it.request(path, Host="evil.example.org")
            assert response.code == 421, path
            assert (await it.request(path, Origin="http://evil.example.org")).code == 403, path
        assert (await it.request("/health/live", Host="evil.example.org")).code == 200, "load balancers use any name"
        # a name may resolve to two servers in turn (DNS rebinding), and a page over TLS is not of this server
        assert (await it.request("/page.js", Origin=f"https://127.0.0.1:{it.port}")).code == 403
        assert (await it.request("/page.js", Origin=it.url)).code == 200
        proxied = {"Origin": "https://localhost", "Host": "localhost", "X_Forwarded_Proto": "https"}
        assert (await it.request("/page.js", **proxied)).code == 200


async def test_every_response_has_the_headers_that_protect_a_browser(zk_chroot: str) -> None:
    async with served(zk_chroot) as it:
        for path in ("/", "/page.js", "/style.css", "/api/groups", "/nowhere", "/metrics"):
            headers = (await it.request(path)).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy, path
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert "Access-Control-Allow-Origin" not in headers
        assert (await it.request("/../server.py")).code == 404
        assert (await it.request("/static/..%2fserver.py")).code == 404


async def test_without_a_token_nothing_can_be_changed(zk_chroot: str) -> None:
    async with one_group(zk_chroot, token=None) as (it, _, _):
        response = await it.request("/api/groups/g/rebalance", {}, Authorization=BEARER)
        assert response.code == 403
        assert "read-only" in json.loads(response.body)["error"]["message"]


async def test_changes_need_the_token_an_origin_of_the_server_and_json(zk_chroot: str) -> None:
    async with one_group(zk_chroot) as (it, _, _):
        path = "/api/groups/g/rebalance"
        assert (await it.request(path, {})).code == 401
        assert (await it.request(path, {}, Authorization="Bearer wrong")).code == 401
        assert (await it.request(path, {}, Authorization=BEARER, Origin="http://evil.org")).code == 403
        assert (await it.request(path, "{}", Authorization=BEARER, Content_Type="text/plain")).code == 415
        assert (await it.request(path, "{", Authorization=BEARER)).code == 400
        assert (await it.request(path, [], Authorization=BEARER)).code == 400
        assert (await it.request(path, {"now": True}, Authorization=BEARER)).code == 400
        assert (await it.request("/api/groups/g/fly", {}, Authorization=BEARER)).code == 404
        assert (await it.request("/api/groups/none/rebalance", {}, Authorization=BEARER)).code == 404
        assert (await it.request(path, "x" * 100_000, Authorization=BEARER)).code in (400, 413, 599)
        done = await it.request(path, {}, Authorization=BEARER)
        assert done.code == 200
        as_described("/api/groups/{group}/rebalance", json.loads(done.body), "post")


async def test_commands_are_given_and_removed_with_the_name_of_the_user(zk_chroot: str) -> None:
    async with one_group(zk_chroot) as (it, _, _):
        put, remove = "/api/groups/g/commands/put", "/api/groups/g/commands/remove"
        pin: dict[str, Any] = {"kind": "pin", "arguments": {"partitions": {"t": "0"}, "place": {"rack": "r0"}}}
        pin.update(why="disk", hours=2)
        for wrong in (
            {**pin, "kind": "fly"},
            {**pin, "arguments": {"partitions": {"t": "0"}}},
            {**pin, "hours": -1},
            {**pin, "why": 7},
            {**pin, "more": 1},
            {"kind": "freeze", "arguments": []},
        ):
            assert (await it.request(put, wrong, Authorization=BEARER)).code == 400, wrong
        assert (await it.request(put, pin)).code == 401
        done = await it.json(put, pin, Authorization=BEARER)
        as_described("/api/groups/{group}/commands/put", done, "post")

        (command,) = await wait_until_async(partial(commands, it), PATIENCE_S, "the command on the page")
        as_described("/api/groups/{group}", await it.json("/api/groups/g"))
        assert (command["id"], command["who"], command["why"], command["state"]) == (
            done["command"],
            "token",
            "disk",
            "pending",
        )
        assert command["expires"] - command["at"] == 7200
        assert (await it.request(remove, {"ids": ["o-00000000"]}, Authorization=BEARER)).code == 409
        removed = await it.json(remove, {"ids": [command["id"]]}, Authorization=BEARER)
        as_described("/api/groups/{group}/commands/remove", removed, "post")
        await wait_until_async(partial(shows, it), PATIENCE_S, "no command on the page")


async def commands(it: Served) -> Any:
    return (await it.json("/api/groups/g"))["commands"]


async def shows(it: Served, *texts: str) -> bool:
    """Whether the page has these commands and no other."""
    return sorted(each["text"] for each in await commands(it)) == sorted(texts)


async def test_commands_about_records_are_previewed_and_withdrawn_for_one_partition(zk_chroot: str) -> None:
    async with one_group(zk_chroot, 4) as (it, _, _):

        async def post(what: str, body: Any) -> Any:
            path = "/api/groups/{group}/" + what
            done = await it.json(path.format(group="g"), body, Authorization=BEARER)
            as_described(path, done, "post")
            return done

        pause = {"kind": "pause", "arguments": {"partitions": {"t": "0-2"}}, "why": "a broken schema"}
        seen = await post("commands/preview", pause)
        assert (seen["command"]["text"], seen["command"]["state"]) == ("pause t:0-2", "pending"), (
            "the member is too old"
        )
        assert [each["owner_name"] for each in seen["partitions"]] == ["worker-00@node-0#0"] * 3
        cordon = {"kind": "cordon", "arguments": {"member": "worker-00"}}
        assert (await post("commands/preview", cordon))["plan"]["moves"] == []
        wrong = {"kind": "evacuate", "arguments": {"member": "missing"}}
        for what in ("commands/preview", "commands/put"):
            assert (await it.request(f"/api/groups/g/{what}", wrong, Authorization=BEARER)).code == 409

        await post("commands/put", pause)
        await wait_until_async(partial(shows, it, "pause t:0-2"), PATIENCE_S)
        await post("commands/withdraw", {"kind": "pause", "arguments": {"partitions": {"t": "1"}}})
        await wait_until_async(partial(shows, it, "pause t:0,2"), PATIENCE_S)
        for body in (pause, {"kind": "freeze", "arguments": {}}, {"kind": "pause", "arguments": {}}):
            response = await it.request("/api/groups/g/commands/withdraw", body, Authorization=BEARER)
            assert response.code == 400, body
        logged = [(event.text, event.who) for event in it.watcher.log.events if event.detail["outcome"] == "done"]
        assert logged == [("commands/put", "token"), ("commands/withdraw", "token")], "previews are not changes"


async def test_a_plan_is_shown_applied_and_refused(zk_chroot: str) -> None:
    async with one_group(zk_chroot, 8, 2) as (it, _, (_, b)):
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
            {"commands": ["freeze"]},
            {"partitions": ["t=50001"]},
            {"partitions": ["t=30000", "u=30000"]},
        ):
            assert (await it.request(path, wrong, Authorization=BEARER)).code == 400, wrong
        assert it.watcher.log.count == 0, "a plan changes nothing"
        budget = {"kind": "budget", "arguments": {"at_once": 1, "per_minute": None}}
        given = [{"kind": "evacuate", "arguments": {"member": b}}, budget]
        applied = {"commands": given, "apply": True, "why": "a quiet night"}
        plan = await it.json(path, applied, Authorization=BEARER)
        as_described("/api/groups/{group}/plan", plan, "post")

        async def both() -> Any:
            found = await commands(it)
            return found[::-1] if found and len(found) == 2 else None  # the page shows the newest first

        found = await wait_until_async(both, PATIENCE_S)
        assert plan["applied"] == [each["id"] for each in found]
        kinds = [(each["kind"], each["who"], each["why"]) for each in found]
        assert kinds == [("budget", "token", "a quiet night"), ("evacuate", "token", "a quiet night")], (
            "the limit first"
        )
        assert it.watcher.log.count == 1


async def test_a_group_is_deleted_once_it_has_no_members(zk_chroot: str) -> None:
    async with one_group(zk_chroot) as (it, group, _):
        path = "/api/groups/g/delete"
        found = await it.json(path, {}, Authorization=BEARER)
        as_described("/api/groups/{group}/delete", found, "post")
        assert (found["executed"], found["members_alive"]) == (False, ["worker-00@node-0#0"])
        refused = await it.request(path, {"confirm": "g"}, Authorization=BEARER)
        assert (refused.code, json.loads(refused.body)["error"]["retriable"]) == (409, True)
        assert (await it.request(path, {"confirm": "another"}, Authorization=BEARER)).code == 400
        await group.leave(0)
        found = await it.json(path, {"confirm": "g"}, Authorization=BEARER)
        as_described("/api/groups/{group}/delete", found, "post")
        assert (found["executed"], found["members_alive"], found["committed"]) == (True, [], None)
        assert await group.store.zk.exists(group.store.paths.base) is None
        await wait_until_async(lambda: "g" not in it.watcher.groups, PATIENCE_S)
        response = await it.request("/api/groups/g")
        assert response.code == 404
        as_described("/api/groups/{group}", json.loads(response.body), status="404")


async def test_events_have_the_whole_group_and_then_its_changes(zk_chroot: str) -> None:
    async with one_group(zk_chroot, 3) as (it, group, _):
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
            # the start of the group may be a rebalance too
            await wait_until_async(
                lambda: [each["why"] for each in last("rebalances") or ()][:1] == [["joined: worker-01@node-1#1"]],
                PATIENCE_S,
            )
            assert len(last("group")["members"]) == 2
        finally:
            client.close()
            stream.cancel()
            await asyncio.wait({stream})


async def test_offsets_and_lag_of_a_real_group_are_shown_sought_reset_and_copied(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, unique_name: Callable[[], str]
) -> None:
    topic = await asyncio.to_thread(topic_factory, 4)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"%d" % n, n % 4) for n in range(400)])
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    async with served(chroot, kafka_cluster.bootstrap) as it:

        async def post(what: str, body: Any, code: int = 200) -> Any:
            response = await it.request(f"/api/groups/{group}/{what}", body, Authorization=BEARER)
            found = json.loads(response.body)
            assert response.code == code, found
            if code == 200:
                as_described(f"/api/groups/{{group}}/{what}", found, "post")
            return found

        async def lag_is(records: int) -> bool:
            return bool((await it.json(f"/api/groups/{group}"))["lag"] == records)

        async with Consumer(
            topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=chroot, client_id="only"
        ) as consumer:
            read = 0
            while read < 400:
                read += len(await consumer.getbatch() or ())
            await consumer.commit()
            await it.settled(group, 1)
            await wait_until_async(partial(lag_is, 0), PATIENCE_S)
            as_described("/api/groups/{group}", await it.json(f"/api/groups/{group}"))
            offsets = await it.json(f"/api/groups/{group}/partitions")
            as_described("/api/groups/{group}/partitions", offsets)
            assert [(each["committed"], each["client_id"]) for each in offsets["partitions"]] == [(100, "only")] * 4
            samples = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families((await it.request("/metrics")).body.decode())
                for sample in family.samples
            }
            assert samples["allocator_group_lag", group, topic] == 0
            assert samples["allocator_group_committed_offsets", group, topic] == 400
            assert samples["allocator_cluster_up", "kafka"] == 1

            before = consumer.assignment()
            assert (await post("rebalance", {}))["asked"]
            await it.settled(group, 2)
            last = (await it.json(f"/api/groups/{group}"))["rebalances"][0]
            assert (last["moved"], last["why"]) == (0, ["computed again with the same members and topics"])
            assert consumer.assignment() == before

            seek = {"kind": "seek", "arguments": {"partitions": {topic: "0-1"}, "to": "timestamp:1"}}
            seen = await post("commands/preview", seek)
            assert [(each["committed"], each["log_end"], each["to"]) for each in seen["partitions"]] == [
                (100, 100, 0)
            ] * 2

            async def done(id_: str) -> Any:
                (command,) = (await it.json(f"/api/groups/{group}"))["commands"] or [{"id": ""}]
                return command if command["id"] == id_ and command["state"] == "done" else None

            for to, what in (("timestamp:1", "sought to 0 from 100"), ("100", "sought to 100 from 0")):
                seek["arguments"] = {"partitions": {topic: "0-1"}, "to": to}
                command = await wait_until_async(
                    partial(done, (await post("commands/put", seek))["command"]), PATIENCE_S, what
                )
                assert {result["what"] for result in command["results"]} == {what}
            plan = await post("plan", {"add": ["another"]})
            assert (len(plan["moves"]), plan["members"][0]["lag_before"]) == (2, 0), "with brokers it knows the lag"
            refused = await post("offsets/reset", {"to": "earliest", "confirm": group}, 409)
            assert "has members" in refused["error"]["message"]

        plan = await post("offsets/reset", {"to": "shift:-30"})
        assert (plan["executed"], {(each["from"], each["to"]) for each in plan["partitions"]}) == (False, {(100, 70)})
        other = unique_name()
        for wrong in ({"to": group}, {"to": "a/b"}, {"to": other, "confirm": group}, {}):
            await post("offsets/copy", wrong, 400)
        for before_copy in (None, 100):
            plan = await post("offsets/copy", {"to": other})
            assert [(each["from"], each["to"]) for each in plan["partitions"]] == [(before_copy, 100)] * 4
            assert (await post("offsets/copy", {"to": other, "confirm": other}))["executed"]
        for wrong in ({"to": "earliest", "confirm": "another"}, {"to": "soon"}):
            await post("offsets/reset", wrong, 400)
        assert (await post("offsets/reset", {"to": "earliest", "confirm": group}))["executed"]
        await wait_until_async(partial(lag_is, 400), PATIENCE_S)
        gone = await post("delete", {"confirm": group})
        assert (gone["executed"], gone["committed"], gone["offsets_stay"]) == (True, 4, "")
        await wait_until_async(lambda: group not in it.watcher.groups, PATIENCE_S)


async def test_a_paused_group_has_no_members_until_it_is_resumed(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, unique_name: Callable[[], str]
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    async with (
        served(chroot, kafka_cluster.bootstrap) as it,
        SwitchingConsumer(topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=chroot) as consumer,
    ):

        async def shown(paused: bool, members: int) -> None:
            async def so() -> bool:
                await consumer.getbatch(0.05)  # the consumer follows the setting here
                found = await it.json(f"/api/groups/{group}")
                return "error" not in found and (found["paused"], len(found["members"])) == (paused, members)

            await wait_until_async(so, PATIENCE_S, f"paused: {paused}, {members} members")

        async def post(what: str, body: Any) -> Any:
            done = await it.json(f"/api/groups/{group}/{what}", body, Authorization=BEARER)
            as_described(f"/api/groups/{{group}}/{what}", done, "post")
            return done

        await shown(paused=False, members=1)
        await post("pause", {})
        await shown(paused=True, members=0)
        assert (await post("offsets/reset", {"to": "earliest"}))["members_alive"] == [], "now offsets can be moved"
        await post("resume", {})
        await shown(paused=False, members=1)
        assert (await it.request(f"/api/groups/{group}/pause", {"for": 3}, Authorization=BEARER)).code == 400


async def test_it_is_not_ready_while_zookeeper_does_not_respond() -> None:
    async with served("127.0.0.1:1") as it:
        assert (await it.request("/health/live")).code == 200
        response = await it.request("/health/ready")
        assert response.code == 503
        as_described("/health/ready", json.loads(response.body), status="503")
        assert (await it.request("/health/ready", method="HEAD")).code == 503
        await wait_until_async(lambda: "zookeeper" in it.watcher.problems, PATIENCE_S)
        assert "zookeeper does not respond" in (await it.json("/api/groups"))["problems"][0]

"""KafkaClient against a broker with scripted faults."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import FetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from allocator.core.client import pool
from allocator.core.client.client import KafkaClient
from allocator.errors import BrokerError, BrokersUnavailable, Closed
from allocator.testing import wait_until_async
from tests.client.fake_broker import HANG_UP, MODERN, SILENT, FakeBroker, find
from tests.client.fake_proxy import FakeProxy
from tests.constants import SetConstant

# ApiVersions, ListGroups (to which 0.9 would respond) and Metadata
SILENT_BROKER = dict.fromkeys((18, 16, 3), lambda _: SILENT)


# -- connecting -------------------------------------------------------------------------------------------------------


async def test_the_port_of_a_controller_is_named() -> None:
    without_metadata = {key: versions for key, versions in MODERN.items() if key != 3}
    async with FakeBroker(versions=without_metadata) as controller:
        with pytest.raises(BrokersUnavailable, match="port of a KRaft controller; use the address of a broker"):
            await KafkaClient(controller.address).connect(1.0)


async def test_an_ipv6_address_has_brackets(unused_port: int) -> None:
    client = KafkaClient(f"[::1]:{unused_port}")
    assert f"[::1]:{unused_port}" in repr(client)
    with pytest.raises(BrokersUnavailable, match=rf" \[::1\]:{unused_port} "):
        await client.connect(1.0)


async def test_a_wrong_address_is_named_within_the_timeout_and_not_logged(
    unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = KafkaClient(f"127.0.0.1:{unused_port}")
    start = time.monotonic()
    with pytest.raises(BrokersUnavailable, match=f"127.0.0.1:{unused_port}.*[Rr]efused|Connect call failed") as caught:
        await client.connect(0.5)
    assert time.monotonic() - start < 30
    assert caught.value.retriable
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    async with FakeBroker(port=unused_port):
        await client.connect(30)
        await client.close()


async def test_a_broker_that_never_responds_is_named() -> None:
    async with FakeBroker(SILENT_BROKER) as broker:
        with pytest.raises(BrokersUnavailable, match=f"{broker.address} .no response"):
            await KafkaClient(broker.address).connect(1.5)


async def test_a_silent_address_leaves_time_for_the_others() -> None:
    async with FakeBroker(SILENT_BROKER) as silent, FakeBroker() as broker:
        client = KafkaClient([silent.address, broker.address])
        await client.connect(4)
        assert [b.port for b in client.brokers] == [broker.port]
        await client.close()


@contextlib.contextmanager
def dropping(port: int) -> Iterator[str]:
    """An address on which the system answers no more connections, because the queue of the listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_name_whose_first_address_drops_packets_is_connected(
    monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        pytest.skip("uvloop tries one address after the other")
    if loop.get_task_factory() is not None and sys.version_info < (3, 13, 1):
        pytest.skip("with --eager, one address is tried after the other before Python 3.13.1")
    found = socket.getaddrinfo

    def resolved(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "two.test":
            return found(host, port, *args, **kwargs)
        return [each for address in ("127.0.0.2", "127.0.0.1") for each in found(address, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    async with FakeBroker() as broker, FakeProxy() as proxy:
        security = {"proxy_url": f"http://two.test:{proxy.port}"} if proxied else {}
        broker.host = "127.0.0.1" if proxied else "two.test"
        with dropping(proxy.port if proxied else broker.port):
            client = KafkaClient(f"{broker.host}:{broker.port}", security=security)
            await client.connect(20)
            await client.send_any(find())
            await client.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")
@pytest.mark.parametrize("proxied", [False, True])
async def test_a_client_connects_where_tasks_start_eagerly(proxied: bool) -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
    async with FakeBroker() as broker, FakeProxy() as proxy:
        security = {"proxy_url": f"http://127.0.0.1:{proxy.port}"} if proxied else {}
        client = KafkaClient(f"127.0.0.1:{broker.port}", security=security)
        await client.connect(5)
        await client.send_any(find())
        await client.close()


async def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    before = len(asyncio.all_tasks())
    async with FakeBroker(SILENT_BROKER) as broker:
        client = KafkaClient(broker.address)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.connect(30), 0.3)
    assert len(asyncio.all_tasks()) <= before


async def test_a_client_that_is_not_connected_raises_closed() -> None:
    client = KafkaClient("h:1")
    with pytest.raises(Closed, match="connect"):
        await client.send(1, find())
    assert client.broker_version == ()
    await client.close()
    with pytest.raises(Closed, match="create another one"):
        await client.connect()


# -- versions ---------------------------------------------------------------------------------------------------------


async def test_a_dying_broker_is_not_taken_for_an_old_one() -> None:
    async with FakeBroker({18: lambda _: HANG_UP, 3: lambda _: HANG_UP}) as broker:
        with pytest.raises(BrokersUnavailable, match="closed the connection"):
            await KafkaClient(broker.address).connect(0.5)


async def test_a_broker_that_starts_late_is_not_taken_for_an_old_one() -> None:
    broker = FakeBroker()
    modern = broker.handlers[18]
    broker.handlers[18] = lambda request: HANG_UP if broker.connections < 2 else modern(request)
    async with broker, KafkaClient(broker.address) as client:
        assert client.broker_version >= (0, 10)


async def test_a_slow_broker_is_not_taken_for_an_old_one(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker() as broker:
        broker.delay_s = 1.2
        async with KafkaClient(broker.address) as client:
            assert client.broker_version >= (0, 10)
            assert (await client.send(1, find())).error_code == 0
            assert " is Kafka " not in caplog.text
            assert broker.count(18) == 1, "the connection was not closed"


def kafka_0_9(list_groups: Any) -> FakeBroker:
    """Ignores ApiVersions, and the version of ListOffsets as 0.8 does."""
    return FakeBroker({18: lambda _: SILENT, 16: list_groups}, versions=None)


def no_offsets(request: Any) -> Any:
    return OffsetFetchResponse(topics=[], version=request.API_VERSION)


def no_groups(request: Any) -> Any:
    return ListGroupsResponse(error_code=0, groups=[], version=request.API_VERSION)


async def test_0_9_is_detected_by_its_response_to_the_next_request(caplog: pytest.LogCaptureFixture) -> None:
    requests: list[Any] = []

    def lost_once(request: Any) -> Any:
        requests.append(request)
        return no_groups(request) if len(requests) > 1 else SILENT

    async with kafka_0_9(lost_once) as broker, KafkaClient(broker.address) as client:
        assert client.broker_version == (0, 9)
        warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert [f"{broker.address} is Kafka 0.9: " in text for text in warnings] == [True]
        await client.prepare(1, FetchRequest)
        assert broker.count(18) == 1, "a further connection does not disturb other clients of 0.9"


async def test_0_8_1_is_detected_even_if_that_takes_longer_than_an_attempt_to_connect() -> None:
    """Connections that an impatient caller opened meanwhile fail, and do not discard the detected version."""
    broker = FakeBroker({10: lambda _: HANG_UP, 9: no_offsets}, versions=None)
    broker.delay_s = 0.4
    async with broker:
        client = KafkaClient([broker.address] * 40)  # each address gets a part of the timeout
        await client.connect(20)
        assert client.broker_version == (0, 8, 1)
        assert client.api_version(FindCoordinatorRequest) is None
        with pytest.raises(BrokerError, match="FindCoordinator") as caught:
            await client.send(1, find())
        assert not caught.value.retriable
        await client.close()


@pytest.mark.parametrize("silent", [True, False], ids=["0.9", "0.8"])
async def test_the_version_of_an_upgraded_broker_is_detected_again(silent: bool, unused_port: int) -> None:
    old = kafka_0_9(no_groups) if silent else FakeBroker(versions=None)
    old.port = unused_port
    async with old:
        client = KafkaClient(old.address)
        await client.connect(60)
        assert client.broker_version < (0, 10)
        await client.send(1, find())
    async with FakeBroker(port=unused_port):

        async def modern() -> bool:
            try:
                await client.send(1, find(), 30)
            except BrokerError:
                return False
            return client.broker_version >= (0, 10)

        await wait_until_async(modern, 30)
        assert client.api_version(FetchRequest) == 12
        await client.close()


async def test_all_topics_are_requested_if_a_name_would_create_one() -> None:
    async with FakeBroker(versions={3: (0, 3), 18: (0, 0)}) as broker, KafkaClient(broker.address) as client:
        broker.topics = {"there": [1]}
        await client.refresh(["there", "missing"])
        assert all(r.topics is None for r in broker.seen if r.API_KEY == 3)
        assert client.partitions("there") == (0,)
        assert client.partitions("missing") is None


async def test_metadata_requests_forbid_newer_brokers_to_create_topics() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        await client.refresh(["missing"])
        last = [r for r in broker.seen if r.API_KEY == 3][-1]
        assert [t.name for t in last.topics] == ["missing"]
        assert last.allow_auto_topic_creation is False


# -- metadata ---------------------------------------------------------------------------------------------------------


async def test_metadata_of_a_broker_that_just_started_erases_no_broker() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        broker.lists_itself = False
        with pytest.raises(BrokersUnavailable, match="just started"):
            await client.refresh()
        assert len(client.brokers) == 1
        broker.lists_itself = True
        await client.refresh()


async def test_a_refresh_waits_for_a_request_after_the_call_which_callers_share() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        metadata, go_on, before = broker.handlers[3], asyncio.Event(), broker.count(3)

        async def late(request: Any) -> Any:
            response = metadata(request)
            await go_on.wait()
            return response

        broker.handlers[3] = late
        first = asyncio.ensure_future(client.refresh(["t"]))
        await wait_until_async(lambda: broker.count(3) > before, 30, "the first request")
        broker.topics["t"] = [1]
        cancelled, second, third = (asyncio.ensure_future(client.refresh(["t"])) for _ in range(3))
        await asyncio.sleep(0)
        cancelled.cancel()
        go_on.set()
        await asyncio.gather(first, second, third)
        assert client.partitions("t") == (0,)
        assert broker.count(3) == before + 2


async def test_listeners_are_called_on_changes_until_they_unregister() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        calls: list[str] = []
        client.on_metadata(lambda: 1 / 0)
        unregister = client.on_metadata(lambda: calls.append("changed"))
        broker.topics["t"] = [1]
        for _ in range(2):  # the second response has no change
            await client.refresh(["t"])
        assert calls == ["changed"]
        unregister()
        unregister()
        broker.topics["t"] = [1, 1]
        await client.refresh(["t"])
        assert calls == ["changed"]


async def test_a_broker_that_moved_is_found_through_the_bootstrap_addresses() -> None:
    async with FakeBroker() as entry:
        async with FakeBroker() as home:
            entry.handlers[3] = home.handlers[3]
            client = KafkaClient(entry.address)
            await client.connect(5)
            assert [b.port for b in client.brokers] == [home.port]
            await client.send(1, find())
        async with FakeBroker() as home:
            entry.handlers[3] = home.handlers[3]
            await wait_until_async(lambda: [b.port for b in client.brokers] == [home.port], 30)
            assert (await client.send(1, find())).error_code == 0
            await client.close()


# -- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_to_an_unknown_node_is_retriable() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        with pytest.raises(BrokerError, match="broker 7") as caught:
            await client.send(7, find())
        assert (caught.value.retriable, caught.value.code) == (True, None)


async def test_a_late_response_is_an_error_and_the_next_request_works() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        with broker.responding(10, SILENT), pytest.raises(BrokerError) as caught:
            await client.send(1, find(), 0.1)
        assert (caught.value.retriable, caught.value.code) == (True, None)
        assert (await client.send(1, find())).error_code == 0


async def test_the_end_of_a_connection_fails_its_requests() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        with broker.responding(10, HANG_UP):
            results = await asyncio.gather(*(client.send(1, find()) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(r, BrokerError) and r.retriable for r in results)
        assert broker.address in str(results[0])
        assert (await client.send(1, find())).error_code == 0


async def test_a_cancelled_request_leaves_the_connection_to_the_others() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        go_on = broker.hold(10)
        first = asyncio.ensure_future(client.send(1, find()))
        second = asyncio.ensure_future(client.send(1, find()))
        await wait_until_async(lambda: broker.count(10) == 1)
        connections = broker.connections
        first.cancel()
        go_on.set()
        assert (await second).error_code == 0
        assert broker.connections == connections
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_waiting_fetch_delays_no_other_request() -> None:
    reached = asyncio.Event()
    async with FakeBroker({1: lambda _: reached.set() or SILENT}) as broker, KafkaClient(broker.address) as client:
        request = FetchRequest(replica_id=-1, max_wait_ms=1, min_bytes=1, max_bytes=1, topics=[], max_version=12)
        fetching = asyncio.ensure_future(client.send(1, request))
        await asyncio.wait_for(reached.wait(), 30)
        assert (await client.send(1, find(), 5)).error_code == 0
        await client.refresh()
        assert not fetching.done()
    with pytest.raises(Closed):
        await fetching


async def test_a_request_that_0_9_lost_is_sent_again() -> None:
    """0.9 drops requests that it read together with the ApiVersions request of another client."""
    async with kafka_0_9(no_groups) as broker, KafkaClient(broker.address) as client:
        find_coordinator = broker.handlers[10]

        def lost(request: Any) -> Any:
            broker.handlers[10] = find_coordinator
            return SILENT

        broker.handlers[10] = lost
        assert (await client.send(1, find(), 60.0)).error_code == 0


async def test_connections_to_the_old_address_of_a_broker_are_closed() -> None:
    """This includes the second connection for fetches, whose key has two lanes."""
    async with FakeBroker() as old, FakeBroker() as new, KafkaClient(old.address) as client:
        await client.prepare(("urgent", 1), FetchRequest)  # type: ignore[arg-type]
        old.port = new.port  # in its metadata
        await client.refresh()
        before = new.connections
        await client.prepare(("urgent", 1), FetchRequest)  # type: ignore[arg-type]
        assert new.connections == before + 1


async def test_a_connection_with_a_request_in_flight_is_not_idle(set_constant: SetConstant) -> None:
    set_constant(pool, MAX_IDLE_S=0.3)
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        go_on = broker.hold(10)
        waiting = asyncio.ensure_future(client.send(1, find(), 60))
        await wait_until_async(lambda: broker.count(10) == 1)
        before = broker.connections

        async def others_are_closed() -> bool:
            await client.prepare(1, FetchRequest)
            return broker.connections > before + 3

        await wait_until_async(others_are_closed, 60)
        go_on.set()
        assert (await waiting).error_code == 0


async def test_a_response_over_the_limit_closes_the_connection() -> None:
    async with FakeBroker() as broker:
        client = KafkaClient(broker.address, receive_max_bytes=300)
        await client.connect(5)
        broker.topics = {"t": [1] * 100}
        with pytest.raises(BrokerError, match="a frame of"):
            await client.send(1, MetadataRequest(topics=None, max_version=8))
        await client.close()


async def test_close_ends_waiting_requests_and_every_task() -> None:
    before = len(asyncio.all_tasks())
    broker = FakeBroker({10: lambda _: SILENT})
    async with broker:
        client = KafkaClient(broker.address)
        await client.connect(5)
        waiting = asyncio.ensure_future(client.send(1, find()))
        await wait_until_async(lambda: broker.count(10) == 1)
        await client.close()
        for call in (waiting, client.send(1, find()), client.refresh()):
            with pytest.raises(Closed):
                await call
        await client.close()
    assert len(asyncio.all_tasks()) <= before


async def test_a_request_for_any_broker_goes_to_one_that_is_up() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        client.note_broker(9, "127.0.0.1", 1)
        assert (await client.send_any(find())).node_id == 1
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"):
            await client.send(9, find())

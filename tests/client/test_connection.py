"""One connection to a broker: order of writes, throttling, expiring authentication."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from allocator.core.client.client import KafkaClient
from allocator.core.client.connection import BrokerConnection, ConnectionSettings
from allocator.core.client.errors import ConnectionFailed
from allocator.core.client.metadata import Broker
from allocator.core.client.pool import ConnectionPool, Directory
from allocator.errors import BrokerError
from allocator.testing import wait_until_async
from tests.background import background
from tests.client.fake_broker import FakeBroker, find, sasl_handlers

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": "p",
}


def connections_of(client: KafkaClient) -> list[BrokerConnection]:
    """The open connections of a client to the only broker."""
    assert client._pool is not None
    return [each for each in client._pool._connections.values() if each.connected]


SETTINGS = ConnectionSettings(client_id="test", request_timeout_s=30, receive_max_bytes=1 << 20, security={}, tls=None)


async def test_requests_that_waited_for_a_full_socket_are_written_first() -> None:
    """A broker refuses batches of a producer that arrive out of order."""
    connection, order = BrokerConnection(Broker(1, "broker", 9092, None), SETTINGS, None), []

    async def write(number: int) -> None:
        await connection.drained()
        order.append(number)

    async with background() as tasks:
        connection.pause_writing()
        waiting = [tasks.start(write(number), f"{number}") for number in (1, 2, 3)]
        await asyncio.sleep(0)  # all requests are waiting
        tasks.cancel(waiting[1])
        connection.resume_writing()
        waiting.append(tasks.start(write(4), "4"))
        await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [1, 3, 4]


async def test_no_request_overtakes_those_that_waited_for_a_full_socket() -> None:
    """Each of them got a task of its own after its wait, and a new request was written before that task ran."""
    async with FakeBroker() as broker, KafkaClient(broker.address) as client, KafkaClient(broker.address) as other:
        arrived, find_coordinator = [], broker.handlers[10]

        def note(request: Any) -> Any:
            arrived.append(request.key)
            return find_coordinator(request)

        await client.send(1, find())
        broker.handlers[10] = note
        (connection,) = connections_of(client)
        loop = asyncio.get_running_loop()
        for later in range(10):  # iterations of the loop
            arrived.clear()
            connection.pause_writing()
            sent = [asyncio.ensure_future(client.send(1, find(f"{n}"))) for n in range(2)]
            await other.send(1, find("other"))
            assert arrived == ["other"]
            arrived.clear()

            def start(left: int, sent: list[Any] = sent) -> None:
                if left:
                    loop.call_soon(start, left - 1)
                else:
                    sent.append(loop.create_task(client.send(1, find("2"))))

            start(later)
            connection.resume_writing()
            await wait_until_async(lambda sent=sent: len(sent) == 3, 10, "the last request")
            await asyncio.gather(*sent)
            assert arrived == ["0", "1", "2"], later


async def test_a_request_does_not_wait_for_a_connection_that_ended_as_it_became_ready() -> None:
    async with FakeBroker() as broker:
        pool = ConnectionPool(Directory([Broker(1, broker.host, broker.port, None)]), SETTINGS, lambda: None)
        connection = pool.get(1)
        connection.ready.add_done_callback(lambda _: connection.close())
        with pytest.raises(ConnectionFailed, match="connection closed"):
            await asyncio.wait_for(pool.connected(1, time.monotonic() + 30), 5)
        await pool.aclose()


async def test_a_throttled_client_sends_nothing_until_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        find_coordinator = broker.handlers[10]

        def throttle(request: Any) -> Any:
            response = find_coordinator(request)
            response.throttle_time_ms = 300
            return response

        broker.handlers[10] = throttle
        await client.send(1, find())
        began = time.monotonic()
        await client.send(1, find())
        assert time.monotonic() - began >= 0.25
        await client.send(1, find())
        warnings = [record for record in caplog.records if "throttles this client" in record.getMessage()]
        assert len([record for record in warnings if record.levelname == "WARNING"]) == 1


async def test_an_absurd_throttle_time_stops_a_client_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, real = [0.0], time.monotonic
    async with FakeBroker() as broker, KafkaClient(broker.address) as client:
        find_coordinator = broker.handlers[10]

        def throttle(request: Any) -> Any:
            response = find_coordinator(request)
            response.throttle_time_ms = 2**31 - 1
            broker.handlers[10] = find_coordinator
            return response

        broker.handlers[10] = throttle
        await client.send(1, find())
        monkeypatch.setattr("time.monotonic", lambda: real() + ahead[0])
        ahead[0] = 29
        with pytest.raises(BrokerError, match="no time left"):
            await client.send(1, find(), timeout_s=0.1)
        ahead[0] = 31
        assert (await client.send(1, find(), timeout_s=20)).error_code == 0


async def test_a_pause_of_the_process_does_not_count_as_silence_of_the_broker() -> None:
    async with FakeBroker() as broker, KafkaClient(broker.address, request_timeout_s=1.0) as client:
        await client.send(1, find())
        connections, find_coordinator = broker.connections, broker.handlers[10]

        async def pause(request: Any) -> Any:
            time.sleep(1.3)  # noqa: ASYNC251  also the client, which is in this process
            await asyncio.sleep(0.05)  # the client wakes up before the response arrives
            return find_coordinator(request)

        broker.handlers[10] = pause
        await client.send(1, find())
        assert broker.connections == connections


async def test_a_request_times_out_while_the_broker_does_not_authenticate_again() -> None:
    """The request was not sent, so the connection remains usable."""
    again, go_on = asyncio.Event(), asyncio.Event()
    handlers = sasl_handlers("PLAIN", lambda request: {"session_lifetime_ms": 0 if go_on.is_set() else 1000})
    shake = handlers[17]

    async def shake_late(request: Any) -> Any:
        if broker.count(17) > 2 or broker.count(36) > 1:
            again.set()
            await go_on.wait()
        return shake(request)

    broker = FakeBroker({**handlers, 17: shake_late})
    async with broker, KafkaClient(broker.address, security=SASL) as client:
        await client.send(1, find())
        connections = broker.connections
        await asyncio.wait_for(again.wait(), 30)
        later = asyncio.ensure_future(client.send(1, find()))
        began = time.monotonic()
        with pytest.raises(BrokerError, match="authenticating again"):
            await client.send(1, find(), 0.5)
        assert time.monotonic() - began < 15
        go_on.set()
        await later
        assert broker.connections == connections


async def test_a_refused_renewal_ends_the_connection_and_the_next_request_opens_another() -> None:
    refused = asyncio.Event()

    def authenticate(request: Any) -> dict[str, Any]:
        refuse = broker.count(36) in (3, 4)  # the first two authenticate the bootstrap connection and that of broker 1
        if refuse:
            refused.set()
        return {"error_code": 58 if refuse else 0, "session_lifetime_ms": 1000}

    broker = FakeBroker(sasl_handlers("PLAIN", authenticate))
    async with broker, KafkaClient(broker.address, security=SASL) as client:
        await client.send(1, find())
        before = broker.connections
        await asyncio.wait_for(refused.wait(), 30)

        async def reconnected() -> bool:
            with contextlib.suppress(BrokerError):
                await client.send(1, find())
            return broker.connections > before

        await wait_until_async(reconnected, 30)


async def test_version_detection_falls_back_to_the_versions_that_the_broker_has() -> None:
    async with FakeBroker() as broker:
        api_versions = broker.handlers[18]

        def knows_v0(request: Any) -> Any:
            if request.API_VERSION == 0:
                return api_versions(request)
            keys = [ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=0)]
            return ApiVersionsResponse(error_code=35, api_keys=keys, version=0)

        broker.handlers[18] = knows_v0
        async with KafkaClient(broker.address) as client:
            await client.send(1, find())
        versions = [seen.API_VERSION for seen in broker.seen if isinstance(seen, ApiVersionsRequest)]
        assert versions[:2] == [ApiVersionsRequest.max_version, 0]

"""Connections to a broker through an HTTP or SOCKS 5 proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Optional

import pytest
from fake_broker import FakeBroker
from kafka.protocol.metadata import FindCoordinatorRequest

from allocator.client.client import KafkaClient
from allocator.client.security import check_security
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.testing import wait_until_async


class FakeProxy:
    """An HTTP CONNECT and SOCKS 5 proxy, with a login if `login` is given.

    `refusal`: its HTTP status, or its SOCKS code. `silent`: it answers nothing. `bound`: what it says of its own end.
    """

    def __init__(self, login: tuple[str, str] | None = None) -> None:
        self.login = login
        self.refusal: Any = None
        self.silent = False
        self.bound = b"\x01" + socket.inet_aton("127.0.0.1") + b"\0\x07"
        self.targets: list[str] = []
        self.open = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> FakeProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                if self.silent:
                    await reader.read()
                    return
                first = await reader.readexactly(1)
                target = await (self._socks if first == b"\x05" else self._http)(reader, writer)
                if target is not None:
                    self.targets.append(f"{target[0]}:{target[1]}")
                    onward_reader, onward_writer = await asyncio.open_connection(*target)
                    await asyncio.gather(_pipe(reader, onward_writer), _pipe(onward_reader, writer))
        finally:
            self.open -= 1
            writer.close()

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.login is not None:
            wanted = base64.b64encode(":".join(self.login).encode()).decode()
            if f"Proxy-Authorization: Basic {wanted}\r\n" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return None
        if self.refusal is not None:
            writer.write(f"HTTP/1.1 {self.refusal}\r\n\r\n".encode())
            return None
        # in two pieces, with a header
        writer.write(b"HTTP/1.1 200 Connection est")
        await writer.drain()
        writer.write(b"ablished\r\nVia: 1.1 fake\r\n\r\n")
        host, port = head.split()[1].rsplit(":", 1)
        return host.strip("[]"), int(port)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        wanted = 0 if self.login is None else 2
        if wanted not in methods:
            writer.write(b"\x05\xff")
            return None
        writer.write(bytes([5, wanted]))
        if self.login is not None:
            assert await reader.readexactly(1) == b"\x01"
            given = [(await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)]
            writer.write(b"\x01\x00" if tuple(given) == self.login else b"\x01\x01")
            if tuple(given) != self.login:
                return None
        assert await reader.readexactly(3) == b"\x05\x01\x00"
        kind = (await reader.readexactly(1))[0]
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            family, size = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, await reader.readexactly(size))
        (port,) = struct.unpack(">H", await reader.readexactly(2))
        writer.write(bytes([5, self.refusal or 0, 0]) + self.bound)
        return None if self.refusal else (host, port)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def broker_behind(login: tuple[str, str] | None = None) -> AsyncIterator[tuple[FakeBroker, FakeProxy]]:
    async with FakeBroker() as broker, FakeProxy(login) as proxy:
        broker.host = "localhost"
        yield broker, proxy


def url(scheme: str, proxy: FakeProxy, login: str = "") -> dict[str, str]:
    return {"proxy_url": f"{scheme}://{login}127.0.0.1:{proxy.port}"}


async def first_error(security: dict[str, str], timeout_s: float = 30.0) -> str:
    with pytest.raises(BrokersUnavailable) as caught:
        await KafkaClient("localhost:9", security=security).connect(timeout_s)
    return str(caught.value)


SCHEMES = ["http", "socks5", "socks5h"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_requests_go_through_the_proxy(scheme: str) -> None:
    async with broker_behind() as (broker, proxy):
        async with KafkaClient(f"localhost:{broker.port}", security=url(scheme, proxy)) as client:
            answer = await client.send(1, FindCoordinatorRequest(key="g", max_version=3))
            assert answer.error_code == 0
        # the proxy resolves names, but with "socks5" this process does
        hosts = {"127.0.0.1", "::1"} if scheme == "socks5" else {"localhost"}
        assert {target.rpartition(":")[0] for target in proxy.targets} <= hosts
        assert proxy.targets
        await wait_until_async(lambda: proxy.open == 0, 30, "the connections to the proxy are closed")


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_login_is_decoded_from_the_url(scheme: str) -> None:
    async with broker_behind(login=("ada", "p@ss:wört")) as (broker, proxy):
        security = url(scheme, proxy, "ada:p%40ss%3Aw%C3%B6rt@")
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            assert client.broker_version


@pytest.mark.parametrize(
    "bound", [b"\x03\x05proxy\0\x07", b"\x04" + bytes(16) + b"\0\x07"], ids=["a name", "an IPv6 address"]
)
async def test_what_a_socks_proxy_says_of_its_end_does_not_matter(bound: bytes) -> None:
    async with broker_behind() as (broker, proxy):
        proxy.bound = bound
        async with KafkaClient(f"localhost:{broker.port}", security=url("socks5h", proxy)) as client:
            assert client.broker_version


@pytest.mark.parametrize(
    ("scheme", "login", "prepare", "message"),
    [
        (
            "http",
            "",
            lambda proxy: setattr(proxy, "refusal", "403 Forbidden"),
            "does not connect to localhost:9: .*403",
        ),
        ("socks5h", "", lambda proxy: setattr(proxy, "refusal", 2), "localhost:9: not allowed by its rules"),
        ("socks5h", "", lambda proxy: setattr(proxy, "refusal", 77), "localhost:9: error 77"),
        ("socks5", "", lambda proxy: setattr(proxy, "refusal", 5), "127.0.0.1:9: connection refused"),
        ("http", "ada:wrong@", lambda proxy: setattr(proxy, "login", ("ada", "right")), "407"),
        (
            "socks5",
            "ada:wrong@",
            lambda proxy: setattr(proxy, "login", ("ada", "right")),
            "refuses the user or the pass",
        ),
        ("socks5", "", lambda proxy: setattr(proxy, "login", ("ada", "right")), "wants a login"),
    ],
)
async def test_a_refusal_names_the_proxy_and_the_reason(
    scheme: str, login: str, prepare: Callable[[FakeProxy], None], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeProxy() as proxy:
        prepare(proxy)
        with caplog.at_level(1), pytest.raises(BrokersUnavailable, match=message) as caught:
            await KafkaClient("localhost:9", security=url(scheme, proxy, login)).connect(2.0)
        assert f"proxy {scheme}://127.0.0.1:{proxy.port}" in str(caught.value)
        assert "wrong" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_proxy_that_is_not_there_is_named(scheme: str) -> None:
    async with FakeProxy() as proxy:
        pass
    assert f"proxy {scheme}://127.0.0.1:{proxy.port} fails: Connection refused" in await first_error(
        url(scheme, proxy), 1.0
    )


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_silent_proxy_keeps_no_socket(scheme: str) -> None:
    async with FakeProxy() as proxy:
        proxy.silent = True
        assert "no answer within" in await first_error(url(scheme, proxy), 1.0)
        await wait_until_async(lambda: proxy.open == 0, 30, "the connections to the proxy are closed")


WRONG = ["ftp://u:s3cret@p:1", "p:3128", "http://u:s3cret@p", "socks5://:1", "http://u:s3cret@p:x", 5, ""]


@pytest.mark.parametrize("given", WRONG)
def test_a_wrong_url_is_refused_before_the_first_connection(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"proxy_url is not a proxy's URL.*socks5h://") as caught:
        check_security({"proxy_url": given})
    assert "s3cret" not in str(caught.value)


def test_no_proxy_is_no_fault() -> None:
    unset: Optional[str] = None
    assert check_security({"proxy_url": unset}) == {"proxy_url": None}
